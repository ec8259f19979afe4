use std::{fs, path::Path};

use super::*;

fn load(text: &str, environment: &[(&str, &str)], flags: Overrides) -> Result<NodeConfig, WrongSettings> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.toml");
    fs::write(&path, text).unwrap();
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    NodeConfig::load(Some(&path), environment, flags)
}

#[test]
fn a_node_without_configuration_is_complete() {
    let config = NodeConfig::load(None, std::iter::empty(), Overrides::default()).unwrap();
    assert_eq!(config.node_id, BrokerId(1));
    assert_eq!(config.data_dir, Path::new("./tidelog-data"));
    assert_eq!(config.store, None);
    assert_eq!(config.admin_listen.to_string(), "127.0.0.1:9644");
    let listener = &config.listeners[0];
    assert_eq!(
        (listener.name.as_str(), listener.listen.to_string()),
        ("PLAINTEXT", "127.0.0.1:9092".to_owned())
    );
    assert_eq!(listener.advertise.to_string(), "127.0.0.1:9092");
}

#[test]
fn flags_override_the_environment_and_it_overrides_the_file() {
    let text =
        "data_dir = \"/file\"\nrack = \"a\"\n[settings]\n\"log.retention.ms\" = 1\n\"num.partitions\" = 2\n";
    let environment =
        [("TIDELOG_DATA_DIR", "/environment"), ("TIDELOG_LOG_RETENTION_MS", "2"), ("HOME", "/root")];
    let flags = Overrides { data_dir: Some("/flag".into()), ..Overrides::default() };
    let config = load(text, &environment, flags).unwrap();
    assert_eq!(config.data_dir, Path::new("/flag"));
    assert_eq!(config.settings.value("log.retention.ms"), Some("2"));
    assert_eq!(config.settings.value("num.partitions"), Some("2"));
    assert_eq!(config.settings.value("broker.rack"), Some("a"));
    assert_eq!(load(text, &environment, Overrides::default()).unwrap().data_dir, Path::new("/environment"));
    for (environment, flag, rack) in [
        (&[][..], None, "a"),
        (&[("TIDELOG_RACK", "b")], None, "b"),
        (&[("TIDELOG_RACK", "b")], Some("c"), "c"),
    ] {
        let flags = Overrides { rack: flag.map(str::to_owned), ..Overrides::default() };
        let config = load(text, environment, flags).unwrap();
        assert_eq!((config.rack.as_deref(), config.settings.value("broker.rack")), (Some(rack), Some(rack)));
    }
    assert_eq!(load(text, &[], Overrides::default()).unwrap().data_dir, Path::new("/file"));
}

#[test]
fn what_kubernetes_sets_for_a_service_of_that_name_is_no_setting() {
    let of_services = [
        ("TIDELOG_SERVICE_HOST", "10.0.0.1"),
        ("TIDELOG_SERVICE_PORT", "9092"),
        ("TIDELOG_SERVICE_PORT_KAFKA", "9092"),
        ("TIDELOG_PORT", "tcp://10.0.0.1:9092"),
        ("TIDELOG_PORT_9092_TCP", "tcp://10.0.0.1:9092"),
        ("TIDELOG_PORT_9092_TCP_ADDR", "10.0.0.1"),
        ("TIDELOG_PORT_9092_TCP_PROTO", "tcp"),
        ("TIDELOG_ADMIN_SERVICE_HOST", "10.0.0.2"),
        ("TIDELOG_ADMIN_PORT_9644_TCP_PORT", "9644"),
    ];
    load("data_dir = \"/file\"\n", &of_services, Overrides::default()).unwrap();
    for slip in ["TIDELOG_PORT", "TIDELOG_PORT_X_TCP", "TIDELOG_PORT_1_TCP_ADDR_X", "TIDELOG_SERVICE"] {
        let WrongSettings(wrong) = load("", &[(slip, "9092")], Overrides::default()).unwrap_err();
        assert!(wrong.iter().any(|line| line.starts_with(slip)), "{slip}: {wrong:?}");
    }
}

#[test]
fn every_wrong_setting_is_named_at_once() {
    let text = "store = \"ftp://x\"\nadmin_listen = \"nowhere\"\n[settings]\n\"log.retention.mss\" = 1\n\"num.partitions\" = 0\n\"tier.cache.bytes\" = 1000\n";
    let environment = [("TIDELOG_NUM_PARTITION", "1"), ("TIDELOG_NODE_ID", "one")];
    let flags = Overrides { listen: Some("0.0.0.0:9092".to_owned()), ..Overrides::default() };
    let WrongSettings(wrong) = load(text, &environment, flags).unwrap_err();
    let names: Vec<&str> = wrong.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(
        names,
        [
            "TIDELOG_NUM_PARTITION",
            "TIDELOG_NODE_ID",
            "advertise of PLAINTEXT",
            "admin_listen",
            "store",
            "log.retention.mss",
            "num.partitions",
            "tier.cache.bytes"
        ],
        "{wrong:#?}"
    );
}

// B14: a wildcard is where to listen, never what a client is told.
#[test]
fn a_wildcard_is_never_advertised() {
    for listen in ["0.0.0.0:9092", "[::]:9092"] {
        let flags = Overrides { listen: Some(listen.to_owned()), ..Overrides::default() };
        let WrongSettings(wrong) = load("", &[], flags.clone()).unwrap_err();
        assert!(
            wrong[0].starts_with(&format!("advertise of PLAINTEXT: clients would be told {listen}")),
            "{wrong:?}"
        );
        let flags = Overrides { advertise: Some("broker-1.example:9092".to_owned()), ..flags };
        assert_eq!(load("", &[], flags).unwrap().listeners[0].advertise.to_string(), "broker-1.example:9092");
    }
}

