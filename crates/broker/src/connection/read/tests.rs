use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::future::join_all;
use tidelog_types::ByteSize;
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::{super::in_work::Counted, *};

const MIB: usize = 1024 * 1024;
const FRAME_MAX: usize = 100 * MIB;

impl Source for DuplexStream {
    fn poll_read_both(
        &mut self,
        cx: &mut Context<'_>,
        frame: &mut [u8],
        behind: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut bytes = vec![0; frame.len() + behind.len()];
        let count = ready!(pin!(self.read(&mut bytes)).poll(cx))?;
        let (first, rest) = bytes[..count].split_at(count.min(frame.len()));
        frame[..first.len()].copy_from_slice(first);
        behind[..rest.len()].copy_from_slice(rest);
        Poll::Ready(Ok(count))
    }
}

/// Budgets as a node has them.
struct Budgets {
    produce: FrameBudget,
    reserve: FrameBudget,
    turns: Semaphore,
}

impl Budgets {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            produce: FrameBudget::new("produce", ByteSize::mib(128), FRAME_MAX),
            reserve: FrameBudget::new("others", ByteSize::mib(64), FRAME_MAX),
            turns: Semaphore::new(1),
        })
    }

    fn limits(&self) -> ReadLimits<'_> {
        ReadLimits {
            request_bytes_max: FRAME_MAX,
            idle: Duration::from_secs(600),
            silence: Duration::from_secs(30),
            produce: &self.produce,
            reserve: &self.reserve,
            turns: &self.turns,
        }
    }

    async fn read(&self, mut reader: DuplexStream, in_work: &InWork) -> Result<Frame, ReadEnd> {
        read_frame(&mut reader, &mut Head::new(), self.limits(), in_work).await
    }
}

fn frame(api: ApiKey, size: usize, come: usize) -> Vec<u8> {
    let mut bytes = i32::try_from(size).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(&api.key().to_be_bytes());
    bytes.resize(FRAME_PREFIX_BYTES + come, 7);
    bytes
}

/// A peer that has sent so much of a frame, and the end that it is read from.
async fn peer(api: ApiKey, size: usize, come: usize) -> (DuplexStream, DuplexStream) {
    let (mut writer, reader) = tokio::io::duplex(2 * FRAME_MAX);
    writer.write_all(&frame(api, size, come)).await.unwrap();
    (writer, reader)
}

#[tokio::test(start_paused = true)]
async fn a_frame_is_one_buffer_of_its_size() {
    let budgets = Budgets::new();
    for size in [8, 9, 60, 61, 1000, 8 * 1024, 8 * 1024 + 1, 65 * 1024, MIB, MIB + 1, 3 * MIB, 50 * MIB] {
        let (writer, reader) = peer(ApiKey::Produce, size, size).await;
        let read = budgets.read(reader, &InWork::default()).await.unwrap();
        assert_eq!((read.bytes.len(), read.permit.bytes()), (size, u64::try_from(size).unwrap()));
        let charged = if size <= 8 * 1024 { 0 } else { size };
        assert_eq!(budgets.produce.used(), u64::try_from(charged).unwrap());
        assert_eq!(&read.bytes[..], &frame(ApiKey::Produce, size, size)[FRAME_PREFIX_BYTES..]);
        drop((writer, read));
        assert_eq!((budgets.produce.used(), budgets.reserve.used()), (0, 0));
    }
}

// D1
#[tokio::test(start_paused = true)]
async fn a_frame_is_charged_as_its_bytes_come() {
    let budgets = Budgets::new();
    let (mut writer, reader) = peer(ApiKey::Produce, 90_000_000, 4).await;
    let in_work = InWork::default();
    let mut reading = std::pin::pin!(budgets.read(reader, &in_work));
    let after = Duration::from_millis(10);
    assert!(timeout(after, &mut reading).await.is_err());
    assert_eq!(budgets.produce.used(), 0, "a size, a key and a version are no frame");
    let mut sent = 4;
    for (to, charged) in [(5, MIB), (MIB - 1, MIB), (MIB, 2 * MIB), (3 * MIB, 4 * MIB), (9 * MIB, 90_000_000)]
    {
        writer.write_all(&vec![7; to - sent]).await.unwrap();
        sent = to;
        assert!(timeout(after, &mut reading).await.is_err());
        assert_eq!(budgets.produce.used(), u64::try_from(charged).unwrap(), "after {to} bytes");
    }
}

