//! The file of the log that is written, and the next one, which is ready before it is needed.
//!
//! `log-spare` has its blocks already. A new file is written into it and renamed; the file that it replaces becomes the
//! next spare, so that a full disk never stops a compaction. What a spare holds is filled with zeros before a new file
//! begins in it: a try that a crash ended may have left records of the same number there.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use tidelog_runtime::{Disk, DiskFile, Lane, OpenMode, is_disk_full};
use tidelog_types::limits::{
    RAFT_LOG_AHEAD_BYTES, RAFT_LOG_ALLOCATION_BYTES, RAFT_LOG_FREEING_BYTES, RAFT_LOG_OWN_BYTES,
};

use super::{Memory, Recovered, file_name};
use crate::codec::{FILE_HEADER_BYTES, FileHeader, Place, Record, StoreError};

/// The name of the next file while it waits.
pub(super) const SPARE: &str = "log-spare";

/// Garbage below this is not worth writing a new file for.
const GARBAGE_BYTES_MIN: u64 = 1024 * 1024;

/// The same where room is short and the disk is full.
const GARBAGE_BYTES_MIN_SHORT: u64 = 64 * 1024;

/// Zeros that are written at once.
const ZEROS: &[u8] = &[0; 256 * 1024];

pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    number: u64,
    position: u64,
    /// The file's length: zeros from `position` on.
    allocated: u64,
    /// Bytes of the image that the file began with.
    image_bytes: u64,
    /// The position behind the last record that changed nothing but said what is synced.
    marked: u64,
    spare: Spare,
    /// Why nothing more may be written; also set while a round is under way, so that one that was dropped stays so.
    failed: Option<String>,
}

/// What is known of the file that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spare {
    /// There is none.
    Missing,
    /// It may hold records.
    Used,
    /// It is all zeros.
    Ready,
}

/// Everything in one new file, before it has its name.
struct NewFile {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    number: u64,
    end: u64,
    allocated: u64,
}

impl Writer {
    /// Writes what is live to a new file of this number. `formers` are the files that it replaces.
    pub(super) async fn begin(
        disk: Arc<dyn Disk>,
        directory: &Path,
        number: u64,
        memory: &Memory,
        formers: &[u64],
    ) -> Result<Self, StoreError> {
        let entries = disk.list_dir(directory).await.map_err(StoreError::io("list", directory))?;
        let found = entries.iter().any(|entry| entry.name == SPARE);
        let mut spare = if found { Spare::Used } else { Spare::Missing };
        let new = write_new(&disk, directory, number, memory, spare).await?;
        name_new(&disk, directory, &new).await?;
        spare = Spare::Missing;
        for former in formers {
            let path = directory.join(file_name(*former));
            if spare == Spare::Missing {
                let renamed = disk.rename(&path, &directory.join(SPARE)).await;
                renamed.map_err(StoreError::io("rename", path))?;
                spare = Spare::Used;
            } else {
                disk.remove_file(&path).await.map_err(StoreError::io("remove", path))?;
            }
        }
        Ok(Self {
            disk,
            directory: directory.to_owned(),
            file: new.file,
            path: new.path,
            number,
            position: new.end,
            allocated: new.allocated,
            image_bytes: new.end,
            marked: new.end,
            spare,
            failed: None,
        })
    }

    /// Goes on in a recovered file, for want of space for another. What stands behind its records is overwritten, so that
    /// no bytes of a torn tail come back behind what is appended.
    pub(super) async fn resume(
        disk: Arc<dyn Disk>,
        directory: &Path,
        recovered: Recovered,
    ) -> Result<Self, StoreError> {
        let path = directory.join(file_name(recovered.number));
        let file = disk.open(&path, OpenMode::ReadWrite, Lane::Background).await;
        let file = file.map_err(StoreError::io("open", &path))?;
        let allocated = file.len().await.map_err(StoreError::io("measure", &path))?;
        clear(&*file, recovered.end).await.map_err(StoreError::io("clear", &path))?;
        // The records too: they were read from what may be page cache only.
        file.sync_data().await.map_err(StoreError::io("sync", &path))?;
        disk.sync_dir(directory).await.map_err(StoreError::io("sync", directory))?;
        let entries = disk.list_dir(directory).await.map_err(StoreError::io("list", directory))?;
        let found = entries.iter().any(|entry| entry.name == SPARE);
        Ok(Self {
            disk,
            directory: directory.to_owned(),
            file,
            path,
            number: recovered.number,
            position: recovered.end,
            allocated: allocated.max(recovered.end),
            image_bytes: recovered.image_end,
            marked: 0,
            spare: if found { Spare::Used } else { Spare::Missing },
            failed: None,
        })
    }

