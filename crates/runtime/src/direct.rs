//! Large reads and writes past the page cache.
//!
//! What is written behind is read soon, from memory, or late. A copy of it in the page cache costs more CPU than everything else
//! that happens to a byte (a page to find, to clear, to write back, to evict), makes the syncs of the journal wait behind the
//! write-back of what nobody waits for, and takes memory from whoever reads. So the large middle of a write goes to the device
//! from an aligned buffer, and so comes a large read.
//!
//! **Owns** the alignment. The bytes before the first whole block and behind the last one go through the page cache, as small
//! writes and reads do: a block is written in one of both ways, and the kernel keeps the two views the same. Where a file system
//! does not offer this, everything goes through the page cache.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    Buffers,
    file_disk::{read_up_to, write_buffered},
};

/// What is smaller goes through the page cache: a change of ways costs as much as that copy.
pub(crate) const BYTES_MIN: usize = 256 * 1024;

/// Alignment of positions, lengths and memory: no device asks for more.
const BLOCK: usize = 4096;

/// What goes to the device at once.
const WRITE_BYTES: usize = 1024 * 1024;

/// Free buffers that are kept: 1 MiB each for writes, as large as a read for reads.
const FREE_BUFFERS_MAX: usize = 4;

/// See the module. Its calls block.
#[derive(Debug)]
pub struct DirectIo {
    writes: Arc<Buffers>,
    reads: Arc<Buffers>,
}

impl DirectIo {
    /// With no buffers yet.
    #[must_use]
    pub fn new() -> Self {
        let buffers = || Arc::new(Buffers::new(FREE_BUFFERS_MAX));
        Self { writes: buffers(), reads: buffers() }
    }

    /// Writes all chunks one after another from `position` on; the file is as long afterwards as if it had been written any
    /// other way. Nothing is durable before a sync.
    ///
    /// # Errors
    /// The file system's; any part may have been written.
    pub fn write(&self, file: &File, position: u64, chunks: Vec<Bytes>) -> io::Result<()> {
        self.write_told(file, position, chunks, &|_| {})
    }

    /// As [`DirectIo::write`]; `told` is told how many bytes were taken, a MiB at a time.
    ///
    /// # Errors
    /// As [`DirectIo::write`].
    pub fn write_told(
        &self,
        file: &File,
        position: u64,
        chunks: Vec<Bytes>,
        told: &dyn Fn(usize),
    ) -> io::Result<()> {
        let total: usize = chunks.iter().map(Bytes::len).sum();
        let before = usize::try_from(position.next_multiple_of(BLOCK as u64) - position).unwrap_or(0);
        if total < BYTES_MIN.saturating_add(before) {
            write_buffered(file, position, &chunks)?;
            told(total);
            return Ok(());
        }
        let direct = reopened(file, true);
        let mut chunks = Chunks { chunks, first: 0 };
        write_buffered(file, position, &chunks.take(before))?;
        let mut position = position.saturating_add(before as u64);
        let mut left = total - before;
        while left >= BLOCK {
            let bytes = left.min(WRITE_BYTES) / BLOCK * BLOCK;
            let parts = chunks.take(bytes);
            let written = match &direct {
                Some(direct) => self.write_blocks(direct, position, bytes, &parts),
                None => write_buffered(file, position, &parts),
            };
            match written {
                // The file system takes the flag and not the write, or wrote a part of a block.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    write_buffered(file, position, &parts)?;
                }
                written => written?,
            }
            told(bytes);
            position = position.saturating_add(bytes as u64);
            left -= bytes;
        }
        write_buffered(file, position, &chunks.take(left))?;
        told(before + left);
        Ok(())
    }

    fn write_blocks(&self, file: &File, position: u64, bytes: usize, parts: &[Bytes]) -> io::Result<()> {
        let mut buffer = self.writes.take(WRITE_BYTES + BLOCK);
        let room = buffer.room(WRITE_BYTES + BLOCK);
        let start = room.as_ptr().align_offset(BLOCK);
        let blocks = room.get_mut(start..start.saturating_add(bytes)).ok_or(io::ErrorKind::InvalidInput)?;
        let mut rest = &mut *blocks;
        for part in parts {
            let (to, behind) = rest.split_at_mut(part.len().min(rest.len()));
            to.copy_from_slice(&part[..to.len()]);
            rest = behind;
        }
        file.write_all_at(blocks, position)
    }

    /// Reads up to `length` bytes: fewer only where the file ends.
    ///
    /// # Errors
    /// The file system's.
    pub fn read(&self, file: &File, position: u64, length: usize) -> io::Result<Bytes> {
        Self::read_into(&self.reads, file, position, length)
    }

    /// As [`DirectIo::read`], into a buffer of another pool.
    ///
    /// # Errors
    /// The file system's.
    pub fn read_into(buffers: &Arc<Buffers>, file: &File, position: u64, length: usize) -> io::Result<Bytes> {
        if length < BYTES_MIN {
            return read_up_to(file, position, length);
        }
        match read_blocks(buffers, file, position, length) {
            Ok(Some(bytes)) => Ok(bytes),
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
            // No such way, or not for this range.
            Ok(None) | Err(_) => read_up_to(file, position, length),
        }
    }
}

