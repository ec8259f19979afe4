//! One voter on the simulated disk: starts, restarts, crashes, refusals.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc, time::Duration};

use tidelog_controller::{Controller, ControllerConfig, ProposeError, StartError, StoreError};
use tidelog_core::cluster::{Command, DeletionScope, MetadataImage, Outcome, Refusal};
use tidelog_runtime::{Disk, Supervisor};
use tidelog_sim::{Context, Fault, FaultEffect, Halt, OperationKind, SimDisk, seeds};
use tidelog_types::{ProducerId, TopicId};

use crate::support::{
    cluster_id, create_topic, directory, done, register_broker, set_config, start, topic_name,
};

fn config() -> ControllerConfig {
    ControllerConfig { cluster_id: Some(cluster_id(1)), ..ControllerConfig::single(directory()) }
}

async fn start_on(
    context: &Context,
    disk: &SimDisk,
    config: ControllerConfig,
) -> Result<Controller, StartError> {
    start(config, disk.clone(), context.clock.clone(), Supervisor::for_test()).await
}

fn topics(image: &MetadataImage) -> Vec<String> {
    image.topics().map(|topic| topic.name.to_string()).collect()
}

#[test]
fn a_first_start_makes_a_cluster_and_a_restart_finds_it() {
    tidelog_sim::run(1, |context| async move {
        let new = ControllerConfig::single(directory());
        let controller = start_on(&context, &context.disk, new.clone()).await.unwrap();
        let made = controller.cluster_id();
        assert_eq!(controller.image().cluster_id, Some(made));
        assert_eq!(controller.image().feature_level, 1);
        done(&controller, register_broker()).await;
        let outcome = done(&controller, create_topic(1)).await;
        assert!(matches!(outcome, Outcome::TopicCreated { partition_count: 1, .. }));
        assert!(
            controller.image().topic_by_name(&topic_name(1)).is_some(),
            "the proposer sees what it proposed"
        );
        let before = controller.image();
        assert_eq!(controller.linearize().await.unwrap(), before.index);
        controller.shutdown().await;

        let controller = start_on(&context, &context.disk, new).await.unwrap();
        assert_eq!(controller.cluster_id(), made);
        let after = controller.image();
        assert!(after.index > before.index);
        assert_eq!((topics(&after), after.now_ms), (topics(&before), before.now_ms));
        assert!(controller.is_leader() && controller.status().leader == Some(1));
        controller.shutdown().await;
    });
}

#[test]
fn a_refusal_is_an_outcome_and_not_an_error() {
    tidelog_sim::run(1, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await.unwrap();
        let topic_id = TopicId::from_bytes([5; 16]);
        let outcome = controller.propose(Command::DeleteTopic { topic_id }).await.unwrap();
        assert_eq!(outcome, Outcome::Refused(Refusal::UnknownTopic { topic_id }));
        let refused = controller.propose(set_config(1, 2 * 1024 * 1024)).await.unwrap_err();
        assert!(matches!(refused, ProposeError::TooLarge { .. }) && refused.is_not_applied());
        controller.shutdown().await;
    });
}

#[test]
fn images_follow_one_another() {
    tidelog_sim::run(1, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await.unwrap();
        done(&controller, register_broker()).await;
        let mut images = controller.watch();
        let before = images.borrow_and_update().index;
        done(&controller, create_topic(1)).await;
        images.changed().await.unwrap();
        assert!(images.borrow().index > before);
        let old = controller.image();
        done(&controller, create_topic(2)).await;
        assert_eq!(topics(&old), ["topic-1"], "an image never changes");
        assert_eq!(topics(&controller.image()), ["topic-1", "topic-2"]);
        controller.shutdown().await;
    });
}

#[test]
fn snapshots_bound_the_log_and_survive_a_power_cut() {
    tidelog_sim::run(2, |context| async move {
        let small = ControllerConfig { snapshot_entries: 20, ..config() };
        let controller = start_on(&context, &context.disk, small.clone()).await.unwrap();
        done(&controller, register_broker()).await;
        for number in 0..100 {
            done(&controller, create_topic(number)).await;
        }
        controller.linearize().await.unwrap();
        let status = controller.status();
        assert!(status.snapshot_index.unwrap() > 60 && status.purged_index.unwrap() > 40, "{status:?}");
        let before = controller.image();
        let survived = context.disk.crash();
        let snapshots =
            survived.paths().iter().filter(|path| path.to_str().unwrap().contains("snapshot-")).count();
        assert!(snapshots <= 3, "two are kept, and one may be under way: {snapshots}");
        let controller = start_on(&context, &survived, small).await.unwrap();
        assert_eq!(topics(&controller.image()), topics(&before));
        assert!(controller.status().purged_index >= status.purged_index);
        controller.shutdown().await;
    });
}

