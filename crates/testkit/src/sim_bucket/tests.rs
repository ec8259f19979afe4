//! What goes wrong, and what does not.

use object_store::ObjectStoreExt as _;

use super::*;

fn simulated<T>(test: impl AsyncFnOnce(SimBucket) -> T) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let bucket = SimBucket::new(7, Arc::new(tidelog_runtime::SystemClock::new()), Trace::default());
        test(bucket).await
    })
}

/// A store in which one thing always goes wrong.
fn always(change: impl FnOnce(&mut BucketManners)) -> BucketManners {
    let mut manners = BucketManners::CALM;
    change(&mut manners);
    manners
}

const PATH: &str = "a/b";

#[test]
fn what_is_put_is_there_and_a_create_never_replaces_it() {
    simulated(async |bucket| {
        let path = Path::from(PATH);
        let create = || PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        bucket.put_opts(&path, vec![1, 2, 3].into(), create()).await.unwrap();
        let again = bucket.put_opts(&path, vec![9].into(), create()).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })));
        assert_eq!(
            bucket.get(&path, GetOptions::default()).await.unwrap().bytes().await.unwrap(),
            vec![1, 2, 3]
        );
        assert_eq!(bucket.get_range(&path, 1..2).await.unwrap(), vec![2]);
        let listed: Vec<_> = bucket.list(Some(&Path::from("a"))).collect().await;
        assert_eq!(listed.len(), 1);
        bucket.delete(&path).await.unwrap();
        assert!(bucket.keys().is_empty());
        assert_eq!(bucket.operations(), 3);
    });
}

#[test]
fn each_thing_goes_wrong_in_its_own_way() {
    simulated(async |bucket| {
        let path = Path::from(PATH);
        let put = async || bucket.put_opts(&path, vec![5; 10].into(), PutOptions::default()).await;
        for (manners, answered, stored) in [
            (always(|manners| manners.fails = 1_000), Some(false), None),
            (always(|manners| manners.loses_answers = 1_000), Some(false), Some(10)),
            (always(|manners| manners.hangs = 1_000), None, None),
            (always(|manners| manners.hangs_after = 1_000), None, Some(10)),
            (always(|manners| manners.late = 1_000), Some(false), Some(10)),
            (always(|manners| manners.slow = 1_000), Some(true), Some(10)),
        ] {
            bucket.behave(manners);
            let outcome = tokio::time::timeout(Duration::from_secs(60), put()).await.ok();
            assert_eq!(outcome.map(|outcome| outcome.is_ok()), answered, "{manners:?}");
            bucket.shared.clock.sleep(Duration::from_secs(40)).await;
            assert_eq!(bucket.object(PATH).map(|bytes| bytes.len()), stored, "{manners:?}");
            bucket.behave(BucketManners::CALM);
            bucket.delete(&path).await.unwrap();
        }
        bucket.behave(always(|manners| manners.half = 1_000));
        drop(put().await);
        assert_eq!(bucket.object(PATH).unwrap().len(), 5);
        bucket.behave(always(|manners| manners.flips = 1_000));
        let hurt = bucket.get(&path, GetOptions::default()).await.unwrap().bytes().await.unwrap();
        let flipped: u32 = hurt.iter().map(|byte| (byte ^ 5).count_ones()).sum();
        assert_eq!((hurt.len(), flipped), (5, 1));
        bucket.behave(always(|manners| manners.short = 1_000));
        let short = bucket.get(&path, GetOptions::default()).await.unwrap().bytes().await.unwrap();
        assert!(short.len() < 5);
    });
}

#[test]
fn a_trap_springs_before_or_after_the_deed() {
    for (moment, stored) in [(TrapMoment::Before, false), (TrapMoment::After, true)] {
        simulated(async |bucket| {
            let sprung = Arc::new(tokio::sync::Notify::new());
            let spring = Arc::clone(&sprung);
            bucket.set_trap(1, moment, Arc::new(move || spring.notify_one()));
            let path = Path::from(PATH);
            tokio::select! {
                biased;
                _ = bucket.put_opts(&path, vec![1].into(), PutOptions::default()) => panic!("nobody is told"),
                () = sprung.notified() => {}
            }
            assert_eq!(bucket.object(PATH).is_some(), stored);
        });
    }
}
