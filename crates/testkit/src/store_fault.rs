//! A store that fails on demand, inside of the process.
//!
//! **Owns** the faults of an [`ObjectStore`]: errors before and after the deed, hangs, delays, bodies cut or changed,
//! absences that are none, conditions ignored, and the process's end. What it holds is the wrapped store's. Times of
//! writing are those of the clock given to it, so that a simulation owns them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    Error, GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore, PutMode, PutOptions, PutPayload,
    PutResult, Result, memory::InMemory, path::Path,
};
use tidelog_runtime::Clock;

use crate::forward::{forward_to, own_deletions, own_puts, own_reads};

/// What is asked of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreOperation {
    /// An object is written.
    Put,
    /// An object is read, whole or in part.
    Get,
    /// An object is looked up.
    Head,
    /// Objects are listed.
    List,
    /// An object is deleted.
    Delete,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreFault {
    /// It is not done, and says so.
    FailBefore,
    /// It is done, and the answer is lost.
    FailAfter,
    /// It is not done and never answers.
    Hang,
    /// It is done and never answers.
    HangAfter,
    /// It is done after this time.
    Delay(Duration),
    /// A body ends after this many bytes.
    ShortBody(u64),
    /// A body stands still behind this many bytes, for this time.
    Pause(u64, Duration),
    /// A byte of a body, at this position of it, is changed.
    WrongByte(u64),
    /// What is there is said not to be.
    NotFound,
    /// A put overwrites whatever its condition.
    IgnoreCondition,
    /// The process ends, as if killed, before it is done.
    AbortBefore,
    /// The process ends, as if killed, once it is done.
    AbortAfter,
}

struct Planned {
    operation: StoreOperation,
    key: String,
    skip: u32,
    count: u32,
    fault: StoreFault,
}

struct Shared {
    inner: Arc<dyn ObjectStore>,
    clock: Arc<dyn Clock>,
    planned: Mutex<Vec<Planned>>,
    log: Mutex<Vec<(StoreOperation, String)>>,
    written_ms: Mutex<BTreeMap<String, u64>>,
}