// D1
#[tokio::test(start_paused = true)]
async fn tricklers_of_large_frames_stop_nobody() {
    let budgets = Budgets::new();
    for api in [ApiKey::Produce, ApiKey::Metadata] {
        let in_work = InWork::default();
        let mut tricklers = Vec::new();
        for _ in 0..3 {
            tricklers.push(peer(api, 90_000_000, 2 * MIB).await);
        }
        let (writers, readers): (Vec<_>, Vec<_>) = tricklers.into_iter().unzip();
        let stuck = join_all(readers.into_iter().map(|reader| budgets.read(reader, &in_work)));
        let others = async {
            // A large frame waits its turn until the slow ones before it are closed; small ones do not notice.
            for (size, wait) in [(100, 10), (MIB, 10), (5 * MIB, 30_000), (100, 10)] {
                let (_writer, reader) = peer(api, size, size).await;
                let read = timeout(Duration::from_millis(wait), budgets.read(reader, &in_work)).await;
                assert_eq!(read.unwrap().unwrap().bytes.len(), size);
            }
        };
        let ((), ended) = tokio::join!(others, stuck);
        assert!(ended.iter().all(Result::is_err), "in the end by their silence");
        drop(writers);
    }
}

// D1
#[tokio::test(start_paused = true)]
async fn many_half_frames_at_once_all_complete() {
    let budgets = Budgets::new();
    for size in [90_000_000, 20 * MIB, MIB, 100 * 1024] {
        let in_work = InWork::default();
        let done = AtomicUsize::new(0);
        let count = if size > 50 * MIB { 12 } else { 60 };
        let all = join_all((0..count).map(async |_| {
            let (mut writer, reader) = peer(ApiKey::Produce, size, size / 2).await;
            let sending = async {
                // The second half comes when every first half is here.
                tokio::time::sleep(Duration::from_secs(1)).await;
                writer.write_all(&vec![7; size - size / 2]).await.unwrap();
            };
            let (read, ()) = tokio::join!(budgets.read(reader, &in_work), sending);
            assert_eq!(read.unwrap().bytes.len(), size);
            done.fetch_add(1, Ordering::Relaxed);
            let most = u64::try_from(128 * MIB + size).unwrap();
            assert!(budgets.produce.used() <= most, "{}", budgets.produce.used());
        }));
        timeout(Duration::from_secs(3), all).await.unwrap_or_else(|_| panic!("{size}: {done:?} of {count}"));
        assert_eq!((done.into_inner(), budgets.produce.used()), (count, 0));
    }
}

