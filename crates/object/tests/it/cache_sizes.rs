//! The chunk cache over the matrix of its sizes: each either works, over restarts and a lowered capacity, or is refused.

use std::path::Path;

use bytes::Bytes;
use tidelog_object::{ChunkCache as _, ChunkKey, FoyerCache, FoyerConfig, FoyerConfigError};
use tidelog_runtime::{Registry, Supervisor};
use tidelog_types::{
    BrokerIncarnation, ByteSize, ClusterId, PartitionIndex, TopicId, UploadId, UploadSequence,
};

const MIB: u64 = 1024 * 1024;
/// What a look-up brings: of odd lengths, up to a whole chunk.
const CHUNK_BYTES: [usize; 5] = [1, 4095, 65_537, 262_144, 1_048_576];

fn key(unit: u64) -> ChunkKey {
    ChunkKey {
        cluster_id: ClusterId::from_bytes([7; 16]),
        topic_id: TopicId::from_bytes([8; 16]),
        partition: PartitionIndex(3),
        upload: UploadId { incarnation: BrokerIncarnation(4), sequence: UploadSequence(5) },
        unit,
    }
}

fn chunk(unit: u64) -> Bytes {
    let index = usize::try_from(unit).unwrap();
    Bytes::from(vec![u8::try_from(unit % 251).unwrap(); CHUNK_BYTES[index % CHUNK_BYTES.len()]])
}

fn open(dir: &Path, memory: u64, disk: u64) -> Result<FoyerCache, FoyerConfigError> {
    let config =
        FoyerConfig { dir: dir.to_path_buf(), memory: ByteSize::bytes(memory), disk: ByteSize::bytes(disk) };
    FoyerCache::new(config, Supervisor::for_test(), &Registry::new())
}

/// What the folder takes on the device.
fn allocated(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    files.map(|file| file.blocks() * 512).sum()
}

/// Reads as readers do: what is not there is brought and put in. Whatever is found is what was put in.
async fn use_it(cache: &FoyerCache, units: u64) -> u64 {
    cache.open().await;
    let mut hits = 0;
    for unit in 0..units {
        match cache.get(&key(unit)).await {
            Some(found) => {
                assert_eq!(found, chunk(unit), "unit {unit}");
                hits += 1;
            }
            None => cache.insert(key(unit), chunk(unit)),
        }
    }
    hits
}

// B100: capacities and memories of every kind, a restart with half, and what the folder takes then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_works_or_is_refused_and_half_of_it_after_a_restart() {
    for memory in [4 * MIB, 4 * MIB + 1, 7_777_777, 32 * MIB, 100 * MIB] {
        for disk in [0, 1, 4096, 16 * MIB - 1, 16 * MIB, 33_333_333, 95 * MIB, 95 * MIB + 4097] {
            let dir = tempfile::tempdir().unwrap();
            let cache = match open(dir.path(), memory, disk) {
                Ok(cache) => cache,
                Err(error) => {
                    assert!(disk > 0 && disk < 16 * MIB, "{memory} and {disk}: {error}");
                    assert_eq!(error, FoyerConfigError::DiskTooSmall { given: disk });
                    assert_eq!(
                        std::fs::read_dir(dir.path()).unwrap().count(),
                        0,
                        "refused before it is opened"
                    );
                    continue;
                }
            };
            use_it(&cache, 40).await;
            cache.close().await;
            assert!(allocated(dir.path()) <= disk + MIB, "{memory} and {disk}");
            let half = disk / 2;
            let Ok(cache) = open(dir.path(), memory, half) else {
                assert!(half < 16 * MIB);
                continue;
            };
            use_it(&cache, 40).await;
            cache.close().await;
            assert!(allocated(dir.path()) <= half + MIB, "{memory} and half of {disk}");
        }
    }
}

// B100: a gibibyte is as good, and takes no disk before it is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_capacity_takes_disk_for_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 4 * MIB, 1024 * MIB).unwrap();
    use_it(&cache, 30).await;
    cache.close().await;
    assert!(allocated(dir.path()) <= 1024 * MIB);
    let again = open(dir.path(), 4 * MIB, 1024 * MIB).unwrap();
    let hits = use_it(&again, 30).await;
    assert!(hits > 15, "{hits} of 30 are found after a restart");
    again.close().await;
    let half = open(dir.path(), 4 * MIB, 512 * MIB).unwrap();
    use_it(&half, 30).await;
    half.close().await;
    assert!(allocated(dir.path()) <= 513 * MIB);
}