#[test]
fn several_listeners_are_named_in_the_file() {
    let text = r#"
        [[listeners]]
        name = "INTERNAL"
        listen = "127.0.0.1:19092"
        [[listeners]]
        name = "EXTERNAL"
        listen = "0.0.0.0:9092"
        advertise = "localhost:9092"
    "#;
    let config = load(text, &[], Overrides::default()).unwrap();
    assert_eq!(
        config.settings.value("advertised.listeners"),
        Some("INTERNAL://127.0.0.1:19092,EXTERNAL://localhost:9092")
    );
    let flags = Overrides { listen: Some("127.0.0.1:1".to_owned()), ..Overrides::default() };
    assert!(load(text, &[], flags).is_err(), "a flag cannot say which of two it means");
    assert!(
        load(&text.replace("EXTERNAL", "INTERNAL"), &[], Overrides::default()).is_err(),
        "a name stands once"
    );
}

#[test]
fn a_wrong_file_hides_nothing_else_that_is_wrong() {
    let text = "stor = \"x\"\nnode_id = \"one\"\nstore_endpoint = \"localhost:9000\"\nlog_format = \"xml\"\n\
                data_dir = \"\"\n[settings]\n\"num.partitions\" = [1]\n[[listeners]]\nname = \"A\"\n";
    let flags =
        Overrides { wrong: vec!["--set: `nokey` is not key=value".to_owned()], ..Overrides::default() };
    let WrongSettings(wrong) = load(text, &[("TIDELOG_NODE_ID", "x")], flags).unwrap_err();
    let mut names: Vec<&str> = wrong.iter().filter_map(|line| line.split(':').next()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "--set",
            "TIDELOG_NODE_ID",
            "data_dir",
            "listeners",
            "log_format",
            "node_id",
            "settings",
            "stor",
            "store_endpoint"
        ],
        "{wrong:#?}"
    );
}

#[test]
fn the_settings_of_a_kafka_broker_are_taken_and_those_without_effect_are_named() {
    let text = "[settings]\n\"process.roles\" = \"broker,controller\"\n\"num.io.threads\" = 8\n\"group.max.size\" = 50\n\
                \"ssl.keystore.password\" = \"hush\"\n\"log.retention.hours\" = 24\n";
    let config = load(text, &[("TIDELOG_NUM_NETWORK_THREADS", "3")], Overrides::default()).unwrap();
    let named = ["num.io.threads", "num.network.threads", "process.roles", "ssl.keystore.password"];
    assert_eq!(config.without_effect, named);
    assert_eq!(config.settings.value("num.io.threads"), Some("8"));
    assert_eq!(config.settings.number("group.max.size"), Some(50));
    assert!(!format!("{config:?}").contains("hush"), "a secret is not kept");

    let wrong = "[settings]\n\"num.io.threads\" = \"many\"\n\"broker.id\" = 3\n\"log.dir\" = \"/x\"\n";
    let WrongSettings(wrong) = load(wrong, &[], Overrides::default()).unwrap_err();
    assert_eq!(
        wrong,
        [
            "broker.id: set `node_id` of the file instead",
            "log.dir: set `data_dir` of the file instead",
            "num.io.threads: Invalid value many for configuration num.io.threads: Not a number of type INT",
        ]
    );
    let disorder = "[settings]\n\"group.min.session.timeout.ms\" = 1800001\n";
    let WrongSettings(wrong) = load(disorder, &[], Overrides::default()).unwrap_err();
    assert_eq!(
        wrong,
        ["group.max.session.timeout.ms must be greater than or equal to group.min.session.timeout.ms"]
    );
}

#[test]
fn a_bucket_in_a_folder_keeps_out_of_the_data_directory() {
    let with = |store: &str| {
        let flags = Overrides {
            data_dir: Some("/var/node".into()),
            store: Some(store.to_owned()),
            ..Overrides::default()
        };
        load("", &[], flags)
    };
    for good in ["file:///var/bucket", "file:///var/node/bucket", "file:///var/node-2", "memory://"] {
        assert!(with(good).is_ok(), "{good}");
    }
    for bad in ["file:///var/node", "file:///var/node/journal", "file:///var", "file:///"] {
        let WrongSettings(wrong) = with(bad).unwrap_err();
        assert!(wrong.len() == 1 && wrong[0].contains("lie in each other"), "{bad}: {wrong:?}");
    }
}

#[test]
fn an_endpoint_has_a_scheme_and_a_host() {
    for good in ["http://127.0.0.1:9000", "https://minio.example/", "http://[::1]:9000"] {
        assert_eq!(check_endpoint(good), Ok(()));
    }
    for bad in ["junk", "127.0.0.1:9000", "http://", "http:///x", "http://key:secret@host", "ftp://x"] {
        assert!(check_endpoint(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_unknown_field_or_a_file_that_is_not_there_is_an_error() {
    assert!(load("stor = \"x\"", &[], Overrides::default()).is_err());
    let missing =
        NodeConfig::load(Some(Path::new("/nowhere/node.toml")), std::iter::empty(), Overrides::default());
    assert!(missing.unwrap_err().0[0].starts_with("config: /nowhere/node.toml"));
}

#[test]
fn addresses_have_a_host_and_a_port() {
    for good in ["127.0.0.1:9092", "[::1]:9092", "broker-1.example:1"] {
        assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
    }
    for bad in
        ["", "9092", ":9092", "::1:9092", "[::1]", "host:", "host:70000", "host:-1", "ho st:1", "[::1:9092"]
    {
        assert!(bad.parse::<Address>().is_err(), "{bad}");
    }
}
