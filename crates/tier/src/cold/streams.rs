//! Who reads on where: readers are known by the offset at which they went on.
//!
//! **Owns** the readers of each partition and their windows. **Does not own** what is read ahead.
//!
//! A fetch names no reader. One that begins where an earlier one ended is taken to be the same; a seek is a new reader, and
//! the old one is forgotten in its time.

use std::{collections::BTreeMap, time::Duration};

use tidelog_core::readahead::{Readahead, ReadaheadLimits};
use tidelog_types::{Offset, TopicPartition};

/// Readers of one partition that are told apart.
const READERS_PER_PARTITION_MAX: usize = 16;

/// Readers in all: each is a hundred bytes.
const READERS_MAX: usize = 8_192;

/// How long a reader that does not come back is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Where readahead goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cursor {
    /// In the object that holds this offset, at the unit that holds it.
    Offset(Offset),
    /// In the object whose entry begins here, at the unit with this place.
    Unit(Offset, usize),
}

/// Which reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReaderId {
    place: TopicPartition,
    number: u64,
}

/// What is to be read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub reader: ReaderId,
    pub cursor: Cursor,
    pub bytes: u64,
}

struct Reader {
    number: u64,
    next: Offset,
    reads: u64,
    readahead: Readahead,
    cursor: Option<Cursor>,
    /// An order is being carried out.
    ordered: bool,
    used: Duration,
}

/// See the module.
pub(crate) struct Streams {
    limits: ReadaheadLimits,
    readers: BTreeMap<TopicPartition, Vec<Reader>>,
    count: usize,
    last_number: u64,
}

impl Streams {
    pub(crate) fn new(limits: ReadaheadLimits) -> Self {
        Self { limits, readers: BTreeMap::new(), count: 0, last_number: 0 }
    }

    /// A read begins.
    pub(crate) fn begin(&mut self, place: TopicPartition, offset: Offset, now: Duration) -> ReaderId {
        if self.count >= READERS_MAX {
            self.forget(now);
        }
        let readers = self.readers.entry(place).or_default();
        if let Some(reader) = readers.iter_mut().find(|reader| reader.next == offset) {
            reader.used = now;
            return ReaderId { place, number: reader.number };
        }
        self.last_number += 1;
        let number = self.last_number;
        if readers.len() >= READERS_PER_PARTITION_MAX
            && let Some(oldest) = (0..readers.len()).min_by_key(|at| readers[*at].used)
        {
            readers.swap_remove(oldest);
            self.count -= 1;
        }
        let readahead = Readahead::new(self.limits);
        readers.push(Reader {
            number,
            next: offset,
            reads: 0,
            readahead,
            cursor: None,
            ordered: false,
            used: now,
        });
        self.count += 1;
        ReaderId { place, number }
    }

    /// A read took `bytes` and ended at `next`. Answers what is to be read ahead now.
    pub(crate) fn end(&mut self, id: ReaderId, next: Offset, bytes: u64) -> Option<Order> {
        let reader = self.reader(id)?;
        reader.reads += 1;
        reader.next = next;
        if reader.reads < 2 {
            return None;
        }
        let bytes = reader.readahead.advance(bytes);
        if bytes == 0 || reader.ordered {
            return None;
        }
        if reader.readahead.ahead() == 0 {
            reader.cursor = None;
        }
        reader.ordered = true;
        Some(Order { reader: id, cursor: reader.cursor.unwrap_or(Cursor::Offset(next)), bytes })
    }

    /// An order was carried out as far as it could be.
    pub(crate) fn carried_out(&mut self, id: ReaderId, cursor: Cursor, bytes: u64) {
        if let Some(reader) = self.reader(id) {
            reader.ordered = false;
            reader.cursor = Some(cursor);
            reader.readahead.asked(bytes);
        }
    }

    /// Whether the reader is still known: what is queued for others is dropped.
    pub(crate) fn is_known(&mut self, id: ReaderId) -> bool {
        self.reader(id).is_some()
    }

    /// Forgets readers that did not come back; where there are too many, all.
    pub(crate) fn forget(&mut self, now: Duration) {
        for readers in self.readers.values_mut() {
            readers.retain(|reader| now.saturating_sub(reader.used) < REMEMBERED_FOR);
        }
        self.readers.retain(|_, readers| !readers.is_empty());
        self.count = self.readers.values().map(Vec::len).sum();
        if self.count >= READERS_MAX {
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.readers.clear();
        self.count = 0;
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    fn reader(&mut self, id: ReaderId) -> Option<&mut Reader> {
        self.readers.get_mut(&id.place)?.iter_mut().find(|reader| reader.number == id.number)
    }
}
