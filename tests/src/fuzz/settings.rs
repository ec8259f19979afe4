//! What people write: the configuration file, environment and arguments, topic settings, addresses, HTTP.

use std::collections::BTreeMap;

use clap::Parser as _;
use tidelog::{
    cli::CommandLine,
    config::{Address, NodeConfig, Overrides},
};
use tidelog_broker::segments_query;
use tidelog_core::topic_config::{
    AlterOperation, BrokerSettings, TOPIC_KEYS, TopicConfig, alter, broker_key, broker_keys,
    check_broker_value, describe_broker, describe_topic, topic_key,
};
use tidelog_object::StoreUrl;
use tidelog_types::{ClusterId, TopicName, TopicPartition};

use super::{FIXED_BYTES, TEXT_ALLOCATED_PER_BYTE_MAX, allocation::measured};

/// What a description of all settings takes for each key, whatever was set.
const DESCRIBED_BYTES_PER_KEY: usize = 512;

fn bounded<T>(input: &[u8], work: impl FnOnce() -> T) -> T {
    bounded_beside(input, FIXED_BYTES, work)
}

fn bounded_beside<T>(input: &[u8], fixed: usize, work: impl FnOnce() -> T) -> T {
    let (answer, spent) = measured(work);
    let allowed = TEXT_ALLOCATED_PER_BYTE_MAX * input.len() + fixed;
    assert!(spent.peak <= allowed, "{spent:?} for {} bytes", input.len());
    answer
}

pub(super) fn config_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let read = bounded(input, || NodeConfig::from_text(text, std::iter::empty(), Overrides::default()));
    match read {
        Ok(config) => assert!(!config.listeners.is_empty()),
        Err(wrong) => assert!(!wrong.0.is_empty() && !wrong.to_string().is_empty()),
    }
}

/// Lines `NAME=value`; `TIDELOG_` is put before each name.
pub(super) fn environment(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let variables = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (format!("TIDELOG_{name}"), value.to_owned()));
    if let Err(wrong) = bounded(input, || NodeConfig::load(None, variables, Overrides::default())) {
        assert!(!wrong.0.is_empty());
    }
}

/// One argument a line.
pub(super) fn arguments(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Err(error) = CommandLine::try_parse_from(std::iter::once("tidelog").chain(text.lines())) {
        assert!([0, 2].contains(&error.exit_code()));
    }
}

/// Lines `key=value`; `+key=value` and `-key=value` add to a list and take from it, `!key` forgets.
pub(super) fn topic_settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let keys = TOPIC_KEYS.len() + broker_keys().count();
    bounded_beside(input, FIXED_BYTES + DESCRIBED_BYTES_PER_KEY * keys, || {
        let (mut topic, mut broker) = (BTreeMap::new(), BrokerSettings::default());
        for line in text.lines() {
            let (line, operation): (&str, fn(String) -> AlterOperation) = match line.split_at_checked(1) {
                Some(("+", rest)) => (rest, AlterOperation::Append),
                Some(("-", rest)) => (rest, AlterOperation::Subtract),
                Some(("!", rest)) => (rest, |_| AlterOperation::Delete),
                _ => (line, AlterOperation::Set),
            };
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            if let Some(key) = topic_key(name) {
                let _ = alter(key, &mut topic, operation(value.to_owned()));
            }
            if let Some(key) = broker_key(name)
                && check_broker_value(name, value, false).is_ok()
            {
                broker.static_values.insert(key.name.to_owned(), value.to_owned());
            }
        }
        let stored = TopicConfig::resolve_stored(&broker, &topic);
        if let Ok(resolved) = TopicConfig::resolve(&broker, &topic) {
            assert_eq!(resolved, stored, "what is accepted is in force");
        }
        assert_eq!(describe_topic(&broker, &topic).len(), TOPIC_KEYS.len());
        assert_eq!(describe_broker(&broker).len(), broker_keys().count());
    });
}

