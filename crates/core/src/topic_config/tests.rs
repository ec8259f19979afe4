mod kafka;

use std::collections::BTreeMap;

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn refusal(pairs: &[(&str, &str)]) -> String {
    let errors = TopicConfig::resolve(&BrokerSettings::default(), &map(pairs)).unwrap_err();
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn tables_are_sorted_and_their_defaults_are_valid() {
    let broker: Vec<Key> = broker_keys().copied().collect();
    assert!(broker.iter().all(|key| broker_key(key.name) == Some(key)), "look-ups are binary searches");
    for table in [TOPIC_KEYS, &broker] {
        assert!(table.windows(2).all(|pair| pair[0].name < pair[1].name), "look-ups are binary searches");
        for key in table {
            if let Some(default) = key.default {
                assert_eq!(check(key, default), Ok(()), "{}", key.name);
            }
        }
    }
    for key in TOPIC_KEYS {
        for synonym in key.synonyms {
            let behind =
                broker_key(synonym.key).unwrap_or_else(|| panic!("{} is no broker key", synonym.key));
            if synonym.factor == 1 && behind.default.is_some() {
                assert_eq!((behind.default, behind.kind), (key.default, key.kind), "{}", key.name);
            }
        }
    }
}

#[test]
fn an_untouched_topic_has_the_products_defaults() {
    let config = TopicConfig::resolve(&BrokerSettings::default(), &BTreeMap::new()).unwrap();
    assert!(config.remote_storage_enable);
    assert_eq!(config.local_retention_ms, Some(6 * 3_600_000));
    assert_eq!(config.local_retention_bytes, None);
    assert_eq!(config.retention_ms, Some(604_800_000));
    assert_eq!(config.retention_bytes, None);
    assert_eq!(config.segment_bytes, 1 << 30);
    assert_eq!(config.max_message_bytes, 1_048_588);
    assert_eq!(config.cleanup_policy, CleanupPolicy { compact: false, delete: true });
    assert_eq!(config.flush_messages, None);
}

#[test]
fn refusals_use_kafkas_words() {
    assert_eq!(refusal(&[("foo", "1")]), "Unknown topic config name: foo");
    assert_eq!(
        refusal(&[("retention.ms", "-2")]),
        "Invalid value -2 for configuration retention.ms: Value must be at least -1"
    );
    assert_eq!(
        refusal(&[("retention.ms", "x")]),
        "Invalid value x for configuration retention.ms: Not a number of type LONG"
    );
    assert_eq!(
        refusal(&[("segment.bytes", "4294967296")]),
        "Invalid value 4294967296 for configuration segment.bytes: Not a number of type INT"
    );
    assert_eq!(
        refusal(&[("segment.bytes", "4095")]),
        "Invalid value 4095 for configuration segment.bytes: Value must be at least 4096"
    );
    assert_eq!(
        refusal(&[("preallocate", "yes")]),
        "Invalid value yes for configuration preallocate: Expected value to be either true or false"
    );
    assert_eq!(
        refusal(&[("cleanup.policy", "delete,squash")]),
        "Invalid value squash for configuration cleanup.policy: String must be one of: compact, delete"
    );
    assert_eq!(
        refusal(&[("min.cleanable.dirty.ratio", "1.5")]),
        "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1"
    );
    assert_eq!(
        refusal(&[("min.cleanable.dirty.ratio", "NaN")]),
        "Invalid value NaN for configuration min.cleanable.dirty.ratio: Not a number of type DOUBLE"
    );
    assert_eq!(
        refusal(&[("compression.gzip.level", "0")]),
        "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1"
    );
}

// It is told in a string, and a list can be made longer word by word.
#[test]
fn a_value_is_no_longer_than_an_answer_can_tell() {
    let of = |words: usize| (0..words).map(|_| "0:1").collect::<Vec<_>>().join(",");
    let key = topic_key("leader.replication.throttled.replicas").unwrap();
    assert_eq!((of(8192).len(), check(key, &of(8192))), (0x7fff, Ok(())));
    let refused = check(key, &of(8193)).unwrap_err().to_string();
    assert!(refused.ends_with(": Value must be at most 32767 bytes long"), "{refused}");
}

#[test]
fn all_wrong_settings_are_named_at_once() {
    assert_eq!(
        refusal(&[("a", "1"), ("retention.ms", "x")]),
        "Unknown topic config name: a; Invalid value x for configuration retention.ms: Not a number of type LONG"
    );
}

#[test]
fn local_retention_cannot_exceed_the_total() {
    assert_eq!(
        refusal(&[("retention.ms", "1000"), ("local.retention.ms", "1001")]),
        "Invalid value 1001 for configuration local.retention.ms: Value must not be more than property: retention.ms value."
    );
    assert_eq!(
        refusal(&[("retention.bytes", "1000"), ("local.retention.bytes", "-1")]),
        "Invalid value -1 for configuration local.retention.bytes: Value must not be -1 as retention.bytes value is set as 1000."
    );
    let config = TopicConfig::resolve(&BrokerSettings::default(), &map(&[("retention.ms", "1000")])).unwrap();
    assert_eq!(config.local_retention_ms, Some(1000), "the broker's six hours give way");
}

#[test]
fn minus_two_is_the_brokers_and_the_brokers_minus_two_is_all() {
    let mut broker = BrokerSettings::default();
    let overrides = map(&[("local.retention.ms", "-2"), ("retention.ms", "-1")]);
    assert_eq!(TopicConfig::resolve(&broker, &overrides).unwrap().local_retention_ms, Some(21_600_000));
    broker.static_values.insert("log.local.retention.ms".to_owned(), "-2".to_owned());
    assert_eq!(TopicConfig::resolve(&broker, &overrides).unwrap().local_retention_ms, None);
    let overrides = map(&[("local.retention.ms", "-2"), ("retention.ms", "5")]);
    assert_eq!(TopicConfig::resolve(&broker, &overrides).unwrap().local_retention_ms, Some(5));
}

#[test]
fn a_stronger_source_wins_whatever_its_unit() {
    let mut broker = BrokerSettings::default();
    broker.static_values.insert("log.retention.hours".to_owned(), "2".to_owned());
    let resolved =
        |broker: &BrokerSettings| TopicConfig::resolve(broker, &BTreeMap::new()).unwrap().retention_ms;
    assert_eq!(resolved(&broker), Some(7_200_000));
    broker.static_values.insert("log.retention.minutes".to_owned(), "3".to_owned());
    assert_eq!(resolved(&broker), Some(180_000));
    broker.dynamic_defaults.insert("log.retention.ms".to_owned(), "7".to_owned());
    assert_eq!(resolved(&broker), Some(7));
    broker.dynamic_defaults.clear();
    broker.static_values = map(&[("log.retention.hours", "-1")]);
    assert_eq!(resolved(&broker), None);
}

// B17
#[test]
fn an_override_that_equals_the_default_is_still_an_override() {
    let overrides = map(&[("cleanup.policy", "delete"), ("retention.ms", "604800000")]);
    let described = describe_topic(&BrokerSettings::default(), &overrides);
    assert_eq!(described.len(), TOPIC_KEYS.len());
    let of = |name: &str| described.iter().find(|entry| entry.name == name).unwrap();
    let policy = of("cleanup.policy");
    assert_eq!(
        (policy.source, policy.is_default(), policy.value.as_deref()),
        (Source::DynamicTopic, false, Some("delete"))
    );
    assert_eq!(
        policy.synonyms,
        vec![
            SynonymValue { name: "cleanup.policy", value: "delete".to_owned(), source: Source::DynamicTopic },
            SynonymValue { name: "log.cleanup.policy", value: "delete".to_owned(), source: Source::Default },
        ]
    );
    let flush = of("flush.ms");
    assert_eq!((flush.source, flush.is_default(), flush.synonyms.len()), (Source::Default, true, 0));
    assert_eq!(flush.value.as_deref(), Some("9223372036854775807"));
}

#[test]
fn a_static_value_shows_as_the_brokers() {
    let mut broker = BrokerSettings::default();
    broker.static_values.insert("log.segment.bytes".to_owned(), "65536".to_owned());
    let described = describe_topic(&broker, &BTreeMap::new());
    let entry = described.iter().find(|entry| entry.name == "segment.bytes").unwrap();
    assert_eq!(
        (entry.source, entry.value.as_deref(), entry.synonyms.len()),
        (Source::StaticBroker, Some("65536"), 2)
    );
    let described = describe_broker(&broker);
    let entry = described.iter().find(|entry| entry.name == "log.segment.bytes").unwrap();
    assert_eq!(
        (entry.source, entry.value.as_deref(), entry.read_only),
        (Source::StaticBroker, Some("65536"), false)
    );
    let entry = described.iter().find(|entry| entry.name == "log.retention.ms").unwrap();
    assert_eq!((entry.source, entry.value.as_deref()), (Source::Default, None));
}

#[test]
fn list_operations_add_and_remove_words() {
    let key = topic_key("cleanup.policy").unwrap();
    let mut overrides = BTreeMap::new();
    alter(key, &mut overrides, AlterOperation::Append("compact,delete".to_owned())).unwrap();
    assert_eq!(overrides, map(&[("cleanup.policy", "delete,compact")]));
    alter(key, &mut overrides, AlterOperation::Subtract("delete".to_owned())).unwrap();
    assert_eq!(overrides, map(&[("cleanup.policy", "compact")]));
    alter(key, &mut overrides, AlterOperation::Delete).unwrap();
    assert_eq!(overrides, BTreeMap::new());
    alter(key, &mut overrides, AlterOperation::Append(String::new())).unwrap();
    assert_eq!(overrides, map(&[("cleanup.policy", "delete,")]));
    for value in ["delete,", ",delete", "delete, ,compact", ","] {
        assert!(check(key, value).is_err(), "{value:?}: an empty word is none of compact and delete");
    }
    let append = |value: &str| AlterOperation::Append(value.to_owned());
    let subtract = |value: &str| AlterOperation::Subtract(value.to_owned());
    for (operation, then) in [
        (append(","), "delete"),
        (append("compact,,"), "delete,compact"),
        (append(",compact"), "delete,,compact"),
        (append(" delete"), "delete, delete"),
        (subtract(" delete"), "delete"),
        (subtract("delete,delete"), ""),
        (subtract(""), "delete"),
    ] {
        let mut overrides = BTreeMap::new();
        alter(key, &mut overrides, operation.clone()).unwrap();
        assert_eq!(overrides["cleanup.policy"], then, "{operation:?}");
    }
    assert_eq!(check(key, "delete, delete"), Ok(()), "Kafka takes it for once");
    overrides.clear();
    let key = topic_key("retention.ms").unwrap();
    assert_eq!(
        alter(key, &mut overrides, AlterOperation::Append("1".to_owned())).unwrap_err().to_string(),
        "Can't APPEND to key retention.ms because its type is not LIST."
    );
}

#[test]
fn a_key_that_nothing_acts_on_is_read_only_and_stays_at_its_default() {
    let idle = |keys: &'static [Key]| keys.iter().filter(|key| key.read_only).map(|key| key.name);
    assert_eq!(
        idle(TOPIC_KEYS).collect::<Vec<_>>(),
        [
            "compression.lz4.level",
            "file.delete.delay.ms",
            "follower.replication.throttled.replicas",
            "leader.replication.throttled.replicas",
            "preallocate",
            "remote.log.delete.on.disable",
        ]
    );
    assert!(idle(GROUP_SETTINGS).all(|name| name.starts_with("share.") || name.starts_with("streams.")));
    assert_eq!(idle(GROUP_SETTINGS).count(), 14);

    let mut given = map(&[
        ("compression.lz4.level", "3"),
        ("file.delete.delay.ms", " 60000 "),
        ("leader.replication.throttled.replicas", ""),
        ("preallocate", "FALSE"),
        ("retention.ms", "1"),
    ]);
    // What another version kept says nothing.
    let kept = describe_topic(&BrokerSettings::default(), &given);
    let level = kept.iter().find(|key| key.name == "compression.lz4.level").unwrap();
    assert_eq!(
        (level.value.as_deref(), level.source, level.read_only, level.synonyms.len()),
        (Some("9"), Source::Default, true, 1)
    );
    let refusals = take_without_effect(&mut given, topic_key);
    let texts: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["Cannot set compression.lz4.level: it has no effect here, and keeps its default"]);
    assert_eq!(given, map(&[("retention.ms", "1")]));

    let mut given =
        map(&[("consumer.session.timeout.ms", "50000"), ("share.isolation.level", "read_committed")]);
    assert_eq!(take_without_effect(&mut given, group_key).len(), 1);
    assert_eq!(given, map(&[("consumer.session.timeout.ms", "50000")]));
}

