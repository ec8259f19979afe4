use std::{collections::BTreeSet, path::Path, sync::Arc};

use bytes::Bytes;
use tidelog_runtime::{Disk, DiskFile, Lane, OpenMode, Rng, SeededRng};
use tidelog_sim::{Fault, Halt, SimDisk, run, seeds};

const BLOCK: usize = 512;

fn path(text: &str) -> &Path {
    Path::new(text)
}

async fn create(disk: &SimDisk, name: &str) -> Arc<dyn DiskFile> {
    disk.open(path(name), OpenMode::CreateNew, Lane::Journal).await.unwrap()
}

/// A file whose name and content are durable.
async fn durable(disk: &SimDisk, name: &str, content: Bytes) -> Arc<dyn DiskFile> {
    let file = create(disk, name).await;
    file.write_at(0, vec![content]).await.unwrap();
    file.sync_data().await.unwrap();
    disk.sync_dir(path(name).parent().unwrap()).await.unwrap();
    file
}

fn block(letter: u8) -> Bytes {
    Bytes::from(vec![letter; BLOCK])
}

/// What `act` leaves in `/f` (three blocks of `a`) after a power cut, over many seeds.
fn outcomes<F: Future<Output = ()>>(act: impl Fn(SimDisk, Arc<dyn DiskFile>) -> F) -> BTreeSet<Vec<u8>> {
    let act = &act;
    let outcome = |seed| {
        run(seed, |context| async move {
            let file = durable(&context.disk, "/f", Bytes::from(vec![b'a'; 3 * BLOCK])).await;
            act(context.disk.clone(), file).await;
            context.disk.crash().contents(path("/f")).unwrap()
        })
    };
    (0..400).map(outcome).collect()
}

#[test]
fn what_is_synced_survives_every_crash() {
    let outcomes = outcomes(|_, file| async move {
        file.write_at(BLOCK as u64, vec![block(b'b'), block(b'c')]).await.unwrap();
        file.sync_data().await.unwrap();
    });
    assert!(outcomes == BTreeSet::from([[block(b'a'), block(b'b'), block(b'c')].concat()]));
}

#[test]
fn every_unsynced_block_survives_or_not_on_its_own() {
    let outcomes = outcomes(|_, file| async move {
        file.write_at(0, vec![Bytes::from(vec![b'b'; 3 * BLOCK])]).await.unwrap();
    });
    let whole_blocks: BTreeSet<String> = outcomes
        .iter()
        .filter(|content| content.chunks(BLOCK).all(|block| block.iter().all(|byte| *byte == block[0])))
        .map(|content| content.chunks(BLOCK).map(|block| char::from(block[0])).collect())
        .collect();
    let all = ["aaa", "aab", "aba", "abb", "baa", "bab", "bba", "bbb"].map(str::to_owned);
    assert_eq!(whole_blocks, BTreeSet::from(all), "all combinations are found");
    let torn = outcomes
        .iter()
        .filter(|content| content.chunks(BLOCK).any(|block| block[0] == b'b' && block[BLOCK - 1] == b'a'));
    assert!(torn.count() > 5, "some blocks are torn");
    for content in &outcomes {
        for block in content.chunks(BLOCK) {
            let first_old = block.iter().position(|byte| *byte == b'a').unwrap_or(BLOCK);
            assert!(
                block[..first_old].iter().all(|byte| *byte == b'b')
                    && block[first_old..].iter().all(|byte| *byte == b'a')
            );
        }
    }
}

#[test]
fn a_later_write_may_survive_without_an_earlier_one() {
    let outcomes = outcomes(|_, file| async move {
        file.write_at(0, vec![block(b'b')]).await.unwrap();
        file.write_at(BLOCK as u64, vec![block(b'c')]).await.unwrap();
    });
    assert!(outcomes.contains(&[block(b'a'), block(b'c'), block(b'a')].concat()));
}

#[test]
fn an_unsynced_length_survives_or_not_and_data_does_not_outlive_it() {
    let outcomes = outcomes(|_, file| async move {
        file.write_at(3 * BLOCK as u64, vec![block(b'b')]).await.unwrap();
    });
    let old = vec![b'a'; 3 * BLOCK];
    let zeros = [old.clone(), vec![0; BLOCK]].concat();
    let new = [old.clone(), vec![b'b'; BLOCK]].concat();
    for expected in [&old, &zeros, &new] {
        assert!(outcomes.contains(expected));
    }
    assert!(outcomes.iter().all(|content| content.starts_with(&old)));
}

