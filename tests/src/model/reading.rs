//! Reads across both tiers, and the look at a whole partition.

use std::{collections::BTreeSet, fmt, time::Duration};

use tidelog_core::read_plan::Isolation;
use tidelog_format::batch::{BatchLimits, RawBatch, split_batches};
use tidelog_replica::{ColdError, Fetched, PartitionHandle, ReadError};
use tidelog_types::Offset;

use super::workload::{Kind, World, lock, note};

/// How long one cold read may take.
const COLD: Duration = Duration::from_secs(5);

/// Tries of a look at one place, a second apart, before it counts as unreadable.
const TRIES: u32 = 40;

/// What one read gave.
enum Read {
    Batches {
        batches: Vec<RawBatch>,
        next: Offset,
        cold: bool,
    },
    AtEnd,
    /// To be asked again.
    Later(String),
    OutOfRange,
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batches { batches, next, cold } => {
                let from = if *cold { "the bucket" } else { "the log" };
                write!(f, "{} batches of {from}, on to {next}", batches.len())
            }
            Self::AtEnd => f.write_str("the end"),
            Self::Later(why) => write!(f, "later: {why}"),
            Self::OutOfRange => f.write_str("out of range"),
        }
    }
}

/// Reads once, from whichever tier has it.
async fn read(
    world: &World,
    handle: &PartitionHandle,
    from: Offset,
    bytes_max: usize,
) -> Result<Read, String> {
    let found = read_once(handle, from, bytes_max).await?;
    note(world, format_args!("{}: a read at {from}: {found}", handle.topic()));
    Ok(found)
}

async fn read_once(handle: &PartitionHandle, from: Offset, bytes_max: usize) -> Result<Read, String> {
    let (_, fetched) = handle.read(from, bytes_max, Isolation::ReadUncommitted, true, None).await;
    let (records, cold) = match fetched {
        Ok(Fetched::Hot(records)) => (Ok(records), false),
        Ok(Fetched::Cold { end }) => (handle.read_cold(from, end, bytes_max, true, COLD).await, true),
        Ok(Fetched::AtEnd) => return Ok(Read::AtEnd),
        Err(error) => (Err(error), false),
    };
    let records = match records {
        Ok(records) => records,
        Err(ReadError::OutOfRange { .. }) => return Ok(Read::OutOfRange),
        Err(
            error @ (ReadError::NotAvailable { .. }
            | ReadError::Leadership(_)
            | ReadError::Storage(_)
            | ReadError::Cold(
                ColdError::NotHeld { .. } | ColdError::Unavailable { .. } | ColdError::Damaged { .. },
            )),
        ) => return Ok(Read::Later(error.to_string())),
        Err(error) => return Err(format!("a read at {from}: {error}")),
    };
    let next = records.next;
    let mut batches = Vec::new();
    for batch in split_batches(records.chunks.concat().into(), &BatchLimits::log()) {
        batches.push(batch.map_err(|error| format!("I2: a read at {from} is no batch: {error}"))?);
    }
    Ok(Read::Batches { batches, next, cold })
}

/// Reads a part of a partition and compares; what cannot be read now is left.
pub(crate) async fn look(
    world: &World,
    kind: Kind,
    handle: &PartitionHandle,
    from: Offset,
    bytes_max: usize,
) -> Result<(), String> {
    let before = handle.snapshot();
    match read(world, handle, from, bytes_max).await? {
        Read::Batches { batches, next, cold } => {
            let mut locked = lock(world);
            if batches.is_empty() && next <= from {
                return Err(format!("I1: nothing is read at {from} below {}", before.high_watermark));
            }
            let Some(ledger) = locked.ledger(kind, handle.place().topic_id) else { return Ok(()) };
            let mut at = None;
            for batch in &batches {
                let (base, end, _) = ledger.read(batch)?;
                if at.map_or(base > from, |at| at != base) {
                    return Err(format!("I1: a read at {from} has a gap before {base}"));
                }
                at = Some(end);
            }
            locked.counts.add(if cold { "cold reads" } else { "hot reads" }, 1);
            locked.counts.add("batches compared", batches.len() as u64);
            Ok(())
        }
        Read::AtEnd if from < before.high_watermark => {
            Err(format!("I4: {from} is at the end, the high watermark was {}", before.high_watermark))
        }
        Read::OutOfRange if from >= handle.snapshot().log_start && !lock(world).is_going(kind) => {
            Err(format!("I1: {from} is out of range, the log start is {}", handle.snapshot().log_start))
        }
        Read::Later(_) => {
            lock(world).counts.add("reads put off", 1);
            Ok(())
        }
        Read::AtEnd | Read::OutOfRange => Ok(()),
    }
}

/// Reads everything of a partition, however often that must be tried, and compares it with all that was promised.
pub(crate) async fn look_at_all(
    world: &World,
    kind: Kind,
    handle: &PartitionHandle,
    sleep: impl AsyncFn(Duration),
) -> Result<(), String> {
    let name = handle.topic().to_string();
    let mut tries = 0;
    let (mut found, mut bytes, mut start, mut at) = (BTreeSet::new(), 0, Offset::ZERO, None);
    loop {
        // What the journal played is visible once it is synced again.
        let snapshot = handle.snapshot();
        let from = match at {
            Some(at) => at,
            None => {
                (start, at, bytes) = (snapshot.log_start, Some(snapshot.log_start), 0);
                found.clear();
                start
            }
        };
        if from >= snapshot.log_end && snapshot.high_watermark == snapshot.log_end {
            break;
        }
        if let Some(why) = handle.failure() {
            return Err(format!("I1: {name} is fenced: {why}"));
        }
        let again = match read(world, handle, from, 20_000).await? {
            Read::Batches { batches, next, .. } if next > from => {
                let mut locked = lock(world);
                let Some(ledger) = locked.ledger(kind, handle.place().topic_id) else { return Ok(()) };
                let mut expected = (!batches.is_empty()).then_some(from);
                for batch in &batches {
                    let (base, end, index) = ledger.read(batch).map_err(|why| format!("{name}: {why}"))?;
                    let fits = if expected == Some(start) { base <= start } else { Some(base) == expected };
                    if !fits {
                        return Err(format!("I1: {name} has a gap from {expected:?} to {base}"));
                    }
                    expected = Some(end);
                    bytes += batch.size() as u64;
                    // Read anew where a log start cut the batch.
                    if !found.insert(index) {
                        return Err(format!("I5: {name} has sequence {} twice", ledger.sent[index].sequence));
                    }
                }
                locked.counts.add("batches compared", batches.len() as u64);
                at = expected.or(Some(next));
                tries = 0;
                continue;
            }
            Read::Batches { .. } => "an empty answer".to_owned(),
            Read::OutOfRange => {
                // Retention went on, or the answer is wrong.
                at = None;
                "out of range".to_owned()
            }
            Read::AtEnd => "the end".to_owned(),
            Read::Later(why) => why,
        };
        tries += 1;
        if tries > TRIES {
            let snapshot = handle.snapshot();
            return Err(format!("I1, I3: {name} cannot be read at {from}: {again}; {snapshot:?}"));
        }
        sleep(Duration::from_secs(1)).await;
    }
    lock(world).compare(kind, handle, start, &found, bytes)
}
