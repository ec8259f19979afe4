//! Brokers, their sessions, and who leads what.
//!
//! A session begins with a registration. It ends when its own directory registers again, with
//! [`Command::EndSession`](super::Command::EndSession), or when the state machine's time has moved
//! [`limits::BROKER_SESSION_MS`] past the last time it was heard of (a registration or a heartbeat). Only until then is
//! another directory refused under the same id. An expired session alone fences nobody: a single node sends no
//! heartbeats, and what it led it leads on.
//!
//! A replica belongs to a data directory. A broker that comes back with another one holds nothing: it leaves every ISR
//! that has another member, and where it was the last one the partition has no leader until the old directory returns
//! or the topic allows an unclean election.

use std::sync::Arc;

use tidelog_types::{BrokerId, BrokerIncarnation, limits};

use super::{
    command::{BrokerRegistration, Outcome, Refusal},
    image::{BrokerImage, LogIndex, PartitionImage, TopicImage},
    state::ClusterState,
};

const UNCLEAN_LEADER_ELECTION_ENABLE: &str = "unclean.leader.election.enable";

impl ClusterState {
    pub(super) fn register(
        &mut self,
        index: LogIndex,
        registration: &BrokerRegistration,
    ) -> Result<Outcome, Refusal> {
        let broker = registration.broker;
        self.check_registration(registration)?;
        let incarnation =
            BrokerIncarnation(u64::from(self.restore_number) << 32 | u64::from(self.next_registration));
        let former = self.image.broker(broker).cloned();
        let crashed =
            !registration.clean && former.as_ref().is_some_and(|former| former.boot != registration.boot);
        self.next_registration =
            self.next_registration.checked_add(1).expect("registrations are counted in 32 bits");
        let registered = BrokerImage {
            id: broker,
            incarnation,
            epoch: index.0,
            directory: registration.directory,
            boot: registration.boot,
            listeners: registration.listeners.clone(),
            rack: registration.rack.clone(),
            fenced: false,
            heard_ms: self.image.now_ms,
            fenced_uploads: None,
        };
        Arc::make_mut(&mut self.image.brokers).insert(broker, Arc::new(registered));
        self.change_partitions_of(broker, |state, topic, partition| {
            state.rejoin(topic, partition, registration, crashed);
        });
        Ok(Outcome::Registered { incarnation, epoch: index.0 })
    }

    fn check_registration(&self, registration: &BrokerRegistration) -> Result<(), Refusal> {
        let broker = registration.broker;
        if broker.0 < 0 {
            return Err(Refusal::UnknownBroker { broker });
        }
        if registration.listeners.len() > limits::LISTENERS_MAX {
            return Err(Refusal::TooMuch { what: "listeners of one broker", most: limits::LISTENERS_MAX });
        }
        if registration.feature_level_max < self.image.feature_level {
            let asked = registration.feature_level_max;
            return Err(Refusal::FeatureLevel {
                asked,
                finalised: self.image.feature_level,
                known: limits::FEATURE_LEVEL,
            });
        }
        let Some(former) = self.image.broker(broker) else {
            if self.image.brokers.len() >= limits::BROKERS_MAX {
                return Err(Refusal::TooMuch { what: "brokers", most: limits::BROKERS_MAX });
            }
            return Ok(());
        };
        let silence_ms = self.image.now_ms.saturating_sub(former.heard_ms);
        let session_ms = limits::BROKER_SESSION_MS.saturating_sub(silence_ms);
        if former.directory != registration.directory && !former.fenced && session_ms > 0 {
            return Err(Refusal::DuplicateBroker { broker, directory: former.directory, session_ms });
        }
        Ok(())
    }

    pub(super) fn heartbeat(
        &mut self,
        broker: BrokerId,
        incarnation: BrokerIncarnation,
    ) -> Result<Outcome, Refusal> {
        self.check_incarnation(broker, incarnation)?;
        let now_ms = self.image.now_ms;
        self.broker_mut(broker).expect("its incarnation was checked").heard_ms = now_ms;
        Ok(Outcome::Done)
    }

    pub(super) fn end_session(
        &mut self,
        broker: BrokerId,
        incarnation: BrokerIncarnation,
    ) -> Result<Outcome, Refusal> {
        self.check_incarnation(broker, incarnation)?;
        self.broker_mut(broker).expect("its incarnation was checked").fenced = true;
        self.change_partitions_of(broker, |state, _, partition| {
            let led = partition.leader == Some(broker);
            leave_isr(partition, broker);
            if led {
                let elected = state.electable(partition);
                set_leader(partition, elected);
            }
        });
        Ok(Outcome::Done)
    }