#[test]
fn what_a_surviving_cut_took_does_not_come_back() {
    let synced = outcomes(|_, file| async move {
        file.set_len(BLOCK as u64).await.unwrap();
        file.set_len(3 * BLOCK as u64).await.unwrap();
        file.write_at(2 * BLOCK as u64, vec![block(b'b')]).await.unwrap();
        file.sync_data().await.unwrap();
    });
    assert!(synced == BTreeSet::from([[block(b'a'), block(0), block(b'b')].concat()]));
    let unsynced = outcomes(|_, file| async move { file.set_len(BLOCK as u64).await.unwrap() });
    assert!(unsynced == BTreeSet::from([vec![b'a'; 3 * BLOCK], vec![b'a'; BLOCK]]));
    let extended = outcomes(|_, file| async move {
        file.set_len(BLOCK as u64).await.unwrap();
        file.set_len(2 * BLOCK as u64).await.unwrap();
    });
    let extended_survived = [block(b'a'), block(0)].concat();
    assert!(extended == BTreeSet::from([vec![b'a'; 3 * BLOCK], vec![b'a'; BLOCK], extended_survived]));
}

#[test]
fn a_new_file_is_lost_unless_its_directory_was_synced() {
    let survives = |seed, synced| {
        run(seed, |context| async move {
            let disk = &context.disk;
            disk.create_dir_all(path("/d")).await.unwrap();
            disk.sync_dir(path("/")).await.unwrap();
            let file = create(disk, "/d/f").await;
            file.write_at(0, vec![block(b'a')]).await.unwrap();
            file.sync_data().await.unwrap();
            if synced {
                disk.sync_dir(path("/d")).await.unwrap();
            }
            let disk = disk.crash();
            let found = disk.contents(path("/d/f"));
            assert!(found.as_ref().is_ok_and(|content| *content == block(b'a')) || found.is_err());
            found.is_ok()
        })
    };
    assert_eq!((0..50).map(|seed| survives(seed, true)).collect::<BTreeSet<_>>(), BTreeSet::from([true]));
    assert_eq!(
        (0..50).map(|seed| survives(seed, false)).collect::<BTreeSet<_>>(),
        BTreeSet::from([false, true])
    );
}

#[test]
fn a_file_goes_with_the_directory_that_nobody_synced() {
    let lost = (0..50).filter(|seed| {
        run(*seed, |context| async move {
            context.disk.create_dir_all(path("/d")).await.unwrap();
            durable(&context.disk, "/d/f", block(b'a')).await;
            context.disk.crash().paths().is_empty()
        })
    });
    assert!(lost.count() > 10);
}

#[test]
fn a_rename_is_whole_or_absent_and_removals_come_back() {
    let outcome = |seed, synced| {
        run(seed, |context| async move {
            let disk = &context.disk;
            durable(disk, "/current", block(b'a')).await;
            durable(disk, "/next", block(b'b')).await;
            durable(disk, "/removed", block(b'c')).await;
            disk.rename(path("/next"), path("/current")).await.unwrap();
            disk.remove_file(path("/removed")).await.unwrap();
            if synced {
                disk.sync_dir(path("/")).await.unwrap();
            }
            let disk = disk.crash();
            let current = disk.contents(path("/current")).unwrap();
            let names: Vec<String> = disk.paths().iter().map(|path| path.display().to_string()).collect();
            format!("{} {}", char::from(current[0]), names.join(" "))
        })
    };
    let synced: BTreeSet<String> = (0..50).map(|seed| outcome(seed, true)).collect();
    assert_eq!(synced, BTreeSet::from(["b /current".to_owned()]));
    let unsynced: BTreeSet<String> = (0..50).map(|seed| outcome(seed, false)).collect();
    let expected = ["a /current /next /removed", "b /current /removed", "b /current"].map(str::to_owned);
    assert_eq!(unsynced, BTreeSet::from(expected), "a directory's changes survive in their order");
}

