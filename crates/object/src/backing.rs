//! From an address and settings to a store of the `object_store` crate.

use std::{fmt, sync::Arc, time::Duration};

use aws_config::{
    default_provider::credentials::DefaultCredentialsChain,
    environment::region::EnvironmentVariableRegionProvider, meta::region::RegionProviderChain,
    profile::region::ProfileFileRegionProvider,
};
use aws_sdk_s3::config::{Credentials, Region, SharedCredentialsProvider};
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, Checksum, S3ConditionalPut},
    azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder,
    list::PaginatedListStore,
    local::LocalFileSystem,
    memory::InMemory,
};
use tidelog_runtime::{Clock, Registry};

use crate::{
    ChecksumMode, OpenError, StoreKind, StoreOptions, StoreUrl,
    credentials::ChainCredentials,
    folder::{FolderRoom, FolderStore},
    http::{StoreDate, WatchedConnector},
};

/// A store that is ready to be asked, and what is known of it.
pub(crate) struct Backing {
    pub(crate) kind: StoreKind,
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Pages of a listing, where the store starts one after any key.
    pub(crate) paged: Option<Arc<dyn PaginatedListStore>>,
    pub(crate) credentials: Option<Arc<ChainCredentials>>,
    pub(crate) date: StoreDate,
    /// What reads of files take, where the store is a folder.
    pub(crate) room: FolderRoom,
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backing")
            .field("kind", &self.kind)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Backing {
    pub(crate) fn of(kind: StoreKind, store: Arc<dyn ObjectStore>) -> Self {
        let (date, room) = (StoreDate::new(), FolderRoom::new());
        Self { kind, store, paged: None, credentials: None, date, room }
    }
}

pub(crate) async fn open(
    url: &StoreUrl,
    options: &StoreOptions,
    clock: &Arc<dyn Clock>,
    registry: &Registry,
) -> Result<Backing, OpenError> {
    let settings = |error: object_store::Error| OpenError::Settings {
        url: url.to_string(),
        reason: crate::credentials::error_chain(&error),
    };
    let date = StoreDate::new();
    match url.kind() {
        StoreKind::Memory => Ok(Backing::of(StoreKind::Memory, Arc::new(InMemory::new()))),
        StoreKind::File => open_folder(url, options),
        StoreKind::S3 => open_s3(url, options, clock, registry, date).await,
        StoreKind::Gcs => {
            let store = GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(url.bucket())
                .with_retry(no_retries())
                .with_client_options(ClientOptions::new())
                .with_http_connector(connector(options, &date))
                .build()
                .map_err(settings)?;
            Ok(Backing { date, ..Backing::of(StoreKind::Gcs, Arc::new(store)) })
        }
        StoreKind::Azure => {
            let allow_http = allows_http(options, options.endpoint.as_deref());
            let mut builder = MicrosoftAzureBuilder::from_env()
                .with_container_name(url.bucket())
                .with_retry(no_retries())
                .with_client_options(ClientOptions::new().with_allow_http(allow_http))
                .with_http_connector(connector(options, &date));
            if let Some(endpoint) = &options.endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            let store = builder.build().map_err(settings)?;
            Ok(Backing { date, ..Backing::of(StoreKind::Azure, Arc::new(store)) })
        }
    }
}

fn open_folder(url: &StoreUrl, options: &StoreOptions) -> Result<Backing, OpenError> {
    let folder = url.folder().unwrap_or_else(|| std::path::Path::new("/"));
    let unusable = |source| OpenError::Folder { path: folder.display().to_string(), source };
    std::fs::create_dir_all(folder).map_err(unusable)?;
    let store =
        LocalFileSystem::new_with_prefix(folder).map_err(|error| unusable(std::io::Error::other(error)))?;
    // As the library has it: it follows links once.
    let folder = folder.canonicalize().map_err(unusable)?;
    let store = FolderStore::new(store, &folder, options.runtime.clone());
    Ok(Backing { room: store.room(), ..Backing::of(StoreKind::File, Arc::new(store)) })
}

async fn open_s3(
    url: &StoreUrl,
    options: &StoreOptions,
    clock: &Arc<dyn Clock>,
    registry: &Registry,
    date: StoreDate,
) -> Result<Backing, OpenError> {
    let settings = S3Settings::resolve(options).await;
    let allow_http = settings.allow_http;
    let credentials =
        Arc::new(ChainCredentials::new(settings.credentials.clone(), Arc::clone(clock), registry));
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(url.bucket())
        .with_region(settings.region.clone())
        .with_credentials(Arc::clone(&credentials) as _)
        .with_virtual_hosted_style_request(!settings.path_style)
        .with_allow_http(allow_http)
        .with_retry(no_retries())
        .with_client_options(ClientOptions::new().with_allow_http(allow_http))
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_http_connector(connector(options, &date));
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(settings.bucket_endpoint(endpoint, url.bucket()));
    }
    builder = match settings.checksum {
        // TLS and the checksum protect the body; a signed SHA-256 beside them would double the cost of a put.
        ChecksumMode::Crc64Nvme => {
            builder.with_checksum_algorithm(Checksum::CRC64NVME).with_unsigned_payload(!allow_http)
        }
        ChecksumMode::Sha256 => builder.with_checksum_algorithm(Checksum::SHA256),
        ChecksumMode::None => builder,
    };
    let store = builder.build().map_err(|error| OpenError::Settings {
        url: url.to_string(),
        reason: crate::credentials::error_chain(&error),
    })?;
    let store = Arc::new(store);
    let paged = Arc::clone(&store) as Arc<dyn PaginatedListStore>;
    let backing = Backing::of(StoreKind::S3, store);
    Ok(Backing { paged: Some(paged), credentials: Some(credentials), date, ..backing })
}

