//! Topics, their partitions, and where replicas are placed.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_types::{BrokerId, DirectoryId, LeaderEpoch, Offset, TopicId, TopicName, limits};

use super::{
    command::{NewTopic, Outcome, Refusal},
    deletion::{DeletionScope, DeletionTarget},
    image::{BrokerImage, PartitionImage, PartitionManifest, TopicImage},
    state::{ClusterState, check_configs, is_tiered},
};

impl ClusterState {
    pub(super) fn create_topic(&mut self, new: &NewTopic) -> Result<Outcome, Refusal> {
        if let Some(existing) = self.image.topic_by_name(&new.name) {
            if existing.id != new.topic_id {
                return Err(Refusal::TopicExists { name: new.name.clone(), topic_id: existing.id });
            }
            // The proposer asks again because it never heard the first answer.
            let partition_count = count_of(existing);
            return Ok(Outcome::TopicCreated { topic_id: existing.id, partition_count });
        }
        if self.image.topic(new.topic_id).is_some() || self.image.deletions.holds_topic(new.topic_id) {
            return Err(Refusal::TopicIdTaken { topic_id: new.topic_id });
        }
        self.check_collision(&new.name)?;
        check_configs(&new.configs)?;
        let tiered = is_tiered(&new.configs);
        let count = new.partition_count;
        self.check_partition_count(0, count)?;
        let placed = self.place(new.topic_id, 0, count, new.replication_factor, &new.assignments)?;
        let partitions =
            placed.into_iter().map(|replicas| Arc::new(self.new_partition(replicas, tiered))).collect();
        let topic =
            TopicImage { id: new.topic_id, name: new.name.clone(), configs: new.configs.clone(), partitions };
        Arc::make_mut(&mut self.image.names).insert(new.name.clone(), new.topic_id);
        Arc::make_mut(&mut self.image.topics).insert(new.topic_id, Arc::new(topic));
        Ok(Outcome::TopicCreated { topic_id: new.topic_id, partition_count: count })
    }

    pub(super) fn delete_topic(&mut self, topic_id: TopicId) -> Result<Outcome, Refusal> {
        let topic = Arc::clone(self.topic(topic_id)?);
        let grace = self.grace();
        Arc::make_mut(&mut self.image.names).remove(&topic.name);
        Arc::make_mut(&mut self.image.topics).remove(&topic_id);
        let queue = Arc::make_mut(&mut self.image.deletions);
        queue.drop_partitions_of(topic_id);
        let target = DeletionTarget::Topic { name: topic.name.clone(), partition_count: count_of(&topic) };
        queue.push(DeletionScope::Topic { topic_id }, grace, None, target);
        Ok(Outcome::Done)
    }

    pub(super) fn create_partitions(
        &mut self,
        topic_id: TopicId,
        partition_count: i32,
        assignments: &[Vec<BrokerId>],
    ) -> Result<Outcome, Refusal> {
        let topic = Arc::clone(self.topic(topic_id)?);
        let present = count_of(&topic);
        self.check_partition_count(present, partition_count)?;
        let replication_factor = topic.partitions.first().map_or(1, |first| first.replicas.len());
        let replication_factor = i32::try_from(replication_factor).expect("replicas of a partition are few");
        let placed = self.place(topic_id, present, partition_count, replication_factor, assignments)?;
        let tiered = is_tiered(&topic.configs);
        let added: Vec<_> =
            placed.into_iter().map(|replicas| Arc::new(self.new_partition(replicas, tiered))).collect();
        self.topic_mut(topic_id).partitions.extend(added);
        Ok(Outcome::TopicCreated { topic_id, partition_count })
    }

    fn check_partition_count(&self, present: i32, count: i32) -> Result<(), Refusal> {
        let (least, most) = (present.saturating_add(1), limits::PARTITIONS_PER_TOPIC_MAX);
        if count < least || count > most {
            return Err(Refusal::PartitionCount { count, least, most });
        }
        let all: usize = self.image.topics.values().map(|topic| topic.partitions.len()).sum();
        let added = usize::try_from(count.saturating_sub(present)).expect("it grows");
        if all.saturating_add(added) > limits::PARTITIONS_MAX {
            return Err(Refusal::TooManyPartitions { most: limits::PARTITIONS_MAX });
        }
        Ok(())
    }

