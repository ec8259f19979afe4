//! Writing answers: slices as they are, in as few system calls as they fit.

use std::{io, io::IoSlice, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// Slices of one vectored write. The kernel takes 1,024; a fetch of 64 partitions is about this many, and the array
/// stands on the stack.
const SLICES_PER_WRITE: usize = 64;

/// Why a frame was not written whole.
#[derive(Debug)]
pub(crate) enum WriteFailure {
    /// The peer took no byte for the time allowed.
    Slow,
    /// The connection is gone.
    Gone(io::Error),
}

/// Writes all slices; `silence` is the longest time in which the peer may take nothing.
pub(crate) async fn write_slices<W: AsyncWrite + Unpin>(
    writer: &mut W,
    slices: &[Bytes],
    silence: Duration,
) -> Result<usize, WriteFailure> {
    let (mut first, mut taken, mut total) = (0, 0, 0);
    while first < slices.len() {
        if slices[first].len() == taken {
            (first, taken) = (first + 1, 0);
            continue;
        }
        let mut array = [IoSlice::new(&[]); SLICES_PER_WRITE];
        let mut count = 0;
        for (place, slice) in array.iter_mut().zip(&slices[first..]) {
            let from = if count == 0 { taken } else { 0 };
            *place = IoSlice::new(&slice[from..]);
            count += 1;
        }
        let written = match timeout(silence, writer.write_vectored(&array[..count])).await {
            Err(_) => return Err(WriteFailure::Slow),
            Ok(Err(error)) => return Err(WriteFailure::Gone(error)),
            Ok(Ok(0)) => return Err(WriteFailure::Gone(io::ErrorKind::WriteZero.into())),
            Ok(Ok(written)) => written,
        };
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
    use std::{
        pin::Pin,
        task::{Context, Poll},
    };

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
        for step in [1, 2, 3, 5, 64, 10_000] {
            let mut writer = Reluctant { taken: Vec::new(), step, writes: 0 };
            let written = write_slices(&mut writer, &slices, Duration::from_secs(1)).await.unwrap();
            assert_eq!((written, &writer.taken), (whole.len(), &whole), "step {step}");
            if step == 10_000 {
                assert!(writer.writes <= 4, "{} writes", writer.writes);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (mut writer, _reader) = tokio::io::duplex(4);
        let failure =
            write_slices(&mut writer, &[Bytes::from_static(b"longer than four")], Duration::from_secs(30))
                .await;
        assert!(matches!(failure, Err(WriteFailure::Slow)));
    }
}