fn read_blocks(
    buffers: &Arc<Buffers>,
    file: &File,
    position: u64,
    length: usize,
) -> io::Result<Option<Bytes>> {
    let size = file.metadata()?.len();
    let end = position.saturating_add(length as u64).min(size);
    let start = position / BLOCK as u64 * BLOCK as u64;
    let blocks = end.next_multiple_of(BLOCK as u64).saturating_sub(start);
    let Ok(blocks) = usize::try_from(blocks) else { return Ok(None) };
    if blocks < BYTES_MIN {
        return Ok(None);
    }
    let Some(direct) = reopened(file, false) else { return Ok(None) };
    let mut buffer = buffers.take(blocks.saturating_add(BLOCK));
    let room = buffer.room(blocks.saturating_add(BLOCK));
    let aligned = room.as_ptr().align_offset(BLOCK);
    let Some(into) = room.get_mut(aligned..aligned.saturating_add(blocks)) else { return Ok(None) };
    let mut read = 0;
    while read < into.len() {
        match direct.read_at(&mut into[read..], start.saturating_add(read as u64)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(count) => {
                read += count;
                // Behind the end of the file nothing is aligned, and nothing is there.
                if count == 0 || read % BLOCK != 0 {
                    break;
                }
            }
        }
    }
    buffer.advance(aligned + read);
    let skipped = usize::try_from(position - start).unwrap_or(0);
    let bytes = buffer.freeze();
    let from = (aligned + skipped).min(bytes.len());
    let to = bytes.len().min(from.saturating_add(length));
    Ok(Some(bytes.slice(from..to)))
}

impl Default for DirectIo {
    fn default() -> Self {
        Self::new()
    }
}

/// The same file, whatever its name is now, for reads and writes past the page cache. For one operation: two descriptors for every
/// open file would halve how many may be open.
fn reopened(file: &File, write: bool) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(!write).write(write).custom_flags(libc::O_DIRECT).open(path).ok()
}

/// Chunks that are taken from the front.
struct Chunks {
    chunks: Vec<Bytes>,
    first: usize,
}

impl Chunks {
    /// The next `bytes` bytes, which are there.
    fn take(&mut self, bytes: usize) -> Vec<Bytes> {
        let mut taken = Vec::new();
        let mut left = bytes;
        while let Some(chunk) = self.chunks.get_mut(self.first).filter(|_| left > 0) {
            let part = chunk.split_to(left.min(chunk.len()));
            left -= part.len();
            if chunk.is_empty() {
                self.first += 1;
            }
            taken.push(part);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(from: usize, bytes: usize) -> Vec<u8> {
        (from..from + bytes).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
    }

    /// Pieces of all sizes behind each other, as write-behind has them, read back at all places.
    #[test]
    fn what_is_written_in_both_ways_is_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let file = crate::file_disk::open(&path, crate::OpenMode::CreateNew).unwrap();
        let direct = DirectIo::new();
        let mut end = 0;
        for bytes in [100, 2 * 1024 * 1024, 5, 300_000, 262_144, 4096 - 1, 3 * 1024 * 1024 + 17, 262_143] {
            let whole = Bytes::from(pattern(end, bytes));
            // A header apart from each body.
            let chunks = (0..bytes).step_by(10_000).flat_map(|at| {
                let to = bytes.min(at + 10_000);
                let middle = to.min(at + 61);
                [whole.slice(at..middle), whole.slice(middle..to)]
            });
            direct.write(&file, end as u64, chunks.collect()).unwrap();
            end += bytes;
            assert_eq!(file.metadata().unwrap().len(), end as u64);
        }
        let expected = pattern(0, end);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        for (position, length) in [
            (0, end),
            (0, end + 1_000_000),
            (1, 300_000),
            (4096, 1_048_576),
            (5000, 262_144),
            (end - 262_144, 262_144),
            (end - 300_001, 400_000),
            (end - 100, 1_000_000),
            (end, 1_000_000),
            (end + 10_000, 1_000_000),
        ] {
            let read = direct.read(&file, position as u64, length).unwrap();
            let from = position.min(end);
            assert_eq!(read, expected[from..end.min(position + length)], "{position} {length}");
        }
    }

    #[test]
    fn a_large_write_within_a_file_changes_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, pattern(0, 2_000_000)).unwrap();
        let file = crate::file_disk::open(&path, crate::OpenMode::ReadWrite).unwrap();
        let direct = DirectIo::new();
        direct.write(&file, 12_345, vec![Bytes::from(vec![9; 700_001])]).unwrap();
        let mut expected = pattern(0, 2_000_000);
        expected[12_345..712_346].fill(9);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        assert_eq!(direct.read(&file, 0, 2_000_000).unwrap(), expected);
    }

    #[test]
    fn a_device_that_offers_nothing_of_it_is_written_and_read_as_ever() {
        let null = OpenOptions::new().read(true).write(true).open("/dev/zero").unwrap();
        let direct = DirectIo::new();
        direct.write(&null, 0, vec![Bytes::from(vec![1; 400_000])]).unwrap();
        assert_eq!(direct.read(&null, 0, 300_000).unwrap(), vec![0; 300_000]);
    }
}
