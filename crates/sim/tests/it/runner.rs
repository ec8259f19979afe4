use std::time::Duration;

use tidelog_runtime::{Clock, Disk, IdGen, Rng};
use tidelog_sim::run;
use tidelog_types::Timestamp;

#[test]
fn a_seed_determines_numbers_and_ids() {
    let drawn = |seed| run(seed, |context| async move { (context.rng.next_u64(), context.ids().uuid()) });
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn the_wall_clock_jumps_and_the_monotonic_one_does_not() {
    run(1, |context| async move {
        let (clock, other) = (&context.clock, context.clock.other());
        assert_eq!(clock.wall(), Timestamp::from_millis(1_767_225_600_000));
        clock.sleep(Duration::from_secs(10)).await;
        clock.jump_ms(-3_600_000);
        assert_eq!(clock.wall(), Timestamp::from_millis(1_767_225_600_000 + 10_000 - 3_600_000));
        assert_eq!(other.wall(), Timestamp::from_millis(1_767_225_600_000 + 10_000));
        assert_eq!(
            (clock.monotonic(), other.monotonic()),
            (Duration::from_secs(10), Duration::from_secs(10))
        );
    });
}

#[test]
fn nothing_of_a_life_acts_after_its_end() {
    run(1, |context| async move {
        context.disk.crash_at(3);
        let (alive, seen) = tokio::sync::mpsc::channel::<()>(1);
        let ended = context.life(&context.disk, |supervisor| {
            let disk = context.disk.clone();
            let token = supervisor.shutdown_token();
            supervisor
                .spawn("watcher", async move {
                    token.cancelled().await;
                    let _ = alive.send(()).await;
                })
                .detach();
            async move {
                for n in 0.. {
                    disk.create_dir_all(std::path::Path::new(&format!("/{n}"))).await.unwrap();
                }
            }
        });
        assert_eq!(ended.await, None);
        assert_eq!((context.disk.operations(), context.disk.is_halted()), (2, true));
        let mut seen = seen;
        assert_eq!(seen.recv().await, None, "the watcher is gone and never saw a shutdown");
    });
}

#[test]
#[should_panic(expected = "opened again")]
fn a_disk_in_use_is_not_opened_again() {
    run(1, |context| async move { drop(context.disk.reopen()) });
}
