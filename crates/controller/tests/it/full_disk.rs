//! Controllers whose disk is full: what grows is refused, what frees space goes on, nobody ends, and all heal by
//! themselves (R9).

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use futures::future::join_all;
use tidelog_controller::{Controller, ControllerConfig, InProcessTransport, ProposeError, Timing, Transport};
use tidelog_core::cluster::{Command, Outcome};
use tidelog_runtime::{Clock, Disk, Supervisor};
use tidelog_sim::{Context, Fault, FaultEffect, OperationKind, SimDisk, SimDiskConfig};

use crate::support::{
    cluster_id, create_topic, directory, done, register_broker, set_config, start, topic_name,
};

fn config() -> ControllerConfig {
    ControllerConfig { cluster_id: Some(cluster_id(1)), ..ControllerConfig::single(directory()) }
}

async fn start_on(context: &Context, disk: &SimDisk, config: ControllerConfig) -> Controller {
    start(config, disk.clone(), context.clock.clone(), Supervisor::for_test()).await.unwrap()
}

/// From now on not one byte more fits.
async fn fill(disk: &SimDisk) {
    let space = disk.space(Path::new("/")).await.unwrap();
    disk.set_capacity(Some(space.total - space.free));
}

/// Proposes what grows until it is refused; how many were not.
async fn grow_until_refused(controller: &Controller, bytes: usize) -> u64 {
    for count in 0..100_000 {
        match controller.propose(set_config(1, bytes)).await {
            Ok(outcome) => drop(outcome.into_result().unwrap()),
            Err(why @ ProposeError::NoSpace { .. }) => {
                assert!(why.is_not_applied());
                return count;
            }
            Err(why) => panic!("{why}"),
        }
    }
    panic!("a full disk takes everything");
}

fn must_live(controller: &Controller) {
    use futures::FutureExt;
    assert_eq!(controller.failed().now_or_never(), None);
}

async fn delete(controller: &Controller, number: u32) {
    let topic_id = controller.image().topic_by_name(&topic_name(number)).unwrap().id;
    done(controller, Command::DeleteTopic { topic_id }).await;
}

#[test]
fn a_full_disk_refuses_what_grows_takes_what_frees_and_heals_without_a_restart() {
    tidelog_sim::run(1, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await;
        done(&controller, register_broker()).await;
        for number in 0..50 {
            done(&controller, create_topic(number)).await;
        }
        context.clock.sleep(Duration::from_secs(1)).await;
        fill(&context.disk).await;
        let taken = grow_until_refused(&controller, 30_000).await;
        assert!((20..200).contains(&taken), "what was allocated ahead is used: {taken}");
        // The log is shortened in place meanwhile, so a later one may be taken.
        let mut refused = None;
        for number in 1_001..20_000 {
            refused = controller.propose(create_topic(number)).await.err();
            if refused.is_some() {
                break;
            }
        }
        assert!(matches!(refused, Some(ProposeError::NoSpace { .. })), "{refused:?}");
        for number in 0..49 {
            delete(&controller, number).await;
        }
        let small = set_config(2, 1_000);
        done(&controller, small).await;
        must_live(&controller);

        context.disk.set_capacity(None);
        done(&controller, create_topic(1_000)).await;
        let survived = context.disk.crash();
        let controller = start_on(&context, &survived, config()).await;
        let names: Vec<_> = controller.image().topics().map(|topic| topic.name.to_string()).collect();
        assert!(names.contains(&"topic-1000".to_owned()) && names.contains(&"topic-49".to_owned()));
        assert!(!names.contains(&"topic-48".to_owned()), "{names:?}");
        controller.shutdown().await;
    });
}

