use std::sync::Mutex;

use tidelog_format::batch::{BatchBuilder, NewRecord};
use tidelog_runtime::IoFuture;

use super::*;

/// A file in memory that notes how much was asked for.
struct Noting {
    content: Bytes,
    asked: Mutex<Vec<usize>>,
}

fn refused<T>() -> IoFuture<T> {
    Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
}

impl DiskFile for Noting {
    fn write_at(&self, _: u64, _: Vec<Bytes>) -> IoFuture<()> {
        refused()
    }

    fn read_at(&self, position: u64, length: usize) -> IoFuture<Bytes> {
        self.asked.lock().unwrap().push(length);
        let from = usize::try_from(position).unwrap().min(self.content.len());
        let part = self.content.slice(from..from.saturating_add(length).min(self.content.len()));
        Box::pin(async { Ok(part) })
    }

    fn sync_data(&self) -> IoFuture<()> {
        refused()
    }

    fn allocate(&self, _: u64) -> IoFuture<()> {
        refused()
    }

    fn set_len(&self, _: u64) -> IoFuture<()> {
        refused()
    }

    fn len(&self) -> IoFuture<u64> {
        let length = self.content.len() as u64;
        Box::pin(async move { Ok(length) })
    }

    fn push_out(&self, _: u64, _: u64) {}
}

async fn walk(content: Vec<u8>) -> ((usize, u64), Vec<usize>) {
    let file = Arc::new(Noting { content: content.into(), asked: Mutex::default() });
    let found = walked(Arc::<Noting>::clone(&file)).await.unwrap();
    let asked = file.asked.lock().unwrap().clone();
    (found, asked)
}

fn batch(base: u64, value: &[u8]) -> Vec<u8> {
    let record = NewRecord { value: Some(value), ..NewRecord::default() };
    let builder = BatchBuilder::new(Offset::new(base).unwrap()).leader_epoch(LeaderEpoch::ZERO);
    builder.record(&record).build().unwrap().to_bytes().to_vec()
}

#[tokio::test]
async fn a_length_beyond_the_file_is_not_asked_for() {
    let first = batch(0, b"a value");
    let mut torn = batch(1, b"another");
    torn[8..12].copy_from_slice(&i32::try_from(BATCH_BYTES_MAX - 12).unwrap().to_be_bytes());
    let (found, asked) = walk([&first[..], &torn].concat()).await;
    assert_eq!((found, asked), ((1, first.len() as u64), vec![READ_BYTES]));
}

#[tokio::test]
async fn a_batch_above_one_read_is_read_whole() {
    let large = batch(0, &vec![7; 3 * READ_BYTES]);
    let (found, asked) = walk([&large[..], &batch(1, b"small")].concat()).await;
    assert_eq!(found, (2, (large.len() + batch(1, b"small").len()) as u64));
    assert_eq!(asked[..2], [READ_BYTES, large.len() - READ_BYTES]);
}