    /// Kafka's rule: names that differ in `.` against `_` alone would share their metrics.
    fn check_collision(&self, name: &TopicName) -> Result<(), Refusal> {
        let plain = |name: &TopicName| name.as_str().replace('.', "_");
        if !name.as_str().contains(['.', '_']) {
            return Ok(());
        }
        let wanted = plain(name);
        match self.image.names.keys().find(|known| plain(known) == wanted) {
            Some(with) => Err(Refusal::TopicCollides { name: name.clone(), with: with.clone() }),
            None => Ok(()),
        }
    }

    /// Replicas of the partitions `[from, to)`.
    fn place(
        &self,
        topic_id: TopicId,
        from: i32,
        to: i32,
        replication_factor: i32,
        assignments: &[Vec<BrokerId>],
    ) -> Result<Vec<Vec<BrokerId>>, Refusal> {
        if !assignments.is_empty() {
            return self.check_assignments(from, to, assignments);
        }
        let live = self.live_across_racks();
        let wanted = usize::try_from(replication_factor).unwrap_or(0);
        if wanted == 0 || wanted > live.len() {
            return Err(Refusal::ReplicationFactor { asked: replication_factor, live: live.len() });
        }
        // Topics start on different brokers, and the next partition on the next one.
        let count = u128::try_from(live.len()).expect("brokers are few");
        let start = u128::from_be_bytes(*topic_id.as_bytes()) % count;
        let start = usize::try_from(start).expect("below the number of brokers");
        let numbers = usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0);
        Ok(numbers
            .map(|number| (0..wanted).map(|replica| live[(start + number + replica) % live.len()]).collect())
            .collect())
    }

    fn check_assignments(
        &self,
        from: i32,
        to: i32,
        assignments: &[Vec<BrokerId>],
    ) -> Result<Vec<Vec<BrokerId>>, Refusal> {
        let refused = |why| Err(Refusal::Assignment { why });
        if usize::try_from(to.saturating_sub(from)).ok() != Some(assignments.len()) {
            return refused("one list of replicas for each new partition is needed");
        }
        for replicas in assignments {
            if replicas.is_empty() || replicas.len() != assignments[0].len() {
                return refused("each partition needs the same number of replicas, one at least");
            }
            if replicas.iter().collect::<BTreeSet<_>>().len() != replicas.len() {
                return refused("a broker is named twice for one partition");
            }
            if !replicas
                .iter()
                .all(|replica| self.image.broker(*replica).is_some_and(|broker| !broker.fenced))
            {
                return refused("a named broker does not live");
            }
        }
        Ok(assignments.to_vec())
    }

    /// Brokers whose session lives, so ordered that neighbours are in different racks where that can be.
    fn live_across_racks(&self) -> Vec<BrokerId> {
        let mut racks: std::collections::BTreeMap<Option<&str>, Vec<BrokerId>> =
            std::collections::BTreeMap::new();
        for broker in self.image.brokers().filter(|broker| !broker.fenced) {
            racks.entry(broker.rack.as_deref()).or_default().push(broker.id);
        }
        let deepest = racks.values().map(Vec::len).max().unwrap_or(0);
        (0..deepest).flat_map(|row| racks.values().filter_map(move |rack| rack.get(row).copied())).collect()
    }

    fn new_partition(&self, replicas: Vec<BrokerId>, tiered: bool) -> PartitionImage {
        let directory = |replica: &BrokerId| -> DirectoryId {
            self.image
                .broker(*replica)
                .map(|broker: &Arc<BrokerImage>| broker.directory)
                .expect("it was placed on a live broker")
        };
        let directories = replicas.iter().map(directory).collect();
        let leader = *replicas.first().expect("a partition has a replica");
        let mut isr = replicas.clone();
        isr.sort_unstable();
        PartitionImage {
            leader: Some(leader),
            leader_epoch: LeaderEpoch::ZERO,
            partition_epoch: 0,
            replicas,
            directories,
            isr,
            last_leader: leader,
            log_start: Offset::ZERO,
            manifest: Arc::new(PartitionManifest::default()),
            tiered,
        }
    }
}

fn count_of(topic: &TopicImage) -> i32 {
    i32::try_from(topic.partitions.len()).expect("partitions of a topic are limited")
}