/// 20 MB of commands pass through 4 MiB of log: snapshots and compactions need no new block.
#[test]
fn what_frees_space_goes_on_for_ever_on_a_full_disk() {
    tidelog_sim::run(2, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await;
        done(&controller, register_broker()).await;
        done(&controller, create_topic(1)).await;
        context.clock.sleep(Duration::from_secs(1)).await;
        fill(&context.disk).await;
        grow_until_refused(&controller, 30_000).await;
        let (mut done, mut refused) = (0, 0);
        while done < 2_000 {
            match controller.propose(set_config(1, 10_000)).await {
                Ok(_) => done += 1,
                // The log is being shortened.
                Err(ProposeError::NoSpace { .. }) => {
                    refused += 1;
                    assert!(refused < 2_000, "{done} commands were taken");
                    context.clock.sleep(Duration::from_millis(100)).await;
                }
                Err(why) => panic!("{why}"),
            }
        }
        must_live(&controller);
        let status = controller.status();
        assert!(status.purged_index.unwrap() > 1_000, "{status:?}");
        let survived = context.disk.crash();
        let controller = start_on(&context, &survived, config()).await;
        assert!(controller.image().topic_by_name(&topic_name(1)).is_some());
        delete(&controller, 1).await;
        controller.shutdown().await;
    });
}

#[test]
fn a_node_starts_on_a_full_disk_and_frees_space() {
    tidelog_sim::run(3, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await;
        done(&controller, register_broker()).await;
        done(&controller, create_topic(1)).await;
        context.clock.sleep(Duration::from_secs(1)).await;
        fill(&context.disk).await;
        grow_until_refused(&controller, 30_000).await;
        for survived in [context.disk.crash(), context.disk.reopen()] {
            fill(&survived).await;
            let controller = start_on(&context, &survived, config()).await;
            done(&controller, register_broker()).await;
            delete(&controller, 1).await;
            controller.shutdown().await;
            let again = survived.kill();
            let controller = start_on(&context, &again, config()).await;
            assert_eq!(controller.image().topics().count(), 0);
            controller.shutdown().await;
        }
    });
}

/// The live entries fill the log, and there is no spare: the recovered file is continued, whatever was torn behind it.
#[test]
fn a_start_without_space_for_another_file_continues_the_recovered_one() {
    for seed in 10..30 {
        tidelog_sim::run(seed, |context| async move {
            let controller = start_on(&context, &context.disk, config()).await;
            done(&controller, register_broker()).await;
            done(&controller, create_topic(1)).await;
            context.clock.sleep(Duration::from_secs(1)).await;
            fill(&context.disk).await;
            grow_until_refused(&controller, 30_000).await;
            // One is under way when the power goes.
            let torn = controller.propose(set_config(3, 10_000));
            let _ = tokio::time::timeout(Duration::from_millis(context.seed % 10), torn).await;
            let survived = context.disk.crash();
            survived.remove_file(&directory().join("log-spare")).await.unwrap();
            fill(&survived).await;
            let controller = start_on(&context, &survived, config()).await;
            done(&controller, set_config(4, 5_000)).await;
            delete(&controller, 1).await;
            let again = survived.crash();
            let controller = start_on(&context, &again, config()).await;
            assert_eq!(controller.image().topics().count(), 0, "seed {}", context.seed);
            controller.shutdown().await;
        });
    }
}

/// A snapshot that does not fit is none: the former one stays, and a later one is taken once there is space.
#[test]
fn a_snapshot_that_does_not_fit_is_taken_later() {
    tidelog_sim::run(4, |context| async move {
        let small = ControllerConfig { snapshot_entries: 20, ..config() };
        let controller = start_on(&context, &context.disk, small).await;
        done(&controller, register_broker()).await;
        context.clock.sleep(Duration::from_secs(1)).await;
        context.disk.inject(
            Fault::on(OperationKind::Allocate, FaultEffect::ENOSPC)
                .where_path(|path| path.ends_with("snapshot-spare")),
        );
        for number in 0..100 {
            done(&controller, create_topic(number)).await;
        }
        let before = controller.status();
        assert_eq!(before.snapshot_index, None, "no snapshot fits");
        must_live(&controller);
        context.disk.clear_faults();
        for number in 100..140 {
            done(&controller, create_topic(number)).await;
            context.clock.sleep(Duration::from_secs(1)).await;
        }
        assert!(controller.status().snapshot_index.unwrap() > 100, "{:?}", controller.status());
        controller.shutdown().await;
    });
}

