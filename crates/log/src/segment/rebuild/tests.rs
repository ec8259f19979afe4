use tidelog_format::batch::{BatchBuilder, NewRecord};
use tidelog_sim::MemoryFile;

use super::*;

async fn walk(content: Vec<u8>) -> ((usize, u64), Vec<usize>) {
    let file = Arc::new(MemoryFile::new(content));
    let found = walked(Arc::<MemoryFile>::clone(&file)).await.unwrap();
    (found, file.asked().into_iter().map(|(_, length)| length).collect())
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
