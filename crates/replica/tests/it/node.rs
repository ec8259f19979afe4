//! One node without its network: log, controller, partitions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_controller::{Controller, ControllerConfig};
use tidelog_core::{
    cluster::{BrokerRegistration, Command, ConfigChange, ConfigResource, LogIndex, NewTopic, Outcome},
    read_plan::Isolation,
};
use tidelog_format::batch::{BatchBuilder, BatchLimits, DecodedBatch, NewRecord, RawBatch, split_batches};
use tidelog_log::{Log, LogConfig};
use tidelog_replica::{
    Acks, AppendError, AppendRequest, Appended, Fetched, PartitionHandle, Records, ReplicaConfig,
    ReplicaManager, Started,
};
use tidelog_runtime::{Registry, Supervisor};
use tidelog_sim::{Context, SimDisk};
use tidelog_types::{
    BootId, BrokerId, BrokerIncarnation, ByteSize, DirectoryId, LeaderEpoch, Offset, PartitionIndex,
    ProducerEpoch, ProducerId, Timestamp, TopicId, TopicName,
};

/// The node's number.
pub(crate) const BROKER: BrokerId = BrokerId(1);

/// Long enough for everything in these tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

const DIRECTORY: DirectoryId = DirectoryId::from_bytes([7; 16]);

/// A running node.
pub(crate) struct Node {
    pub(crate) log: Log,
    pub(crate) controller: Controller,
    pub(crate) replica: ReplicaManager,
    pub(crate) started: Started,
    pub(crate) incarnation: BrokerIncarnation,
}

/// What differs from node to node.
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) broker_values: BTreeMap<String, String>,
    /// Memory for received batches.
    pub(crate) tail_bytes: Option<ByteSize>,
}

impl Options {
    pub(crate) fn with(key: &str, value: &str) -> Self {
        let broker_values = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Self { broker_values, ..Self::default() }
    }
}

impl Node {
    pub(crate) async fn start(context: &Context, disk: &SimDisk, supervisor: Supervisor) -> Self {
        Self::start_with(context, disk, supervisor, Options::default()).await
    }

    pub(crate) async fn start_with(
        context: &Context,
        disk: &SimDisk,
        supervisor: Supervisor,
        options: Options,
    ) -> Self {
        let registry = Registry::new();
        let clock = Arc::new(context.clock.clone());
        let defaults = LogConfig::new("/log", DIRECTORY);
        let log_config = LogConfig {
            journal_bytes_max: ByteSize::mib(16),
            journal_file_bytes: ByteSize::mib(1),
            reserve_bytes: ByteSize::ZERO,
            tail_bytes: options.tail_bytes.unwrap_or(defaults.tail_bytes),
            ..defaults
        };
        let disk = Arc::new(disk.clone());
        let (log, recovered) =
            Log::open(log_config, disk.clone(), clock.clone(), supervisor.clone(), &registry).await.unwrap();
        let rng = Arc::new(context.rng.fork());
        let controller = Controller::start(
            ControllerConfig::single("/controller"),
            disk,
            clock.clone(),
            rng,
            supervisor.clone(),
            &registry,
        )
        .await
        .unwrap();
        let registration = BrokerRegistration {
            broker: BROKER,
            directory: DIRECTORY,
            boot: BootId::from_bytes([1; 16]),
            clean: true,
            listeners: Vec::new(),
            rack: None,
            feature_level_max: 1,
        };
        let registered = controller.propose(Command::RegisterBroker { registration }).await.unwrap();
        let Outcome::Registered { epoch, incarnation } = registered else { panic!("{registered:?}") };
        let config = ReplicaConfig {
            static_values: options.broker_values,
            retention_check_interval: Duration::from_secs(60),
            producer_check_interval: Duration::from_secs(60),
            ..ReplicaConfig::new(BROKER, LogIndex(epoch))
        };
        let metadata = Arc::new(controller.clone());
        let (replica, started) =
            ReplicaManager::start(config, log.clone(), recovered, metadata, clock, supervisor, &registry)
                .await
                .unwrap();
        Self { log, controller, replica, started, incarnation }
    }

    /// Stops in the product's order.
    pub(crate) async fn stop(self) {
        assert!(self.replica.shutdown(DEADLINE).await.is_empty());
        self.controller.shutdown().await;
        self.log.close().await.unwrap();
    }

    pub(crate) async fn propose(&self, command: Command) -> Outcome {
        self.controller.propose(command).await.unwrap().into_result().unwrap()
    }

    /// Creates a topic of one partition and waits until it is hosted.
    pub(crate) async fn create_topic(
        &self,
        name: &str,
        number: u8,
        configs: &[(&str, &str)],
    ) -> PartitionHandle {
        let topic = NewTopic {
            topic_id: TopicId::from_bytes([number; 16]),
            name: TopicName::new(name).unwrap(),
            partition_count: 1,
            replication_factor: 1,
            assignments: Vec::new(),
            configs: configs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        };
        self.propose(Command::CreateTopic { topic }).await;
        self.settled().await;
        self.partition(name)
    }

