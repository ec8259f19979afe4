//! Reads: from the tail without a copy, from a segment with one positioned read that is verified before it is served.
//!
//! A reader takes no lock across its IO. A segment that is cut or removed under it makes it plan again; only bytes that are
//! wrong while nothing changed are corruption, and then the segment is quarantined.

use std::{io, sync::Arc};

use bytes::{Bytes, BytesMut};
use tidelog_format::{
    batch::{BATCH_HEADER_BYTES, BatchHeader},
    crc,
};
use tidelog_types::{LeaderEpoch, Offset, OffsetRange, Timestamp};

use crate::{
    LogRead, ReadError, SegmentSummary,
    descriptors::Use,
    engine::Engine,
    partition::Partition,
    segment::{Interval, LOG, Segment, index_file},
};

/// Times that a read plans again when its segment changed under it. Each needs another truncation or removal meanwhile.
const REPLANS_MAX: usize = 16;

/// Bytes of one step of a scan.
const SCAN_BYTES: usize = 1024 * 1024;

/// Bytes of one positioned read. A client may ask for 50 MiB: in one piece they would hold a thread of the disk, and a thread of the
/// front for their checksums, for many times as long as others' requests take. In steps all who read take turns.
const STEP_BYTES: usize = 1024 * 1024;

/// Where the next bytes are.
enum Plan {
    Memory(LogRead),
    Disk { cut: u64, end: Offset, behind_end: Offset },
}

/// What is wanted of the segments.
#[derive(Clone, Copy)]
struct Wanted {
    from: Offset,
    bytes_max: usize,
    end: Offset,
    first_max: usize,
    /// The partition's count of truncations when this was planned.
    cut: u64,
}

/// See [`crate::PartitionLog::read`].
pub(crate) async fn read(
    engine: &Engine,
    partition: &Partition,
    from: Offset,
    bytes_max: usize,
    end: Offset,
    first_max: usize,
) -> Result<LogRead, ReadError> {
    let mut at = from;
    for _ in 0..REPLANS_MAX {
        let (cut, end, behind_end) = match plan(partition, at, bytes_max, end, first_max)? {
            Plan::Memory(read) => return Ok(read),
            Plan::Disk { cut, end, behind_end } => (cut, end, behind_end),
        };
        let wanted = Wanted { from: at, bytes_max, end: end.min(behind_end), first_max, cut };
        match read_segments(engine, partition, &wanted).await {
            Ok(Some(read)) => return Ok(read),
            // Nothing in the segments at or above `at`: the offsets up to the tail are a gap.
            Ok(None) if partition.lock().cut == cut => at = at.max(behind_end),
            Ok(None) => {}
            Err(failure) => failure.settle(partition, cut, at)?,
        }
    }
    Ok(LogRead { chunks: Vec::new(), base: from, next: from })
}

fn plan(
    partition: &Partition,
    from: Offset,
    bytes_max: usize,
    end: Offset,
    first_max: usize,
) -> Result<Plan, ReadError> {
    let state = partition.lock();
    let floor = state.log_start.max(state.local_log_start);
    if from < floor || from > state.log_end {
        return Err(ReadError::OutOfRange { offset: from, local_log_start: floor, log_end: state.log_end });
    }
    let end = end.min(state.log_end);
    let empty = LogRead { chunks: Vec::new(), base: from, next: from };
    if from >= end || (bytes_max == 0 && first_max == 0) {
        return Ok(Plan::Memory(empty));
    }
    let in_memory = from >= state.behind_end || state.tail.first().is_some_and(|first| first <= from);
    if !in_memory {
        return Ok(Plan::Disk { cut: state.cut, end, behind_end: state.behind_end });
    }
    let mut read = empty;
    let mut bytes = 0;
    for batch in state.tail.from(from) {
        let whole = batch.header.len() + batch.body.len();
        let first = read.chunks.is_empty();
        if batch.last >= end || (bytes + whole > bytes_max && !(first && whole <= first_max)) {
            break;
        }
        if first {
            read.base = batch.base;
        }
        bytes += whole;
        read.next = batch.last.next();
        read.chunks.push(batch.header.clone());
        read.chunks.push(batch.body.clone());
    }
    Ok(Plan::Memory(read))
}