/// Waiting for space does not keep a node from ending.
#[test]
fn a_controller_that_waits_for_space_shuts_down() {
    tidelog_sim::run(5, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await;
        done(&controller, register_broker()).await;
        context.disk.inject(Fault::on(OperationKind::Write, FaultEffect::ENOSPC));
        let refused = controller.propose(create_topic(1)).await.unwrap_err();
        assert!(!refused.is_not_applied(), "it was admitted, and its round waits: {refused}");
        must_live(&controller);
        controller.shutdown().await;
    });
}

struct Voter {
    disk: SimDisk,
    controller: Controller,
    _receiver: Arc<dyn tidelog_controller::Receiver>,
}

async fn three(context: &Context, snapshot_entries: u64) -> (Arc<InProcessTransport>, BTreeMap<u64, Voter>) {
    let transport = InProcessTransport::new();
    let started = (1..=3_u64).map(|node| {
        let transport = Arc::clone(&transport);
        async move {
            let disk = SimDisk::new(SimDiskConfig::seeded(context.seed * 10 + node));
            let config = ControllerConfig {
                node_id: node,
                voters: (1..=3).map(|node| (node, format!("node-{node}"))).collect(),
                timing: Timing::group(),
                snapshot_entries,
                transport: Some(Arc::new(Arc::clone(&transport)) as Arc<dyn Transport>),
                ..config()
            };
            let controller = start_on(context, &disk, config).await;
            let receiver = controller.receiver();
            transport.attach(node, &receiver);
            (node, Voter { disk, controller, _receiver: receiver })
        }
    });
    let voters: BTreeMap<_, _> = join_all(started).await.into_iter().collect();
    (transport, voters)
}

async fn leader(context: &Context, voters: &BTreeMap<u64, Voter>) -> u64 {
    for _ in 0..1_000 {
        if let Some((node, _)) = voters.iter().find(|(_, voter)| voter.controller.is_leader()) {
            return *node;
        }
        context.clock.sleep(Duration::from_millis(50)).await;
    }
    panic!("nobody leads");
}

/// A follower whose disk is full waits for space: the group goes on, and it catches up, through a snapshot, without a
/// restart.
#[test]
fn a_follower_with_a_full_disk_holds_up_nobody_and_catches_up() {
    tidelog_sim::run(6, |context| async move {
        let (_transport, voters) = three(&context, 50).await;
        let leads = leader(&context, &voters).await;
        let leader = &voters[&leads].controller;
        done(leader, register_broker()).await;
        let follower = &voters[&(leads % 3 + 1)];
        context.clock.sleep(Duration::from_secs(2)).await;
        fill(&follower.disk).await;
        // More than the follower's room.
        for number in 0..400 {
            let outcome = leader.propose(set_config(number % 7, 30_000)).await.unwrap();
            assert!(!matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        }
        must_live(&follower.controller);
        assert!(follower.controller.image().index < leader.image().index, "it has no room for all");
        follower.disk.set_capacity(None);
        let mut images = follower.controller.watch();
        let index = leader.image().index;
        images.wait_for(|image| image.index >= index).await.unwrap();
        for voter in voters.values() {
            must_live(&voter.controller);
            voter.controller.shutdown().await;
        }
    });
}

/// A command that a node forwards to a leader with a full disk is refused, not lost.
#[test]
fn a_forwarded_command_is_refused_by_a_leader_with_a_full_disk() {
    tidelog_sim::run(7, |context| async move {
        let (_transport, voters) = three(&context, 1_000).await;
        let leads = leader(&context, &voters).await;
        done(&voters[&leads].controller, register_broker()).await;
        context.clock.sleep(Duration::from_secs(2)).await;
        fill(&voters[&leads].disk).await;
        let other = &voters[&(leads % 3 + 1)].controller;
        grow_until_refused(other, 30_000).await;
        done(other, set_config(1, 100)).await;
        for voter in voters.values() {
            must_live(&voter.controller);
            voter.controller.shutdown().await;
        }
    });
}
