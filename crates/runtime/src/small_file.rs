//! Small files: read whole, and replaced at once or not at all.

use std::{io, path::Path};

use bytes::Bytes;

use crate::disk::{Disk, Lane, OpenMode};

/// What [`write_aside`] appends to a name until the file is complete. A start removes what still carries it.
pub const ASIDE_SUFFIX: &str = ".new";

/// Reads a whole file; `None` where it is missing. Of one that has more than `bytes_max` the first `bytes_max` come: a
/// file with a checksum is seen to be damaged then, and no length claimed by a directory is allocated unchecked.
///
/// # Errors
/// The disk's.
pub async fn read_small(disk: &dyn Disk, path: &Path, bytes_max: usize) -> io::Result<Option<Bytes>> {
    let file = match disk.open(path, OpenMode::Read, Lane::Read).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = usize::try_from(file.len().await?).unwrap_or(usize::MAX).min(bytes_max);
    file.read_at(0, length).await.map(Some)
}

/// Writes a file under another name, syncs it, and renames it over whatever has its name. Durable once the caller has
/// synced the directory: several files may share that sync.
///
/// # Errors
/// The file that had the name before is untouched, unless the rename itself failed.
pub async fn write_aside(disk: &dyn Disk, folder: &Path, name: &str, content: Bytes) -> io::Result<()> {
    let aside = folder.join(format!("{name}{ASIDE_SUFFIX}"));
    let file = disk.open(&aside, OpenMode::CreateOrTruncate, Lane::Background).await?;
    file.write_at(0, vec![content]).await?;
    file.sync_data().await?;
    drop(file);
    disk.rename(&aside, &folder.join(name)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileDisk, FileDiskConfig};

    #[tokio::test]
    async fn a_small_file_is_replaced_whole_and_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::new(FileDiskConfig::default()).unwrap();
        let path = folder.path().join("name");
        assert_eq!(read_small(&disk, &path, 100).await.unwrap(), None);
        for content in ["a longer content", "short"] {
            write_aside(&disk, folder.path(), "name", Bytes::from_static(content.as_bytes())).await.unwrap();
            assert_eq!(read_small(&disk, &path, 100).await.unwrap().unwrap(), content);
        }
        assert_eq!(read_small(&disk, &path, 3).await.unwrap().unwrap(), "sho");
        let names: Vec<_> = disk.list_dir(folder.path()).await.unwrap();
        assert_eq!(names.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["name"]);
    }
}
