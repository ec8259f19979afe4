//! Creates a bucket, and the rule that ends forgotten multipart uploads.

use aws_sdk_s3::{
    Client,
    config::{BehaviorVersion, Builder, Region, RequestChecksumCalculation, ResponseChecksumValidation},
    types::{
        AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, BucketLocationConstraint,
        CreateBucketConfiguration, ExpirationStatus, LifecycleRule, LifecycleRuleFilter,
    },
};
use serde::Serialize;

use super::{Check, CheckStatus, words};
use crate::{ChecksumMode, StoreKind, StoreOptions, StoreUrl, backing::S3Settings};

/// The id of our lifecycle rule.
const RULE_ID: &str = "tidelog-abort-incomplete-multipart-uploads";
/// Days after which an upload that was begun and never ended is dropped: nothing of ours takes a day.
const ABORT_DAYS: i32 = 1;

/// What [`bucket_init`] did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InitReport {
    /// The store.
    pub store: String,
    /// Whether the bucket was made now.
    pub created: bool,
    /// The lifecycle rule.
    pub lifecycle: Check,
}

/// Why a bucket could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// Only S3's protocol is spoken here.
    #[error("buckets of {scheme}:// are made with that store's own tools")]
    NotHere {
        /// The scheme.
        scheme: &'static str,
    },
    /// The name is taken by another account.
    #[error(
        "the bucket `{bucket}` belongs to another account, or these credentials have no right to it: choose another name"
    )]
    Taken {
        /// The bucket.
        bucket: String,
    },
    /// The store refuses or cannot be reached.
    #[error("the bucket `{bucket}` could not be made: {reason}")]
    Failed {
        /// The bucket.
        bucket: String,
        /// What the store says.
        reason: String,
    },
    /// The folder cannot be made.
    #[error("the folder cannot be made: {reason}")]
    Folder {
        /// What the system says.
        reason: String,
    },
}

/// Makes the bucket if it is missing and sets the rule that aborts stale multipart uploads. Done twice, it does nothing
/// the second time. A store without lifecycle rules gives advice, not failure.
///
/// # Errors
/// See [`InitError`].
pub async fn bucket_init(url: &StoreUrl, options: &StoreOptions) -> Result<InitReport, InitError> {
    let done = |created, lifecycle| InitReport { store: url.to_string(), created, lifecycle };
    match url.kind() {
        StoreKind::Memory => Ok(done(false, Check::ok("lifecycle", "memory has nothing to forget"))),
        StoreKind::File => {
            let folder = url.folder().unwrap_or_else(|| std::path::Path::new("/"));
            let created = !folder.exists();
            std::fs::create_dir_all(folder)
                .map_err(|error| InitError::Folder { reason: error.to_string() })?;
            Ok(done(created, Check::ok("lifecycle", "a folder has no multipart uploads")))
        }
        StoreKind::Gcs | StoreKind::Azure => Err(InitError::NotHere { scheme: url.kind().scheme() }),
        StoreKind::S3 => {
            let settings = S3Settings::resolve(options).await;
            let client = s3_client(&settings, options);
            let created = create_bucket(&client, &settings, url.bucket()).await?;
            Ok(done(created, set_lifecycle(&client, url).await))
        }
    }
}

pub(super) fn s3_client(settings: &S3Settings, options: &StoreOptions) -> Client {
    let timeouts = aws_sdk_s3::config::timeout::TimeoutConfig::builder()
        .connect_timeout(options.connect_timeout)
        .operation_attempt_timeout(options.silence_timeout)
        .operation_timeout(options.retry_deadline)
        .build();
    let mut config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(settings.region.clone()))
        .credentials_provider(settings.credentials.clone())
        .force_path_style(settings.path_style)
        .retry_config(aws_sdk_s3::config::retry::RetryConfig::standard().with_max_attempts(5))
        .timeout_config(timeouts);
    if settings.checksum == ChecksumMode::None {
        config = config
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    }
    if let Some(endpoint) = &settings.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Client::from_conf(config.build())
}

async fn create_bucket(client: &Client, settings: &S3Settings, bucket: &str) -> Result<bool, InitError> {
    if exists(client, bucket).await? {
        return Ok(false);
    }
    let mut request = client.create_bucket().bucket(bucket);
    // Amazon's first region must not be named; other stores ignore or accept what is.
    if settings.region != "us-east-1" {
        let place = BucketLocationConstraint::from(settings.region.as_str());
        request = request.create_bucket_configuration(
            CreateBucketConfiguration::builder().location_constraint(place).build(),
        );
    }
    match request.send().await {
        Ok(_) => Ok(true),
        Err(error) => match words::code(&error) {
            Some("BucketAlreadyOwnedByYou") => Ok(false),
            Some("BucketAlreadyExists") => Err(InitError::Taken { bucket: bucket.to_owned() }),
            _ => Err(InitError::Failed { bucket: bucket.to_owned(), reason: words::words(&error) }),
        },
    }
}

