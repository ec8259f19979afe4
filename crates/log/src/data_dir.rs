//! The data directory: whose it is, that one process has it, and the reserve for a full disk.
//!
//! ```text
//! <data directory>/
//!   .lock                         held by the process
//!   meta.properties               format version, cluster id, directory id
//!   reserve                       zeros, given up at a start on a full disk
//!   log.checkpoint                what the segments hold
//!   journal/<number>.journal
//!   <topic id>-<partition>/       segments
//! ```

use std::{
    fs::{File, TryLockError},
    io::{self, Read as _},
    path::Path,
};

use bytes::Bytes;
use tidelog_format::crc;
use tidelog_runtime::{Disk, Lane, OpenMode, read_small, write_aside};
use tidelog_types::{ClusterId, DirectoryId};

use crate::{LogConfig, OpenError};

const LOCK: &str = ".lock";
const META: &str = "meta.properties";
const RESERVE: &str = "reserve";
const VERSION: u32 = 1;
/// More than any `meta.properties` of ours.
const META_BYTES_MAX: usize = 4096;
const FILL_BYTES: usize = 1024 * 1024;

/// The lock of a data directory; released when dropped, and by the system when the process ends.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Takes the lock, creating the directory where it is missing. Blocks for moments only; not for a task.
    ///
    /// # Errors
    /// [`OpenError::Locked`] where another process has it.
    pub fn acquire(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.join(LOCK);
        std::fs::create_dir_all(directory).map_err(failed("create", directory))?;
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(failed("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: directory.display().to_string() }),
            Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
        }
    }
}

pub(crate) fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.display().to_string();
    move |source| OpenError::Io { operation, path, source }
}

/// Reads whose a data directory is, before anything in it is opened or changed; `None` where it is nobody's yet. Blocks for
/// moments only; not for a task.
///
/// # Errors
/// A directory of a newer version, of another program, or one that is damaged.
pub fn directory_owner(directory: &Path) -> Result<Option<DirectoryOwner>, OpenError> {
    let path = directory.join(META);
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(META_BYTES_MAX as u64).read_to_end(&mut text));
    match read {
        Ok(_) => Meta::read(&path, &text).map(|meta| Some(DirectoryOwner { cluster_id: meta.cluster_id })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", &path)(error)),
    }
}

/// Whose a data directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryOwner {
    /// The cluster; none where the directory was made and not yet given to one.
    pub cluster_id: Option<ClusterId>,
}

/// What `meta.properties` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) cluster_id: Option<ClusterId>,
    pub(crate) directory_id: DirectoryId,
}

/// Why `meta.properties` cannot be used.
#[derive(Debug, PartialEq, Eq)]
enum MetaError {
    Newer(u32),
    NotOurs,
    Damaged(String),
}

impl From<String> for MetaError {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

impl From<&str> for MetaError {
    fn from(why: &str) -> Self {
        Self::Damaged(why.to_owned())
    }
}

impl Meta {
    fn encode(self) -> String {
        let cluster = self.cluster_id.map_or(String::new(), |id| id.to_string());
        let body = format!("version={VERSION}\ncluster.id={cluster}\ndirectory.id={}\n", self.directory_id);
        format!("{body}crc={:08x}\n", crc::crc32c(body.as_bytes()))
    }

    /// Decodes the file's bytes and says what is wrong in the words of an opening.
    fn read(path: &Path, bytes: &[u8]) -> Result<Self, OpenError> {
        let path = path.display().to_string();
        let text = std::str::from_utf8(bytes).map_err(|_| MetaError::from("it is not text"));
        text.and_then(Self::decode).map_err(|error| match error {
            MetaError::Newer(found) => OpenError::Newer { path, found, known: VERSION },
            MetaError::NotOurs => OpenError::Foreign(format!("{path} was written by another program")),
            MetaError::Damaged(why) => OpenError::Damaged { path, why },
        })
    }

