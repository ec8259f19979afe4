//! Finds out, by trying, what a store can do and how it would fail.

use bytes::Bytes;
use serde::Serialize;
use std::{fs, path::Path, sync::atomic::Ordering};

use super::init::{aborts_uploads, expires_objects, no_lifecycle, rules_of, s3_client};
use crate::{
    ETag, Expected, GetError, ListError, ObjectClient, PutError, PutMatchError, PutReceipt, StoreKind,
    backing::S3Settings,
};

/// The folder of probes below the prefix.
const FOLDER: &str = "tidelog-check";
/// Writers that race for one key.
const RACERS: usize = 8;
/// The length of the object whose ranges are read.
const RANGED_BYTES: usize = 1_200_001;
/// More than this between the two clocks is worth a word.
const SKEW_ADVICE_MS: u64 = 5_000;
/// S3 refuses signatures beyond 15 minutes.
const SKEW_FAILED_MS: u64 = 14 * 60 * 1000;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// It works, but a person may want to do something.
    Advice,
    /// It does not work.
    Failed,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it went.
    pub status: CheckStatus,
    /// What was seen, and what to do.
    pub detail: String,
}

impl Check {
    pub(super) fn ok(name: &'static str, detail: &str) -> Self {
        Self { name, status: CheckStatus::Ok, detail: detail.to_owned() }
    }

    fn advice(name: &'static str, detail: String) -> Self {
        Self { name, status: CheckStatus::Advice, detail }
    }

    fn failed(name: &'static str, detail: String) -> Self {
        Self { name, status: CheckStatus::Failed, detail }
    }
}

/// All checks of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BucketReport {
    /// The store.
    pub store: String,
    /// The checks, in the order in which they were made. If the store cannot be reached there is only one.
    pub checks: Vec<Check>,
}

impl BucketReport {
    /// The worst of all.
    #[must_use]
    pub fn status(&self) -> CheckStatus {
        self.checks.iter().map(|check| check.status).max().unwrap_or(CheckStatus::Failed)
    }

    /// The check of this name.
    #[must_use]
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }
}

/// Tries everything that is needed of a store, on keys of its own that are deleted at the end.
pub async fn bucket_check(client: &ObjectClient) -> BucketReport {
    let folder = format!("{FOLDER}/{:016x}", client.inner.rng.next_u64());
    let mut checks = vec![reachable(client, &folder).await];
    if checks[0].status != CheckStatus::Failed {
        checks.push(create(client, &folder).await);
        checks.push(replace(client, &folder).await);
        checks.push(race(client, &folder).await);
        checks.push(checksum(client, &folder).await);
        checks.push(ranges(client, &folder).await);
        checks.push(list(client, &folder).await);
        checks.push(delete(client, &folder).await);
        checks.push(lifecycle(client).await);
        checks.push(clock(client));
        if let Some(root) = client.url().folder() {
            remove_empty(&root.join(&folder));
            // Another check may be at work beside this one: a folder that holds something stays.
            let _ = fs::remove_dir(root.join(FOLDER));
        }
    }
    BucketReport { store: client.url().to_string(), checks }
}