/// A read of a segment that did not come out.
struct Failure {
    segment: Arc<Segment>,
    source: Source,
}

enum Source {
    Io(io::Error),
    Wrong(&'static str),
}

impl Failure {
    /// Decides whether the segment changed under the reader, which then plans again, or is bad.
    fn settle(self, partition: &Partition, cut: u64, at: Offset) -> Result<(), ReadError> {
        let unchanged = partition.lock().cut == cut
            && partition.segments.load().iter().any(|segment| Arc::ptr_eq(segment, &self.segment));
        if !unchanged {
            return Ok(());
        }
        match self.source {
            Source::Io(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(ReadError::Io { place: partition.place, source: Arc::new(source) })
            }
            Source::Io(_) => Err(self.segment.corrupt(partition, at, "its file is gone")),
            Source::Wrong(why) => Err(self.segment.corrupt(partition, at, why)),
        }
    }
}

impl Segment {
    fn corrupt(&self, partition: &Partition, at: Offset, why: &str) -> ReadError {
        if self.quarantined().is_none() {
            tracing::error!(
                place = %partition.place, segment = %self.base, offset = %at, why, "segment quarantined"
            );
        }
        ReadError::Corrupt { place: partition.place, segment: self.base, why: self.quarantine(why) }
    }
}

/// Reads from the segment that holds `from`, or the first one above; `None` where none reaches it.
async fn read_segments(
    engine: &Engine,
    partition: &Partition,
    wanted: &Wanted,
) -> Result<Option<LogRead>, Failure> {
    let segments = partition.segments.load_full();
    let first = segments.partition_point(|segment| segment.base <= wanted.from).saturating_sub(1);
    for segment in segments.iter().skip(first) {
        if segment.base >= wanted.end {
            break;
        }
        if segment.content().end <= wanted.from {
            continue;
        }
        let read = read_segment(engine, partition, segment, wanted).await;
        match read {
            Ok(Some(read)) => return Ok(Some(read)),
            Ok(None) => {}
            Err(source) => return Err(Failure { segment: Arc::clone(segment), source }),
        }
    }
    Ok(None)
}

/// Intervals to read: each with its end.
struct Stretch {
    intervals: Vec<(Interval, u64)>,
}

impl Stretch {
    fn position(&self) -> u64 {
        self.intervals.first().map_or(0, |(interval, _)| interval.position)
    }

