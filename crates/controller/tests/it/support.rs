//! What the tests share.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use tidelog_controller::{Controller, ControllerConfig, ControllerMetrics, StartError};
use tidelog_core::cluster::{
    BrokerRegistration, Command, ConfigChange, ConfigResource, Listener, NewTopic, Outcome,
};
use tidelog_runtime::{Clock, Disk, Registry, SeededRng, Supervisor};
use tidelog_types::{BootId, BrokerId, ClusterId, DirectoryId, TopicId, TopicName};

pub(crate) fn directory() -> PathBuf {
    PathBuf::from("/node/controller")
}

pub(crate) fn cluster_id(number: u8) -> ClusterId {
    ClusterId::from_bytes([number; 16])
}

pub(crate) fn metrics() -> ControllerMetrics {
    ControllerMetrics::new(&Registry::new())
}

pub(crate) fn register_broker() -> Command {
    Command::RegisterBroker {
        registration: BrokerRegistration {
            broker: BrokerId(1),
            directory: DirectoryId::from_bytes([1; 16]),
            boot: BootId::from_bytes([1; 16]),
            clean: true,
            listeners: vec![Listener {
                name: "PLAINTEXT".to_owned(),
                host: "localhost".to_owned(),
                port: 9092,
            }],
            rack: None,
            feature_level_max: 1,
        },
    }
}

pub(crate) fn create_topic(number: u32) -> Command {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    Command::CreateTopic {
        topic: NewTopic {
            topic_id: TopicId::from_bytes(id),
            name: topic_name(number),
            partition_count: 1,
            replication_factor: 1,
            assignments: Vec::new(),
            configs: BTreeMap::new(),
        },
    }
}

pub(crate) fn topic_name(number: u32) -> TopicName {
    TopicName::new(&format!("topic-{number}")).unwrap()
}

/// A command of about `bytes` bytes.
pub(crate) fn set_config(key: u64, bytes: usize) -> Command {
    let changes = vec![(format!("key-{key}"), ConfigChange::Set { value: "x".repeat(bytes) })];
    Command::AlterConfigs { resource: ConfigResource::ClusterDefault {}, changes }
}

pub(crate) async fn start(
    config: ControllerConfig,
    disk: impl Disk,
    clock: impl Clock,
    supervisor: Supervisor,
) -> Result<Controller, StartError> {
    let rng = Arc::new(SeededRng::new(7));
    Controller::start(config, Arc::new(disk), Arc::new(clock), rng, supervisor, &Registry::new()).await
}

/// Proposes, and expects the command to do what it says.
pub(crate) async fn done(controller: &Controller, command: Command) -> Outcome {
    controller.propose(command).await.unwrap().into_result().unwrap()
}