/// An address, a store, an id, a folder's name, a topic's: what is read is written as it is read.
pub(super) fn names(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    bounded(input, || {
        if let Ok(address) = text.parse::<Address>() {
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        if let Ok(url) = text.parse::<StoreUrl>() {
            assert_eq!(url.to_string().parse(), Ok(url));
        }
        if let Ok(id) = text.parse::<ClusterId>() {
            assert_eq!(id.to_string(), text);
        }
        if let Ok(place) = text.parse::<TopicPartition>() {
            assert_eq!(place.to_string(), text);
        }
        if let Ok(name) = TopicName::new(text) {
            assert_eq!(name.as_str(), text);
        }
    });
}

/// The query of a request to the admin listener (its HTTP is hyper's), and an answer of it as our verbs read it.
pub(super) fn admin(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(query) = bounded(input, || segments_query(text))
    {
        assert!(!query.topic.is_empty());
    }
    let _ = bounded(input, || tidelog::cli::admin_answer(input));
}

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(super) fn config_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "node_id = 7\nrack = \"r1\"\ndata_dir = \"/var/lib/tidelog\"\nadmin_listen = \"127.0.0.1:9644\"\nstore = \"s3://b/p\"\n\
         store_endpoint = \"http://127.0.0.1:9000\"\nstore_checksum = \"none\"\nlog_format = \"json\"\n\n[[listeners]]\nname = \
         \"PLAINTEXT\"\nlisten = \"0.0.0.0:9092\"\nadvertise = \"host:9092\"\n\n[settings]\n\"log.retention.ms\" = 3600000\n\
         \"auto.create.topics.enable\" = true\n\"log.cleaner.min.cleanable.ratio\" = 0.5\n\"log.cleanup.policy\" = \"delete\"\n",
        "[settings]\nlog.dirs = 1\n'node.id' = 3\n",
        "listeners = [{ name = \"A\", listen = \"[::1]:1\" }, { name = \"B\", listen = \"a:2\", advertise = \"b:3\" }]\n",
        "data_dir = '''\n/x'''\nstore = \"file:///x/bucket\" # one in the other\nnode_id = -1\n",
    ])
}

pub(super) fn environment_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "DATA_DIR=/x\nLISTEN=0.0.0.0:1\nADVERTISE=h:2\nADMIN_LISTEN=[::1]:3\nSTORE=gs://b/c\nSTORE_ENDPOINT=https://h\n\
         STORE_CHECKSUM=sha256\nLOG_FORMAT=text\nNODE_ID=4\nLOG_RETENTION_MS=1000\nCONFIG=x\nTEST_A=b",
        "TIER_CACHE_BYTES=1073741824\nNODE_ID=x\nNO_SUCH=1",
    ])
}

pub(super) fn argument_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "serve\n--data-dir\n/x\n--listen\na:1\n--node-id\n3\n--set\nlog.retention.ms=1\n--json",
        "topic\ncreate\nflights\n--partitions\n6\n--set\nretention.ms=1\n--bootstrap\n[::1]:9092",
        "consume\nflights\n--from\nbeginning",
        "produce\nflights\n--acks\nall",
        "tier\nstatus\n--admin\nh:1\n--json",
        "bucket\ncheck\n--store\ns3://a",
        "--help",
        "--version",
        "nothing",
    ])
}

pub(super) fn topic_setting_seeds() -> Vec<Vec<u8>> {
    let all: Vec<String> =
        TOPIC_KEYS.iter().map(|key| format!("{}={}", key.name, key.default.unwrap_or_default())).collect();
    let mut seeds = texts(&[
        "cleanup.policy=compact\n+cleanup.policy=delete\n-cleanup.policy=compact\n!cleanup.policy",
        "retention.ms=-1\nlocal.retention.ms=-2\nlocal.retention.bytes=100\nretention.bytes=50",
        "segment.bytes=14\nmin.cleanable.dirty.ratio=NaN\ncompression.type=zstd\ncompression.zstd.level=-131072",
        "log.retention.hours=168\nlog.retention.minutes=1\nlog.retention.ms=9223372036854775807\nlog.roll.hours=1\nlog.segment.bytes=1048576",
    ]);
    seeds.push(all.join("\n").into_bytes());
    seeds
}

pub(super) fn name_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "127.0.0.1:9092",
        "[::1]:65535",
        "s3://events-prod/eu/cluster-7",
        "file:///var/lib/x",
        "file://localhost/x",
        "memory://p",
        "memory:///--@",
        "az://c/a/b",
        "AQEBAQEBAQEBAQEBAQEBAQ",
        "AQEBAQEBAQEBAQEBAQEBAQ-12",
        "flights-2013.x_y",
    ])
}

pub(super) fn admin_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "topic=flights&partition=3&limit=10",
        "limit=-1&topic=a&topic=b",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\n\r\n{\"error\":\"topic `t` does not exist\"}\n",
    ])
}
