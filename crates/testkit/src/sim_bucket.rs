//! A bucket of a simulation: in memory, on virtual time, with a seed that decides what goes wrong.
//!
//! ```text
//! asked -> on the way (a seeded time) -> takes effect -> on the way back -> answered
//!             |                              |                |
//!             +- lost: an error, not done    +- half of it    +- lost: an error, or silence, and it is done
//!             +- lost: silence, not done
//!             +- late: an error now, done much later, when whoever asked may be dead
//! ```
//!
//! **Owns** what is stored, times of writing, lost answers, half-done puts, bodies hurt on their way. What it has acknowledged it
//! never loses, and it never says of an object that it is not there. Requests on the way outlive the process that made them, as
//! they do in a network.
//!
//! It must be used on a current-thread runtime with paused time: then equal seeds give equal traces.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    path::Path,
};
use tidelog_runtime::{Clock, Rng, SeededRng};
use tidelog_sim::{Trace, digest};
use tidelog_types::Timestamp;
use tokio::sync::oneshot;

use crate::{
    forward::{Answer, own_deletions, own_puts, own_reads},
    store_fault::StoreOperation,
};

/// How often, of a thousand requests, each thing goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketManners {
    /// Refused with an error, not done.
    pub fails: u64,
    /// Done, and answered with an error.
    pub loses_answers: u64,
    /// Not done, never answered.
    pub hangs: u64,
    /// Done, never answered.
    pub hangs_after: u64,
    /// Answered with an error at once, and done many seconds later.
    pub late: u64,
    /// Done after many seconds.
    pub slow: u64,
    /// Puts of which a first part is stored: answered with success or an error.
    pub half: u64,
    /// Bodies with one flipped bit, on their way to a reader.
    pub flips: u64,
    /// Bodies that end early, on their way to a reader.
    pub short: u64,
}

impl BucketManners {
    /// Nothing goes wrong.
    pub const CALM: Self = Self {
        fails: 0,
        loses_answers: 0,
        hangs: 0,
        hangs_after: 0,
        late: 0,
        slow: 0,
        half: 0,
        flips: 0,
        short: 0,
    };

    /// A store on a bad day.
    pub const ROUGH: Self = Self {
        fails: 60,
        loses_answers: 60,
        hangs: 15,
        hangs_after: 20,
        late: 25,
        slow: 25,
        half: 25,
        flips: 40,
        short: 25,
    };

    /// A store that answers nothing but errors.
    pub const AWAY: Self = Self { fails: 1_000, ..Self::CALM };
}

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Fails,
    LosesAnswer,
    Hangs,
    HangsAfter,
    Late,
    Slow,
    Half { answered: bool },
    Flips,
    Short,
}

impl Fate {
    const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Fails => "fails",
            Self::LosesAnswer => "loses its answer",
            Self::Hangs => "hangs",
            Self::HangsAfter => "is done and hangs",
            Self::Late => "is done late",
            Self::Slow => "is slow",
            Self::Half { .. } => "is half done",
            Self::Flips => "flips a bit",
            Self::Short => "ends early",
        }
    }
}

/// A moment of a request at which a trap springs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrapMoment {
    /// It has not happened, and will not.
    Before,
    /// It has happened, and nobody was told.
    After,
}

/// Who is told of every change as it takes effect.
pub trait BucketObserver: Send + Sync {
    /// An object is about to be deleted; it is still there.
    fn deletes(&self, key: &str);
}

struct Object {
    bytes: Bytes,
    etag: u64,
    written: Timestamp,
}

struct Trap {
    number: u64,
    moment: TrapMoment,
    spring: Arc<dyn Fn() + Send + Sync>,
}

struct State {
    rng: SeededRng,
    manners: BucketManners,
    objects: BTreeMap<String, Object>,
    etags: u64,
    operations: u64,
    trap: Option<Trap>,
    faults: BTreeMap<&'static str, u64>,
    observer: Option<Arc<dyn BucketObserver>>,
    answers_early: bool,
}

