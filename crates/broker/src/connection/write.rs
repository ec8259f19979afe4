//! Writing answers: slices as they are, in as few system calls as they fit.
//! Large ones take turns.

use std::{io, io::IoSlice, pin::Pin, time::Duration};

use bytes::Bytes;
use thiserror::Error;
use tidelog_runtime::Permit;
use tokio::{io::AsyncWrite, sync::Semaphore, time::timeout_at};

use super::{
    admission::{OutOfPace, PACE, Pace},
    turns::{BYTES_PER_TURN, LARGE_COPY, once_in_turn},
};

/// Slices of one vectored write. The kernel takes 1,024; a fetch of 64 partitions is about this many, and the array
/// stands on the stack.
const SLICES_PER_WRITE: usize = 64;

/// Why a frame was not written whole.
#[derive(Debug, Error)]
pub(crate) enum WriteFailure {
    /// The peer took no byte for the time allowed.
    #[error("it took no byte of an answer for {0:?}")]
    Silent(Duration),
    /// The peer took fewer bytes a second than this while others waited for the memory of its answer.
    #[error("it took less than {0} bytes a second of an answer while others waited for memory")]
    Slow(usize),
    /// The connection is gone.
    #[error("connection lost")]
    Gone(#[source] io::Error),
}

/// Writes all slices; `silence` is the longest time in which the peer may take nothing. Where the memory that they pin, by
/// `permit`, is scarce, it must take them at a pace: who reads nothing must not keep others from reading.
pub(crate) async fn write_slices<W: AsyncWrite + Unpin>(
    writer: &mut W,
    slices: &[Bytes],
    permit: Option<&Permit>,
    turns: &Semaphore,
    silence: Duration,
) -> Result<usize, WriteFailure> {
    let mut pace = Pace::new();
    let (mut first, mut taken, mut total) = (0, 0, 0);
    while first < slices.len() {
        if slices[first].len() == taken {
            (first, taken) = (first + 1, 0);
            continue;
        }
        let mut array = [IoSlice::new(&[]); SLICES_PER_WRITE];
        let (mut count, mut room) = (0, BYTES_PER_TURN);
        for (place, slice) in array.iter_mut().zip(&slices[first..]) {
            let from = if count == 0 { taken } else { 0 };
            let to = slice.len().min(from.saturating_add(room));
            *place = IoSlice::new(&slice[from..to]);
            (count, room) = (count + 1, room - (to - from));
            if room == 0 {
                break;
            }
        }
        let turns = (BYTES_PER_TURN - room > LARGE_COPY).then_some(turns);
        let offered = &array[..count];
        let write = once_in_turn(turns, |cx| Pin::new(&mut *writer).poll_write_vectored(cx, offered));
        let written = match timeout_at(pace.next_look(), write).await {
            Err(_) => 0,
            Ok(Err(error)) => return Err(WriteFailure::Gone(error)),
            Ok(Ok(0)) => return Err(WriteFailure::Gone(io::ErrorKind::WriteZero.into())),
            Ok(Ok(written)) => written,
        };
        pace.got(written);
        let least = || permit.is_some_and(Permit::is_scarce).then_some(PACE);
        pace.look(least, written > 0, silence).map_err(|out| match out {
            OutOfPace::Silent => WriteFailure::Silent(silence),
            OutOfPace::Slow(least) => WriteFailure::Slow(least),
        })?;
        if written > LARGE_COPY {
            tokio::task::yield_now().await;
        }
        total += written;
        taken += written;
        while first < slices.len() && taken >= slices[first].len() {
            taken -= slices[first].len();
            first += 1;
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use tidelog_runtime::Budget;
    use tidelog_types::ByteSize;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Takes at most `step` bytes of each write.
    struct Reluctant {
        taken: Vec<u8>,
        step: usize,
        writes: usize,
    }

    impl AsyncWrite for Reluctant {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.step);
            self.taken.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.writes += 1;
            let step = self.step;
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(step).collect();
            self.taken.extend_from_slice(&bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn partial_writes_go_on_where_they_ended() {
        let slices: Vec<Bytes> = (0..200_u8).map(|n| Bytes::from(vec![n; usize::from(n % 7)])).collect();
        let whole: Vec<u8> = slices.iter().flatten().copied().collect();
        let turns = Semaphore::new(1);
        for step in [1, 2, 3, 5, 64, 10_000] {
            let mut writer = Reluctant { taken: Vec::new(), step, writes: 0 };
            let written =
                write_slices(&mut writer, &slices, None, &turns, Duration::from_secs(1)).await.unwrap();
            assert_eq!((written, &writer.taken), (whole.len(), &whole), "step {step}");
            if step == 10_000 {
                assert!(writer.writes <= 4, "{} writes", writer.writes);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (mut writer, _reader) = tokio::io::duplex(4);
        let answer = [Bytes::from_static(b"longer than four")];
        let turns = Semaphore::new(1);
        let failure = write_slices(&mut writer, &answer, None, &turns, Duration::from_secs(30)).await;
        assert!(matches!(failure, Err(WriteFailure::Silent(_))));
    }

    // Slow readers that hold what others wait for: 64 KiB a second, over 4 s of want, is the least.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_given_up_soon_where_memory_is_scarce_and_late_where_it_is_not() {
        let budget = Budget::new("answers", ByteSize::bytes(100));
        let (answer, turns) = ([Bytes::from_static(b"longer than four")], Semaphore::new(1));
        for (held, seconds) in [(80, 30), (90, 4)] {
            let permit = budget.try_acquire(held).unwrap();
            let (mut writer, _reader) = tokio::io::duplex(4);
            let begun = tokio::time::Instant::now();
            let failure =
                write_slices(&mut writer, &answer, Some(&permit), &turns, Duration::from_secs(30)).await;
            assert_eq!(matches!(failure, Err(WriteFailure::Slow(PACE))), seconds == 4, "{failure:?}");
            assert_eq!(begun.elapsed().as_secs(), seconds, "{held} of 100 bytes are held");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_keeps_the_pace_is_left_alone_where_memory_is_scarce() {
        let budget = Budget::new("answers", ByteSize::bytes(100));
        let permit = budget.try_acquire(100).unwrap();
        let (mut writer, mut reader) = tokio::io::duplex(16 * 1024);
        let answer = [Bytes::from(vec![7; PACE * 20])];
        let reading = async {
            let (mut scratch, mut all) = (vec![0; PACE], 0);
            while all < PACE * 20 {
                tokio::time::sleep(Duration::from_millis(200)).await;
                all += reader.read(&mut scratch).await.unwrap();
            }
        };
        let turns = Semaphore::new(1);
        let writing = write_slices(&mut writer, &answer, Some(&permit), &turns, Duration::from_secs(30));
        let (written, ()) = tokio::join!(writing, reading);
        assert_eq!(written.unwrap(), PACE * 20);
    }

    #[tokio::test(start_paused = true)]
    async fn large_writes_wait_for_their_turn_and_small_ones_do_not() {
        let turns = Semaphore::new(1);
        let taken = turns.acquire().await.unwrap();
        let small = [Bytes::from(vec![1; LARGE_COPY])];
        let (mut writer, _reader) = tokio::io::duplex(1 << 20);
        let written = write_slices(&mut writer, &small, None, &turns, Duration::from_secs(1)).await;
        assert_eq!(written.unwrap(), LARGE_COPY);
        let large = [Bytes::from(vec![2; LARGE_COPY + 1])];
        let mut writer = Reluctant { taken: Vec::new(), step: 1 << 20, writes: 0 };
        let begun = tokio::time::Instant::now();
        let writing = async {
            let written = write_slices(&mut writer, &large, None, &turns, Duration::from_secs(30)).await;
            (written.unwrap(), begun.elapsed())
        };
        let release = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(taken);
        };
        let (written, ()) = tokio::join!(writing, release);
        assert_eq!(written, (LARGE_COPY + 1, Duration::from_millis(500)), "not before its turn");
        assert_eq!(writer.writes, 1);
    }

    // A hundred readers whose sockets are full: the next one that reads is written to.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_holds_no_turn() {
        let turns = Semaphore::new(1);
        let large = [Bytes::from(vec![2; 4 * LARGE_COPY])];
        let (mut stuck, _reader) = tokio::io::duplex(4);
        let (mut writer, mut reader) = tokio::io::duplex(4 * LARGE_COPY);
        let stuck = write_slices(&mut stuck, &large, None, &turns, Duration::from_secs(30));
        let other = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(turns.available_permits(), 1);
            let begun = tokio::time::Instant::now();
            write_slices(&mut writer, &large, None, &turns, Duration::from_secs(30)).await.unwrap();
            writer.shutdown().await.unwrap();
            begun.elapsed()
        };
        let reading = async {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).await.unwrap()
        };
        let (stuck, took, read) = tokio::join!(stuck, other, reading);
        assert!(matches!(stuck, Err(WriteFailure::Silent(_))), "{stuck:?}");
        assert_eq!((took, read), (Duration::ZERO, 4 * LARGE_COPY));
    }
}
