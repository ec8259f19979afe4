//! Turns of large copies between sockets and memory.
//!
//! A hundred connections that can each take or give megabytes are a hundred tasks that want to copy at once, and whoever produces
//! a little or stands at the tail would wait behind all of them for each step of his request. So only as many large copies are made
//! at one time as leave a thread of the front to others, and each is a short one; the rest wait for their turn in the order in which
//! they came to want one, and not in the runtime's queue.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use tokio::sync::Semaphore;

/// Bytes of one copy. A socket may take or give megabytes at once, and others would wait for all of them.
pub(super) const BYTES_PER_TURN: usize = 256 * 1024;

/// A copy above this is a large one.
pub(super) const LARGE_COPY: usize = 64 * 1024;

/// Does once what may be done once it is ready, in a turn where there are turns. A turn is held while it is done: a peer that takes
/// or gives nothing keeps none from others.
pub(super) async fn once_in_turn<T>(
    turns: Option<&Semaphore>,
    mut once: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> T {
    loop {
        let turn = match turns {
            Some(turns) => turns.acquire().await.ok(),
            None => None,
        };
        let outcome = poll_fn(|cx| Poll::Ready(once(cx))).await;
        drop(turn);
        if let Poll::Ready(done) = outcome {
            return done;
        }
        // Whatever was not ready wakes this task once it is.
        woken().await;
    }
}

/// Ends when this task is polled again.
async fn woken() {
    let mut first = true;
    poll_fn(|_| if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
}
