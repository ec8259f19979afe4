//! A store that is a folder: `object_store`'s, but for new objects, whose way this owns.
//!
//! **Owns** the way of a new object to the disk, a large one past the page cache: beside its key, under the key, a `#` and a
//! number; synced; linked to its key, which fails where there is one; and its folder synced. It is the way of every other put,
//! so that what a killed process leaves is found alike ([`crate::UnfinishedPuts`]).
//!
//! A sync that failed is never tried again and believed: the kernel tells of a lost write once. So a link whose folder was not
//! synced is removed, and the next try makes a new file. Until a put has ended, nobody is told of its object.
//!
//! An object that is not found, and one that was put or deleted, counts where the folder is still the one that was opened
//! ([`Root`]): no put makes the folder itself.
//!
//! Nothing here is cancelled: what was begun ends by itself, and holds its room ([`FolderRoom`]) until then, also where nobody
//! waits for it any more.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    future::Future,
    io,
    ops::Range,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    local::LocalFileSystem, path::Path,
};
use tidelog_runtime::DirectIo;
use tokio::{
    runtime::Handle,
    sync::mpsc,
    task::{JoinError, JoinHandle},
};

use crate::http::Exchange;

mod room;
mod root;

pub(crate) use room::FolderRoom;
use root::Root;

/// Objects of a listing that are found before they are asked for: as many as the library finds in one go.
const LISTED_AHEAD: usize = 1024;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct FolderStore {
    files: LocalFileSystem,
    direct: Arc<DirectIo>,
    runtime: Option<Handle>,
    room: FolderRoom,
    root: Arc<Root>,
    sync: FolderSync,
}

type SyncFile = dyn Fn(&File, &FilePath) -> io::Result<()> + Send + Sync;

/// Makes a file or a folder durable.
#[derive(Clone)]
struct FolderSync(Arc<SyncFile>);

impl fmt::Debug for FolderSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolderSync").finish_non_exhaustive()
    }
}

impl FolderSync {
    fn path(&self, path: &FilePath) -> io::Result<()> {
        (self.0)(&File::open(path)?, path)
    }
}

impl FolderStore {
    /// `folder` is the one that `files` is in. What blocks is done on `runtime`, or where the request is made.
    pub(crate) fn new(files: LocalFileSystem, folder: &FilePath, runtime: Option<Handle>) -> Self {
        Self {
            root: Arc::new(Root::new(folder.to_owned())),
            files: files.with_fsync(true),
            direct: Arc::default(),
            runtime,
            room: FolderRoom::new(),
            sync: FolderSync(Arc::new(|file, _| file.sync_all())),
        }
    }

    /// The room that whoever reads its files by itself takes, too.
    pub(crate) fn room(&self) -> FolderRoom {
        self.room.clone()
    }

