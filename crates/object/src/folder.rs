//! A store that is a folder: `object_store`'s, but for large new objects, which go past the page cache.
//!
//! **Owns** the way of a large object to the disk: beside its key, under the key, a `#` and a number; synced; linked to its key,
//! which fails where there is one; and its folder synced. It is the way of every other put, so that what a killed process leaves
//! is found alike ([`crate::UnfinishedPuts`]).

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    local::LocalFileSystem, path::Path,
};
use tidelog_runtime::DirectIo;
use tokio::runtime::Handle;

/// What is smaller is put by the library: a page of the manifest, a claim.
const LARGE_BYTES: usize = 1024 * 1024;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct FolderStore {
    files: LocalFileSystem,
    direct: Arc<DirectIo>,
    runtime: Option<Handle>,
}

impl FolderStore {
    /// What blocks is done on `runtime`, or where the put is made.
    pub(crate) fn new(files: LocalFileSystem, runtime: Option<Handle>) -> Self {
        Self { files: files.with_fsync(true), direct: Arc::default(), runtime }
    }
}

impl fmt::Display for FolderStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for FolderStore {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let is_plain = options.mode == PutMode::Create && options.attributes.is_empty();
        if !is_plain || payload.content_length() < LARGE_BYTES {
            return self.files.put_opts(key, payload, options).await;
        }
        let place = self.files.path_to_filesystem(key)?;
        let direct = Arc::clone(&self.direct);
        let runtime = self.runtime.clone().unwrap_or_else(Handle::current);
        let put = runtime.spawn_blocking(move || put_new(&direct, &place, payload.into_iter().collect()));
        put.await.map_err(|error| failed(io::Error::other(error)))??;
        // As a later look will have it.
        let e_tag = self.files.head(key).await?.e_tag;
        Ok(PutResult { e_tag, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(key, options).await
    }

    async fn get_ranges(&self, key: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.files.get_ranges(key, ranges).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.files.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.files.rename_opts(from, to, options).await
    }
}

fn put_new(direct: &DirectIo, place: &FilePath, chunks: Vec<Bytes>) -> Result<()> {
    let (file, aside) = new_file_beside(place)?;
    let done = direct.write(&file, 0, chunks).and_then(|()| file.sync_all()).map_err(failed);
    let done = done.and_then(|()| {
        fs::hard_link(&aside, place).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::AlreadyExists { path: place.display().to_string(), source: Box::new(source) }
            }
            _ => failed(source),
        })
    });
    // Where it cannot be removed, it is found as one that was left behind.
    let _ = fs::remove_file(&aside);
    done?;
    place.parent().map_or(Ok(()), sync_folder).map_err(failed)
}

fn new_file_beside(place: &FilePath) -> Result<(File, PathBuf)> {
    let mut number = 1_u32;
    loop {
        let mut aside = place.as_os_str().to_owned();
        aside.push(format!("#{number}"));
        let aside = PathBuf::from(aside);
        match OpenOptions::new().read(true).write(true).create_new(true).open(&aside) {
            Ok(file) => return Ok((file, aside)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                number = number.checked_add(1).ok_or_else(|| failed(error))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folders(place.parent().ok_or_else(|| failed(error))?).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Makes a folder and those above it that are missing, durably.
fn make_folders(folder: &FilePath) -> io::Result<()> {
    let missing: Vec<&FilePath> = folder.ancestors().take_while(|above| !above.exists()).collect();
    fs::create_dir_all(folder)?;
    missing.iter().filter_map(|made| made.parent()).try_for_each(sync_folder)
}

fn sync_folder(folder: &FilePath) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn failed(source: io::Error) -> Error {
    Error::Generic { store: "LocalFileSystem", source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(fill: u8, bytes: usize) -> PutPayload {
        (0..bytes).step_by(300_007).map(|at| Bytes::from(vec![fill; 300_007.min(bytes - at)])).collect()
    }

    #[tokio::test]
    async fn a_large_object_is_put_once_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap(), None);
        let create = || PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let key = Path::from("topics/t/0/object");
        let put = store.put_opts(&key, payload(7, 3_000_001), create()).await.unwrap();
        assert_eq!(store.head(&key).await.unwrap().e_tag, put.e_tag);
        for bytes in [2_000_000, 5] {
            let again = store.put_opts(&key, payload(8, bytes), create()).await;
            assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{bytes}");
        }
        assert_eq!(store.get(&key).await.unwrap().bytes().await.unwrap(), vec![7; 3_000_001]);
        // The file of a put that was killed is no obstacle, and stays for whoever sweeps.
        fs::write(folder.path().join("topics/t/0/other#1"), b"x").unwrap();
        store.put_opts(&Path::from("topics/t/0/other"), payload(9, 1_048_576), create()).await.unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path().join("topics/t/0"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["object", "other", "other#1"]);
    }

    #[tokio::test]
    async fn a_put_that_fails_leaves_no_object() {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap(), None);
        fs::write(folder.path().join("file"), b"no folder").unwrap();
        let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let refused = store.put_opts(&Path::from("file/object"), payload(1, 2_000_000), create).await;
        assert!(matches!(refused, Err(Error::Generic { .. })), "{refused:?}");
    }
}