    /// Lets `change` look at every partition that has a replica on `broker`; only those that it changes are copied.
    fn change_partitions_of(
        &mut self,
        broker: BrokerId,
        change: impl Fn(&Self, &TopicImage, &mut PartitionImage),
    ) {
        let topics = Arc::clone(&self.image.topics);
        for topic in topics.values() {
            for (number, partition) in topic.partitions.iter().enumerate() {
                if !partition.replicas.contains(&broker) {
                    continue;
                }
                let mut changed = PartitionImage::clone(partition);
                change(self, topic, &mut changed);
                if changed != **partition {
                    changed.partition_epoch = changed
                        .partition_epoch
                        .checked_add(1)
                        .expect("partition epochs are counted in 32 bits");
                    self.check_leadership(&changed).expect("a registration keeps leaders within the ISR");
                    self.topic_mut(topic.id).partitions[number] = Arc::new(changed);
                }
            }
        }
    }

    /// What becomes of one partition when a broker that has a replica of it registers.
    fn rejoin(
        &self,
        topic: &TopicImage,
        partition: &mut PartitionImage,
        registration: &BrokerRegistration,
        crashed: bool,
    ) {
        let broker = registration.broker;
        let position = partition.replicas.iter().position(|replica| *replica == broker);
        let position = position.expect("only partitions of this broker are shown");
        let led = partition.leader == Some(broker);
        if partition.directories[position] != registration.directory {
            leave_isr(partition, broker);
            let unclean =
                topic.configs.get(UNCLEAN_LEADER_ELECTION_ENABLE).is_some_and(|value| value == "true");
            // The last in-sync replica keeps the directory that holds what was acknowledged.
            if !partition.isr.contains(&broker) || unclean {
                partition.directories[position] = registration.directory;
            }
        } else if crashed && !led && partition.last_leader != broker {
            leave_isr(partition, broker);
        }
        if led || partition.leader.is_none() {
            let elected = self.electable(partition);
            // The new incarnation never appends under the former one's epoch: its lost offsets would be used twice.
            if led || elected.is_some() {
                set_leader(partition, elected);
            }
        }
    }

    /// The first replica, in order of preference, that may lead.
    pub(super) fn electable(&self, partition: &PartitionImage) -> Option<BrokerId> {
        let mut replicas = partition.replicas.iter().zip(&partition.directories);
        let found = replicas.find(|(replica, directory)| {
            let lives = self
                .image
                .broker(**replica)
                .is_some_and(|broker| !broker.fenced && broker.directory == **directory);
            lives && partition.isr.contains(replica)
        });
        found.map(|(replica, _)| *replica)
    }

    pub(super) fn check_leadership(&self, partition: &PartitionImage) -> Result<(), &'static str> {
        if partition.isr.is_empty() || !partition.isr.iter().all(|member| partition.replicas.contains(member))
        {
            return Err("the ISR is not a part of the replicas");
        }
        if partition.directories.len() != partition.replicas.len() {
            return Err("replicas and directories differ in number");
        }
        let Some(leader) = partition.leader else { return Ok(()) };
        if !partition.isr.contains(&leader) || partition.last_leader != leader {
            return Err("the leader is not in sync");
        }
        if self.image.broker(leader).is_none_or(|broker| broker.fenced) {
            return Err("the leader does not live");
        }
        Ok(())
    }

    /// Whether no registration was ever given this incarnation.
    pub(super) fn was_never_issued(&self, incarnation: BrokerIncarnation) -> bool {
        let next = u64::from(self.restore_number) << 32 | u64::from(self.next_registration);
        incarnation.0 >= next
    }
}

/// Takes a broker out of the ISR, unless it is the last member.
fn leave_isr(partition: &mut PartitionImage, broker: BrokerId) {
    if partition.isr.len() > 1 {
        partition.isr.retain(|member| *member != broker);
    }
}

fn set_leader(partition: &mut PartitionImage, leader: Option<BrokerId>) {
    partition.leader_epoch = partition.leader_epoch.next().expect("elections are counted in 31 bits");
    partition.leader = leader;
    if let Some(leader) = leader {
        partition.last_leader = leader;
    }
}