    fn decode(text: &str) -> Result<Self, MetaError> {
        let whole = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        // Apache Kafka's file has the same name, and no checksum; a comment and the node's number are in it alone.
        let is_kafkas = text.starts_with('#') || whole("node.id").or_else(|| whole("broker.id")).is_some();
        if is_kafkas && whole("crc").is_none() {
            return Err(MetaError::NotOurs);
        }
        // Before the checksum, of which a newer version may have another one; unless the number alone is what does not fit it.
        if let Some(newer) =
            whole("version").filter(|text| text.parse().is_ok_and(|found: u32| found > VERSION))
        {
            let ours = text.replacen(&format!("version={newer}"), &format!("version={VERSION}"), 1);
            if Self::checked(&ours).is_err() {
                return Err(MetaError::Newer(newer.parse().unwrap_or(u32::MAX)));
            }
        }
        let body = Self::checked(text)?;
        let value = |key: &str| body.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let version = value("version").and_then(|text| text.parse::<u32>().ok()).ok_or("no version")?;
        if version != VERSION {
            return Err(format!("format version {version} is unknown").into());
        }
        let cluster = value("cluster.id").ok_or("no cluster id")?;
        let cluster_id = match cluster {
            "" => None,
            text => Some(text.parse().map_err(|error| format!("cluster id: {error}"))?),
        };
        let directory = value("directory.id").ok_or("no directory id")?;
        let directory_id = directory.parse().map_err(|error| format!("directory id: {error}"))?;
        Ok(Self { cluster_id, directory_id })
    }

    /// The lines that the last one's checksum is of.
    fn checked(text: &str) -> Result<&str, MetaError> {
        let (body, crc_line) = text.trim_end().rsplit_once('\n').ok_or("it is cut: there is no checksum")?;
        let carried = crc_line.strip_prefix("crc=").ok_or("it is cut: there is no checksum")?;
        let found = format!("{:08x}", crc::crc32c(format!("{body}\n").as_bytes()));
        if carried == found { Ok(body) } else { Err("its checksum does not match".into()) }
    }
}

/// As a start reads `meta.properties`: the same content written anew, or nothing where the bytes are refused.
#[doc(hidden)]
#[must_use]
pub fn meta_properties(bytes: &[u8]) -> Option<String> {
    Meta::read(Path::new(META), bytes).ok().map(Meta::encode)
}

/// What the directory is, before anything else is opened.
#[derive(Debug)]
pub(crate) struct DataDir {
    pub(crate) meta: Meta,
    /// Whether it was made just now.
    pub(crate) new: bool,
}

/// Opens the directory: makes it where it is missing, compares whose it is, gives the reserve up where the disk is full.
pub(crate) async fn open(config: &LogConfig, disk: &dyn Disk) -> Result<DataDir, OpenError> {
    let directory = &config.directory;
    disk.create_dir_all(directory).await.map_err(failed("create", directory))?;
    give_reserve_up_when_full(config, disk).await?;
    let path = directory.join(META);
    let found = read_small(disk, &path, META_BYTES_MAX).await.map_err(failed("read", &path))?;
    let (mut meta, new) = match found {
        Some(bytes) => (Meta::read(&path, &bytes)?, false),
        None => (Meta { cluster_id: config.cluster_id, directory_id: config.directory_id }, true),
    };
    if new {
        let entries = disk.list_dir(directory).await.map_err(failed("list", directory))?;
        if let Some(foreign) = entries.iter().find(|entry| entry.name == crate::checkpoint::FILE) {
            return Err(OpenError::Foreign(format!("{} is there without {META}", foreign.name)));
        }
    }
    let mut changed = new;
    match (meta.cluster_id, config.cluster_id) {
        (Some(found), Some(expected)) if found != expected => {
            return Err(OpenError::OtherCluster { found: found.to_string(), expected: expected.to_string() });
        }
        (None, Some(expected)) => {
            meta.cluster_id = Some(expected);
            changed = true;
        }
        _ => {}
    }
    if changed {
        let content = Bytes::from(meta.encode());
        write_aside(disk, directory, META, content).await.map_err(failed("write", &path))?;
    }
    // Always: the process that made the directory, or the file, may have been killed before its own syncs.
    disk.sync_dir(directory).await.map_err(failed("sync", directory))?;
    if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync_dir(parent).await.map_err(failed("sync", parent))?;
    }
    Ok(DataDir { meta, new })
}

