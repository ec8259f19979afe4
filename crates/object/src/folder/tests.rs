use std::{
    sync::{Condvar, Mutex},
    time::Duration,
};

use futures::future::join_all;
use tidelog_runtime::{BLOCKING_THREADS_MAX, Registry, SeededRng, SystemClock};

use super::{room::WRITES_AT_ONCE, *};
use crate::{ObjectClient, PutError, StoreOptions};

fn payload(fill: u8, bytes: usize) -> PutPayload {
    (0..bytes).step_by(300_007).map(|at| Bytes::from(vec![fill; 300_007.min(bytes - at)])).collect()
}

fn store_in(folder: &FilePath) -> FolderStore {
    let files = LocalFileSystem::new_with_prefix(folder).unwrap();
    FolderStore::new(files, &folder.canonicalize().unwrap(), None)
}

fn create() -> PutOptions {
    PutOptions { mode: PutMode::Create, ..PutOptions::default() }
}

#[tokio::test]
async fn a_large_object_is_put_once_and_leaves_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let key = Path::from("topics/t/0/object");
    let (mut options, exchange) = (create(), Exchange::new());
    options.extensions.insert(exchange.clone());
    let put = store.put_opts(&key, payload(7, 3_000_001), options).await.unwrap();
    assert_eq!(exchange.moved_bytes(), 3_000_001, "its progress is seen");
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
    let store = store_in(folder.path());
    fs::write(folder.path().join("file"), b"no folder").unwrap();
    let refused = store.put_opts(&Path::from("file/object"), payload(1, 2_000_000), create()).await;
    assert!(matches!(refused, Err(Error::Generic { .. })), "{refused:?}");
}

// A mount that ended, or a folder that was moved: what was put into its place was gone with its return, and counted as uploaded.
#[tokio::test]
async fn nothing_counts_in_another_folder_in_the_place_of_the_stores_own() {
    let around = tempfile::tempdir().unwrap();
    let (folder, away) = (around.path().join("bucket"), around.path().join("away"));
    fs::create_dir(&folder).unwrap();
    let store = store_in(&folder);
    let (small, large) = (Path::from("topics/t/0/small"), Path::from("topics/t/0/large"));
    store.put_opts(&Path::from("cluster.json"), payload(1, 9), create()).await.unwrap();
    store.put_opts(&small, payload(2, 5), create()).await.unwrap();
    let is_away = async |store: &FolderStore| {
        for bytes in [5, 2_000_000] {
            let put = store.put_opts(&large, payload(3, bytes), create()).await;
            assert!(matches!(put, Err(Error::Generic { .. })), "{put:?}");
        }
        let put = store.put_opts(&Path::from("brokers/1.json"), payload(3, 5), PutOptions::default()).await;
        assert!(matches!(put, Err(Error::Generic { .. })), "{put:?}");
        // Neither is anything absent, deleted, or all there is.
        let got = store.get(&small).await.map(drop);
        assert!(matches!(got, Err(Error::Generic { .. })), "{got:?}");
        let deleted = store.delete(&small).await;
        assert!(matches!(deleted, Err(Error::Generic { .. })), "{deleted:?}");
        let listed: Vec<_> = store.list(None).collect().await;
        assert!(listed.last().is_some_and(Result::is_err), "{listed:?}");
    };
    for stays in [false, true] {
        fs::rename(&folder, &away).unwrap();
        if stays {
            fs::create_dir(&folder).unwrap();
        }
        is_away(&store).await;
        assert_eq!(folder.exists(), stays, "no put makes it");
        assert!(!stays || names(&folder).is_empty());
        if stays {
            // Another cluster's is no better.
            fs::write(folder.join("cluster.json"), b"another").unwrap();
            is_away(&store).await;
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::rename(&away, &folder).unwrap();
        assert_eq!(store.get(&small).await.unwrap().bytes().await.unwrap(), vec![2; 5]);
    }
    // Mounted again it may have another number: its claim tells.
    fs::create_dir(&away).unwrap();
    fs::copy(folder.join("cluster.json"), away.join("cluster.json")).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    fs::rename(&away, &folder).unwrap();
    store.put_opts(&large, payload(3, 2_000_000), create()).await.unwrap();
    assert!(matches!(store.get(&small).await, Err(Error::NotFound { .. })));
}

type Hangs = fn(&str) -> bool;

/// What the syncs of a store were asked for, and what becomes of them.
#[derive(Default)]
struct Syncs {
    asked: Mutex<Vec<String>>,
    /// Those of paths that end so fail, so many times.
    failing: Mutex<Option<(&'static str, u32)>>,
    /// Those of such paths hang.
    hanging: Mutex<Option<Hangs>>,
    released: Condvar,
}

impl Syncs {
    fn sync(&self, root: &FilePath, file: &File, path: &FilePath) -> io::Result<()> {
        let path = path.strip_prefix(root).unwrap().to_str().unwrap();
        self.asked.lock().unwrap().push(path.to_owned());
        let hanging = self.hanging.lock().unwrap();
        drop(self.released.wait_while(hanging, |hanging| hanging.is_some_and(|hangs| hangs(path))));
        match &mut *self.failing.lock().unwrap() {
            Some((end, count)) if *count > 0 && path.ends_with(*end) => {
                *count -= 1;
                Err(io::Error::other("injected"))
            }
            _ => file.sync_all(),
        }
    }

    /// The syncs asked for since the last look.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn release(&self) {
        *self.hanging.lock().unwrap() = None;
        self.released.notify_all();
    }
}

/// A store in a folder, over syncs that fail or hang on demand, and a client of it that finds out fast.
fn rig(folder: &FilePath) -> (FolderStore, Arc<Syncs>, ObjectClient) {
    let syncs = Arc::new(Syncs::default());
    let (root, asked) = (folder.canonicalize().unwrap(), Arc::clone(&syncs));
    let sync = FolderSync(Arc::new(move |file, path| asked.sync(&root, file, path)));
    let files = LocalFileSystem::new_with_prefix(folder).unwrap();
    let store = FolderStore { sync, ..FolderStore::new(files, &folder.canonicalize().unwrap(), None) };
    let options = StoreOptions {
        silence_timeout: Duration::from_millis(100),
        retry_deadline: Duration::from_secs(1),
        floor_rate_bytes: 1 << 40,
        ..StoreOptions::default()
    };
    let (clock, rng) = (Arc::new(SystemClock::new()), Arc::new(SeededRng::new(1)));
    let client = ObjectClient::with_store(Arc::new(store.clone()), options, clock, rng, &Registry::new());
    (store, syncs, client)
}

fn names(folder: &FilePath) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn chunks(bytes: usize) -> Vec<Bytes> {
    payload(3, bytes).into_iter().collect()
}

#[test]
fn a_folder_that_hangs_keeps_few_threads_and_one_file_of_a_key() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let (_, syncs, client) = rig(folder.path());
        *syncs.hanging.lock().unwrap() = Some(|path| path.contains('#'));
        let put_all =
            || join_all((0..20).map(|number| client.put_new(format!("k{number}").leak(), chunks(2_000_000))));
        // Room for other files of it is there.
        let first = client.put_new("k0", chunks(2_000_000)).await;
        let of_first = names(folder.path());
        let all = put_all().await;
        let left = names(folder.path());
        // What is not the folder's is done meanwhile.
        let other = Handle::current().spawn_blocking(|| 7);
        let done = tokio::time::timeout(Duration::from_secs(20), other).await;
        // Before anything may fail: the runtime waits for its threads.
        syncs.release();
        for put in all.into_iter().chain([first]) {
            assert!(matches!(put, Err(PutError::Unknown(_) | PutError::Retriable(_))), "{put:?}");
        }
        assert_eq!(of_first, ["k0#1"]);
        assert_eq!(left.len(), WRITES_AT_ONCE, "{left:?}");
        assert!(left.iter().all(|name| name.ends_with("#1")), "{left:?}");
        assert_eq!(done.expect("threads are free").unwrap(), 7);
        for put in put_all().await {
            put.unwrap();
        }
        assert_eq!(names(folder.path()).len(), 20, "every object, and nothing beside");
    });
}

