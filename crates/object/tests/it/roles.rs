//! Keys that expire on the way, as whole processes read them: a child of the test runs the client with an environment of its
//! own, over stand-ins for the issuers and the store.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tidelog_object::{GetError, OutageCause, PutError, StoreOptions};
use tidelog_runtime::Supervisor;
use tidelog_testkit::{IssuerManners, KeyIssuer, S3Config, S3Server};
use tokio::time::{Instant, timeout};

use crate::support::{options, payload, s3};

/// Names the child's store; a process without it is no child.
const STORE: &str = "TIDELOG_TEST_ROLE_STORE";

/// For whatever a test waits for: never reached.
const PATIENCE: Duration = Duration::from_secs(60);

/// The process that uploads until its parent tells it to stop; not a test by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_uploads_until_it_is_told_to_stop() {
    let Ok(endpoint) = std::env::var(STORE) else { return };
    // Keys come from the environment alone. Silence is not what is tried here: a loaded machine may be silent for seconds.
    let options = StoreOptions {
        credentials: None,
        retry_deadline: Duration::from_secs(1),
        silence_timeout: Duration::from_secs(20),
        ..options()
    };
    let client = s3(&endpoint, "bucket/p", options).await;
    let mut number = 0;
    loop {
        let key = format!("keys/{number:06}");
        match client.put_new(&key, payload(&key)).await {
            Ok(_) => number += 1,
            Err(PutError::Retriable(failure)) => {
                // The reason is reported past the store, which takes nothing: by the name of what a parent may read.
                let outage = client.health().writes_outage();
                let cause = outage.map(|outage| outage.cause);
                if cause == Some(OutageCause::NoKeys) {
                    eprintln!("NO-KEYS {}", failure.reason);
                }
            }
            Err(error) => panic!("{key}: {error}"),
        }
        match client.get("stop", 10).await {
            Ok(_) => return,
            Err(GetError::NotFound { .. } | GetError::Retriable(_)) => {}
            Err(error) => panic!("reads fail for good: {error}"),
        }
    }
}

struct Rig {
    issuer: KeyIssuer,
    store: S3Server,
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Rig {
    async fn start(lifetime: Duration) -> Self {
        let supervisor = Supervisor::for_test();
        let issuer = KeyIssuer::start(&supervisor, lifetime).await.unwrap();
        let config = S3Config { issuer: Some(issuer.clone()), ..S3Config::default() };
        let store = S3Server::start(&supervisor, config, &["bucket"]).await.unwrap();
        Self { issuer, store, folder: tempfile::tempdir().unwrap(), child: None }
    }

    /// Starts the child with nothing of AWS in its environment but what is given.
    fn spawn(&mut self, environment: &[(&str, &str)]) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "roles::child_uploads_until_it_is_told_to_stop", "--nocapture"]);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.env("AWS_CONFIG_FILE", "/nowhere").env("AWS_SHARED_CREDENTIALS_FILE", "/nowhere");
        command.env(STORE, self.store.endpoint()).envs(environment.iter().copied());
        let log = std::fs::File::create(self.log()).unwrap();
        self.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("child.log")
    }

    fn uploads(&self) -> usize {
        self.store.keys("bucket").iter().filter(|key| key.contains("/keys/")).count()
    }

    /// Waits for something of the stand-ins, or of the child's words.
    async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        let waiting = async {
            while !holds() {
                ticks.tick().await;
            }
        };
        let words = || std::fs::read_to_string(self.log()).unwrap_or_default();
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}\n{}", words()));
    }

    async fn until_more_uploads(&self, more: usize) {
        let before = self.uploads();
        self.until("uploads go on", || self.uploads() >= before + more).await;
    }

    /// Has the child stop and looks at how it ended: one failure for good would have ended it badly.
    async fn stop(mut self) {
        self.store.put_object("bucket", "p/stop", "x".into());
        let mut child = self.child.take().unwrap();
        let mut status = None;
        self.until("the child ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        assert!(status.unwrap().success(), "{}", std::fs::read_to_string(self.log()).unwrap());
        let names = self.store.keys("bucket").into_iter().filter(|key| key.contains("/keys/"));
        for (number, key) in names.enumerate() {
            assert_eq!(key, format!("p/keys/{number:06}"), "every upload is there, in order");
        }
    }
}