async fn give_reserve_up_when_full(config: &LogConfig, disk: &dyn Disk) -> Result<(), OpenError> {
    let directory = &config.directory;
    let space = disk.space(directory).await.map_err(failed("look at the space of", directory))?;
    let path = directory.join(RESERVE);
    // Opening needs about a journal file; below that, what was kept aside for this moment goes.
    if space.free >= config.journal_file_bytes.get().max(config.reserve_bytes.get()) {
        return Ok(());
    }
    match disk.remove_file(&path).await {
        Ok(()) => {
            tracing::warn!(free_bytes = space.free, "disk is full: the reserve file was given up");
            disk.sync_dir(directory).await.map_err(failed("sync", directory))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove", &path)(error)),
    }
}

/// Makes the reserve file where it is missing and fits; a disk too full for it is no error.
pub(crate) async fn make_reserve(config: &LogConfig, disk: &dyn Disk, free_bytes: u64) -> io::Result<()> {
    let bytes = config.reserve_bytes.get();
    if bytes == 0 || free_bytes < bytes.saturating_mul(4) {
        return Ok(());
    }
    let path = config.directory.join(RESERVE);
    let file = match disk.open(&path, OpenMode::ReadWrite, Lane::Background).await {
        Ok(file) if file.len().await? >= bytes => return Ok(()),
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.open(&path, OpenMode::CreateNew, Lane::Background).await?
        }
        Err(error) => return Err(error),
    };
    if file.allocate(bytes).await.is_err() {
        return disk.remove_file(&path).await;
    }
    // A file system that cannot allocate ahead counts only what was written.
    let zeros = Bytes::from(vec![0_u8; FILL_BYTES.min(config.reserve_bytes.as_usize())]);
    let mut position = 0;
    while position < bytes {
        let piece = usize::try_from(bytes - position).unwrap_or(FILL_BYTES).min(zeros.len());
        file.write_at(position, vec![zeros.slice(..piece)]).await?;
        position += piece as u64;
    }
    file.sync_data().await?;
    disk.sync_dir(&config.directory).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_round_trips_and_one_flipped_bit_is_seen() {
        let meta = Meta {
            cluster_id: Some(ClusterId::from_bytes([7; 16])),
            directory_id: DirectoryId::from_bytes([9; 16]),
        };
        let text = meta.encode();
        assert_eq!(Meta::decode(&text), Ok(meta));
        let flipped = text.replace("cluster.id=B", "cluster.id=C");
        assert_eq!(Meta::decode(&flipped), Err("its checksum does not match".into()));
        let nameless = Meta { cluster_id: None, ..meta };
        assert_eq!(Meta::decode(&nameless.encode()), Ok(nameless));
    }

    #[test]
    fn a_directory_tells_its_owner_or_that_it_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(META);
        let owner = || directory_owner(folder.path());
        assert_eq!(owner().unwrap(), None);
        let meta = Meta {
            cluster_id: Some(ClusterId::from_bytes([7; 16])),
            directory_id: DirectoryId::from_bytes([9; 16]),
        };
        std::fs::write(&path, meta.encode()).unwrap();
        assert_eq!(owner().unwrap(), Some(DirectoryOwner { cluster_id: meta.cluster_id }));
        let newer = "version=2\nwhatever=it has\n";
        std::fs::write(&path, format!("{newer}crc={:08x}\n", crc::crc32c(newer.as_bytes()))).unwrap();
        assert!(matches!(owner(), Err(OpenError::Newer { found: 2, known: 1, .. })));
        std::fs::write(&path, "version=2\nof another form\n").unwrap();
        assert!(matches!(owner(), Err(OpenError::Newer { found: 2, known: 1, .. })));
        std::fs::write(&path, meta.encode().replace("cluster.id=B", "cluster.id=C")).unwrap();
        assert!(matches!(owner(), Err(OpenError::Damaged { .. })));
        for kafkas in [
            "#\nversion=1\nbroker.id=0\ncluster.id=x\n",
            "#\n#Sat Nov 28 2026\ncluster.id=x\ndirectory.id=y\nnode.id=1\nversion=1\n",
            "cluster.id=x\ndirectory.id=y\nnode.id=1\nversion=1\n",
        ] {
            std::fs::write(&path, kafkas).unwrap();
            assert!(matches!(owner(), Err(OpenError::Foreign(_))), "{kafkas}");
        }
    }

    #[test]
    fn a_cut_or_flipped_file_of_ours_is_damaged_and_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(META);
        let meta = Meta {
            cluster_id: Some(ClusterId::from_bytes([7; 16])),
            directory_id: DirectoryId::from_bytes([9; 16]),
        };
        let whole = meta.encode().into_bytes();
        // The last byte is a line feed, which says nothing.
        let cuts = (0..whole.len() - 1).map(|length| whole[..length].to_vec());
        let flips = (0..(whole.len() - 1) * 8).map(|bit| {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            flipped
        });
        for bytes in cuts.chain(flips) {
            std::fs::write(&path, &bytes).unwrap();
            let owner = directory_owner(folder.path());
            let text = String::from_utf8_lossy(&bytes);
            assert!(matches!(owner, Err(OpenError::Damaged { .. })), "{text}: {owner:?}");
        }
    }

    #[test]
    fn a_second_holder_of_a_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let first = DirectoryLock::acquire(folder.path()).unwrap();
        assert!(matches!(DirectoryLock::acquire(folder.path()), Err(OpenError::Locked { .. })));
        drop(first);
        assert!(DirectoryLock::acquire(folder.path()).is_ok());
    }
}