#[tokio::test]
async fn a_folder_whose_sync_failed_holds_a_new_file_after_the_next_try() {
    let folder = tempfile::tempdir().unwrap();
    let (store, syncs, client) = rig(folder.path());
    for bytes in [5, 2_000_000] {
        let key = format!("t/{bytes}");
        *syncs.failing.lock().unwrap() = Some(("t", 1));
        let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        fs::create_dir_all(folder.path().join("t")).unwrap();
        let failed = store.put_opts(&Path::from(key.as_str()), payload(3, bytes), create).await;
        assert!(matches!(failed, Err(Error::Generic { .. })), "{failed:?}");
        assert!(!folder.path().join(&key).exists());
        let aside = format!("{key}#1");
        assert_eq!(syncs.take(), [aside.as_str(), "t"]);
        *syncs.failing.lock().unwrap() = Some(("t", 1));
        client.put_new(&key, chunks(bytes)).await.unwrap();
        assert_eq!(syncs.take(), [aside.as_str(), "t", aside.as_str(), "t"]);
        // One whose end nobody heard of is synced before it is told of.
        client.put_new(&key, chunks(bytes)).await.unwrap();
        assert_eq!(syncs.take(), [aside.as_str(), key.as_str(), "t"]);
    }
}

#[tokio::test]
async fn an_object_in_a_folder_that_is_not_synced_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let (_, syncs, client) = rig(folder.path());
    fs::create_dir(folder.path().join("unsynced")).unwrap();
    *syncs.hanging.lock().unwrap() = Some(|path| path == "unsynced");
    let put = client.put_new("unsynced/object", chunks(2_000_000)).await;
    syncs.release();
    assert!(matches!(put, Err(PutError::Unknown(_))), "{put:?}");
    client.put_new("unsynced/object", chunks(2_000_000)).await.unwrap();
}

#[tokio::test]
async fn a_new_folder_that_cannot_be_synced_is_new_again() {
    let folder = tempfile::tempdir().unwrap();
    let (_, syncs, client) = rig(folder.path());
    *syncs.failing.lock().unwrap() = Some(("a", 1));
    client.put_new("a/b/object", chunks(5)).await.unwrap();
    assert_eq!(syncs.take(), ["a", "a", "", "a/b/object#1", "a/b"]);
}