    /// Waits until everything committed so far is applied.
    pub(crate) async fn settled(&self) {
        let index = self.controller.linearize().await.unwrap();
        tokio::time::timeout(DEADLINE, self.replica.wait_applied(index)).await.unwrap();
    }

    pub(crate) fn partition(&self, name: &str) -> PartitionHandle {
        self.replica
            .partition_by_name(&TopicName::new(name).unwrap(), PartitionIndex(0))
            .expect("the topic is hosted")
    }

    pub(crate) async fn configure(&self, partition: &PartitionHandle, key: &str, value: &str) {
        let resource = ConfigResource::Topic { topic_id: partition.place().topic_id };
        let change = ConfigChange::Set { value: value.to_owned() };
        self.propose(Command::AlterConfigs { resource, changes: vec![(key.to_owned(), change)] }).await;
        self.settled().await;
    }
}

/// A topic that stays on the node.
pub(crate) const LOCAL: (&str, &str) = ("remote.storage.enable", "false");

pub(crate) fn offset(raw: u64) -> Offset {
    Offset::new(raw).unwrap()
}

pub(crate) fn time(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A batch of values with their timestamps, each with a key.
pub(crate) fn timed(records: &[(u64, &str)]) -> BatchBuilder {
    records.iter().fold(BatchBuilder::new(Offset::ZERO), |builder, (millis, value)| {
        builder.record(&NewRecord {
            timestamp: Some(time(*millis)),
            key: Some(b"key"),
            value: Some(value.as_bytes()),
            headers: &[],
        })
    })
}

/// A batch of values.
pub(crate) fn values(values: &[&str]) -> BatchBuilder {
    let records: Vec<(u64, &str)> = values.iter().map(|value| (1_000, *value)).collect();
    timed(&records)
}

/// A batch of an idempotent producer.
pub(crate) fn produced(id: i64, epoch: i16, base_sequence: i32, records: usize) -> Bytes {
    let names: Vec<String> = (0..records)
        .map(|index| format!("{id}/{epoch}/{}", base_sequence + i32::try_from(index).unwrap()))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    sent(values(&names).producer(ProducerId(id), ProducerEpoch(epoch), base_sequence))
}

pub(crate) fn sent(builder: BatchBuilder) -> Bytes {
    builder.build().unwrap().to_bytes()
}

pub(crate) async fn append(
    partition: &PartitionHandle,
    records: Bytes,
    acks: Acks,
) -> Result<Appended, AppendError> {
    partition.append(AppendRequest { records, frame_bytes: 0, acks, internal: false }).await
}

/// Appends with acks=all and waits; answers the base offset.
pub(crate) async fn append_all(partition: &PartitionHandle, records: Bytes) -> u64 {
    let appended = append(partition, records, Acks::All).await.unwrap();
    let base = appended.base_offset;
    tokio::time::timeout(DEADLINE, appended.ack.wait()).await.unwrap().unwrap();
    base.get()
}

pub(crate) fn batches(records: &Records) -> Vec<RawBatch> {
    let bytes: Vec<u8> = records.chunks.iter().flatten().copied().collect();
    split_batches(bytes.into(), &BatchLimits::log()).map(Result::unwrap).collect()
}

/// Every record's offset and value.
pub(crate) fn decoded(batches: &[RawBatch]) -> Vec<(u64, String)> {
    let mut records = Vec::new();
    for batch in batches {
        for record in DecodedBatch::new(batch, 1 << 20).unwrap().iter() {
            let record = record.unwrap();
            records.push((record.offset.get(), String::from_utf8(record.value.unwrap().to_vec()).unwrap()));
        }
    }
    records
}

/// Reads everything that is visible from `from` on; all of it must be hot.
pub(crate) async fn read_batches(partition: &PartitionHandle, from: u64) -> Vec<RawBatch> {
    let mut found = Vec::new();
    let mut at = offset(from);
    loop {
        let (_, fetched) = partition.read(at, 1 << 20, Isolation::ReadUncommitted, true, None).await;
        match fetched.unwrap() {
            Fetched::Hot(records) => {
                found.extend(batches(&records));
                at = records.next;
            }
            Fetched::AtEnd => return found,
            Fetched::Cold { end } => panic!("{at} is cold up to {end}"),
        }
    }
}

pub(crate) async fn read_values(partition: &PartitionHandle, from: u64) -> Vec<(u64, String)> {
    decoded(&read_batches(partition, from).await)
}

/// What [`read_values`] gives for `values` that begin at `base`.
pub(crate) fn numbered(base: u64, values: &[&str]) -> Vec<(u64, String)> {
    (base..).zip(values.iter().map(|value| (*value).to_owned())).collect()
}

pub(crate) fn epoch(number: i32) -> LeaderEpoch {
    LeaderEpoch::from_wire(number).unwrap()
}
