//! What only the real disk has; what every disk promises is in the contract suite of `tidelog-sim`.

use super::*;

fn chunks(texts: &[&'static str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect()
}

#[test]
fn short_and_interrupted_writes_are_continued() {
    let mut written = vec![b'.'; 12];
    let mut calls = 0;
    write_all(2, &chunks(&["", "abc", "", "", "defgh", ""]), |buffers, position| {
        calls += 1;
        if calls % 2 == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let all: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let count = all.len().min(3);
        let at = usize::try_from(position).unwrap();
        written[at..at + count].copy_from_slice(&all[..count]);
        Ok(count)
    })
    .unwrap();
    assert_eq!((written.as_slice(), calls), (&b"..abcdefgh.."[..], 5));
}

#[test]
fn a_write_of_nothing_calls_nothing_and_one_that_writes_nothing_fails() {
    write_all(0, &chunks(&["", ""]), |_, _| unreachable!("there is nothing to write")).unwrap();
    let error = write_all(0, &chunks(&["a"]), |_, _| Ok(0)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}

#[tokio::test]
async fn more_chunks_than_one_call_takes_are_written_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FileDisk::new(FileDiskConfig::default()).unwrap();
    let file = disk.open(&folder.path().join("f"), OpenMode::CreateNew, Lane::Journal).await.unwrap();
    let count = 2 * BUFFERS_PER_WRITE_MAX + 7;
    let chunks: Vec<Bytes> = (0..count).map(|n| Bytes::from(format!("{n:06}"))).collect();
    let whole: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.to_vec()).collect();
    file.write_at(3, chunks).await.unwrap();
    assert_eq!(file.read_at(3, usize::MAX / 4).await.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    assert_eq!(file.read_at(3, whole.len() + 100).await.unwrap(), whole);
    assert_eq!(file.len().await.unwrap(), 3 + u64::try_from(whole.len()).unwrap());
}

#[tokio::test]
async fn a_full_device_is_reported_and_counted() {
    let registry = Registry::new();
    let disk =
        FileDisk::new(FileDiskConfig { registry: registry.clone(), ..FileDiskConfig::default() }).unwrap();
    let file = disk.open(Path::new("/dev/full"), OpenMode::ReadWrite, Lane::Background).await.unwrap();
    let error = file.write_at(0, chunks(&["abc"])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    let text = registry.encode();
    assert!(text.contains("runtime_disk_errors_total{operation=\"write\"} 1\n"), "{text}");
    assert!(text.contains("runtime_disk_operation_seconds_count{operation=\"write\"} 1\n"), "{text}");
}

#[test]
fn filling_reserves_what_allocating_would() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    let file = open(&path, OpenMode::CreateNew).unwrap();
    write_all(0, &chunks(&["abc"]), |buffers, position| Ok(rustix::io::pwritev(&file, buffers, position)?))
        .unwrap();
    fill(&file, 200_000).unwrap();
    let mut expected = vec![0; 200_000];
    expected[..3].copy_from_slice(b"abc");
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    push_out(&file, 0, 200_000).unwrap();
}

#[tokio::test]
async fn threads_end_with_the_last_file() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FileDisk::new(FileDiskConfig::default()).unwrap();
    let file = disk.open(&folder.path().join("f"), OpenMode::CreateNew, Lane::Read).await.unwrap();
    let lanes = Arc::downgrade(&disk.lanes);
    drop(disk);
    file.write_at(0, chunks(&["abc"])).await.unwrap();
    assert_eq!(file.read_at(1, 10).await.unwrap(), "bc");
    drop(file);
    assert_eq!(lanes.strong_count(), 0);
}
