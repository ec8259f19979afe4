//! A member of the consumer protocol (KIP-848).

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use anyhow::{Result, bail};
use tidelog_wire::{
    Str, Uuid,
    messages::{ConsumerGroupHeartbeatRequest, consumer_group_heartbeat::TopicPartitions},
};

use super::{PAUSE, connection::Connection, is_passing};

/// A member that is alone in its group.
pub(super) struct ConsumerMember {
    connection: Connection,
    group: Str,
    id: Str,
    topic: (String, Uuid),
    epoch: i32,
    owned: BTreeSet<i32>,
    /// It has new partitions and has yet to say so.
    tells: bool,
    /// How often it is to send heartbeats.
    pub(super) interval: Duration,
}

impl ConsumerMember {
    pub(super) async fn connect(broker: SocketAddr, group: String, topic: (String, Uuid)) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(broker).await?,
            id: Str::from(format!("member-of-{group}")),
            group: Str::from(group),
            topic,
            epoch: 0,
            owned: BTreeSet::new(),
            tells: false,
            interval: Duration::from_secs(5),
        })
    }

    /// Sends heartbeats until it has its partitions and has said so.
    pub(super) async fn join(&mut self) -> Result<()> {
        while self.epoch == 0 || self.owned.is_empty() || self.tells {
            self.beat().await?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// One heartbeat.
    pub(super) async fn beat(&mut self) -> Result<()> {
        let joins = self.epoch == 0;
        let owned = || {
            let partitions: Vec<i32> = self.owned.iter().copied().collect();
            let named = TopicPartitions { topic_id: self.topic.1, partitions };
            if self.owned.is_empty() { Vec::new() } else { vec![named] }
        };
        let request = ConsumerGroupHeartbeatRequest {
            group_id: self.group.clone(),
            member_id: self.id.clone(),
            member_epoch: self.epoch,
            rebalance_timeout_ms: if joins { 60_000 } else { -1 },
            subscribed_topic_names: joins.then(|| vec![Str::from(self.topic.0.as_str())]),
            topic_partitions: (joins || self.tells).then(owned),
            ..ConsumerGroupHeartbeatRequest::default()
        };
        let answer = self.connection.call(1, &request).await?;
        match answer.error_code {
            0 => {}
            code if is_passing(code) => return Ok(()),
            code => bail!("ConsumerGroupHeartbeat of {}: error {code}", self.group),
        }
        self.epoch = answer.member_epoch;
        self.interval = Duration::from_millis(u64::try_from(answer.heartbeat_interval_ms)?);
        self.tells = false;
        if let Some(assignment) = answer.assignment {
            let now = assignment.topic_partitions.into_iter().flat_map(|topic| topic.partitions).collect();
            self.tells = self.owned != now;
            self.owned = now;
        }
        Ok(())
    }
}