/// Acknowledged proposals are there after a crash at any operation, and producer ids are never given out twice (B29).
#[test]
fn nothing_acknowledged_is_lost_whenever_the_node_dies() {
    for (seed, halt) in seeds(2).zip([Halt::PowerCut, Halt::Kill]) {
        for operation in (1..).step_by(5) {
            let reached = tidelog_sim::run(seed * 1000 + operation, |context| async {
                let context = context;
                let acknowledged = RefCell::new((Vec::new(), Vec::new()));
                context.disk.halt_at(operation, halt);
                let small = ControllerConfig { snapshot_entries: 8, ..config() };
                let ended = context
                    .life(&context.disk, |_| async {
                        let controller = start_on(&context, &context.disk, small.clone()).await.unwrap();
                        done(&controller, register_broker()).await;
                        for number in 0..20 {
                            done(&controller, create_topic(number)).await;
                            acknowledged.borrow_mut().0.push(topic_name(number).to_string());
                            let first = allocate(&controller).await;
                            acknowledged.borrow_mut().1.push(first);
                        }
                        controller.shutdown().await;
                    })
                    .await;
                if ended.is_some() {
                    return false;
                }
                let controller = start_on(&context, &context.disk.reopen(), small).await.unwrap();
                let (mut names, ids) = acknowledged.into_inner();
                names.sort();
                let found = topics(&controller.image());
                let extra = found.iter().filter(|name| !names.contains(name)).count();
                assert!(names.iter().all(|name| found.contains(name)) && extra <= 1, "{names:?}: {found:?}");
                done(&controller, register_broker()).await;
                let next = allocate(&controller).await;
                assert!(ids.iter().all(|id| id.0 + 1_000 <= next.0), "{next} after {ids:?}");
                controller.shutdown().await;
                true
            });
            if !reached {
                assert!(operation > 60, "a life has more than {operation} operations");
                break;
            }
        }
    }
}

async fn allocate(controller: &Controller) -> ProducerId {
    let broker = controller.image().brokers().next().unwrap().clone();
    let command = Command::AllocateProducerIds { broker: broker.id, incarnation: broker.incarnation };
    match done(controller, command).await {
        Outcome::ProducerIds { first, count: 1_000 } => first,
        other => panic!("{other:?}"),
    }
}

/// B113: a directory of another cluster is refused, and untouched.
#[test]
fn a_directory_of_another_cluster_or_node_is_refused() {
    tidelog_sim::run(1, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await.unwrap();
        done(&controller, register_broker()).await;
        controller.shutdown().await;
        let before = context.disk.paths();
        let other = ControllerConfig { cluster_id: Some(cluster_id(2)), ..config() };
        match start_on(&context, &context.disk, other).await.map(|_| ()) {
            Err(StartError::AnotherCluster { found, expected }) => {
                assert_eq!((found, expected), (cluster_id(1), cluster_id(2)));
            }
            other => panic!("{other:?}"),
        }
        let other = ControllerConfig { node_id: 2, voters: BTreeMap::from([(2, String::new())]), ..config() };
        let refused = start_on(&context, &context.disk, other).await.map(|_| ());
        assert!(matches!(refused, Err(StartError::AnotherNode { found: 1, expected: 2 })), "{refused:?}");
        assert_eq!(context.disk.paths(), before);
    });
}

/// B115: a node that had a controller's state and lost it says so at once.
#[test]
fn a_lost_directory_is_noticed_at_the_start() {
    tidelog_sim::run(1, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await.unwrap();
        controller.shutdown().await;
        context.disk.remove_dir_all(&directory()).await.unwrap();
        let known = ControllerConfig { may_create: false, ..config() };
        let refused = start_on(&context, &context.disk, known).await.map(|_| ());
        assert!(matches!(refused, Err(StartError::StateMissing { .. })), "{refused:?}");
    });
}

#[test]
fn a_directory_that_lost_its_log_or_its_identity_is_refused() {
    tidelog_sim::run(1, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await.unwrap();
        controller.shutdown().await;
        let whole = context.disk.crash();
        let remove = async |disk: &SimDisk, prefix: &str| {
            for path in disk.paths() {
                if path.file_name().unwrap().to_str().unwrap().starts_with(prefix) {
                    disk.remove_file(&path).await.unwrap();
                }
            }
        };
        let without_log = whole.crash();
        remove(&without_log, "log-").await;
        let refused = start_on(&context, &without_log, config()).await.map(|_| ());
        assert!(matches!(refused, Err(StartError::StateMissing { .. })), "{refused:?}");
        let without_identity = whole.crash();
        remove(&without_identity, "identity").await;
        let refused = start_on(&context, &without_identity, config()).await.map(|_| ());
        assert!(matches!(refused, Err(StartError::Store(StoreError::Damaged { .. }))), "{refused:?}");
    });
}