    pub(super) fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(why) => Err(io::Error::other(format!("the controller's log is closed: {why}"))),
        }
    }

    /// Closes the log for good.
    pub(super) fn fail(&mut self, why: &str) {
        self.failed = Some(why.to_owned());
    }

    /// Whether everything written is known synced by what is in the file.
    pub(super) fn is_marked(&self) -> bool {
        self.marked == self.position
    }

    /// The last round was a mark.
    pub(super) fn set_marked(&mut self) {
        self.marked = self.position;
    }

    /// What is left in the file.
    pub(super) fn room(&self) -> u64 {
        self.allocated.saturating_sub(self.position)
    }

    /// Writes and syncs; the bytes written. After an error for which [`Writer::check`] finds nothing the disk was full,
    /// nothing counts as written, and the same round may be tried again.
    pub(super) async fn round(&mut self, records: &[Record]) -> io::Result<u64> {
        self.check()?;
        let mut out = Vec::new();
        for record in records {
            let length = u64::try_from(out.len()).map_err(io::Error::other)?;
            let position = self.position.checked_add(length).ok_or(io::ErrorKind::FileTooLarge)?;
            record.encode(Place { number: self.number, position, synced: self.position }, &mut out);
        }
        let length = u64::try_from(out.len()).map_err(io::Error::other)?;
        self.make_room(length).await?;
        self.failed = Some("a round was dropped half-way".to_owned());
        if let Err(why) = self.file.write_at(self.position, vec![Bytes::from(out)]).await {
            if is_disk_full(&why) {
                // Nothing was synced and nothing follows: the next try writes over what is there.
                self.failed = None;
                return Err(why);
            }
            return Err(self.closed(why));
        }
        if let Err(why) = self.file.sync_data().await {
            return Err(self.closed(why));
        }
        self.failed = None;
        self.position = self.position.checked_add(length).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(length)
    }

    fn closed(&mut self, why: io::Error) -> io::Error {
        tracing::error!(path = %self.path.display(), error = %why, "controller log write failed, the controller stops");
        self.failed = Some(why.to_string());
        // Whatever the kind was, it is final.
        io::Error::other(why)
    }

    /// Makes room for `bytes` more. Nothing is written yet, so a failure here can be survived.
    pub(super) async fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        self.check()?;
        let end = self.position.checked_add(bytes).ok_or(io::ErrorKind::FileTooLarge)?;
        if end <= self.allocated {
            return Ok(());
        }
        let wanted =
            end.checked_next_multiple_of(RAFT_LOG_ALLOCATION_BYTES).ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.allocate(wanted).await?;
        self.allocated = wanted;
        Ok(())
    }

    /// Makes the next file where it is missing, and fills it with zeros where it was used.
    pub(super) async fn prepare_spare(&mut self) -> io::Result<()> {
        if self.spare == Spare::Ready {
            return Ok(());
        }
        let path = self.directory.join(SPARE);
        let found = self.spare;
        // Until it has its whole length, whatever is there is used.
        self.spare = Spare::Used;
        let prepared = async {
            let file = open_spare(&self.disk, &path, found).await?;
            if file.len().await? > RAFT_LOG_ALLOCATION_BYTES {
                file.set_len(RAFT_LOG_ALLOCATION_BYTES).await?;
            }
            if found == Spare::Used {
                clear(&*file, 0).await?;
            }
            file.allocate(RAFT_LOG_ALLOCATION_BYTES).await?;
            self.disk.sync_dir(&self.directory).await
        };
        let prepared = prepared.await;
        match &prepared {
            Ok(()) => self.spare = Spare::Ready,
            // A file without blocks is no help.
            Err(_) if found == Spare::Missing => {
                self.spare = Spare::Missing;
                if let Err(error) = self.disk.remove_file(&path).await {
                    tracing::debug!(%error, "no spare controller log to remove");
                }
            }
            Err(_) => {}
        }
        prepared
    }

    /// Writes a new file where this one is mostly garbage, or where room is short and it has any. That it could not be
    /// written harms nothing.
    pub(super) async fn compact(&mut self, memory: &Memory) -> io::Result<()> {
        self.check()?;
        let garbage = self.position.saturating_sub(self.image_bytes);
        let short = self.room() < RAFT_LOG_FREEING_BYTES + RAFT_LOG_OWN_BYTES;
        let wanted = if short { GARBAGE_BYTES_MIN_SHORT } else { GARBAGE_BYTES_MIN.max(self.image_bytes) };
        if garbage < wanted {
            return Ok(());
        }
        let number = self.number.checked_add(1).ok_or(io::ErrorKind::FileTooLarge)?;
        let new = match write_new(&self.disk, &self.directory, number, memory, self.spare).await {
            Ok(new) => new,
            Err(why) => {
                if self.spare == Spare::Ready {
                    self.spare = Spare::Used;
                }
                tracing::warn!(directory = %self.directory.display(), error = %why, "controller log was not compacted");
                return Ok(());
            }
        };
        // From the rename on a start may find the new file: the old one must not be appended to again.
        self.failed = Some("a new log file was dropped half-way".to_owned());
        if let Err(why) = name_new(&self.disk, &self.directory, &new).await {
            tracing::error!(directory = %self.directory.display(), error = %why, "controller log could not be replaced, the controller stops");
            self.failed = Some(why.to_string());
            return Err(io::Error::other(why));
        }
        self.failed = None;
        let former = std::mem::replace(&mut self.path, new.path);
        self.file = new.file;
        (self.number, self.position, self.allocated) = (number, new.end, new.allocated);
        (self.image_bytes, self.marked) = (new.end, new.end);
        self.spare = match self.disk.rename(&former, &self.directory.join(SPARE)).await {
            Ok(()) => Spare::Used,
            Err(why) => {
                tracing::warn!(path = %former.display(), error = %why, "former controller log was not kept");
                Spare::Missing
            }
        };
        Ok(())
    }
}

