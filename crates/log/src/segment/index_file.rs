//! The index file beside a segment's batches.
//!
//! It grows by whole entries at checkpoints and ends in a seal once the segment is sealed. A missing or damaged one is made
//! anew from the batches. Intervals carry the largest timestamp so far, so one file answers look-ups by time as well.

use std::{io, sync::Arc};

use bytes::Bytes;
use tidelog_format::segment::{EntryFile, FixedEntry, IndexEntry};
use tidelog_runtime::read_small;
use tidelog_types::Offset;

use super::{INDEX, Interval, LOG, Segment, rebuild};
use crate::{PartitionConfig, descriptors::Use, engine::Engine};

/// The largest index believed: a segment of 1 TiB in intervals of 32 KiB has one of 1.1 GiB.
const INDEX_BYTES_MAX: usize = 2 * 1024 * 1024 * 1024;

/// Bytes of an entry in the file, with its checksum.
const ENTRY_BYTES: usize = IndexEntry::BYTES + 4;

fn entries(intervals: &[Interval], from: usize, bytes: u64) -> Vec<IndexEntry> {
    let ends = intervals.iter().skip(from + 1).map(|next| next.position).chain([bytes]);
    let entry = |(interval, end): (&Interval, u64)| IndexEntry {
        base_offset: interval.offset,
        position: interval.position,
        bytes: u32::try_from(end - interval.position).unwrap_or(u32::MAX),
        max_timestamp: interval.max_timestamp,
        crc: interval.crc,
    };
    intervals.iter().skip(from).zip(ends).map(entry).collect()
}

fn file(segment: &Segment) -> EntryFile<IndexEntry> {
    EntryFile::new(segment.place, segment.base)
}

/// Writes the intervals behind the `saved` ones that the file holds, with `seal` the mark that none follow, and syncs it.
pub(crate) async fn save(
    engine: &Engine,
    segment: &Segment,
    intervals: &[Interval],
    saved: usize,
    seal: bool,
) -> io::Result<()> {
    let path = segment.path(INDEX);
    let format = file(segment);
    let entries = entries(intervals, saved, segment.content().bytes);
    let mut content = format.encode_entries(saved as u64, &entries);
    if seal {
        content.extend(format.encode_seal(intervals.len() as u64));
    }
    let (file, position) = if saved == 0 {
        content.splice(0..0, format.header().iter().copied());
        (engine.descriptors.create(&path).await?, 0)
    } else {
        (engine.descriptors.get(&path, Use::Write).await?, format.header().len() + saved * ENTRY_BYTES)
    };
    file.write_at(position as u64, vec![Bytes::from(content)]).await?;
    file.sync_data().await
}

/// Writes the whole index anew, in place of whatever is there.
pub(crate) async fn replace(
    engine: &Engine,
    segment: &Segment,
    intervals: &[Interval],
    sealed: bool,
) -> io::Result<()> {
    engine.descriptors.forget(&segment.path(INDEX));
    let format = file(segment);
    let entries = entries(intervals, 0, segment.content().bytes);
    let content = if sealed {
        format.encode_sealed(&entries)
    } else {
        [format.header(), &format.encode_entries(0, &entries)].concat()
    };
    let name = format!("{:020}.{INDEX}", segment.base);
    crate::files::write_aside(engine, &segment.folder, &name, Bytes::from(content)).await
}

/// Reads the index, and where its last interval ends; `None` where it is missing or not this segment's.
pub(crate) async fn load(engine: &Engine, segment: &Segment) -> io::Result<Option<rebuild::Trusted>> {
    let bytes = read_small(&*engine.disk, &segment.path(INDEX), INDEX_BYTES_MAX).await?;
    let Some(bytes) = bytes else { return Ok(None) };
    let decoded = match file(segment).decode(&bytes) {
        Ok(decoded) => decoded,
        Err(error) => {
            tracing::warn!(place = %segment.place, segment = %segment.base, %error, "index is not believed");
            return Ok(None);
        }
    };
    let end = decoded.entries.last().map_or(0, IndexEntry::end_position);
    let interval = |entry: &IndexEntry| Interval {
        offset: entry.base_offset,
        position: entry.position,
        crc: entry.crc,
        max_timestamp: entry.max_timestamp,
    };
    Ok(Some((decoded.entries.iter().map(interval).collect(), end)))
}

/// Reads a sealed segment's index, or makes it anew from the batches. `None` where these do not fill the file, or the segment
/// is removed.
pub(crate) async fn load_or_rebuild(
    engine: &Engine,
    segment: &Arc<Segment>,
) -> io::Result<Option<Vec<Interval>>> {
    // One repair at a time: several readers may want the same one.
    let _one = engine.repairs.lock().await;
    let (length, loaded, created) = {
        let content = segment.content();
        (content.bytes, content.intervals.clone(), content.created)
    };
    if loaded.is_some() {
        return Ok(loaded);
    }
    let trusted = load(engine, segment).await?;
    if let Some((intervals, end)) = trusted
        && end == length
    {
        return Ok(Some(intervals));
    }
    if segment.is_removed() {
        return Ok(None);
    }
    tracing::warn!(place = %segment.place, segment = %segment.base, "index is rebuilt from its batches");
    let interval_bytes = PartitionConfig::default().index_interval_bytes.get();
    let scan =
        rebuild::scan(engine, &segment.folder, segment.base, Offset::MAX, interval_bytes, None, created)
            .await;
    if segment.is_removed() {
        // The scan may have opened it after it was closed, and an index would be left in the folder.
        engine.descriptors.forget(&segment.path(LOG));
        return Ok(None);
    }
    let scan = scan?;
    if scan.content.bytes != length {
        return Ok(None);
    }
    engine.metrics.rebuilt_indexes.inc();
    let intervals = scan.content.intervals.unwrap_or_default();
    replace(engine, segment, &intervals, true).await?;
    Ok(Some(intervals))
}