    fn bytes(&self) -> u64 {
        self.intervals.last().map_or(0, |(_, end)| *end) - self.position()
    }
}

/// Intervals from index `first` on: that one, since the wanted batch may be its last, and `bytes_max` behind it.
fn stretch(intervals: &[Interval], total: u64, first: usize, bytes_max: usize) -> Stretch {
    let end_of = |index: usize| intervals.get(index + 1).map_or(total, |next| next.position);
    let enough = end_of(first).saturating_add(bytes_max as u64);
    let mut taken = Vec::new();
    for (index, interval) in intervals.iter().enumerate().skip(first) {
        let end = end_of(index);
        taken.push((*interval, end));
        if end >= enough {
            break;
        }
    }
    Stretch { intervals: taken }
}

async fn read_segment(
    engine: &Engine,
    partition: &Partition,
    segment: &Arc<Segment>,
    wanted: &Wanted,
) -> Result<Option<LogRead>, Source> {
    let from = wanted.from;
    let (mut first, count) = with_intervals(engine, segment, |intervals, _| {
        (intervals.partition_point(|interval| interval.offset <= from).saturating_sub(1), intervals.len())
    })
    .await?;
    let mut read = LogRead { chunks: Vec::new(), base: from, next: from };
    let mut bytes = 0;
    // More than one where more than a step is wanted, or where `from` lies in a gap behind the last batch of an interval.
    while first < count {
        let step = (wanted.bytes_max - bytes).min(STEP_BYTES);
        let stretch =
            with_intervals(engine, segment, |intervals, total| stretch(intervals, total, first, step))
                .await?;
        if stretch.intervals.is_empty() {
            break;
        }
        let piece = match read_verified(engine, segment, &stretch).await {
            Ok(piece) => piece,
            // What is there is good; what is wrong behind it is the next read's.
            Err(_) if bytes > 0 => break,
            Err(source) => return Err(source),
        };
        if bytes > 0 && partition.lock().cut != wanted.cut {
            // What was read before may be gone, and this may be of another history.
            break;
        }
        let (took, more) = take_batches(&piece, wanted, bytes, &mut read)?;
        bytes += took;
        if !more {
            return Ok(Some(read));
        }
        first += stretch.intervals.len();
    }
    Ok((bytes > 0).then_some(read))
}

/// Adds to `read`, which has `before` bytes, what is wanted of whole batches that lie behind it. Answers how many bytes that are, and
/// whether more of what follows may be wanted.
fn take_batches(
    piece: &Bytes,
    wanted: &Wanted,
    before: usize,
    read: &mut LogRead,
) -> Result<(usize, bool), Source> {
    let (mut start, mut at, mut more) = (0, 0, true);
    for header in batches(piece) {
        let (header, length) = header?;
        let (Some(base), Some(last)) = (header.base_offset(), header.last_offset()) else {
            return Err(Source::Wrong("a batch without offsets"));
        };
        let whole = at + length;
        if last < wanted.from {
            (start, at) = (whole, whole);
            continue;
        }
        let none_yet = before == 0 && at == start;
        let fits = before + whole - start <= wanted.bytes_max || (none_yet && length <= wanted.first_max);
        if last >= wanted.end || !fits {
            // It reaches the end or is larger than what was allowed.
            more = false;
            break;
        }
        if none_yet {
            read.base = base;
        }
        read.next = last.next();
        at = whole;
    }
    if at > start {
        read.chunks.push(piece.slice(start..at));
    }
    let (took, all) = (at - start, before + at - start);
    Ok((took, more && (all == 0 || all < wanted.bytes_max)))
}

/// Runs `look` over the segment's intervals and its length, loading them where they are on disk only.
async fn with_intervals<T>(
    engine: &Engine,
    segment: &Arc<Segment>,
    look: impl Fn(&[Interval], u64) -> T,
) -> Result<T, Source> {
    if let Some(why) = segment.quarantined() {
        tracing::debug!(segment = %segment.base, why = %why, "quarantined segment refused");
        return Err(Source::Wrong("quarantined before"));
    }
    {
        let content = segment.content();
        if let Some(intervals) = &content.intervals {
            return Ok(look(intervals, content.bytes));
        }
    }
    let loaded = index_file::load_or_rebuild(engine, segment).await.map_err(Source::Io)?;
    let Some(intervals) = loaded else { return Err(Source::Wrong("its batches do not fill its file")) };
    let bytes = segment.content().bytes;
    let looked = look(&intervals, bytes);
    segment.content_mut().learn(intervals);
    engine.note_loaded(segment);
    Ok(looked)
}

/// One positioned read, each interval compared with its checksum.
async fn read_verified(engine: &Engine, segment: &Segment, stretch: &Stretch) -> Result<Bytes, Source> {
    let length = usize::try_from(stretch.bytes()).map_err(|_| Source::Wrong("an interval beyond memory"))?;
    let bytes = {
        // Held for one file and one read, so that who has a turn waits for nobody else's.
        let _turn = engine.reads.acquire().await.expect("the turns of reads are never closed");
        let file = engine.descriptors.get_of(segment, LOG, Use::Read).await.map_err(Source::Io)?;
        file.read_at(stretch.position(), length).await.map_err(Source::Io)?
    };
    if bytes.len() < length {
        return Err(Source::Wrong("its file is shorter than its index"));
    }
    engine.metrics.disk_read_bytes.add(length as u64);
    if engine.config.mistakes.ignore_interval_crc {
        return Ok(bytes);
    }
    for (interval, end) in &stretch.intervals {
        let from = usize::try_from(interval.position - stretch.position()).unwrap_or(usize::MAX);
        let to = usize::try_from(*end - stretch.position()).unwrap_or(usize::MAX);
        let found = bytes.get(from..to).map(crc::crc32c);
        if found != Some(interval.crc) {
            engine.metrics.corrupt_intervals.inc();
            return Err(Source::Wrong("the checksum of an interval does not match"));
        }
    }
    Ok(bytes)
}

/// The headers of whole batches behind one another, with each batch's length.
fn batches(bytes: &Bytes) -> impl Iterator<Item = Result<(BatchHeader, usize), Source>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..)?;
        if rest.is_empty() {
            return None;
        }
        let whole = BatchHeader::peek(rest).and_then(|header| {
            let length =
                header.batch_bytes().filter(|length| (BATCH_HEADER_BYTES..=rest.len()).contains(length))?;
            Some((header, length))
        });
        match whole {
            Some((header, length)) => {
                at += length;
                Some(Ok((header, length)))
            }
            None => {
                at = bytes.len();
                Some(Err(Source::Wrong("an interval does not hold whole batches")))
            }
        }
    })
}

