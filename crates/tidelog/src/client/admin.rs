//! The calls behind the verbs `topic` and `cluster`, and the settings of groups.

use std::fmt;

use tidelog_types::TopicName;
use tidelog_wire::{
    Str,
    messages::{
        CreateTopicsRequest, DeleteTopicsRequest, DescribeClusterRequest, DescribeClusterResponse,
        DescribeConfigsRequest, IncrementalAlterConfigsRequest, MetadataRequest, MetadataResponse,
        create_topics, delete_topics, describe_configs, incremental_alter_configs,
    },
};

use super::{ADMIN_TIMEOUT, ClientError, Connection, METADATA_VERSION, TopicMetadata, check, topic_metadata};

/// Whose settings are asked for.
#[derive(Debug, Clone, Copy)]
pub enum Configured<'a> {
    /// A topic's, by its name.
    Topic(&'a TopicName),
    /// A group's, by its id.
    Group(&'a str),
}

impl Configured<'_> {
    /// Kafka's number of the resource type.
    const fn resource_type(self) -> i8 {
        match self {
            Self::Topic(_) => 2,
            Self::Group(_) => 32,
        }
    }

    /// Kafka's number of the source of what it set itself.
    const fn own_source(self) -> i8 {
        match self {
            Self::Topic(_) => 1,
            Self::Group(_) => 8,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Topic(name) => name.as_str(),
            Self::Group(group) => group,
        }
    }
}

impl fmt::Display for Configured<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Topic(_) => "topic",
            Self::Group(_) => "group",
        };
        write!(f, "{kind} {}", self.name())
    }
}

/// A topic to be created.
#[derive(Debug, Clone)]
pub struct NewTopic {
    /// Its name.
    pub name: TopicName,
    /// How many partitions; the broker's default where none is said.
    pub partitions: Option<u32>,
    /// Settings by Kafka's names.
    pub configs: Vec<(String, String)>,
}

/// One setting of a topic or a group as the broker tells it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ConfigEntry {
    /// Kafka's name.
    pub name: String,
    /// The value in force.
    pub value: Option<String>,
    /// Whether the topic or the group itself sets it.
    pub overridden: bool,
}

/// A connection to one node for admin calls.
#[derive(Debug)]
pub struct Admin {
    connection: Connection,
}

impl Admin {
    /// Connects to a node.
    ///
    /// # Errors
    /// Where it does not answer.
    pub async fn connect(address: &str) -> Result<Self, ClientError> {
        Ok(Self { connection: Connection::open(address).await? })
    }

    /// Creates a topic and gives its metadata.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code; the topic may exist where the connection broke.
    pub async fn create_topic(&mut self, topic: &NewTopic) -> Result<TopicMetadata, ClientError> {
        let configs = topic
            .configs
            .iter()
            .map(|(name, value)| create_topics::CreatableTopicConfig {
                name: name.as_str().into(),
                value: Some(value.as_str().into()),
            })
            .collect();
        let wanted = create_topics::CreatableTopic {
            name: topic.name.as_str().into(),
            num_partitions: topic.partitions.map_or(-1, |count| i32::try_from(count).unwrap_or(i32::MAX)),
            replication_factor: -1,
            assignments: Vec::new(),
            configs,
        };
        let request =
            CreateTopicsRequest { topics: vec![wanted], timeout_ms: timeout_ms(), validate_only: false };
        let answer = self.connection.call(7, &request, ADMIN_TIMEOUT).await?;
        let result = answer.topics.into_iter().next().ok_or(ClientError::Incomplete("the topic"))?;
        check(|| format!("create topic {}", topic.name), result.error_code, result.error_message.as_ref())?;
        topic_metadata(&mut self.connection, &topic.name).await
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code; the topic may be gone where the connection broke.
    pub async fn delete_topic(&mut self, name: &TopicName) -> Result<(), ClientError> {
        let topic =
            delete_topics::DeleteTopicState { name: Some(name.as_str().into()), ..Default::default() };
        let request =
            DeleteTopicsRequest { topics: vec![topic], topic_names: Vec::new(), timeout_ms: timeout_ms() };
        let answer = self.connection.call(6, &request, ADMIN_TIMEOUT).await?;
        let result = answer.responses.into_iter().next().ok_or(ClientError::Incomplete("the topic"))?;
        check(|| format!("delete topic {name}"), result.error_code, result.error_message.as_ref())
    }

    /// Sets settings of a topic or a group, or removes its own where the value is none.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code; nothing is changed then.
    pub async fn alter(
        &mut self,
        whose: Configured<'_>,
        changes: &[(String, Option<String>)],
    ) -> Result<(), ClientError> {
        let configs = changes
            .iter()
            .map(|(key, value)| incremental_alter_configs::AlterableConfig {
                name: key.as_str().into(),
                config_operation: i8::from(value.is_none()),
                value: value.as_deref().map(Str::from),
            })
            .collect();
        let resource = incremental_alter_configs::AlterConfigsResource {
            resource_type: whose.resource_type(),
            resource_name: whose.name().into(),
            configs,
        };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        let answer = self.connection.call(1, &request, ADMIN_TIMEOUT).await?;
        let result = answer.responses.into_iter().next().ok_or(ClientError::Incomplete("the resource"))?;
        check(|| format!("alter {whose}"), result.error_code, result.error_message.as_ref())
    }

    /// Every setting of a topic or a group.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with Kafka's code.
    pub async fn describe_configs(&mut self, whose: Configured<'_>) -> Result<Vec<ConfigEntry>, ClientError> {
        let resource = describe_configs::DescribeConfigsResource {
            resource_type: whose.resource_type(),
            resource_name: whose.name().into(),
            configuration_keys: None,
        };
        let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
        let answer = self.connection.call(4, &request, ADMIN_TIMEOUT).await?;
        let result = answer.results.into_iter().next().ok_or(ClientError::Incomplete("the resource"))?;
        check(|| format!("describe {whose}"), result.error_code, result.error_message.as_ref())?;
        let entry = |config: describe_configs::DescribeConfigsResourceResult| ConfigEntry {
            name: config.name.to_string(),
            value: config.value.map(|value| value.to_string()),
            overridden: config.config_source == whose.own_source(),
        };
        Ok(result.configs.into_iter().map(entry).collect())
    }

    /// Where a topic's partitions are.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is no such topic.
    pub async fn topic(&mut self, name: &TopicName) -> Result<TopicMetadata, ClientError> {
        topic_metadata(&mut self.connection, name).await
    }

    /// Every topic of the cluster.
    ///
    /// # Errors
    /// Where the node cannot be talked to.
    pub async fn topics(&mut self) -> Result<MetadataResponse, ClientError> {
        let request =
            MetadataRequest { topics: None, allow_auto_topic_creation: false, ..Default::default() };
        Ok(self.connection.call(METADATA_VERSION, &request, ADMIN_TIMEOUT).await?)
    }

    /// The cluster's nodes.
    ///
    /// # Errors
    /// Where the node cannot be talked to.
    pub async fn cluster(&mut self) -> Result<DescribeClusterResponse, ClientError> {
        let request = DescribeClusterRequest { include_fenced_brokers: true, ..Default::default() };
        let answer = self.connection.call(2, &request, ADMIN_TIMEOUT).await?;
        check(|| "describe the cluster".to_owned(), answer.error_code, answer.error_message.as_ref())?;
        Ok(answer)
    }
}

fn timeout_ms() -> i32 {
    i32::try_from(ADMIN_TIMEOUT.as_millis()).unwrap_or(i32::MAX)
}
