//! The chunk cache: what both implementations do, and what foyer's folder does over restarts.

use std::path::Path;

use bytes::Bytes;
use tidelog_object::{ChunkCache, ChunkKey, FoyerCache, FoyerConfig, FoyerConfigError, MapCache};
use tidelog_runtime::{Registry, Supervisor};
use tidelog_types::{
    BrokerIncarnation, ByteSize, ClusterId, PartitionIndex, TopicId, UploadId, UploadSequence,
};

fn key(unit: u64) -> ChunkKey {
    ChunkKey {
        cluster_id: ClusterId::from_bytes([7; 16]),
        topic_id: TopicId::from_bytes([8; 16]),
        partition: PartitionIndex(3),
        upload: UploadId { incarnation: BrokerIncarnation(4), sequence: UploadSequence(5) },
        unit,
    }
}

fn chunk(unit: u64, length: usize) -> Bytes {
    let seed = usize::try_from(unit).unwrap();
    Bytes::from((0..length).map(|at| u8::try_from((at + seed * 7) % 251).unwrap()).collect::<Vec<u8>>())
}

fn foyer(dir: &Path, disk: ByteSize) -> Result<FoyerCache, FoyerConfigError> {
    let config = FoyerConfig { dir: dir.to_path_buf(), memory: ByteSize::mib(4), disk };
    FoyerCache::new(config, Supervisor::for_test(), &Registry::new())
}

/// Bytes of the cache's files, and how many there are.
fn files(dir: &Path) -> (u64, usize) {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let blocks = files.filter(|entry| entry.file_name().to_str().unwrap().starts_with("foyer-"));
    let lengths: Vec<u64> = blocks.map(|entry| entry.metadata().unwrap().len()).collect();
    (lengths.iter().sum(), lengths.len())
}

async fn keeps_the_contract(cache: &dyn ChunkCache) {
    assert_eq!(cache.get(&key(1)).await, None);
    cache.insert(key(1), chunk(1, 1000));
    cache.insert(key(2), Bytes::new());
    assert_eq!(cache.get(&key(1)).await, Some(chunk(1, 1000)));
    assert_eq!(cache.get(&key(2)).await, Some(Bytes::new()));
    // T10: another topic, cluster, partition or upload is another chunk.
    for other in [
        ChunkKey { cluster_id: ClusterId::from_bytes([9; 16]), ..key(1) },
        ChunkKey { topic_id: TopicId::from_bytes([9; 16]), ..key(1) },
        ChunkKey { partition: PartitionIndex(4), ..key(1) },
        ChunkKey {
            upload: UploadId { incarnation: BrokerIncarnation(4), sequence: UploadSequence(6) },
            ..key(1)
        },
    ] {
        assert_eq!(cache.get(&other).await, None);
    }
    let usage = cache.usage();
    assert_eq!((usage.hit_count, usage.miss_count), (2, 5));
    cache.clear().await;
    assert_eq!(cache.get(&key(1)).await, None);
    cache.close().await;
}

#[tokio::test]
async fn a_map_keeps_the_contract() {
    keeps_the_contract(&MapCache::new(ByteSize::mib(1), &Registry::new())).await;
}

#[tokio::test]
async fn foyer_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let cache = foyer(dir.path(), ByteSize::mib(16)).unwrap();
    cache.open().await;
    keeps_the_contract(&cache).await;
}

#[tokio::test]
async fn what_the_files_take_is_told_and_not_what_they_may() {
    let dir = tempfile::tempdir().unwrap();
    let cache = foyer(dir.path(), ByteSize::mib(64)).unwrap();
    assert_eq!(cache.disk_bytes(), 0, "nothing is there before the first look-up");
    cache.open().await;
    let empty = cache.disk_bytes();
    assert!(empty < 1 << 20, "{empty} of an empty cache");
    for unit in 1..=3 {
        cache.insert(key(unit), chunk(unit, 1_000_000));
    }
    cache.close().await;
    let (lengths, taken) = (files(dir.path()).0, cache.disk_bytes());
    assert_eq!(lengths, 64 << 20);
    assert!((3_000_000..16 << 20).contains(&taken), "{taken}");
    drop(cache);
    let again = foyer(dir.path(), ByteSize::mib(64)).unwrap();
    assert_eq!(again.disk_bytes(), taken, "what an earlier run left counts before anything is opened");
}