/// Whether the bucket is there and may be used. An answer to HEAD has no words: where it is a refusal, a listing is asked for
/// them, since keys that nobody knows look like the bucket of another account.
async fn exists(client: &Client, bucket: &str) -> Result<bool, InitError> {
    let failed = |reason| InitError::Failed { bucket: bucket.to_owned(), reason };
    match client.head_bucket().bucket(bucket).send().await {
        Ok(_) => return Ok(true),
        Err(error) => match words::status(&error) {
            Some(404) => return Ok(false),
            Some(400..=499) => {}
            _ => return Err(failed(words::words(&error))),
        },
    }
    match client.list_objects_v2().bucket(bucket).max_keys(1).send().await {
        Ok(_) => Ok(true),
        Err(error) => match words::code(&error) {
            Some("NoSuchBucket") => Ok(false),
            Some("AccessDenied" | "AllAccessDisabled") => Err(InitError::Taken { bucket: bucket.to_owned() }),
            _ => Err(failed(words::words(&error))),
        },
    }
}

async fn set_lifecycle(client: &Client, url: &StoreUrl) -> Check {
    let mut rules = match rules_of(client, url.bucket()).await {
        Ok(rules) => rules,
        Err(reason) => return no_lifecycle(&reason),
    };
    if rules.iter().any(|rule| aborts_uploads(rule, url.prefix())) {
        return Check::ok("lifecycle", "a rule aborts stale multipart uploads");
    }
    let rule = LifecycleRule::builder()
        .id(RULE_ID)
        .status(ExpirationStatus::Enabled)
        .filter(LifecycleRuleFilter::builder().prefix(rule_prefix(url.prefix())).build())
        .abort_incomplete_multipart_upload(
            AbortIncompleteMultipartUpload::builder().days_after_initiation(ABORT_DAYS).build(),
        )
        .build();
    match rule {
        Ok(rule) => rules.push(rule),
        Err(error) => return no_lifecycle(&error.to_string()),
    }
    let config = match BucketLifecycleConfiguration::builder().set_rules(Some(rules)).build() {
        Ok(config) => config,
        Err(error) => return no_lifecycle(&error.to_string()),
    };
    let request =
        client.put_bucket_lifecycle_configuration().bucket(url.bucket()).lifecycle_configuration(config);
    match request.send().await {
        Ok(_) => Check::ok("lifecycle", "the rule that aborts stale multipart uploads after a day is set"),
        Err(error) => no_lifecycle(&words::words(&error)),
    }
}

/// The bucket's rules; none where there is no configuration.
pub(super) async fn rules_of(client: &Client, bucket: &str) -> Result<Vec<LifecycleRule>, String> {
    match client.get_bucket_lifecycle_configuration().bucket(bucket).send().await {
        Ok(found) => Ok(found.rules.unwrap_or_default()),
        Err(error) if words::code(&error) == Some("NoSuchLifecycleConfiguration") => Ok(Vec::new()),
        Err(error) => Err(words::words(&error)),
    }
}

pub(super) fn no_lifecycle(reason: &str) -> Check {
    let advice = format!(
        "this store has no lifecycle rules here, or these credentials may not set them: see that incomplete multipart \
         uploads are ended some other way ({reason})"
    );
    Check { name: "lifecycle", status: CheckStatus::Advice, detail: advice }
}

/// Whether a rule ends stale uploads under all of our prefix.
pub(super) fn aborts_uploads(rule: &LifecycleRule, prefix: &str) -> bool {
    rule.status == ExpirationStatus::Enabled
        && rule.abort_incomplete_multipart_upload.is_some()
        && prefix_of(rule).is_some_and(|rule_prefix| self::rule_prefix(prefix).starts_with(rule_prefix))
}

/// Whether a rule deletes objects under our prefix.
pub(super) fn expires_objects(rule: &LifecycleRule, prefix: &str) -> bool {
    let ours = rule_prefix(prefix);
    let deletes = rule
        .expiration
        .as_ref()
        .is_some_and(|expiration| expiration.days.is_some() || expiration.date.is_some());
    rule.status == ExpirationStatus::Enabled
        && deletes
        && prefix_of(rule).is_some_and(|theirs| ours.starts_with(theirs) || theirs.starts_with(&ours))
}

fn rule_prefix(prefix: &str) -> String {
    match prefix {
        "" => String::new(),
        prefix => format!("{prefix}/"),
    }
}

/// The prefix that a rule is for; `None` where it also asks for tags, which our objects do not have.
fn prefix_of(rule: &LifecycleRule) -> Option<&str> {
    #[allow(deprecated, reason = "old rules carry their prefix here and are still in force")]
    let old = rule.prefix.as_deref();
    let Some(filter) = &rule.filter else { return Some(old.unwrap_or("")) };
    if filter.tag.is_some() || filter.and.as_ref().is_some_and(|and| and.tags.is_some()) {
        return None;
    }
    let both = filter.and.as_ref().and_then(|and| and.prefix.as_deref());
    Some(filter.prefix.as_deref().or(both).unwrap_or(""))
}