#[test]
fn broker_settings_are_checked_by_name_type_and_whether_they_may_move() {
    assert_eq!(check_broker_value("log.retention.ms", "5", true), Ok(()));
    assert_eq!(
        check_broker_value("node.id", "5", true).unwrap_err().to_string(),
        "Cannot update these configs dynamically: [node.id]"
    );
    assert_eq!(check_broker_value("node.id", "5", false), Ok(()));
    let errors = BrokerSettings::check_static(&map(&[("nope", "1"), ("num.partitions", "0")])).unwrap_err();
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "Unknown broker config name: nope",
            "Invalid value 0 for configuration num.partitions: Value must be at least 1"
        ]
    );
}

#[test]
fn settings_of_groups_keep_to_their_rules_and_to_each_other() {
    let refused = |pairs: &[(&str, &str)]| {
        let errors = BrokerSettings::check_static(&map(pairs)).unwrap_err();
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let settings = BrokerSettings::default();
    assert_eq!(settings.number("group.max.size"), Some(2_147_483_647));
    assert_eq!(
        settings.number("offsets.topic.replication.factor"),
        Some(1),
        "a node alone has groups at once"
    );
    assert_eq!(
        refused(&[("offsets.topic.replication.factor", "32768")]),
        "Invalid value 32768 for configuration offsets.topic.replication.factor: Not a number of type SHORT"
    );
    assert_eq!(
        refused(&[("group.consumer.migration.policy", "sometimes")]),
        "Invalid value sometimes for configuration group.consumer.migration.policy: String must be one of (case insensitive): \
         DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL"
    );
    assert_eq!(BrokerSettings::check_static(&map(&[("group.consumer.migration.policy", "Upgrade")])), Ok(()));
    assert_eq!(
        refused(&[("group.consumer.assignors", "range,sticky")]),
        "Invalid value sticky for configuration group.consumer.assignors: String must be one of: uniform, range"
    );
    assert_eq!(
        refused(&[("group.consumer.assignors", " ")]),
        "Invalid value   for configuration group.consumer.assignors: Configuration 'group.consumer.assignors' must not be \
         empty."
    );
    assert_eq!(
        refused(&[
            ("group.consumer.session.timeout.ms", "44999"),
            ("group.consumer.max.heartbeat.interval.ms", "4999"),
            ("group.min.session.timeout.ms", "1800001"),
        ]),
        "group.max.session.timeout.ms must be greater than or equal to group.min.session.timeout.ms; \
         group.consumer.max.heartbeat.interval.ms must be greater than or equal to group.consumer.min.heartbeat.interval.ms; \
         group.consumer.max.heartbeat.interval.ms must be greater than or equal to group.consumer.heartbeat.interval.ms; \
         group.consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms"
    );
    assert_eq!(check_broker_value("group.consumer.assignment.interval.ms", "5", true), Ok(()));
    assert!(check_broker_value("group.max.size", "5", true).is_err(), "Kafka needs a restart for it too");
}

#[test]
fn a_key_without_effect_is_shown_and_not_altered() {
    assert!(has_effect("group.max.size") && has_effect("log.retention.ms"));
    assert!(!has_effect("num.io.threads") && !has_effect("nope"));
    assert_eq!(check_broker_value("num.io.threads", "8", false), Ok(()));
    assert_eq!(
        check_broker_value("num.io.threads", "16", true).unwrap_err().to_string(),
        "Cannot update these configs dynamically: [num.io.threads]"
    );
    assert_eq!(
        check_broker_value("num.io.threads", "many", false).unwrap_err().to_string(),
        "Invalid value many for configuration num.io.threads: Not a number of type INT"
    );
    assert_eq!(check_broker_value("log.cleaner.io.max.bytes.per.second", "1e9", false), Ok(()));
    assert_eq!(check_broker_value("ssl.cipher.suites", "a,a", false), Ok(()));
    let described = describe_broker(&BrokerSettings::default());
    assert_eq!(described.len(), 355);
    let threads = described.iter().find(|key| key.name == "num.io.threads").unwrap();
    assert_eq!(
        (threads.value.as_deref(), threads.source, threads.read_only, threads.kind),
        (Some("8"), Source::Default, true, ConfigType::Int)
    );
}

#[test]
fn a_secret_is_never_told() {
    let broker = BrokerSettings {
        static_values: map(&[("ssl.keystore.password", "hush")]),
        ..BrokerSettings::default()
    };
    let described = describe_broker(&broker);
    let secrets: Vec<_> = described.iter().filter(|key| key.sensitive).map(|key| key.name).collect();
    assert_eq!(
        secrets,
        [
            "delegation.token.secret.key",
            "sasl.jaas.config",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.oauthbearer.client.credentials.client.secret",
            "ssl.key.password",
            "ssl.keystore.certificate.chain",
            "ssl.keystore.key",
            "ssl.keystore.password",
            "ssl.truststore.certificates",
            "ssl.truststore.password",
        ]
    );
    assert!(
        described
            .iter()
            .filter(|key| key.sensitive)
            .all(|key| key.value.is_none() && key.synonyms.is_empty())
    );
    assert!(!format!("{described:?}").contains("hush"));
}

#[test]
fn a_group_has_the_brokers_values() {
    let broker = BrokerSettings {
        static_values: map(&[("group.consumer.session.timeout.ms", "50000")]),
        ..BrokerSettings::default()
    };
    let described = describe_group(&broker, &BTreeMap::new());
    let of = |name: &str| described.iter().find(|key| key.name == name).unwrap();
    assert_eq!(described.len(), 17);
    let session = of("consumer.session.timeout.ms");
    assert_eq!((session.value.as_deref(), session.source), (Some("50000"), Source::StaticBroker));
    let heartbeat = of("consumer.heartbeat.interval.ms");
    assert_eq!((heartbeat.value.as_deref(), heartbeat.source), (Some("5000"), Source::Default));
    assert_eq!(
        heartbeat.synonyms,
        [SynonymValue {
            name: "group.consumer.heartbeat.interval.ms",
            value: "5000".to_owned(),
            source: Source::Default
        }]
    );
    assert_eq!(of("share.auto.offset.reset").value.as_deref(), Some("latest"));
    assert!(described.iter().all(|key| group_key(key.name).is_some() && key.value.is_some()));
    let metrics: Vec<_> = describe_client_metrics().into_iter().map(|key| (key.name, key.value)).collect();
    assert_eq!(
        metrics,
        [
            ("interval.ms", Some("300000".to_owned())),
            ("match", Some(String::new())),
            ("metrics", Some(String::new()))
        ]
    );
    assert!(is_client_metrics_key("match") && !is_client_metrics_key("foo") && group_key("foo").is_none());
}

#[test]
fn a_stored_value_that_is_refused_today_falls_back() {
    let config = TopicConfig::resolve_stored(
        &BrokerSettings::default(),
        &map(&[("retention.ms", "x"), ("segment.bytes", "8192")]),
    );
    assert_eq!((config.retention_ms, config.segment_bytes), (Some(604_800_000), 8192));
}

#[test]
fn a_groups_settings_keep_to_the_brokers_bounds() {
    let broker = BrokerSettings::default();
    let told = |pairs: &[(&str, &str)]| {
        let settings = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        match check_group(&broker, &settings) {
            Ok(()) => String::new(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        }
    };
    let (session, heartbeat) = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms");
    for good in [
        &[(session, "45000"), (heartbeat, " 15000 ")][..],
        &[("consumer.assignment.interval.ms", "0"), ("share.delivery.count.limit", "10")],
        &[
            ("share.auto.offset.reset", "by_duration:P1DT2H3M4.5S"),
            ("share.isolation.level", "read_committed"),
        ],
        &[("streams.num.standby.replicas", "2"), ("streams.initial.rebalance.delay.ms", "999999")],
        &[],
    ] {
        assert_eq!(told(good), "", "{good:?}");
    }
    for (bad, why) in [
        (
            &[(session, "44999")][..],
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            &[(session, "60001")],
            "consumer.session.timeout.ms must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            &[(heartbeat, "0")],
            "Invalid value 0 for configuration consumer.heartbeat.interval.ms: Value must be at least 1",
        ),
        (
            &[(session, "soon")],
            "Invalid value soon for configuration consumer.session.timeout.ms: Not a number of type INT",
        ),
        (
            &[("streams.num.standby.replicas", "3")],
            "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas",
        ),
        (&[("group.max.size", "1")], "Unknown group config name: group.max.size"),
    ] {
        assert_eq!(told(bad), why);
    }
    for bad in [
        "",
        "never",
        "by_duration:",
        "by_duration:1h",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:-PT1H",
        "by_duration:PT-1H",
    ] {
        assert_ne!(told(&[("share.auto.offset.reset", bad)]), "", "{bad}");
    }
    // Wider bounds, and two that do not fit together.
    let mut broker = BrokerSettings::default();
    broker.static_values.insert("group.consumer.min.session.timeout.ms".to_owned(), "1".to_owned());
    let short = [(session.to_owned(), "5000".to_owned())].into();
    let errors = check_group(&broker, &short).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
    );
    assert!(GROUP_SETTINGS.is_sorted_by_key(|key| key.name));
    for key in GROUP_SETTINGS {
        assert_eq!(check(key, key.default.unwrap()), Ok(()), "{}", key.name);
        assert!(
            key.synonyms.iter().all(|synonym| broker_key(synonym.key).unwrap().default == key.default),
            "{}",
            key.name
        );
    }
}

#[test]
fn a_broker_key_is_told_with_the_same_in_other_units_behind_it() {
    let mut broker = BrokerSettings::default();
    let told = |broker: &BrokerSettings, name: &str| {
        let key = describe_broker(broker).into_iter().find(|key| key.name == name).unwrap();
        let synonyms: Vec<_> = key.synonyms.into_iter().map(|of| (of.name, of.value, of.source)).collect();
        (key.value, key.source, synonyms)
    };
    let hours = || ("log.retention.hours", "168".to_owned(), Source::Default);
    assert_eq!(told(&broker, "log.retention.ms"), (None, Source::Default, vec![]));
    assert_eq!(
        told(&broker, "log.retention.hours"),
        (Some("168".to_owned()), Source::Default, vec![hours()])
    );
    broker.dynamic_defaults.insert("log.retention.ms".to_owned(), "5".to_owned());
    let set = ("log.retention.ms", "5".to_owned(), Source::DynamicDefaultBroker);
    assert_eq!(
        told(&broker, "log.retention.ms"),
        (Some("5".to_owned()), Source::DynamicDefaultBroker, vec![set, hours()])
    );
    assert_eq!(told(&broker, "log.retention.minutes"), (None, Source::Default, vec![]));
    assert_eq!(told(&broker, "log.retention.hours").2, [hours()]);
}

#[test]
fn the_classic_protocol_cannot_be_turned_off() {
    let checked = |value: &str| {
        let settings = [("group.coordinator.rebalance.protocols".to_owned(), value.to_owned())].into();
        BrokerSettings::check_static(&settings).map_err(|errors| errors[0].to_string())
    };
    for good in ["classic", "classic,consumer", "consumer, classic,streams"] {
        assert_eq!(checked(good), Ok(()));
    }
    assert_eq!(checked("consumer"), Err("Disabling the 'classic' protocol is not supported.".to_owned()));
    assert!(checked("classic,other").is_err() && checked("").is_err());
}
