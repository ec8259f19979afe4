//! Finding whole batches in a segment's file: after a crash, at a cut, and where an index is missing or damaged.
//!
//! A walk stops at the first thing that is not a whole valid batch that follows the one before: zeros, garbage, a torn
//! header, a wrong checksum, an offset or epoch that goes back.

use std::{io, path::Path, sync::Arc};

use bytes::{Bytes, BytesMut};
use tidelog_format::{
    batch::{BATCH_HEADER_BYTES, BatchHeader},
    crc,
};
use tidelog_runtime::DiskFile;
use tidelog_types::{LeaderEpoch, Offset, Timestamp, TopicPartition};

use super::{Content, Indexed, Interval, LOG, Segment, index_file};
use crate::{descriptors::Use, engine::Engine, partition::Partition};

/// Bytes read at once.
const READ_BYTES: usize = 1024 * 1024;

/// The largest batch believed: Kafka's length field is signed, and a request holds no more.
const BATCH_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Why a walk ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WalkEnd {
    /// The file ended behind a whole batch.
    FileEnd,
    /// The next batch reaches the limit.
    Limit,
    /// What follows is not a whole valid batch.
    Invalid(&'static str),
}

/// Walks over the batches of a file.
pub(crate) struct Walk {
    file: Arc<dyn DiskFile>,
    buffer: Bytes,
    /// Position in the file of the buffer's first byte.
    pub(crate) position: u64,
    next_offset: Offset,
    epoch: LeaderEpoch,
}

impl Walk {
    pub(crate) fn new(file: Arc<dyn DiskFile>, position: u64, next_offset: Offset) -> Self {
        Self { file, buffer: Bytes::new(), position, next_offset, epoch: LeaderEpoch::ZERO }
    }

    /// The next batch, whose last offset lies below `limit`; `position` lies behind it then.
    pub(crate) async fn next(&mut self, limit: Offset) -> io::Result<Result<Indexed, WalkEnd>> {
        if !self.fill(BATCH_HEADER_BYTES).await? {
            let torn = !self.buffer.is_empty();
            return Ok(Err(if torn { WalkEnd::Invalid("torn header") } else { WalkEnd::FileEnd }));
        }
        let Some(header) = BatchHeader::peek(&self.buffer) else {
            return Ok(Err(WalkEnd::Invalid("torn header")));
        };
        let (length, base, last, epoch) = match plausible(&header, self.next_offset, self.epoch) {
            Ok(found) => found,
            Err(why) => return Ok(Err(WalkEnd::Invalid(why))),
        };
        if last >= limit {
            return Ok(Err(WalkEnd::Limit));
        }
        if !self.fill(length).await? {
            return Ok(Err(WalkEnd::Invalid("torn batch")));
        }
        let bytes = self.buffer.slice(..length);
        if crc::crc32c(&bytes[21..]) != header.crc() {
            return Ok(Err(WalkEnd::Invalid("checksum")));
        }
        self.buffer = self.buffer.slice(length..);
        self.position += length as u64;
        self.next_offset = last.next();
        self.epoch = epoch;
        let indexed = Indexed {
            base,
            last,
            bytes: length as u64,
            crc: crc::crc32c(&bytes),
            max_timestamp: header.max_timestamp(),
        };
        Ok(Ok(indexed))
    }

    /// Whether the buffer holds `bytes` from here on; reads more where it does not.
    async fn fill(&mut self, bytes: usize) -> io::Result<bool> {
        if self.buffer.len() >= bytes {
            return Ok(true);
        }
        let have = self.buffer.len();
        let wanted = (bytes - have).max(READ_BYTES);
        // Memory for a whole read is taken before it: a length that the file does not hold is not believed.
        if wanted > READ_BYTES && self.file.len().await? < self.position.saturating_add(bytes as u64) {
            return Ok(false);
        }
        let more = self.file.read_at(self.position + have as u64, wanted).await?;
        if have == 0 {
            self.buffer = more;
        } else {
            let mut joined = BytesMut::with_capacity(have + more.len());
            joined.extend_from_slice(&self.buffer);
            joined.extend_from_slice(&more);
            self.buffer = joined.freeze();
        }
        Ok(self.buffer.len() >= bytes)
    }
}

/// As a walk takes any file: how many batches it holds, and where the last of them ends.
///
/// # Errors
/// The file's.
#[doc(hidden)]
pub async fn walked(file: Arc<dyn DiskFile>) -> io::Result<(usize, u64)> {
    let mut walk = Walk::new(file, 0, Offset::ZERO);
    let mut count = 0;
    while walk.next(Offset::MAX).await?.is_ok() {
        count += 1;
    }
    Ok((count, walk.position))
}

type Plausible = (usize, Offset, Offset, LeaderEpoch);

fn plausible(header: &BatchHeader, next: Offset, epoch: LeaderEpoch) -> Result<Plausible, &'static str> {
    if header.magic() != BatchHeader::MAGIC {
        return Err("magic");
    }
    let length = header.batch_bytes().filter(|bytes| (BATCH_HEADER_BYTES..=BATCH_BYTES_MAX).contains(bytes));
    let length = length.ok_or("length")?;
    let base = header.base_offset().ok_or("base offset")?;
    let last = header.last_offset().filter(|last| *last >= base).ok_or("last offset")?;
    let own = header.leader_epoch().unwrap_or(LeaderEpoch::ZERO);
    if base < next {
        return Err("base offset goes back");
    }
    if own < epoch {
        return Err("leader epoch goes back");
    }
    Ok((length, base, last, own))
}