/// Whole batches of a read, each as (header, chunks of the read).
fn batches_of(read: &LogRead) -> Result<Vec<(BatchHeader, Bytes)>, &'static str> {
    let mut found = Vec::new();
    let mut chunks = read.chunks.iter();
    while let Some(chunk) = chunks.next() {
        if chunk.len() == BATCH_HEADER_BYTES {
            let header = BatchHeader::peek(chunk).ok_or("a short header")?;
            if header.batch_bytes() != Some(BATCH_HEADER_BYTES) {
                let body = chunks.next().ok_or("a header without its batch")?;
                let mut whole = BytesMut::with_capacity(chunk.len() + body.len());
                whole.extend_from_slice(chunk);
                whole.extend_from_slice(body);
                found.push((header, whole.freeze()));
                continue;
            }
        }
        let mut at = 0;
        for batch in batches(chunk) {
            let (header, length) = batch.map_err(|_| "not whole batches")?;
            found.push((header, chunk.slice(at..at + length)));
            at += length;
        }
    }
    Ok(found)
}

fn wrong(partition: &Partition, at: Offset, why: &'static str) -> ReadError {
    ReadError::Corrupt { place: partition.place, segment: at, why: Arc::from(why) }
}

/// Calls `visit` with every batch that ends above `from`, until it answers or the log ends.
async fn scan<T>(
    engine: &Engine,
    partition: &Partition,
    from: Offset,
    mut visit: impl FnMut(&BatchHeader, Bytes) -> Option<T>,
) -> Result<Option<T>, ReadError> {
    let mut at = from;
    loop {
        let read = read(engine, partition, at, SCAN_BYTES, Offset::MAX, usize::MAX).await?;
        if read.next <= at {
            return Ok(None);
        }
        for (header, bytes) in batches_of(&read).map_err(|why| wrong(partition, at, why))? {
            if let Some(answer) = visit(&header, bytes) {
                return Ok(Some(answer));
            }
        }
        at = read.next;
    }
}

/// Where in the segments a batch with a timestamp of `time` or later may first be; the end of what they hold otherwise.
async fn first_candidate(
    engine: &Engine,
    partition: &Partition,
    time: Timestamp,
    from: Offset,
) -> Result<Offset, ReadError> {
    let cut = partition.lock().cut;
    let segments = partition.segments.load_full();
    for segment in segments.iter() {
        let (end, known, max) = {
            let content = segment.content();
            (content.end, content.known, content.max_timestamp)
        };
        if end <= from || (known && max.is_none_or(|max| max < time)) {
            continue;
        }
        let found = with_intervals(engine, segment, |intervals, _| {
            // Each has the largest timestamp up to its end: they never fall, whatever the records' own do.
            let late = intervals.partition_point(|interval| interval.max_timestamp < Some(time));
            let above = intervals.partition_point(|interval| interval.offset <= from).saturating_sub(1);
            intervals.get(late.max(above)).map(|interval| interval.offset)
        })
        .await;
        match found {
            Ok(Some(offset)) => return Ok(offset.max(from)),
            Ok(None) => {}
            Err(source) => {
                Failure { segment: Arc::clone(segment), source }.settle(partition, cut, from)?;
                return Ok(from);
            }
        }
    }
    Ok(segments.last().map_or(from, |last| last.content().end.max(from)))
}

