//! Three voters in one process, each with a runtime of its own that dies with it, on real files.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;
use tidelog_controller::{
    CallError, Controller, ControllerConfig, InProcessTransport, Message, ProposeError, Receiver, Request,
    StartError, Timing, Transport,
};
use tidelog_core::cluster::{Command, MetadataImage};
use tidelog_runtime::{Clock, FileDisk, FileDiskConfig, Supervisor, SystemClock};
use tokio::runtime::Runtime;

use crate::support::{cluster_id, create_topic, register_broker, start, topic_name};

/// Long enough for a loaded machine; the tests end as soon as what they wait for happens.
const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    controller: Controller,
    /// Kept so that it takes requests while the node lives.
    _receiver: Arc<dyn Receiver>,
    runtime: Option<Runtime>,
}

impl Drop for Node {
    /// Every task ends where it stands, as in a kill; the files stay as they are.
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

struct Group {
    client: Runtime,
    transport: Arc<InProcessTransport>,
    nodes: BTreeMap<u64, Node>,
    directory: TempDir,
    cluster: u8,
    snapshot_entries: u64,
}

/// A linearizable read, asked again while there is no leader to answer it.
async fn linearize(controller: &Controller) {
    const TRIES: u32 = 20;
    let mut last = None;
    for _ in 0..TRIES {
        match controller.linearize().await {
            Ok(_) => return,
            Err(why) => last = Some(why),
        }
    }
    panic!("no linearizable read in {TRIES} tries: {last:?}");
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

impl Group {
    fn start(cluster: u8, snapshot_entries: u64) -> Self {
        let mut group = Self {
            client: runtime(),
            transport: InProcessTransport::new(),
            nodes: BTreeMap::new(),
            directory: tempfile::tempdir().unwrap(),
            cluster,
            snapshot_entries,
        };
        for node in 1..=3 {
            group.start_node(node).unwrap();
        }
        let registered = group.propose(1, register_broker());
        registered.unwrap();
        group
    }

    fn path(&self, node: u64) -> PathBuf {
        self.directory.path().join(format!("node-{node}"))
    }

    fn config(&self, node: u64) -> ControllerConfig {
        ControllerConfig {
            node_id: node,
            voters: (1..=3).map(|node| (node, format!("node-{node}"))).collect(),
            cluster_id: Some(cluster_id(self.cluster)),
            timing: Timing { propose_deadline: PATIENCE, ..Timing::group() },
            snapshot_entries: self.snapshot_entries,
            transport: Some(Arc::new(Arc::clone(&self.transport)) as Arc<dyn Transport>),
            ..ControllerConfig::single(self.path(node))
        }
    }

    fn start_node(&mut self, node: u64) -> Result<(), StartError> {
        self.start_with(node, self.config(node))
    }

    fn start_with(&mut self, node: u64, config: ControllerConfig) -> Result<(), StartError> {
        let runtime = runtime();
        let started = runtime.block_on(async {
            let disk = FileDisk::new(FileDiskConfig::default()).unwrap();
            start(config, disk, SystemClock::new(), Supervisor::for_test()).await
        });
        let controller = match started {
            Ok(controller) => controller,
            Err(why) => {
                runtime.shutdown_background();
                return Err(why);
            }
        };
        let receiver = controller.receiver();
        self.transport.attach(node, &receiver);
        self.nodes.insert(node, Node { controller, _receiver: receiver, runtime: Some(runtime) });
        Ok(())
    }

    fn kill(&mut self, node: u64) {
        drop(self.nodes.remove(&node).unwrap());
    }

    fn propose(&self, node: u64, command: Command) -> Result<(), ProposeError> {
        let outcome = self.client.block_on(self.nodes[&node].controller.propose(command))?;
        outcome.into_result().map(|_| ()).map_err(|why| panic!("{why}"))
    }

    /// Proposes a topic until the outcome is known: the same id again changes nothing. On a loaded machine an election may
    /// outlast one proposal's deadline.
    fn create(&self, node: u64, number: u32) {
        const TRIES: u32 = 20;
        for _ in 0..TRIES {
            match self.propose(node, create_topic(number)) {
                Ok(()) => return,
                Err(ProposeError::Unknown { .. } | ProposeError::NoLeader | ProposeError::Busy) => {}
                Err(why @ (ProposeError::TooLarge { .. } | ProposeError::NoSpace { .. })) => panic!("{why}"),
            }
        }
        panic!("topic {number} had no outcome in {TRIES} tries");
    }

    fn leader(&self) -> u64 {
        let any = self.nodes.values().next().unwrap();
        self.client.block_on(linearize(&any.controller));
        any.controller.status().leader.unwrap()
    }

    /// Every node's image once all have applied what is committed now.
    fn images(&self) -> Vec<Arc<MetadataImage>> {
        self.client.block_on(async {
            let mut images = Vec::new();
            for node in self.nodes.values() {
                linearize(&node.controller).await;
                images.push(node.controller.image());
            }
            images
        })
    }

    fn assert_equal_and_hold(&self, acknowledged: &[u32]) {
        for image in self.images() {
            for number in acknowledged {
                let found = image.topic_by_name(&topic_name(*number));
                assert!(found.is_some(), "topic {number} was acknowledged");
            }
        }
        // Time may have moved between two looks; what was decided may not differ.
        let decided = |image: &MetadataImage| image.topics().cloned().collect::<Vec<_>>();
        let images = self.images();
        assert!(images.iter().all(|image| decided(image) == decided(&images[0])));
    }
}

/// No accepted proposal is lost when the leader dies, and there is a new one within seconds.
#[test]
fn a_killed_leader_is_replaced_and_nothing_accepted_is_lost() {
    let mut group = Group::start(1, 1_000);
    let clock = SystemClock::new();
    let mut acknowledged = Vec::new();
    let mut number = 0;
    for _round in 0..2 {
        for _ in 0..20 {
            number += 1;
            // Followers hand it to the leader.
            group.create(1 + u64::from(number % 3), number);
            acknowledged.push(number);
        }
        let leader = group.leader();
        group.kill(leader);
        let before = clock.monotonic();
        let follower = *group.nodes.keys().next().unwrap();
        number += 1;
        group.create(follower, number);
        acknowledged.push(number);
        let took = clock.monotonic() - before;
        assert!(took < Duration::from_secs(10), "a new leader took {took:?}");
        group.start_node(leader).unwrap();
        group.assert_equal_and_hold(&acknowledged);
    }
}

/// B83: a leader that is cut off accepts nothing, and what it could not commit is not there afterwards as accepted.
#[test]
fn a_leader_without_a_quorum_accepts_nothing() {
    let mut group = Group::start(1, 1_000);
    let leader = group.leader();
    let others: Vec<u64> = group.nodes.keys().copied().filter(|node| *node != leader).collect();
    // With a short deadline.
    let mut config = group.config(leader);
    config.timing.propose_deadline = Duration::from_secs(3);
    group.kill(leader);
    group.start_with(leader, config).unwrap();
    group.create(leader, 1);
    for other in &others {
        group.transport.cut(leader, *other);
    }
    assert!(group.propose(leader, create_topic(2)).is_err());
    group.create(others[0], 3);
    group.transport.heal();
    group.create(leader, 4);
    group.assert_equal_and_hold(&[1, 3, 4]);
}

/// B112: a node that fell behind is brought up by a snapshot, and its membership with it; restarts change nothing.
#[test]
fn a_node_that_fell_behind_catches_up_by_snapshot() {
    let mut group = Group::start(1, 20);
    let leader = group.leader();
    let mut followers = group.nodes.keys().copied().filter(|node| *node != leader);
    let (behind, other) = (followers.next().unwrap(), followers.next().unwrap());
    drop(followers);
    group.transport.cut(behind, leader);
    group.transport.cut(behind, other);
    for number in 0..150 {
        group.create(leader, number);
    }
    let purged = group.nodes[&other].controller.status().purged_index;
    assert!(purged.is_some_and(|purged| purged > 60), "the log that it misses is gone: {purged:?}");
    // The other one leads now, with the votes of the two: the one behind has too short a log.
    group.kill(leader);
    group.transport.heal();
    let all: Vec<u32> = (0..150).collect();
    group.assert_equal_and_hold(&all);
    assert_eq!(group.leader(), other);
    let installed = group.nodes[&behind].controller.status().snapshot_index;
    assert!(installed >= purged, "it got a snapshot: {installed:?}");
    group.start_node(leader).unwrap();
    for node in 1..=3 {
        group.kill(node);
        group.start_node(node).unwrap();
        group.create(node, 1_000 + u32::try_from(node).unwrap());
    }
    group.assert_equal_and_hold(&all);
    // The whole group at once.
    for node in 1..=3 {
        group.kill(node);
    }
    for node in 1..=3 {
        group.start_node(node).unwrap();
    }
    group.assert_equal_and_hold(&all);
}

fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// B113: a node with the directory of an earlier life of the cluster is refused, and the others keep running.
#[test]
fn a_node_of_an_earlier_life_is_refused() {
    let mut old = Group::start(1, 10);
    for number in 0..40 {
        old.create(1, number);
    }
    old.kill(3);
    let mut new = Group::start(2, 10);
    new.create(1, 500);
    new.kill(3);
    std::fs::remove_dir_all(new.path(3)).unwrap();
    copy_directory(&old.path(3), &new.path(3));
    assert!(matches!(new.start_node(3), Err(StartError::AnotherCluster { .. })));
    // Started without being told which cluster to expect, it is answered by nobody and changes nothing.
    let config = ControllerConfig { cluster_id: None, ..new.config(3) };
    new.start_with(3, config).unwrap();
    new.create(1, 501);
    let stranger = Request { cluster_id: cluster_id(1), from: 3, message: Message::ReadIndex };
    let answer = new.client.block_on(new.transport.call(1, stranger));
    assert_eq!(answer.map(|_| ()), Err(CallError::AnotherCluster { cluster_id: cluster_id(2) }));
    new.kill(3);
    for image in new.images() {
        let names: Vec<_> = image.topics().map(|topic| topic.name.clone()).collect();
        assert_eq!(names, [topic_name(500), topic_name(501)]);
    }
}

/// B115: the directory of one of three is lost; it says so, and the other two keep working.
#[test]
fn the_others_work_on_while_one_lost_its_directory() {
    let mut group = Group::start(1, 1_000);
    group.kill(3);
    std::fs::remove_dir_all(group.path(3)).unwrap();
    let known = ControllerConfig { may_create: false, ..group.config(3) };
    assert!(matches!(group.start_with(3, known), Err(StartError::StateMissing { .. })));
    group.create(1, 1);
    group.assert_equal_and_hold(&[1]);
}