/// Removes a folder and those in it, as far as they are empty: a store of files keeps the folders of objects that are gone.
fn remove_empty(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

async fn put(client: &ObjectClient, key: &str, text: &str) -> Result<PutReceipt, PutError> {
    client.put_new(key, vec![Bytes::copy_from_slice(text.as_bytes())]).await
}

async fn reachable(client: &ObjectClient, folder: &str) -> Check {
    const NAME: &str = "reachable";
    match client.list(&format!("{folder}/"), None, 1).await {
        Ok(_) => Check::ok(NAME, "the store answers"),
        Err(ListError::Refused(refusal)) => Check::failed(NAME, refusal.to_string()),
        Err(error) => {
            Check::failed(NAME, format!("{error}: check the endpoint, the network and the credentials"))
        }
    }
}

async fn create(client: &ObjectClient, folder: &str) -> Check {
    const NAME: &str = "conditional create";
    let key = format!("{folder}/create");
    if let Err(error) = put(client, &key, "first").await {
        return Check::failed(NAME, error.to_string());
    }
    if client.inner.creates_blindly.load(Ordering::Relaxed) {
        return Check::advice(
            NAME,
            "the store has no If-None-Match: never give one prefix to two clusters, nothing here prevents it"
                .to_owned(),
        );
    }
    match put(client, &key, "other").await {
        Err(PutError::Exists { .. }) => Check::ok(NAME, "If-None-Match keeps an existing object"),
        Ok(_) => Check::failed(
            NAME,
            "the store accepts If-None-Match and overwrites all the same: two clusters could take one prefix; use \
             another store, or see that no proxy strips the header"
                .to_owned(),
        ),
        Err(error) => Check::failed(NAME, error.to_string()),
    }
}

async fn replace(client: &ObjectClient, folder: &str) -> Check {
    const NAME: &str = "conditional replace";
    let key = format!("{folder}/replace");
    let first = match put(client, &key, "first").await {
        Ok(receipt) => receipt.etag,
        Err(error) => return Check::failed(NAME, error.to_string()),
    };
    let second = match client.put_match(&key, vec![Bytes::from_static(b"second")], &first).await {
        Ok(receipt) => receipt.etag,
        Err(PutMatchError::Refused(refusal)) => {
            return Check::advice(
                NAME,
                format!("the store has no If-Match: tables cannot be exported to it ({refusal})"),
            );
        }
        Err(error) => return Check::failed(NAME, error.to_string()),
    };
    if second == first {
        return Check::failed(NAME, "the ETag did not change with the content".to_owned());
    }
    match client.put_match(&key, vec![Bytes::from_static(b"third")], &first).await {
        Err(PutMatchError::Changed { .. }) => Check::ok(NAME, "If-Match keeps what changed meanwhile"),
        Ok(_) => Check::failed(
            NAME,
            "the store accepts If-Match and overwrites all the same: do not export tables to it".to_owned(),
        ),
        Err(error) => Check::failed(NAME, error.to_string()),
    }
}

async fn race(client: &ObjectClient, folder: &str) -> Check {
    const NAME: &str = "one winner of eight";
    let key = format!("{folder}/race");
    if client.inner.creates_blindly.load(Ordering::Relaxed) {
        return Check::advice(NAME, "not tried: the store has no conditional create".to_owned());
    }
    let texts: Vec<String> = (0..RACERS).map(|racer| format!("racer {racer}")).collect();
    let results = futures::future::join_all(texts.iter().map(|text| put(client, &key, text))).await;
    let winners = results.iter().filter(|result| result.is_ok()).count();
    let other = results.iter().find_map(|result| match result {
        Ok(_) | Err(PutError::Exists { .. }) => None,
        Err(error) => Some(error),
    });
    match (winners, other) {
        (1, None) => Check::ok(NAME, "of eight writers at once one won and all knew"),
        (_, Some(error)) => Check::failed(NAME, error.to_string()),
        (winners, None) => Check::failed(
            NAME,
            format!(
                "{winners} of eight writers at once were told that they created one key: use another store"
            ),
        ),
    }
}

async fn checksum(client: &ObjectClient, folder: &str) -> Check {
    const NAME: &str = "checksum";
    let mode = match client.inner.backing.kind {
        StoreKind::S3 => S3Settings::resolve(client.options()).await.checksum.to_string(),
        _ => "its own".to_owned(),
    };
    match put(client, &format!("{folder}/checksum"), "checked on the way").await {
        Ok(_) => Check::ok(NAME, &format!("puts are accepted with checksum mode {mode}")),
        Err(error) => Check::failed(NAME, error.to_string()),
    }
}

async fn ranges(client: &ObjectClient, folder: &str) -> Check {
    const NAME: &str = "ranged get";
    let key = format!("{folder}/ranges");
    let bytes: Vec<u8> = (0..RANGED_BYTES).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
    let etag: ETag = match client.put_new(&key, vec![Bytes::from(bytes.clone())]).await {
        Ok(receipt) => receipt.etag,
        Err(error) => return Check::failed(NAME, error.to_string()),
    };
    let object_bytes = u64::try_from(RANGED_BYTES).unwrap_or(u64::MAX);
    for (from, to) in [(0, 1), (0, RANGED_BYTES), (1_000_000, 1_100_000), (RANGED_BYTES - 1, RANGED_BYTES)] {
        let expect = Expected { object_bytes, etag: Some(etag.clone()) };
        let range = u64::try_from(from).unwrap_or(0)..u64::try_from(to).unwrap_or(0);
        match client.get_range(&key, range, expect).await {
            Ok(found) if found.chunks.concat() == bytes[from..to] => {}
            Ok(_) => return Check::failed(NAME, format!("bytes {from}..{to} came back as others")),
            Err(error) => return Check::failed(NAME, error.to_string()),
        }
    }
    Check::ok(NAME, "ranges come back exactly")
}

async fn list(client: &ObjectClient, folder: &str) -> Check {
    const NAME: &str = "list";
    let prefix = format!("{folder}/list/");
    let keys: Vec<String> = (0..5).map(|part| format!("{prefix}part={part}/x")).collect();
    for key in &keys {
        if let Err(error) = put(client, key, "x").await {
            return Check::failed(NAME, error.to_string());
        }
    }
    let mut seen: Vec<String> = Vec::new();
    loop {
        match client.list(&prefix, seen.last().map(String::as_str), 2).await {
            Ok(page) => {
                seen.extend(page.objects.into_iter().map(|object| object.key));
                if !page.more || seen.len() > keys.len() {
                    break;
                }
            }
            Err(error) => return Check::failed(NAME, error.to_string()),
        }
    }
    if seen == keys {
        Check::ok(NAME, "pages are complete, in order and advance")
    } else {
        Check::failed(NAME, format!("five keys were written, the pages had {seen:?}"))
    }
}

/// Deletes everything that the checks wrote.
async fn delete(client: &ObjectClient, folder: &str) -> Check {
    const NAME: &str = "delete";
    let prefix = format!("{folder}/");
    for _ in 0..4 {
        let page = match client.list(&prefix, None, 1000).await {
            Ok(page) => page,
            Err(error) => return Check::failed(NAME, error.to_string()),
        };
        for object in &page.objects {
            if let Err(error) = client.delete(&object.key).await {
                return Check::failed(NAME, format!("{error}: objects below {FOLDER}/ are left"));
            }
            match client.head(&object.key).await {
                Err(GetError::NotFound { .. }) => {}
                Ok(_) => {
                    return Check::failed(NAME, format!("{} is still there after its deletion", object.key));
                }
                Err(error) => return Check::failed(NAME, error.to_string()),
            }
        }
        if page.objects.is_empty() {
            return match client.delete(&format!("{folder}/create")).await {
                Ok(()) => Check::ok(NAME, "deleting works, and is no error the second time"),
                Err(error) => Check::failed(NAME, error.to_string()),
            };
        }
    }
    Check::failed(NAME, format!("what was deleted below {folder}/ is still listed"))
}

async fn lifecycle(client: &ObjectClient) -> Check {
    const NAME: &str = "lifecycle";
    let url = client.url();
    if client.inner.backing.kind != StoreKind::S3 {
        return Check::ok(NAME, "nothing to be set");
    }
    let settings = S3Settings::resolve(client.options()).await;
    let rules = match rules_of(&s3_client(&settings, client.options()), url.bucket()).await {
        Ok(rules) => rules,
        Err(reason) => return no_lifecycle(&reason),
    };
    if let Some(rule) = rules.iter().find(|rule| expires_objects(rule, url.prefix())) {
        return Check::failed(
            NAME,
            format!(
                "rule `{}` deletes objects below this prefix, which loses data: remove it, retention is the topics' own",
                rule.id.as_deref().unwrap_or("without id")
            ),
        );
    }
    if rules.iter().any(|rule| aborts_uploads(rule, url.prefix())) {
        Check::ok(NAME, "a rule aborts stale multipart uploads")
    } else {
        Check::advice(NAME, "no rule aborts stale multipart uploads: run `tidelog bucket init`".to_owned())
    }
}

fn clock(client: &ObjectClient) -> Check {
    const NAME: &str = "clock";
    let Some(theirs) = client.inner.backing.date.last() else {
        return Check::ok(NAME, "the store uses this machine's clock");
    };
    let ours = client.inner.clock.wall();
    let skew = ours.millis_since(theirs).max(theirs.millis_since(ours));
    match skew {
        SKEW_FAILED_MS.. => {
            Check::failed(NAME, format!("the clocks differ by {skew} ms: synchronise this machine's"))
        }
        SKEW_ADVICE_MS.. => {
            Check::advice(NAME, format!("the clocks differ by {skew} ms: synchronise this machine's"))
        }
        _ => Check::ok(NAME, "the clocks agree"),
    }
}