// D1
#[tokio::test(start_paused = true)]
async fn who_holds_what_others_wait_for_keeps_a_pace_or_is_closed() {
    let budgets = Budgets::new();
    for (size, come, least) in [(90_000_000, 20 * MIB, MIB), (MIB, 100 * 1024, 64 * 1024)] {
        let in_work = InWork::default();
        let slow = join_all((0..400).map(async |_| {
            let (_writer, reader) = peer(ApiKey::Produce, size, come / 100).await;
            budgets.read(reader, &in_work).await
        }));
        let (mut first_writer, first) = peer(ApiKey::Produce, size, come).await;
        let holder = async {
            let end = budgets.read(first, &in_work).await.unwrap_err();
            (end, tokio::time::Instant::now())
        };
        let begun = tokio::time::Instant::now();
        let sending = async {
            loop {
                // Alive, and far too slow.
                tokio::time::sleep(Duration::from_millis(300)).await;
                if first_writer.write_all(&[7]).await.is_err() {
                    return;
                }
            }
        };
        let fast = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let (_writer, reader) = peer(ApiKey::Produce, size, size).await;
            budgets.read(reader, &in_work).await.unwrap().bytes.len()
        };
        let ((end, at), (), read, slow) = tokio::join!(holder, sending, fast, slow);
        assert!(matches!(end, ReadEnd::Slow { .. }), "{end}");
        // What it sent at first counts for one window.
        assert!(at - begun <= Duration::from_secs(9), "{:?}", at - begun);
        assert_eq!(read, size);
        assert!(
            end.to_string().starts_with(&format!("a request of {size} bytes came at less than")),
            "{end}"
        );
        let _ = least;
        assert!(slow.iter().all(Result::is_err));
        assert_eq!(budgets.produce.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn slow_frames_that_nobody_waits_for_are_read() {
    let budgets = Budgets::new();
    let (mut writer, reader) = peer(ApiKey::Produce, 2000, 100).await;
    let sending = async {
        for _ in 100..2000 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            writer.write_all(&[7]).await.unwrap();
        }
    };
    let in_work = InWork::default();
    let (read, ()) = tokio::join!(budgets.read(reader, &in_work), sending);
    assert_eq!(read.unwrap().bytes.len(), 2000);
    let (_writer, reader) = peer(ApiKey::Produce, 2000, 100).await;
    assert!(matches!(budgets.read(reader, &in_work).await, Err(ReadEnd::Stalled(_))));
}

// D1
#[tokio::test(start_paused = true)]
async fn frames_behind_requests_that_run_alone_take_a_part_of_the_lane() {
    let budgets = Budgets::new();
    let busy = InWork::default();
    let barrier = Counted { barrier: true, hurried: false };
    busy.begin(barrier);
    let mut parked = Vec::new();
    let after = Duration::from_millis(10);
    // The tiny lane has 8 MiB, and the small one 12.
    for _ in 0..4 {
        let (_writer, reader) = peer(ApiKey::Produce, MIB, MIB).await;
        parked.push(budgets.read(reader, &busy).await.unwrap());
    }
    for size in [MIB, 100, 2 * MIB] {
        let (_writer, reader) = peer(ApiKey::Produce, size, size).await;
        let mut waiting = std::pin::pin!(budgets.read(reader, &busy));
        assert!(timeout(after, &mut waiting).await.is_err());
        let (_writer, reader) = peer(ApiKey::Produce, size, size).await;
        let read = timeout(after, budgets.read(reader, &InWork::default())).await.unwrap().unwrap();
        assert_eq!(read.bytes.len(), size, "who waits behind nothing is read");
        busy.end(barrier);
        assert_eq!(waiting.await.unwrap().bytes.len(), size);
        busy.begin(barrier);
    }
    drop(parked);
    assert_eq!(budgets.produce.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_makes_way_for_all_but_fetches() {
    let in_work = InWork::default();
    let after = Duration::from_millis(10);
    assert!(!in_work.announce(ApiKey::Fetch.key()));
    assert!(timeout(after, in_work.hurried()).await.is_err());
    assert!(in_work.announce(ApiKey::Produce.key()));
    timeout(after, in_work.hurried()).await.unwrap();
    let counted = Counted { barrier: false, hurried: true };
    in_work.begin(counted);
    in_work.end(counted);
    assert!(timeout(after, in_work.hurried()).await.is_err());
}

// Frames of each size that were begun and left: who waits behind them does not wait for their silences, one after the other.
#[tokio::test(start_paused = true)]
async fn frames_left_half_sent_delay_others_a_little_and_small_ones_never() {
    let budgets = Budgets::new();
    let in_work = InWork::default();
    let mut left = Vec::new();
    for (size, come, count) in
        [(90_000_000, 70_000, 30), (MIB, MIB / 2, 500), (60_000, 30_000, 100), (4096, 100, 100)]
    {
        for _ in 0..count {
            left.push(peer(ApiKey::Produce, size, come).await);
        }
    }
    let (writers, readers): (Vec<_>, Vec<_>) = left.into_iter().unzip();
    let stuck = join_all(readers.into_iter().map(|reader| budgets.read(reader, &in_work)));
    let others = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begun = tokio::time::Instant::now();
        for size in [100, 8 * 1024, 30_000, 60_000] {
            let (_writer, reader) = peer(ApiKey::Produce, size, size).await;
            assert_eq!(budgets.read(reader, &in_work).await.unwrap().bytes.len(), size);
            assert_eq!(begun.elapsed(), Duration::ZERO, "{size} bytes");
        }
        let mut took = Vec::new();
        for size in [100 * 1024, MIB, 5 * MIB, 90_000_000] {
            let (_writer, reader) = peer(ApiKey::Produce, size, size).await;
            assert_eq!(budgets.read(reader, &in_work).await.unwrap().bytes.len(), size);
            took.push(begun.elapsed().as_secs());
        }
        took
    };
    let (took, ended) = tokio::join!(others, stuck);
    assert!(took[1] <= 20 && took[3] <= 75, "{took:?}");
    assert!(ended.iter().all(Result::is_err));
    assert_eq!(budgets.produce.used(), 0);
    drop(writers);
}

// Four producers that flood, and one that sends a little.
#[tokio::test(start_paused = true)]
async fn large_frames_come_in_turns_and_small_ones_at_once() {
    let budgets = Budgets::new();
    let in_work = InWork::default();
    let turn = budgets.turns.acquire().await.unwrap();
    let (_large, reader) = peer(ApiKey::Produce, MIB, MIB).await;
    let mut large = std::pin::pin!(budgets.read(reader, &in_work));
    assert!(timeout(Duration::from_millis(10), &mut large).await.is_err(), "it waits for its turn");
    let (_small, reader) = peer(ApiKey::Produce, 64 * 1024, 64 * 1024).await;
    assert_eq!(budgets.read(reader, &in_work).await.unwrap().bytes.len(), 64 * 1024);
    drop(turn);
    assert_eq!(large.await.unwrap().bytes.len(), MIB);
    // One that does not go on holds no turn.
    let (_half, reader) = peer(ApiKey::Produce, MIB, MIB / 2).await;
    let mut half = std::pin::pin!(budgets.read(reader, &in_work));
    assert!(timeout(Duration::from_millis(10), &mut half).await.is_err());
    assert_eq!(budgets.turns.available_permits(), 1);
}

// What came with the frame before is not lost, and is not waited for again.
#[tokio::test(start_paused = true)]
async fn frames_that_come_together_are_read_one_by_one_however_they_are_cut() {
    let budgets = Budgets::new();
    let sizes = [8, 9, 20, 52, 56, 60, 61, 8, 8, 8, 1000, 70_000, 8, 64 * 1024, 30];
    let frames: Vec<Vec<u8>> = (0_u8..)
        .zip(sizes)
        .map(|(number, size)| {
            let mut bytes = frame(ApiKey::Produce, size, size);
            bytes[FRAME_PREFIX_BYTES + 2..].fill(number);
            bytes
        })
        .collect();
    let stream = frames.concat();
    for step in [1, 3, 7, 8, 11, 64, 65, 100, 4096, stream.len()] {
        let (mut writer, mut reader) = tokio::io::duplex(1 << 20);
        let sending = async {
            for part in stream.chunks(step) {
                writer.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(writer);
        };
        let reading = async {
            let (in_work, mut head) = (InWork::default(), Head::new());
            for frame in &frames {
                let read = read_frame(&mut reader, &mut head, budgets.limits(), &in_work).await.unwrap();
                assert_eq!(read.bytes, frame[FRAME_PREFIX_BYTES..], "in steps of {step}");
            }
            let end = read_frame(&mut reader, &mut head, budgets.limits(), &in_work).await;
            assert!(matches!(end, Err(ReadEnd::Closed)), "{end:?}");
        };
        tokio::join!(sending, reading);
    }
}