/// See [`crate::PartitionLog::first_batch_at_or_after`].
pub(crate) async fn first_batch_at_or_after(
    engine: &Engine,
    partition: &Partition,
    time: Timestamp,
    from: Offset,
) -> Result<Option<Bytes>, ReadError> {
    let from = from.max(floor(partition));
    let at = first_candidate(engine, partition, time, from).await?;
    scan(engine, partition, at, |header, bytes| {
        header.max_timestamp().is_some_and(|max| max >= time).then_some(bytes)
    })
    .await
}

/// The end of the last batch that lies below `to` as a whole; the local log start offset where there is none, and `to` itself
/// where a segment cannot be read.
pub(crate) async fn boundary_below(engine: &Engine, partition: &Partition, to: Offset) -> Offset {
    let start = {
        let state = partition.lock();
        if to >= state.log_end {
            return state.log_end;
        }
        if let Some(end) = state.tail.end_below(to) {
            return end;
        }
        state.local_log_start
    };
    for segment in partition.segments.load_full().iter().rev().filter(|segment| segment.base < to) {
        let end = segment.content().end;
        if end <= to {
            return end;
        }
        match segment_boundary(engine, segment, to).await {
            Ok(Some(end)) => return end,
            Ok(None) => {}
            Err(_) => return to,
        }
    }
    start
}

async fn segment_boundary(
    engine: &Engine,
    segment: &Arc<Segment>,
    to: Offset,
) -> Result<Option<Offset>, Source> {
    // The interval that holds `to` may begin with its batch: the one before it holds the boundary then.
    let last = with_intervals(engine, segment, |intervals, _| {
        intervals.partition_point(|interval| interval.offset < to).saturating_sub(1)
    })
    .await?;
    for index in [Some(last), last.checked_sub(1)].into_iter().flatten() {
        let stretch =
            with_intervals(engine, segment, |intervals, total| stretch(intervals, total, index, 0)).await?;
        let bytes = read_verified(engine, segment, &stretch).await?;
        let mut boundary = None;
        for header in batches(&bytes) {
            boundary = header?.0.end_offset().filter(|end| *end <= to).or(boundary);
        }
        if boundary.is_some() {
            return Ok(boundary);
        }
    }
    Ok(None)
}

fn floor(partition: &Partition) -> Offset {
    let state = partition.lock();
    state.log_start.max(state.local_log_start)
}

/// See [`crate::PartitionLog::max_timestamp_batch`].
pub(crate) async fn max_timestamp_batch(
    engine: &Engine,
    partition: &Partition,
    range: OffsetRange,
) -> Result<Option<Bytes>, ReadError> {
    let from = range.base.max(floor(partition));
    let mut best: Option<(Timestamp, Bytes)> = None;
    let mut at = from;
    // Where the best so far is at least as late as a whole segment, the segment is passed over.
    while at < range.end {
        let passed = best.as_ref().and_then(|(time, _)| {
            let segments = partition.segments.load();
            let index = segments.partition_point(|segment| segment.base <= at).checked_sub(1)?;
            let segment = segments.get(index)?;
            let content = segment.content();
            (content.known && content.end > at && content.max_timestamp.is_none_or(|max| max <= *time))
                .then_some(content.end)
        });
        if let Some(end) = passed {
            at = end;
            continue;
        }
        at = largest_from(engine, partition, at, range.end).await;
        let read = read(engine, partition, at, SCAN_BYTES, Offset::MAX, usize::MAX).await?;
        if read.next <= at {
            break;
        }
        for (header, bytes) in batches_of(&read).map_err(|why| wrong(partition, at, why))? {
            let in_range = header.base_offset().is_some_and(|base| base < range.end);
            if let Some(time) = header.max_timestamp()
                && in_range
                && best.as_ref().is_none_or(|(latest, _)| *latest < time)
            {
                // A copy, so that one batch does not keep a whole read alive.
                best = Some((time, Bytes::copy_from_slice(&bytes)));
            }
        }
        at = read.next;
    }
    Ok(best.map(|(_, bytes)| bytes))
}