/// Tries, pauses and deadlines are the client's: `object_store` mistakes its own success for a rival's when it retries
/// a create, and reports a conflict as if the object existed.
fn no_retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::from_secs(180) }
}

fn connector(options: &StoreOptions, date: &StoreDate) -> WatchedConnector {
    WatchedConnector {
        date: date.clone(),
        runtime: options.runtime.clone(),
        connect_timeout: options.connect_timeout,
        connections_max: options.requests_max,
    }
}

fn allows_http(options: &StoreOptions, endpoint: Option<&str>) -> bool {
    options.allow_http.unwrap_or_else(|| endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")))
}

/// Everything that both clients of S3 must agree on.
pub(crate) struct S3Settings {
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    pub(crate) path_style: bool,
    pub(crate) allow_http: bool,
    pub(crate) checksum: ChecksumMode,
    pub(crate) credentials: SharedCredentialsProvider,
}

impl S3Settings {
    /// Settings first, then what the AWS SDK reads: environment, profile, role.
    pub(crate) async fn resolve(options: &StoreOptions) -> Self {
        let from_environment = || {
            ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
                .into_iter()
                .find_map(|name| std::env::var(name).ok().filter(|endpoint| !endpoint.is_empty()))
        };
        let endpoint = options.endpoint.clone().or_else(from_environment);
        let endpoint = endpoint.map(|endpoint| match endpoint.contains("://") {
            true => endpoint.trim_end_matches('/').to_owned(),
            false => format!("https://{}", endpoint.trim_end_matches('/')),
        });
        let region = match &options.region {
            Some(region) => region.clone(),
            None => region_of_environment(endpoint.is_some()).await,
        };
        let credentials = match &options.credentials {
            Some(keys) => SharedCredentialsProvider::new(Credentials::new(
                keys.access_key_id.clone(),
                keys.secret_access_key.clone(),
                None,
                None,
                "settings",
            )),
            None => {
                let chain =
                    DefaultCredentialsChain::builder().region(Region::new(region.clone())).build().await;
                SharedCredentialsProvider::new(chain)
            }
        };
        Self {
            path_style: options.path_style.unwrap_or_else(|| {
                endpoint.as_deref().is_some_and(|endpoint| !crate::options::is_amazon(endpoint))
            }),
            allow_http: allows_http(options, endpoint.as_deref()),
            checksum: options.effective_checksum(endpoint.as_deref()),
            endpoint,
            region,
            credentials,
        }
    }

    /// `object_store` takes the bucket's own host as the endpoint of virtual-hosted requests.
    fn bucket_endpoint(&self, endpoint: &str, bucket: &str) -> String {
        match endpoint.split_once("://") {
            Some((scheme, host)) if !self.path_style => format!("{scheme}://{bucket}.{host}"),
            _ => endpoint.to_owned(),
        }
    }
}

/// With an endpoint there is often no Amazon around: its instance metadata is not asked then.
async fn region_of_environment(has_endpoint: bool) -> String {
    let chain = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new());
    let region = if has_endpoint { chain.region().await } else { chain.or_default_provider().region().await };
    region.map_or_else(|| "us-east-1".to_owned(), |region| region.to_string())
}