struct Shared {
    clock: Arc<dyn Clock>,
    trace: Trace,
    state: Mutex<State>,
}

/// See the module. Clones are the same bucket.
#[derive(Clone)]
pub struct SimBucket {
    shared: Arc<Shared>,
}

impl fmt::Debug for SimBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimBucket(after {} operations)", self.operations())
    }
}

impl fmt::Display for SimBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimBucket")
    }
}

impl SimBucket {
    /// An empty bucket in which nothing goes wrong yet. What happens in it is part of `trace`.
    #[must_use]
    pub fn new(seed: u64, clock: Arc<dyn Clock>, trace: Trace) -> Self {
        let state = State {
            rng: SeededRng::new(seed),
            manners: BucketManners::CALM,
            objects: BTreeMap::new(),
            etags: 0,
            operations: 0,
            trap: None,
            faults: BTreeMap::new(),
            observer: None,
            answers_early: false,
        };
        Self { shared: Arc::new(Shared { clock, trace, state: Mutex::new(state) }) }
    }

    /// Changes how requests go from now on.
    pub fn behave(&self, manners: BucketManners) {
        self.shared.lock().manners = manners;
    }

    /// Whether nothing goes wrong now.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.shared.lock().manners == BucketManners::CALM
    }

    /// A mistake: puts are answered, and looked up, before they are stored.
    pub fn answer_early(&self) {
        self.shared.lock().answers_early = true;
    }

    /// Springs once operation `number` takes effect, counted from 1 over those that change anything.
    pub fn set_trap(&self, number: u64, moment: TrapMoment, spring: Arc<dyn Fn() + Send + Sync>) {
        self.shared.lock().trap = Some(Trap { number, moment, spring });
    }

    /// Removes the trap.
    pub fn clear_trap(&self) {
        self.shared.lock().trap = None;
    }

    /// Tells `observer` of changes, or nobody any more.
    pub fn observe(&self, observer: Option<Arc<dyn BucketObserver>>) {
        let before = std::mem::replace(&mut self.shared.lock().observer, observer);
        drop(before);
    }

    /// Puts and deletions that took effect so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.lock().operations
    }

    /// How often each thing went wrong.
    #[must_use]
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.shared.lock().faults.clone()
    }

    /// An object as it is stored now.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<Bytes> {
        self.shared.lock().objects.get(key).map(|object| object.bytes.clone())
    }

    /// When an object was written; `None` where it is not there.
    #[must_use]
    pub fn written(&self, key: &str) -> Option<Timestamp> {
        self.shared.lock().objects.get(key).map(|object| object.written)
    }

    /// The keys of all objects, with their lengths.
    #[must_use]
    pub fn keys(&self) -> BTreeMap<String, u64> {
        let state = self.shared.lock();
        state.objects.iter().map(|(key, object)| (key.clone(), object.bytes.len() as u64)).collect()
    }

    /// Asks for something, and waits for the answer.
    async fn request<T: Send + 'static>(
        &self,
        operation: StoreOperation,
        key: &str,
        act: impl FnOnce(&Shared, Fate) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let (fate, there, back) = self.shared.draw(operation);
        self.shared.trace.note(format_args!("bucket {operation:?} {key}: asked"));
        let (shared, key) = (Arc::clone(&self.shared), key.to_owned());
        #[allow(
            clippy::disallowed_methods,
            reason = "the network and the store outlive the process that is simulated"
        )]
        drop(tokio::spawn(
            async move { shared.carry_out(operation, key, fate, there, back, act, answer).await },
        ));
        match answered.await {
            Ok(outcome) => outcome,
            // Nobody will ever answer.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to the next request, and how long it and its answer travel.
    fn draw(&self, operation: StoreOperation) -> (Fate, Duration, Duration) {
        let mut state = self.lock();
        let manners = state.manners;
        let mut number = state.rng.below(1_000);
        let is_put = operation == StoreOperation::Put;
        let is_get = operation == StoreOperation::Get;
        let answered = state.rng.chance(1, 2);
        let fates = [
            (Fate::Fails, manners.fails),
            (Fate::LosesAnswer, manners.loses_answers),
            (Fate::Hangs, manners.hangs),
            (Fate::HangsAfter, manners.hangs_after),
            (Fate::Late, if is_get { 0 } else { manners.late }),
            (Fate::Slow, manners.slow),
            (Fate::Half { answered }, if is_put { manners.half } else { 0 }),
            (Fate::Flips, if is_get { manners.flips } else { 0 }),
            (Fate::Short, if is_get { manners.short } else { 0 }),
        ];
        let mut fate = Fate::Done;
        for (one, share) in fates {
            if number < share {
                fate = one;
                break;
            }
            number -= share;
        }
        // Whole milliseconds, the runtime's own resolution.
        let millis = |least: u64, span: u64| Duration::from_millis(least + state.rng.below(span));
        let there = if fate == Fate::Slow { millis(1_000, 7_000) } else { millis(1, 30) };
        let back = millis(1, 20);
        if fate != Fate::Done {
            *state.faults.entry(fate.name()).or_default() += 1;
        }
        (fate, there, back)
    }

    #[allow(clippy::too_many_arguments, reason = "one request and its way")]
    async fn carry_out<T: Send + 'static>(
        &self,
        operation: StoreOperation,
        key: String,
        fate: Fate,
        there: Duration,
        back: Duration,
        act: impl FnOnce(&Self, Fate) -> Result<T> + Send + 'static,
        answer: oneshot::Sender<Result<T>>,
    ) {
        self.clock.sleep(there).await;
        let mut answer = Some(answer);
        match fate {
            Fate::Fails => {
                self.note(operation, &key, fate, "not done");
                drop(answer.take().map(|answer| answer.send(Err(injected(&key)))));
                return;
            }
            Fate::Hangs => return self.note(operation, &key, fate, "not done"),
            Fate::Late => {
                drop(answer.take().map(|answer| answer.send(Err(injected(&key)))));
                let late = Duration::from_millis(2_000 + self.lock().rng.below(25_000));
                self.clock.sleep(late).await;
            }
            _ => {}
        }
        let spring = self.springs(operation);
        if let Some((TrapMoment::Before, spring)) = &spring {
            self.note(operation, &key, fate, "the process ends before it");
            return spring();
        }
        let outcome = act(self, fate);
        let text = match &outcome {
            Ok(_) => "ok",
            Err(Error::NotFound { .. }) => "not found",
            Err(Error::AlreadyExists { .. }) => "exists",
            Err(_) => "an error",
        };
        self.note(operation, &key, fate, text);
        if let Some((_, spring)) = spring {
            return spring();
        }
        self.clock.sleep(back).await;
        let Some(answer) = answer else { return };
        let answered = match fate {
            Fate::HangsAfter => return,
            Fate::LosesAnswer | Fate::Half { answered: false } => Err(injected(&key)),
            _ => outcome,
        };
        // Whoever asked may be gone.
        drop(answer.send(answered));
    }

    /// Counts an operation that changes something; the trap that it springs.
    fn springs(&self, operation: StoreOperation) -> Option<(TrapMoment, Arc<dyn Fn() + Send + Sync>)> {
        if !matches!(operation, StoreOperation::Put | StoreOperation::Delete) {
            return None;
        }
        let mut state = self.lock();
        state.operations += 1;
        let number = state.operations;
        let trap = state.trap.take_if(|trap| trap.number <= number)?;
        Some((trap.moment, trap.spring))
    }

    fn note(&self, operation: StoreOperation, key: &str, fate: Fate, outcome: &str) {
        self.trace.note(format_args!("bucket {operation:?} {key}: {}: {outcome}", fate.name()));
    }

    fn store(&self, location: &Path, bytes: Bytes, mode: &PutMode) -> Result<PutResult> {
        let mut state = self.lock();
        let path = location.to_string();
        self.trace.note(format_args!("bucket takes {} bytes #{:016x}", bytes.len(), digest(&bytes)));
        match mode {
            PutMode::Overwrite => {}
            PutMode::Create if !state.objects.contains_key(&path) => {}
            PutMode::Create => return Err(Error::AlreadyExists { path, source: "it is there".into() }),
            PutMode::Update(_) => {
                return Err(Error::NotImplemented {
                    operation: "update".to_owned(),
                    implementer: "SimBucket".to_owned(),
                });
            }
        }
        state.etags += 1;
        let etag = state.etags;
        state.objects.insert(path, Object { bytes, etag, written: self.clock.wall() });
        Ok(PutResult { e_tag: Some(format!("\"{etag}\"")), version: None, extensions: Default::default() })
    }

    fn remove(&self, location: &Path) {
        let observer = self.lock().observer.clone();
        let key = location.as_ref();
        if let Some(observer) = observer.filter(|_| self.lock().objects.contains_key(key)) {
            observer.deletes(key);
        }
        self.lock().objects.remove(key);
    }

    fn meta(location: &Path, object: &Object) -> ObjectMeta {
        ObjectMeta {
            location: location.clone(),
            last_modified: (UNIX_EPOCH + Duration::from_millis(object.written.as_millis())).into(),
            size: object.bytes.len() as u64,
            e_tag: Some(format!("\"{}\"", object.etag)),
            version: None,
        }
    }

    fn read(&self, location: &Path, options: &GetOptions, fate: Fate) -> Result<GetResult> {
        let state = self.lock();
        let Some(object) = state.objects.get(location.as_ref()) else {
            return Err(Error::NotFound { path: location.to_string(), source: "it is not there".into() });
        };
        let meta = Self::meta(location, object);
        options.check_preconditions(&meta)?;
        let range: Range<u64> = match &options.range {
            Some(range) => range
                .as_range(meta.size)
                .map_err(|error| Error::Generic { store: "SimBucket", source: Box::new(error) })?,
            None => 0..meta.size,
        };
        let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX);
        let mut body =
            if options.head { Bytes::new() } else { object.bytes.slice(at(range.start)..at(range.end)) };
        let whole = body.len() as u64;
        match fate {
            Fate::Flips if whole > 0 => {
                let bit = state.rng.below(whole * 8);
                let mut hurt = body.to_vec();
                hurt[at(bit / 8)] ^= 1 << (bit % 8);
                body = hurt.into();
            }
            Fate::Short if whole > 0 => body.truncate(at(state.rng.below(whole))),
            _ => {}
        }
        self.trace.note(format_args!("bucket gives {} bytes #{:016x}", body.len(), digest(&body)));
        let payload = GetResultPayload::Stream(futures::stream::once(std::future::ready(Ok(body))).boxed());
        Ok(GetResult {
            payload,
            meta,
            range,
            attributes: Attributes::default(),
            extensions: Default::default(),
        })
    }

    fn list(&self, prefix: Option<&Path>, offset: Option<&Path>) -> Vec<ObjectMeta> {
        let state = self.lock();
        let folder = prefix.map(|prefix| format!("{prefix}/")).unwrap_or_default();
        let found = state.objects.iter().filter(|(key, _)| {
            key.starts_with(&folder) && offset.is_none_or(|offset| key.as_str() > offset.as_ref())
        });
        found.map(|(key, object)| Self::meta(&Path::from(key.as_str()), object)).collect()
    }
}