#[test]
fn a_rename_across_directories_is_synced_by_either() {
    for seed in seeds(50) {
        run(seed, |context| async move {
            let disk = &context.disk;
            for folder in ["/a", "/b"] {
                disk.create_dir_all(path(folder)).await.unwrap();
            }
            disk.sync_dir(path("/")).await.unwrap();
            durable(disk, "/a/f", block(b'a')).await;
            disk.rename(path("/a/f"), path("/b/f")).await.unwrap();
            disk.sync_dir(path(if seed % 2 == 0 { "/a" } else { "/b" })).await.unwrap();
            assert_eq!(disk.crash().paths(), [path("/b/f")]);
        });
    }
}

#[test]
fn a_synced_rename_takes_along_what_came_before_it_in_the_other_directory() {
    for seed in seeds(50) {
        run(seed, |context| async move {
            let disk = &context.disk;
            for folder in ["/a", "/b"] {
                disk.create_dir_all(path(folder)).await.unwrap();
            }
            disk.sync_dir(path("/")).await.unwrap();
            drop(create(disk, "/a/f").await);
            disk.rename(path("/a/f"), path("/b/f")).await.unwrap();
            disk.sync_dir(path("/b")).await.unwrap();
            assert_eq!(disk.crash().paths(), [path("/b/f")], "the file has one name");
        });
    }
}

#[test]
fn a_killed_process_leaves_its_page_cache_and_a_later_power_cut_takes_it() {
    let mut lost = 0;
    for seed in 0..50 {
        lost += run(seed, |context| async move {
            let file = create(&context.disk, "/f").await;
            file.write_at(0, vec![block(b'a')]).await.unwrap();
            let disk = context.disk.kill();
            assert_eq!(disk.contents(path("/f")).unwrap(), block(b'a'));
            assert_eq!(disk.open_files(), 0);
            u32::from(disk.crash().contents(path("/f")).is_err())
        });
    }
    assert!(lost > 10);
}

#[test]
fn operations_in_flight_take_effect_or_not_and_are_never_answered() {
    let outcome = |seed| {
        run(seed, |context| async move {
            let file = durable(&context.disk, "/f", block(b'a')).await;
            let (first, second) =
                (file.write_at(0, vec![block(b'b')]), file.write_at(BLOCK as u64, vec![block(b'c')]));
            let disk = context.disk.kill();
            for unanswered in [first, second, file.sync_data()] {
                assert!(tokio::time::timeout(std::time::Duration::from_secs(9), unanswered).await.is_err());
            }
            disk.contents(path("/f")).unwrap()
        })
    };
    let none = block(b'a').to_vec();
    let first = block(b'b').to_vec();
    let both = [block(b'b'), block(b'c')].concat();
    let outcomes: BTreeSet<Vec<u8>> = (0..50).map(outcome).collect();
    assert!(outcomes == BTreeSet::from([none, first, both]), "the journal's writes begin in their order");
}

#[test]
fn outside_the_journal_nothing_orders_operations() {
    let outcome = |seed| {
        run(seed, |context| async move {
            let file = context.disk.open(path("/f"), OpenMode::CreateNew, Lane::Background).await.unwrap();
            let (one, other) = (file.write_at(0, vec![block(b'a')]), file.write_at(0, vec![block(b'b')]));
            one.await.unwrap();
            other.await.unwrap();
            context.disk.contents(path("/f")).unwrap()[0]
        })
    };
    assert_eq!((0..50).map(outcome).collect::<BTreeSet<_>>(), BTreeSet::from([b'a', b'b']));
}

#[test]
fn a_journal_write_submitted_after_a_sync_does_not_wait_for_it() {
    let overtakes = |seed| {
        run(seed, |context| async move {
            let file = durable(&context.disk, "/f", block(b'a')).await;
            let sync = file.sync_data();
            file.write_at(0, vec![block(b'b')]).await.unwrap();
            let overtook = futures::FutureExt::now_or_never(sync).is_none();
            assert!(overtook || context.disk.durable_contents(path("/f")).unwrap() == block(b'a'));
            overtook
        })
    };
    assert!((0..50).any(overtakes));
}