/// Keys that expire under load, an issuer that goes away and comes back, with uploads going on.
async fn outlives_its_keys(rig: &Rig, keys: usize) {
    rig.until("the first upload", || rig.uploads() > 0).await;
    assert!(rig.issuer.issued_count() >= keys);
    // The store calls the keys expired before their time: one renewal, and uploads go on.
    let issued = rig.issuer.issued_count();
    rig.issuer.expire_all();
    rig.until_more_uploads(50).await;
    assert_eq!(rig.issuer.issued_count(), issued + 1, "one renewal serves all");
    assert!(rig.issuer.expired_uses() >= 1);

    // While the issuer is down the keys are used, until they are refused.
    for manners in [IssuerManners::Down, IssuerManners::Hangs] {
        rig.issuer.behave(manners);
        rig.until_more_uploads(50).await;
        let told = std::fs::read_to_string(rig.log()).unwrap().matches("NO-KEYS").count();
        rig.issuer.expire_all();
        rig.until("the lack of keys is told", || {
            std::fs::read_to_string(rig.log()).unwrap().matches("NO-KEYS").count() > told
        })
        .await;
        let (uses, begun) = (rig.issuer.expired_uses(), Instant::now());
        rig.issuer.behave(IssuerManners::Issues);
        rig.until_more_uploads(50).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(rig.issuer.expired_uses(), uses, "keys that were refused are not used again");
    }
}

// C22: web identity in a cluster of containers: the token's file is read each time, and may be replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_identity_keys_are_renewed_while_uploads_go_on() {
    let mut rig = Rig::start(Duration::from_secs(3600)).await;
    let file = rig.folder.path().join("token");
    write(&file, "first");
    rig.issuer.accept_identity("first");
    let (sts, file_text) = (rig.issuer.endpoint(), file.to_str().unwrap().to_owned());
    rig.spawn(&[
        ("AWS_WEB_IDENTITY_TOKEN_FILE", &file_text),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/tidelog"),
        ("AWS_ENDPOINT_URL_STS", &sts),
        ("AWS_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ]);
    rig.until("the first upload", || rig.uploads() > 0).await;
    // The cluster replaces the token; the old one is worth nothing from then on.
    rig.issuer.accept_identity("second");
    write(&file, "second");
    rig.issuer.expire_all();
    rig.until_more_uploads(10).await;
    assert_eq!(rig.issuer.issued_count(), 2);
    outlives_its_keys(&rig, 2).await;
    rig.stop().await;
}

// C22: an instance's role, by the second version of its metadata alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_roles_keys_are_renewed_while_uploads_go_on() {
    let mut rig = Rig::start(Duration::from_secs(3600)).await;
    let metadata = rig.issuer.endpoint();
    rig.spawn(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata), ("AWS_REGION", "us-east-1")]);
    outlives_its_keys(&rig, 1).await;
    rig.stop().await;
}

// C22: keys of a short life are renewed ahead of its end: the store never meets one that is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_renewed_ahead_of_their_end_and_none_is_used_past_it() {
    let mut rig = Rig::start(Duration::from_secs(13)).await;
    let metadata = rig.issuer.endpoint();
    rig.spawn(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata), ("AWS_REGION", "us-east-1")]);
    rig.until("the first upload", || rig.uploads() > 0).await;
    rig.until("they were renewed", || rig.issuer.issued_count() >= 2).await;
    rig.until_more_uploads(50).await;
    assert_eq!(rig.issuer.expired_uses(), 0);
    rig.stop().await;
}

fn write(path: &Path, text: &str) {
    let aside = path.with_extension("new");
    std::fs::write(&aside, text).unwrap();
    std::fs::rename(&aside, path).unwrap();
}