fn injected(key: &str) -> Error {
    Error::Generic { store: "SimBucket", source: format!("503 for {key}").into() }
}

fn unsupported(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.to_owned(), implementer: "SimBucket".to_owned() }
}

impl SimBucket {
    async fn put(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let (place, bytes, mode) = (location.clone(), Bytes::from(payload), options.mode);
        if self.shared.lock().answers_early {
            return self.put_early(place, bytes);
        }
        let act = move |shared: &Shared, fate: Fate| {
            let part = match fate {
                Fate::Half { .. } => bytes.slice(..bytes.len() / 2),
                _ => bytes,
            };
            shared.store(&place, part, &mode)
        };
        self.request(StoreOperation::Put, location.as_ref(), act).await
    }

    /// The mistake of [`SimBucket::answer_early`]: the length is right at once, and the bytes come later.
    fn put_early(&self, place: Path, bytes: Bytes) -> Result<PutResult> {
        let done = self.shared.store(&place, Bytes::from(vec![0; bytes.len()]), &PutMode::Overwrite)?;
        let shared = Arc::clone(&self.shared);
        let later = Duration::from_millis(500 + self.shared.lock().rng.below(4_000));
        #[allow(clippy::disallowed_methods, reason = "the store outlives the process that is simulated")]
        drop(tokio::spawn(async move {
            shared.clock.sleep(later).await;
            shared.trace.note(format_args!("bucket stores {place} at last"));
            if let Some(object) = shared.lock().objects.get_mut(place.as_ref()) {
                object.bytes = bytes;
            }
        }));
        Ok(done)
    }

    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let operation = if options.head { StoreOperation::Head } else { StoreOperation::Get };
        let place = location.clone();
        let act = move |shared: &Shared, fate: Fate| shared.read(&place, &options, fate);
        self.request(operation, location.as_ref(), act).await
    }

    async fn delete_one(&self, location: Path) -> Result<Path> {
        let key = location.to_string();
        let act = move |shared: &Shared, _: Fate| {
            shared.remove(&location);
            Ok(location)
        };
        self.request(StoreOperation::Delete, &key, act).await
    }

    fn list_from(
        &self,
        prefix: Option<&Path>,
        offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (prefix, offset, bucket) = (prefix.cloned(), offset.cloned(), self.clone());
        let listing = async move {
            let key = prefix.as_ref().map(ToString::to_string).unwrap_or_default();
            let act = move |shared: &Shared, _: Fate| Ok(shared.list(prefix.as_ref(), offset.as_ref()));
            match bucket.request(StoreOperation::List, &key, act).await {
                Ok(found) => futures::stream::iter(found.into_iter().map(Ok)).boxed(),
                Err(error) => futures::stream::once(std::future::ready(Err(error))).boxed(),
            }
        };
        futures::stream::once(listing).flatten().boxed()
    }
}

impl ObjectStore for SimBucket {
    own_puts!();
    own_reads!();
    own_deletions!();

    fn put_multipart_opts<'this, 'path, 'call>(
        &'this self,
        _location: &'path Path,
        _options: PutMultipartOptions,
    ) -> Answer<'call, Box<dyn MultipartUpload>>
    where
        'this: 'call,
        'path: 'call,
        Self: 'call,
    {
        Box::pin(std::future::ready(Err(unsupported("multipart upload"))))
    }

    fn list_with_delimiter<'this, 'prefix, 'call>(
        &'this self,
        _prefix: Option<&'prefix Path>,
    ) -> Answer<'call, ListResult>
    where
        'this: 'call,
        'prefix: 'call,
        Self: 'call,
    {
        Box::pin(std::future::ready(Err(unsupported("list with delimiter"))))
    }

    fn copy_opts<'this, 'from, 'to, 'call>(
        &'this self,
        _from: &'from Path,
        _to: &'to Path,
        _options: CopyOptions,
    ) -> Answer<'call, ()>
    where
        'this: 'call,
        'from: 'call,
        'to: 'call,
        Self: 'call,
    {
        Box::pin(std::future::ready(Err(unsupported("copy"))))
    }
}

#[cfg(test)]
mod tests;