/// One flipped bit anywhere in what a stopped controller wrote refuses the start, or is in bytes that mean nothing: what was
/// acknowledged never goes missing silently, the last round included.
#[test]
fn one_flipped_bit_is_never_a_silent_loss() {
    tidelog_sim::run(9, |context| async move {
        let small = ControllerConfig { snapshot_entries: 5, ..config() };
        let controller = start_on(&context, &context.disk, small.clone()).await.unwrap();
        done(&controller, register_broker()).await;
        for number in 0..8 {
            done(&controller, create_topic(number)).await;
        }
        let before = topics(&controller.image());
        controller.shutdown().await;
        let stopped = context.disk.kill();
        let (mut refused, mut harmless) = (0, 0);
        for path in stopped.paths().into_iter().filter(|path| !path.to_str().unwrap().ends_with("-spare")) {
            let content = stopped.contents(&path).unwrap();
            let used = content.len() - content.iter().rev().take_while(|byte| **byte == 0).count();
            for position in (0..used).step_by(37).chain(used.saturating_sub(120)..used) {
                let damaged = stopped.kill();
                let position = u64::try_from(position).unwrap();
                damaged.flip_bit(&path, position, u32::try_from(position % 8).unwrap()).unwrap();
                match start_on(&context, &damaged, small.clone()).await {
                    Err(StartError::Store(StoreError::Damaged { .. })) => refused += 1,
                    Err(why) => panic!("{}: {position}: {why}", path.display()),
                    Ok(controller) => {
                        assert_eq!(topics(&controller.image()), before, "{}: {position}", path.display());
                        controller.shutdown().await;
                        harmless += 1;
                    }
                }
            }
        }
        assert!(refused > 50 && harmless > 0, "{refused} refused, {harmless} harmless");
    });
}

/// A disk that fails a sync ends the controller; what it had acknowledged is there at the next start.
#[test]
fn a_failed_sync_stops_the_controller() {
    tidelog_sim::run(4, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await.unwrap();
        done(&controller, register_broker()).await;
        done(&controller, create_topic(1)).await;
        context.disk.inject(Fault::on(OperationKind::Sync, FaultEffect::EIO));
        let unknown = controller.propose(create_topic(2)).await.unwrap_err();
        assert!(!unknown.is_not_applied(), "{unknown}");
        let why = controller.failed().await;
        assert!(!why.is_empty());
        assert!(controller.propose(create_topic(3)).await.is_err());
        controller.shutdown().await;
        context.disk.clear_faults();
        let controller = start_on(&context, &context.disk.crash(), config()).await.unwrap();
        assert!(topics(&controller.image()).starts_with(&["topic-1".to_owned()]));
        controller.shutdown().await;
    });
}

/// The state machine's time moves while something waits for it, by what really passed, and not otherwise.
#[test]
fn time_moves_only_while_it_matters() {
    tidelog_sim::run(6, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await.unwrap();
        done(&controller, register_broker()).await;
        done(&controller, create_topic(1)).await;
        context.disk_free_wait(&controller, Duration::from_secs(60)).await;
        let idle = controller.image();
        assert!((9_000..12_000).contains(&idle.now_ms), "a session's length, then nothing: {}", idle.now_ms);
        context.disk_free_wait(&controller, Duration::from_secs(3_600)).await;
        assert_eq!(controller.image().index, idle.index, "an idle controller writes nothing");
        let topic_id = controller.image().topic_by_name(&topic_name(1)).unwrap().id;
        done(&controller, Command::DeleteTopic { topic_id }).await;
        context.disk_free_wait(&controller, Duration::from_secs(55)).await;
        let ready = || controller.image().ready_scopes().map(|(scope, _)| scope).collect::<Vec<_>>();
        assert_eq!(ready(), [], "the hour before it does not count");
        context.disk_free_wait(&controller, Duration::from_secs(10)).await;
        assert_eq!(ready(), [DeletionScope::Topic { topic_id }]);
        controller.shutdown().await;
    });
}

trait Wait {
    async fn disk_free_wait(&self, controller: &Controller, time: Duration);
}

impl Wait for Context {
    /// Lets virtual time pass; the controller fails if its disk does.
    async fn disk_free_wait(&self, controller: &Controller, time: Duration) {
        use tidelog_runtime::Clock;
        tokio::select! {
            biased;
            why = controller.failed() => panic!("{why}"),
            () = self.clock.sleep(time) => {}
        }
    }
}

#[test]
fn more_proposals_than_fit_are_refused_at_once() {
    tidelog_sim::run(1, |context| async move {
        let controller = Arc::new(start_on(&context, &context.disk, config()).await.unwrap());
        let many = (0..1_100).map(|_| controller.propose(Command::Tick { elapsed_ms: 0 }));
        let answers = futures::future::join_all(many).await;
        let busy = answers.iter().filter(|answer| **answer == Err(ProposeError::Busy)).count();
        let done = answers.iter().filter(|answer| **answer == Ok(Outcome::Done)).count();
        assert_eq!((done, busy), (1_024, 76));
        controller.shutdown().await;
    });
}

#[test]
fn proposals_that_come_together_share_a_sync() {
    tidelog_sim::run(1, |context| async move {
        let controller = start_on(&context, &context.disk, config()).await.unwrap();
        let before = context.disk.operations();
        let many = (0..500).map(|_| controller.propose(Command::Tick { elapsed_ms: 0 }));
        futures::future::join_all(many).await;
        let operations = context.disk.operations() - before;
        assert!(operations < 50, "{operations} operations for 500 proposals");
        controller.shutdown().await;
    });
}