/// What a scan of a segment found.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) content: Content,
    /// Whether batches are all valid by themselves, but an interval is not what its checksum says.
    pub(crate) rotten: bool,
    /// Whether the index says exactly this, and nothing beyond.
    pub(crate) indexed: bool,
}

/// An index as read, and where its last interval ends.
pub(crate) type Trusted = (Vec<Interval>, u64);

/// Finds the content of a segment's file below `limit`, with whatever of its index can be trusted: intervals that end below
/// the limit and inside of the file are taken, the rest is walked.
pub(crate) async fn scan(
    engine: &Engine,
    folder: &Path,
    base: Offset,
    limit: Offset,
    interval_bytes: u64,
    trusted: Option<Trusted>,
    created: Timestamp,
) -> io::Result<Scan> {
    let file = engine.descriptors.get(&super::path(folder, base, LOG), Use::Write).await?;
    let length = file.len().await?;
    let (mut intervals, mut indexed_end) = trusted.unwrap_or_default();
    let total = intervals.len();
    // The last interval's end is unknown, or its checksum may be of more than is left: it is walked.
    let count = intervals.partition_point(|interval| interval.offset < limit && interval.position < length);
    indexed_end = intervals.get(count).map_or(indexed_end, |next| next.position);
    intervals.truncate(count);
    let last = intervals.pop();
    let mut content = Content::empty(base, created);
    let mut walk = match last {
        Some(last) => Walk::new(Arc::clone(&file), last.position, last.offset),
        None => Walk::new(Arc::clone(&file), 0, base),
    };
    content.bytes = walk.position;
    content.end = walk.next_offset;
    content.max_timestamp = intervals.last().and_then(|interval| interval.max_timestamp);
    let kept = intervals.len();
    content.intervals = Some(intervals);
    while let Ok(batch) = walk.next(limit).await? {
        let intervals = content.intervals.as_ref().map_or(0, Vec::len);
        // The walked interval is kept as it was, so that its checksum can be compared.
        let border = intervals == kept || content.bytes == indexed_end;
        let interval_bytes = if content.bytes < indexed_end { u64::MAX } else { interval_bytes };
        content.add(&batch, interval_bytes, border);
    }
    let walked = content.intervals.as_ref().and_then(|intervals| intervals.get(kept)).copied();
    let walked_end = content.intervals.as_ref().and_then(|intervals| intervals.get(kept + 1));
    let walked_end = walked_end.map_or(content.bytes, |next| next.position);
    let whole = last.is_some() && walked_end == indexed_end;
    let rotten = whole && last.map(|last| last.crc) != walked.map(|walked| walked.crc);
    if let (true, Some(last)) = (rotten, last) {
        content.intervals.get_or_insert_default().truncate(kept);
        (content.bytes, content.end) = (last.position, last.offset);
    }
    let found = content.intervals.as_ref().map_or(0, Vec::len);
    let indexed = whole && !rotten && found == total && content.bytes == indexed_end;
    Ok(Scan { content, rotten, indexed })
}

/// Cuts a segment before the batch that reaches `to`. `None` where nothing is left and its files are gone. Durable when it
/// returns, but for the names.
pub(crate) async fn cut(
    engine: &Engine,
    partition: &Partition,
    segment: &Segment,
    to: Offset,
) -> io::Result<Option<Arc<Segment>>> {
    let interval_bytes = partition.lock().config.index_interval_bytes.get();
    let (trusted, created) = {
        let content = segment.content();
        (content.intervals.clone().map(|intervals| (intervals, content.bytes)), content.created)
    };
    let trusted = match trusted {
        Some(trusted) => Some(trusted),
        None => index_file::load(engine, segment).await?,
    };
    let scan = scan(engine, &segment.folder, segment.base, to, interval_bytes, trusted, created).await?;
    if scan.rotten {
        // The next start fences the partition there.
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an interval below the cut is damaged"));
    }
    if scan.content.bytes == 0 {
        segment.note_removed();
    }
    finish_cut(engine, segment.place, &segment.folder, segment.base, scan.content).await
}

/// The time of a segment's first batch, from which `segment.ms` counts.
pub(crate) async fn first_time(engine: &Engine, segment: &Segment) -> io::Result<Option<Timestamp>> {
    let file = engine.descriptors.get(&segment.path(LOG), Use::Write).await?;
    let bytes = file.read_at(0, BATCH_HEADER_BYTES).await?;
    Ok(BatchHeader::peek(&bytes).and_then(|header| header.max_timestamp()))
}

/// Makes file and index agree with `content`.
pub(crate) async fn finish_cut(
    engine: &Engine,
    place: TopicPartition,
    folder: &Path,
    base: Offset,
    content: Content,
) -> io::Result<Option<Arc<Segment>>> {
    let path = super::path(folder, base, LOG);
    engine.descriptors.forget(&super::path(folder, base, super::INDEX));
    engine.descriptors.forget(&super::path(folder, base, super::TIME_INDEX));
    if content.bytes == 0 {
        engine.descriptors.forget(&path);
        for extension in [super::INDEX, super::TIME_INDEX, super::TXN_INDEX, LOG] {
            crate::files::remove(engine, &super::path(folder, base, extension)).await?;
        }
        return Ok(None);
    }
    let file = engine.descriptors.get(&path, Use::Write).await?;
    file.set_len(content.bytes).await?;
    let segment = Arc::new(Segment::new(place, folder, base, content));
    let intervals = segment.content().intervals.clone().unwrap_or_default();
    index_file::replace(engine, &segment, &intervals, false).await?;
    file.sync_data().await?;
    Ok(Some(segment))
}

#[cfg(test)]
mod tests;
