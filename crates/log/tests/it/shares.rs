//! What one partition may have of what all share.

use std::time::Duration;

use futures::FutureExt as _;
use tidelog_log::AppendError;
use tidelog_runtime::Clock;
use tidelog_types::Offset;

use crate::{
    behaviour::with_partition,
    support::{append, batch, offset, place, small_partition},
};

// One client that floods: whoever writes little to another partition finds room whenever he comes, and few bytes before him.
#[test]
fn a_partition_that_is_flooded_leaves_the_queue_and_memory_to_others() {
    with_partition(|context, log, flooded| async move {
        let other = log.create(place(9, 0), small_partition(), Offset::ZERO).await.unwrap();
        let flood = async {
            for number in 0..300 {
                flooded.append_share().await;
                let base = flooded.offsets().log_end;
                while let Err(error) = flooded.append(vec![batch(base, 0, 0, 2, 1500, number)]) {
                    assert!(matches!(error, AppendError::Backpressure), "the journal is full: {error}");
                    log.append_room().await;
                }
                // A half of what two rounds are, and one batch more.
                assert!(log.status().queued_bytes <= 16 * 1024 + 4096, "{:?}", log.status());
                assert!(log.status().unwritten_bytes <= 32 * 1024, "{:?}", log.status());
            }
        };
        let little = async {
            for _ in 0..40 {
                context.clock.sleep(Duration::from_millis(3)).await;
                let share = std::pin::pin!(other.append_share());
                assert!(share.now_or_never().is_some(), "it never waits");
                append(&other, 0, 1, 100);
            }
        };
        tokio::join!(flood, little);
        assert_eq!(other.offsets().log_end, offset(80));
        assert_eq!(flooded.offsets().log_end, offset(600));
    });
}

// Little that waits for its write-behind, written first: what comes behind it and is in segments must not stay for it.
#[test]
fn memory_stays_within_its_budget_behind_batches_that_wait_for_their_segment() {
    with_partition(|context, log, partition| async move {
        for number in 0..5 {
            let other = log.create(place(9, number), small_partition(), Offset::ZERO).await.unwrap();
            append(&other, 0, 1, 100);
        }
        // Written behind as soon as 4 KiB are there; the others wait for 60 ms.
        let mut most = 0;
        for _ in 0..100 {
            log.append_room().await;
            append(&partition, 0, 1, 1500);
            context.clock.sleep(Duration::from_micros(200)).await;
            most = most.max(log.status().tail_bytes);
        }
        assert!(most <= 68 * 1024, "{most} bytes of 64 KiB");
    });
}