/// See the module. Clones are the same store.
#[derive(Clone)]
pub struct FaultyStore {
    shared: Arc<Shared>,
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("inner", &self.shared.inner).finish_non_exhaustive()
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.shared.inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FaultyStore {
    /// A store in memory.
    #[must_use]
    pub fn memory(clock: Arc<dyn Clock>) -> Self {
        Self::over(Arc::new(InMemory::new()), clock)
    }

    /// Any store.
    #[must_use]
    pub fn over(inner: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Self {
        let shared = Shared {
            inner,
            clock,
            planned: Mutex::default(),
            log: Mutex::default(),
            written_ms: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Plans a fault for the next `count` operations on keys that contain `key`, after `skip` that pass.
    pub fn plan(&self, operation: StoreOperation, key: &str, skip: u32, count: u32, fault: StoreFault) {
        lock(&self.shared.planned).push(Planned { operation, key: key.to_owned(), skip, count, fault });
    }

    /// Forgets what was planned.
    pub fn clear_plan(&self) {
        lock(&self.shared.planned).clear();
    }

    /// The operations so far, with their keys or prefixes, in order.
    #[must_use]
    pub fn log(&self) -> Vec<(StoreOperation, String)> {
        lock(&self.shared.log).clone()
    }

    /// How many operations of a kind were asked for on keys that contain a text.
    #[must_use]
    pub fn count(&self, operation: StoreOperation, key: &str) -> usize {
        lock(&self.shared.log).iter().filter(|(done, on)| *done == operation && on.contains(key)).count()
    }

    /// Logs an operation and takes the fault that hits it.
    fn begin(&self, operation: StoreOperation, key: &str) -> Option<StoreFault> {
        lock(&self.shared.log).push((operation, key.to_owned()));
        for planned in lock(&self.shared.planned).iter_mut() {
            if planned.operation != operation || !key.contains(&planned.key) {
                continue;
            }
            if planned.skip > 0 {
                planned.skip -= 1;
            } else if planned.count > 0 {
                planned.count -= 1;
                return Some(planned.fault.clone());
            }
        }
        None
    }

    /// What a fault does before the deed.
    async fn before(&self, fault: Option<&StoreFault>, key: &str) -> Result<()> {
        match fault {
            Some(StoreFault::FailBefore) => Err(injected(key, "before it was done")),
            Some(StoreFault::NotFound) => {
                Err(Error::NotFound { path: key.to_owned(), source: "injected: it is there".into() })
            }
            Some(StoreFault::Hang) => std::future::pending().await,
            Some(StoreFault::Delay(time)) => {
                self.shared.clock.sleep(*time).await;
                Ok(())
            }
            Some(StoreFault::AbortBefore) => std::process::abort(),
            _ => Ok(()),
        }
    }

    /// What a fault does after the deed.
    async fn after(fault: Option<&StoreFault>, key: &str) -> Result<()> {
        match fault {
            Some(StoreFault::FailAfter) => Err(injected(key, "after it was done")),
            Some(StoreFault::HangAfter) => std::future::pending().await,
            Some(StoreFault::AbortAfter) => std::process::abort(),
            _ => Ok(()),
        }
    }

    async fn put(
        &self,
        location: &Path,
        mut payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        let key = location.as_ref();
        let fault = self.begin(StoreOperation::Put, key);
        self.before(fault.as_ref(), key).await?;
        if fault == Some(StoreFault::IgnoreCondition) {
            options.mode = PutMode::Overwrite;
        }
        if let Some(StoreFault::ShortBody(bytes)) = fault {
            let body = Bytes::from(payload);
            payload = body.slice(..at_most(bytes, &body)).into();
        }
        let done = self.shared.inner.put_opts(location, payload, options).await?;
        lock(&self.shared.written_ms).insert(key.to_owned(), self.shared.clock.wall().as_millis());
        Self::after(fault.as_ref(), key).await?;
        Ok(done)
    }

    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let key = location.as_ref();
        let operation = if options.head { StoreOperation::Head } else { StoreOperation::Get };
        let fault = self.begin(operation, key);
        self.before(fault.as_ref(), key).await?;
        let mut found = self.shared.inner.get_opts(location, options).await?;
        Self::after(fault.as_ref(), key).await?;
        found.meta = self.dated(found.meta);
        match fault {
            Some(StoreFault::ShortBody(bytes)) => {
                change_body(found, |body| body.slice(..at_most(bytes, &body))).await
            }
            Some(StoreFault::Pause(bytes, time)) => self.pause_body(found, bytes, time).await,
            Some(StoreFault::WrongByte(at)) => {
                change_body(found, |body| {
                    let mut changed = body.to_vec();
                    if let Some(byte) = usize::try_from(at).ok().and_then(|at| changed.get_mut(at)) {
                        *byte ^= 0x40;
                    }
                    Bytes::from(changed)
                })
                .await
            }
            _ => Ok(found),
        }
    }

    async fn pause_body(&self, found: GetResult, bytes: u64, time: Duration) -> Result<GetResult> {
        let (meta, range, attributes, extensions) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let mut body = found.bytes().await?;
        let first = body.split_to(at_most(bytes, &body));
        let clock = Arc::clone(&self.shared.clock);
        let rest = async move {
            clock.sleep(time).await;
            Ok(body)
        };
        let chunks = futures::stream::once(std::future::ready(Ok(first))).chain(futures::stream::once(rest));
        Ok(GetResult {
            payload: GetResultPayload::Stream(chunks.boxed()),
            meta,
            range,
            attributes,
            extensions,
        })
    }

    async fn delete_one(&self, location: Path) -> Result<Path> {
        let key = location.as_ref().to_owned();
        let fault = self.begin(StoreOperation::Delete, &key);
        self.before(fault.as_ref(), &key).await?;
        let one = futures::stream::once(std::future::ready(Ok(location.clone()))).boxed();
        let mut deleted = self.shared.inner.delete_stream(one);
        while let Some(result) = deleted.next().await {
            result?;
        }
        lock(&self.shared.written_ms).remove(&key);
        Self::after(fault.as_ref(), &key).await?;
        Ok(location)
    }

    /// The object's date by our clock, where it was written here.
    fn dated(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let written = lock(&self.shared.written_ms).get(meta.location.as_ref()).copied();
        if let Some(written) = written {
            meta.last_modified = (UNIX_EPOCH + Duration::from_millis(written)).into();
        }
        meta
    }

    fn list_from(
        &self,
        prefix: Option<&Path>,
        offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let key = prefix.map(|prefix| prefix.as_ref().to_owned()).unwrap_or_default();
        let fault = self.begin(StoreOperation::List, &key);
        let inner = match offset {
            Some(offset) => self.shared.inner.list_with_offset(prefix, offset),
            None => self.shared.inner.list(prefix),
        };
        let started = {
            let store = store.clone();
            async move {
                let failed = store.before(fault.as_ref(), &key).await.err();
                let failed = match failed {
                    Some(error) => Some(error),
                    None => Self::after(fault.as_ref(), &key).await.err(),
                };
                match failed {
                    Some(error) => futures::stream::once(std::future::ready(Err(error))).boxed(),
                    None => inner,
                }
            }
        };
        futures::stream::once(started).flatten().map(move |meta| meta.map(|meta| store.dated(meta))).boxed()
    }
}

fn injected(key: &str, when: &'static str) -> Error {
    Error::Generic { store: "FaultyStore", source: format!("injected on {key}, {when}").into() }
}

fn at_most(bytes: u64, body: &Bytes) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).min(body.len())
}

async fn change_body(found: GetResult, change: impl FnOnce(Bytes) -> Bytes) -> Result<GetResult> {
    let (meta, range, attributes, extensions) =
        (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
    let body = change(found.bytes().await?);
    let payload = GetResultPayload::Stream(futures::stream::once(std::future::ready(Ok(body))).boxed());
    Ok(GetResult { payload, meta, range, attributes, extensions })
}

impl ObjectStore for FaultyStore {
    own_puts!();
    own_reads!();
    own_deletions!();
    forward_to!(shared.inner);
}