async fn open_spare(disk: &Arc<dyn Disk>, path: &Path, spare: Spare) -> io::Result<Arc<dyn DiskFile>> {
    let mode = match spare {
        Spare::Missing => OpenMode::CreateOrTruncate,
        Spare::Used | Spare::Ready => OpenMode::ReadWrite,
    };
    disk.open(path, mode, Lane::Background).await
}

/// Fills a file with zeros from `position` to its end.
async fn clear(file: &dyn DiskFile, mut position: u64) -> io::Result<()> {
    let length = file.len().await?;
    while position < length {
        let count = usize::try_from(length - position).unwrap_or(usize::MAX).min(ZEROS.len());
        file.write_at(position, vec![Bytes::from_static(&ZEROS[..count])]).await?;
        position = position.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// Writes and syncs a file that holds `memory` and room for more, in the spare one's place. Where the disk is full
/// nothing has changed.
async fn write_new(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    number: u64,
    memory: &Memory,
    spare: Spare,
) -> Result<NewFile, StoreError> {
    let path = directory.join(file_name(number));
    let aside = directory.join(SPARE);
    let mut image = vec![0; FILE_HEADER_BYTES];
    for record in memory.records() {
        let position = u64::try_from(image.len()).map_err(|why| StoreError::damaged(&path, why))?;
        record.encode(Place { number, position, synced: 0 }, &mut image);
    }
    let end = u64::try_from(image.len()).map_err(|why| StoreError::damaged(&path, why))?;
    image[..FILE_HEADER_BYTES].copy_from_slice(&FileHeader { number, image_end: end }.encode());
    let file = open_spare(disk, &aside, spare).await.map_err(StoreError::io("create", &aside))?;
    if spare == Spare::Used {
        clear(&*file, 0).await.map_err(StoreError::io("clear", &aside))?;
    }
    let allocated = allocate_new(&*file, end).await.map_err(StoreError::io("allocate", &aside))?;
    file.write_at(0, vec![Bytes::from(image)]).await.map_err(StoreError::io("write", &aside))?;
    file.sync_data().await.map_err(StoreError::io("sync", &aside))?;
    Ok(NewFile { file, path, number, end, allocated })
}

/// Room ahead of `end`; on a full disk what the spare file has will do, if that is enough to free space with.
async fn allocate_new(file: &dyn DiskFile, end: u64) -> io::Result<u64> {
    let wanted = end.saturating_add(RAFT_LOG_AHEAD_BYTES);
    let wanted =
        wanted.checked_next_multiple_of(RAFT_LOG_ALLOCATION_BYTES).ok_or(io::ErrorKind::FileTooLarge)?;
    let length = file.len().await?;
    if length >= wanted {
        return Ok(length);
    }
    match file.allocate(wanted).await {
        Ok(()) => Ok(wanted),
        Err(why) if is_disk_full(&why) => {
            let enough = end.saturating_add(RAFT_LOG_FREEING_BYTES).saturating_add(RAFT_LOG_OWN_BYTES);
            if length >= enough { Ok(length) } else { Err(why) }
        }
        Err(why) => Err(why),
    }
}

async fn name_new(disk: &Arc<dyn Disk>, directory: &Path, new: &NewFile) -> Result<(), StoreError> {
    let aside = directory.join(SPARE);
    disk.rename(&aside, &new.path).await.map_err(StoreError::io("rename", &aside))?;
    disk.sync_dir(directory).await.map_err(StoreError::io("sync", directory))?;
    tracing::debug!(number = new.number, bytes = new.end, "controller log file begun");
    Ok(())
}