/// Where the first batch with the largest timestamp of the segment at `at` may be, if that lies ahead and the whole segment
/// below `end`: what is before it is earlier. `at` itself where nothing can be told.
async fn largest_from(engine: &Engine, partition: &Partition, at: Offset, end: Offset) -> Offset {
    let segments = partition.segments.load_full();
    let index = segments.partition_point(|segment| segment.base <= at).checked_sub(1);
    let Some(segment) = index.and_then(|index| segments.get(index)) else { return at };
    if segment.content().end > end || segment.content().end <= at {
        return at;
    }
    let first = with_intervals(engine, segment, |intervals, _| {
        let largest = intervals.last().and_then(|last| last.max_timestamp);
        let first = intervals.partition_point(|interval| interval.max_timestamp < largest);
        intervals.get(first).map(|interval| interval.offset)
    });
    // What is wrong with the segment the read will say.
    first.await.ok().flatten().map_or(at, |offset| offset.max(at))
}

/// See [`crate::PartitionLog::batch_headers`].
pub(crate) async fn batch_headers(
    engine: &Engine,
    partition: &Partition,
    from: Offset,
) -> Result<Vec<[u8; BATCH_HEADER_BYTES]>, ReadError> {
    let from = from.max(floor(partition));
    let mut headers = Vec::new();
    scan(engine, partition, from, |header, _| {
        headers.push(*header.as_bytes());
        None::<()>
    })
    .await?;
    Ok(headers)
}

/// Learns of segments that an earlier process sealed what a listing does not say. Reads and look-ups need no waiting for it.
pub(crate) async fn learn_segments(engine: Arc<Engine>) {
    let stop = engine.supervisor.shutdown_token();
    for partition in engine.partitions() {
        for segment in partition.segments.load_full().iter() {
            if stop.is_cancelled() || engine.check().is_err() {
                return;
            }
            if segment.content().known {
                continue;
            }
            let cut = partition.lock().cut;
            if let Err(source) = with_intervals(&engine, segment, |_, _| ()).await {
                let failure = Failure { segment: Arc::clone(segment), source };
                if let Err(error) = failure.settle(&partition, cut, segment.base) {
                    tracing::warn!(%error, "nothing is known of a segment");
                }
            }
        }
    }
}

/// See [`crate::PartitionLog::segments`].
pub(crate) fn summaries(engine: &Engine, partition: &Partition) -> Vec<SegmentSummary> {
    let segments = partition.segments.load_full();
    let state = partition.lock();
    let at = |offset| state.epochs.epoch_at(offset).unwrap_or(LeaderEpoch::ZERO);
    let epochs = |base: Offset, end: Offset| (at(base), at(end.prev().unwrap_or(base)));
    let mut summaries: Vec<SegmentSummary> = Vec::with_capacity(segments.len() + 1);
    for (index, segment) in segments.iter().enumerate() {
        let content = segment.content();
        let end = segments.get(index + 1).map_or(content.end, |next| next.base);
        summaries.push(SegmentSummary {
            range: OffsetRange { base: segment.base, end },
            bytes: content.bytes,
            sealed: content.sealed,
            max_timestamp: content.max_timestamp,
            created: content.created,
            leader_epochs: epochs(segment.base, end),
        });
    }
    let unwritten = state.tail.unwritten_bytes();
    if unwritten > 0 {
        let latest = state.tail.unwritten().filter_map(|batch| batch.max_timestamp).max();
        match summaries.last_mut() {
            Some(active) if !active.sealed => {
                active.range.end = state.log_end;
                active.bytes += unwritten;
                active.max_timestamp = active.max_timestamp.max(latest);
                active.leader_epochs.1 = at(state.log_end.prev().unwrap_or(state.log_end));
            }
            _ => summaries.push(SegmentSummary {
                range: OffsetRange { base: state.behind_end, end: state.log_end },
                bytes: unwritten,
                sealed: false,
                max_timestamp: latest,
                created: engine.wall_at(state.oldest_unwritten().unwrap_or_default()),
                leader_epochs: epochs(state.behind_end, state.log_end),
            }),
        }
    }
    summaries
}