/// The smallest journal: records of one byte each, acknowledged after a sync.
async fn append_all(disk: &SimDisk, acknowledged: &std::cell::Cell<u64>) {
    let file = create(disk, "/journal").await;
    file.allocate(64 * BLOCK as u64).await.unwrap();
    disk.sync_dir(path("/")).await.unwrap();
    for n in 0..16u8 {
        file.write_at(u64::from(n) * 40, vec![Bytes::from(vec![n + 1; 40])]).await.unwrap();
        file.sync_data().await.unwrap();
        acknowledged.set(u64::from(n) + 1);
    }
}

/// Whether every acknowledged record is there after a crash at operation `at`.
fn keeps_what_it_acknowledged(seed: u64, at: u64, mistake: Option<Fault>) -> (bool, bool) {
    run(seed, |context| async move {
        context.disk.halt_at(at, Halt::PowerCut);
        mistake.into_iter().for_each(|mistake| context.disk.inject(mistake));
        let acknowledged = std::cell::Cell::new(0);
        let ended = context.life(&context.disk, |_| append_all(&context.disk, &acknowledged)).await.is_some();
        context.disk.halt(Halt::PowerCut);
        let content = context.disk.reopen().contents(path("/journal")).unwrap_or_default();
        let record = |n: u64| content.get(usize::try_from(n * 40).unwrap()..).and_then(|rest| rest.get(..40));
        let kept = (0..acknowledged.get()).all(|n| record(n) == Some(&[u8::try_from(n + 1).unwrap(); 40]));
        (kept, ended)
    })
}

#[test]
fn a_crash_at_every_operation_loses_nothing_acknowledged() {
    for seed in seeds(5) {
        let mut at = 1;
        while let (kept, false) = keeps_what_it_acknowledged(seed, at, None) {
            assert!(kept, "crashed at operation {at}");
            at += 1;
        }
        assert_eq!(at, 3 + 2 * 16 + 1, "every operation was a place to crash");
    }
}

#[test]
fn a_sync_that_lies_and_a_directory_sync_that_lies_are_found() {
    for mistake in [Fault::sync_lies(), Fault::dir_sync_lies()] {
        let found = (0..100).find(|seed| !keeps_what_it_acknowledged(*seed, 20, Some(mistake.clone())).0);
        assert!(found.is_some(), "{mistake:?} loses acknowledged records");
    }
}

#[test]
fn equal_seeds_give_equal_traces_and_other_seeds_others() {
    let trace = |seed| {
        run(seed, |context| async move {
            context.disk.crash_at(25);
            let rng = context.rng.clone();
            let (disk, rng) = (&context.disk, &rng);
            let life = context.life(disk, |supervisor| async move {
                let tasks: Vec<_> = (0..4)
                    .map(|task| {
                        let (disk, rng) = (disk.clone(), SeededRng::new(rng.next_u64()));
                        supervisor.spawn("writer", async move {
                            let name = format!("/f{task}");
                            let file =
                                disk.open(path(&name), OpenMode::CreateNew, Lane::Background).await.unwrap();
                            loop {
                                file.write_at(rng.below(2_000), vec![block(b'x')]).await.unwrap();
                                file.sync_data().await.unwrap();
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap_or(());
                }
            });
            assert_eq!(life.await, None);
            let disk = context.disk.reopen();
            let contents: Vec<Vec<u8>> =
                disk.paths().iter().map(|path| disk.contents(path).unwrap()).collect();
            (disk.trace(), disk.trace_hash(), contents)
        })
    };
    let (one, again, other) = (trace(1), trace(1), trace(2));
    assert_eq!(one, again);
    assert!(
        one.0.len() > 25 && one.0.iter().any(|line| line.ends_with(" ms power cut after 24 operations")),
        "{:#?}",
        one.0
    );
    assert_ne!(one.1, other.1);
}

#[test]
fn a_disk_reopened_twice_is_two_copies() {
    run(3, |context| async move {
        drop(durable(&context.disk, "/f", block(b'a')).await);
        let (one, other) = (context.disk.crash(), context.disk.reopen());
        one.remove_file(path("/f")).await.unwrap();
        assert_eq!((one.paths().len(), other.paths().len()), (0, 1));
    });
}