    /// Begins what blocks; `held` is given back once it has ended.
    fn begin<T: Send + 'static>(
        &self,
        held: impl Send + 'static,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> JoinHandle<Result<T>> {
        let runtime = self.runtime.clone().unwrap_or_else(Handle::current);
        runtime.spawn(async move {
            let done = work.await;
            drop(held);
            done
        })
    }

    async fn run<T: Send + 'static>(
        &self,
        held: impl Send + 'static,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.begin(held, work).await.map_err(broken_off)?
    }

    /// As [`FolderStore::run`], of what counts only where the folder is what it was.
    async fn run_there<T: Send + 'static>(
        &self,
        held: impl Send + 'static,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let root = Arc::clone(&self.root);
        self.run(held, async move {
            let done = work.await;
            if matches!(done, Ok(_) | Err(Error::NotFound { .. } | Error::AlreadyExists { .. })) {
                check(root).await?;
            }
            done
        })
        .await
    }

    async fn delete_one(&self, key: Path) -> Result<Path> {
        let permit = self.room.write(&Exchange::new()).await;
        let files = self.files.clone();
        self.run_there(permit, async move { files.delete(&key).await.map(|()| key) }).await
    }

    /// Lists ahead of whoever asks, to the end or until nobody asks any more.
    fn listed(
        &self,
        mut listing: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let found = async move {
            let permit = store.room.listing().await;
            let (sender, receiver) = mpsc::channel(LISTED_AHEAD);
            let root = Arc::clone(&store.root);
            let task = store.begin(permit, async move {
                while let Some(found) = listing.next().await {
                    if sender.send(found).await.is_err() {
                        break;
                    }
                }
                check(root).await
            });
            stream::unfold((receiver, Some(task)), |(mut receiver, task)| async move {
                if let Some(found) = receiver.recv().await {
                    return Some((found, (receiver, task)));
                }
                // One that broke off is no end: nothing behind it may be taken to be absent.
                let ended = task?.await.map_err(broken_off).and_then(|ended| ended);
                ended.err().map(|error| (Err(error), (receiver, None)))
            })
        };
        stream::once(found).flatten().boxed()
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
        let exchange = exchange_of(&options.extensions);
        let turn = self.room.turn(key, &exchange).await;
        let held = (turn, self.room.write(&exchange).await);
        let (store, key) = (self.clone(), key.clone());
        if options.mode != PutMode::Create || !options.attributes.is_empty() {
            let put = async move {
                // The library would make the folder.
                check(Arc::clone(&store.root)).await?;
                store.files.put_opts(&key, payload, options).await
            };
            return self.run_there(held, put).await;
        }
        let place = self.files.path_to_filesystem(&key)?;
        let put = async move {
            let files = store.files.clone();
            let work = move || store.put_new(&place, payload.into_iter().collect(), &exchange);
            Handle::current().spawn_blocking(work).await.map_err(broken_off)??;
            // As a later look will have it.
            let e_tag = files.head(&key).await?.e_tag;
            Ok(PutResult { e_tag, version: None, extensions: Default::default() })
        };
        self.run_there(held, put).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        let exchange = exchange_of(&options.extensions);
        self.room.no_turn(key, &exchange).await;
        let permit = self.room.read(&exchange).await;
        let (files, key) = (self.files.clone(), key.clone());
        // What is found is known by its ETag, and has its checksums.
        let root = Arc::clone(&self.root);
        self.run(permit, async move {
            let got = files.get_opts(&key, options).await;
            if matches!(got, Err(Error::NotFound { .. })) {
                check(root).await?;
            }
            got
        })
        .await
    }

    async fn get_ranges(&self, key: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let permit = self.room.read(&Exchange::new()).await;
        let (files, key, ranges) = (self.files.clone(), key.clone(), ranges.to_vec());
        self.run_there(permit, async move { files.get_ranges(&key, &ranges).await }).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        keys.then(move |key| {
            let store = store.clone();
            async move { store.delete_one(key?).await }
        })
        .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(self.files.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(self.files.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let permit = self.room.listing().await;
        let (files, prefix) = (self.files.clone(), prefix.cloned());
        self.run_there(permit, async move { files.list_with_delimiter(prefix.as_ref()).await }).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let permit = self.room.write(&Exchange::new()).await;
        let (files, from, to) = (self.files.clone(), from.clone(), to.clone());
        self.run_there(permit, async move { files.copy_opts(&from, &to, options).await }).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let permit = self.room.write(&Exchange::new()).await;
        let (files, from, to) = (self.files.clone(), from.clone(), to.clone());
        self.run_there(permit, async move { files.rename_opts(&from, &to, options).await }).await
    }
}

impl FolderStore {
    /// Blocks.
    fn put_new(&self, place: &FilePath, chunks: Vec<Bytes>, exchange: &Exchange) -> Result<()> {
        self.root.check().map_err(failed)?;
        let (file, aside) = self.new_file_beside(place)?;
        let moved = |bytes| self.room.note_moved(exchange, bytes);
        let written = self.direct.write_told(&file, 0, chunks, &moved);
        let done = written.and_then(|()| (self.sync.0)(&file, &aside)).map_err(failed);
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
        let folder = place.parent().unwrap_or(place);
        match done {
            Ok(()) => self.sync.path(folder).map_err(|error| {
                // The next try is a new file. Where this cannot be removed, it is synced before it counts.
                let _ = fs::remove_file(place);
                failed(error)
            }),
            // It counts as put once this is answered, whoever put it and whatever came of that.
            Err(exists @ Error::AlreadyExists { .. }) => {
                self.sync.path(place).and_then(|()| self.sync.path(folder)).map_err(failed)?;
                Err(exists)
            }
            Err(error) => Err(error),
        }
    }

    fn new_file_beside(&self, place: &FilePath) -> Result<(File, PathBuf)> {
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
                    self.make_folders(place.parent().ok_or_else(|| failed(error))?).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Makes a folder and those above it that are missing, but for the store's own, durably; or none.
    fn make_folders(&self, folder: &FilePath) -> io::Result<()> {
        let root = self.root.path();
        let is_within = |above: &&FilePath| above.starts_with(root) && *above != root;
        let missing: Vec<&FilePath> =
            folder.ancestors().take_while(|above| is_within(above) && !above.exists()).collect();
        for made in missing.iter().rev() {
            match fs::create_dir(made) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let mut above = missing.iter().filter_map(|made| made.parent());
        above.try_for_each(|above| self.sync.path(above)).inspect_err(|_| {
            // One that holds something already stays.
            let _ = missing.iter().try_for_each(fs::remove_dir);
        })
    }
}

/// Whether the folder is what it was.
async fn check(root: Arc<Root>) -> Result<()> {
    let checked = Handle::current().spawn_blocking(move || root.check());
    checked.await.map_err(broken_off)?.map_err(failed)
}

/// What is noted of a request.
fn exchange_of(extensions: &object_store::Extensions) -> Exchange {
    extensions.get::<Exchange>().cloned().unwrap_or_else(Exchange::new)
}

fn broken_off(error: JoinError) -> Error {
    failed(io::Error::other(error))
}

fn failed(source: io::Error) -> Error {
    Error::Generic { store: "LocalFileSystem", source: Box::new(source) }
}

#[cfg(test)]
mod tests;