#[tokio::test]
async fn foyer_without_a_disk_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let cache = foyer(dir.path(), ByteSize::bytes(0)).unwrap();
    cache.open().await;
    keeps_the_contract(&cache).await;
    assert_eq!(files(dir.path()), (0, 0));
}

#[tokio::test]
async fn a_map_drops_what_was_used_least_recently() {
    let cache = MapCache::new(ByteSize::bytes(3000), &Registry::new());
    for unit in 1..=3 {
        cache.insert(key(unit), chunk(unit, 1000));
    }
    assert!(cache.get(&key(1)).await.is_some());
    cache.insert(key(4), chunk(4, 1000));
    assert_eq!(cache.get(&key(2)).await, None);
    assert!(cache.get(&key(1)).await.is_some() && cache.get(&key(3)).await.is_some());
    assert_eq!(cache.usage().memory_bytes, 3000);
    cache.insert(key(5), chunk(5, 3001));
    assert_eq!(cache.get(&key(5)).await, None);
    cache.insert(key(4), chunk(4, 10));
    assert_eq!(cache.usage().memory_bytes, 2010);
}

// B100: any size either works or is refused with a message before anything is opened.
#[tokio::test]
async fn odd_sizes_are_refused_or_work() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        foyer(dir.path(), ByteSize::kib(4)).err(),
        Some(FoyerConfigError::DiskTooSmall { given: 4096 })
    );
    let config =
        FoyerConfig { dir: dir.path().to_path_buf(), memory: ByteSize::kib(1), disk: ByteSize::mib(16) };
    let error = FoyerCache::new(config, Supervisor::for_test(), &Registry::new()).err();
    assert_eq!(error, Some(FoyerConfigError::MemoryTooSmall { given: 1024 }));
    for disk in [ByteSize::mib(16), ByteSize::bytes(33_333_333), ByteSize::mib(95)] {
        let dir = tempfile::tempdir().unwrap();
        let cache = foyer(dir.path(), disk).unwrap();
        cache.open().await;
        for unit in 0..40 {
            cache.insert(key(unit), chunk(unit, 1024 * 1024));
        }
        assert_eq!(cache.get(&key(39)).await, Some(chunk(39, 1024 * 1024)));
        cache.close().await;
        let (bytes, _) = files(dir.path());
        assert!(bytes <= disk.get() && bytes == cache.disk_bytes_max(), "{bytes} of {disk:?}");
    }
}

// B100: a lowered capacity lowers the disk's use at the next start, and what fits is found again.
#[tokio::test]
async fn a_restart_finds_chunks_again_and_a_lower_capacity_frees_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let cache = foyer(dir.path(), ByteSize::mib(64)).unwrap();
    cache.open().await;
    for unit in 0..8 {
        cache.insert(key(unit), chunk(unit, 512 * 1024));
    }
    cache.close().await;
    let first = files(dir.path());

    let cache = foyer(dir.path(), ByteSize::mib(64)).unwrap();
    cache.open().await;
    let mut found = 0;
    for unit in 0..8 {
        if let Some(bytes) = cache.get(&key(unit)).await {
            assert_eq!(bytes, chunk(unit, 512 * 1024));
            found += 1;
        }
    }
    assert!(found >= 4, "{found} of 8 are found after a restart");
    cache.close().await;
    assert_eq!(files(dir.path()), first);

    let cache = foyer(dir.path(), ByteSize::mib(32)).unwrap();
    cache.open().await;
    cache.get(&key(0)).await;
    cache.close().await;
    assert!(files(dir.path()).0 <= 32 * 1024 * 1024, "{:?}", files(dir.path()));
}

#[tokio::test]
async fn nothing_is_opened_before_the_first_look_up() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("cache");
    let cache = foyer(&folder, ByteSize::mib(16)).unwrap();
    cache.insert(key(1), chunk(1, 10));
    assert!(!folder.exists());
    assert_eq!(cache.get(&key(1)).await, None);
    cache.open().await;
    assert!(folder.exists());
}

// B100: a cache that cannot be opened is no failure of the broker.
#[tokio::test]
async fn a_folder_that_cannot_be_used_leaves_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a-file");
    std::fs::write(&path, "x").unwrap();
    let cache = foyer(&path, ByteSize::mib(16)).unwrap();
    cache.open().await;
    keeps_the_contract(&cache).await;
}
