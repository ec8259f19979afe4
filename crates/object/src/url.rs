//! Addresses of object stores, as people write them.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Which kind of store an address names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreKind {
    /// A folder of this machine.
    File,
    /// The memory of this process.
    Memory,
    /// Amazon S3 or a store that speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl StoreKind {
    /// The scheme of its addresses.
    #[must_use]
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memory => "memory",
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }

    /// Whether the store is reached over the network.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::S3 | Self::Gcs | Self::Azure)
    }
}

/// The address of a store: `file:///path`, `memory://`, `s3://bucket/prefix`, `gs://bucket/prefix` or
/// `az://container/prefix`.
///
/// ```text
/// s3://events-prod/eu/cluster-7
///      bucket      prefix, no slash at either end
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUrl {
    kind: StoreKind,
    bucket: String,
    path: PathBuf,
    prefix: String,
}

/// Why a text is not the address of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// There is no `scheme://`.
    #[error(
        "`{text}` has no scheme: write file:///absolute/path, memory://, s3://bucket/prefix, gs:// or az://"
    )]
    NoScheme {
        /// What was given.
        text: String,
    },
    /// The scheme has no `//` behind it.
    #[error("`{text}` lacks the slashes behind its scheme: write {example}")]
    NoSlashes {
        /// What was given.
        text: String,
        /// What an address of this kind looks like.
        example: &'static str,
    },
    /// The scheme is not one of ours.
    #[error("unknown scheme `{scheme}`: use file, memory, s3, gs or az")]
    UnknownScheme {
        /// The scheme that was given.
        scheme: String,
    },
    /// A folder is not named by an absolute path.
    #[error("`{text}` is not an absolute path: write file:///path, with three slashes")]
    RelativePath {
        /// What was given.
        text: String,
    },
    /// There is no bucket, or one that no store allows.
    #[error("`{bucket}` is no name for a bucket: 1 to 222 letters, digits, `.`, `-` and `_`")]
    BadBucket {
        /// The name that was given.
        bucket: String,
    },
    /// Credentials stand in the address, where logs and process lists show them.
    #[error("credentials do not belong in the address: give them as the store's own tools read them")]
    Credentials,
    /// A query or a fragment follows.
    #[error("`{text}` ends in a query or fragment, which has no meaning here")]
    Query {
        /// What was given.
        text: String,
    },
    /// The prefix has empty, `.` or `..` segments, or characters that stores treat differently.
    #[error(
        "`{prefix}` is no prefix: segments of letters, digits and `-_.=+@,`, none of them empty, `.` or `..`"
    )]
    BadPrefix {
        /// The prefix that was given.
        prefix: String,
    },
}

impl StoreUrl {
    /// The address of a folder.
    ///
    /// # Errors
    /// [`StoreUrlError::RelativePath`] unless the path is absolute.
    pub fn file(path: &Path) -> Result<Self, StoreUrlError> {
        if !path.is_absolute() {
            return Err(StoreUrlError::RelativePath { text: path.display().to_string() });
        }
        Ok(Self {
            kind: StoreKind::File,
            bucket: String::new(),
            path: path.to_path_buf(),
            prefix: String::new(),
        })
    }

    /// The address of this process's memory.
    #[must_use]
    pub fn memory() -> Self {
        Self { kind: StoreKind::Memory, bucket: String::new(), path: PathBuf::new(), prefix: String::new() }
    }

    /// Which kind of store it is.
    #[must_use]
    pub const fn kind(&self) -> StoreKind {
        self.kind
    }

    /// The bucket or container; empty for a folder and for memory.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The folder of a `file` address.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        (self.kind == StoreKind::File).then_some(self.path.as_path())
    }

    /// What stands before every key in the bucket, without a slash at either end; empty for a folder.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            StoreKind::File => write!(f, "file://{}", self.path.display()),
            // Memory has no bucket, and what stands where one would is not taken for one.
            _ if self.bucket.is_empty() && self.prefix.is_empty() => write!(f, "{}://", self.kind.scheme()),
            _ if self.bucket.is_empty() => write!(f, "{}:///{}", self.kind.scheme(), self.prefix),
            _ if self.prefix.is_empty() => write!(f, "{}://{}", self.kind.scheme(), self.bucket),
            _ => write!(f, "{}://{}/{}", self.kind.scheme(), self.bucket, self.prefix),
        }
    }
}

/// What an address with this scheme looks like; `None`: the scheme is not ours.
fn example_of(scheme: &str) -> Option<&'static str> {
    match scheme.to_ascii_lowercase().as_str() {
        "file" => Some("file:///absolute/path"),
        "memory" => Some("memory://"),
        "s3" => Some("s3://bucket/prefix"),
        "gs" => Some("gs://bucket/prefix"),
        "az" => Some("az://container/prefix"),
        _ => None,
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let text = text.trim();
        let Some((scheme, rest)) = text.split_once("://") else {
            let example = text.split_once(':').and_then(|(scheme, _)| example_of(scheme));
            let text = text.to_owned();
            return Err(match example {
                Some(example) => StoreUrlError::NoSlashes { text, example },
                None => StoreUrlError::NoScheme { text },
            });
        };
        let kind = match scheme.to_ascii_lowercase().as_str() {
            "file" => return parse_file(rest),
            "memory" => StoreKind::Memory,
            "s3" => StoreKind::S3,
            "gs" => StoreKind::Gcs,
            "az" => StoreKind::Azure,
            _ => return Err(StoreUrlError::UnknownScheme { scheme: scheme.to_owned() }),
        };
        if rest.contains('@') && rest.split('/').next().is_some_and(|host| host.contains('@')) {
            return Err(StoreUrlError::Credentials);
        }
        if rest.contains(['?', '#']) {
            return Err(StoreUrlError::Query { text: text.to_owned() });
        }
        let (bucket, prefix) = match kind {
            StoreKind::Memory => ("", rest),
            _ => rest.split_once('/').unwrap_or((rest, "")),
        };
        let prefix = prefix.trim_matches('/');
        if kind != StoreKind::Memory && !bucket_is_valid(bucket) {
            return Err(StoreUrlError::BadBucket { bucket: bucket.to_owned() });
        }
        if !prefix_is_valid(prefix) {
            return Err(StoreUrlError::BadPrefix { prefix: prefix.to_owned() });
        }
        Ok(Self { kind, bucket: bucket.to_owned(), path: PathBuf::new(), prefix: prefix.to_owned() })
    }
}

fn parse_file(rest: &str) -> Result<StoreUrl, StoreUrlError> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(StoreUrlError::RelativePath { text: rest.to_owned() });
    }
    StoreUrl::file(Path::new(path))
}

/// S3 allows 63 characters today and 255 once; Google allows 222 with dots. The store itself judges further.
fn bucket_is_valid(bucket: &str) -> bool {
    (1..=222).contains(&bucket.len())
        && bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
        && bucket != "."
        && bucket != ".."
}

fn prefix_is_valid(prefix: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=+@,".contains(&byte);
    prefix.is_empty()
        || prefix.split('/').all(|segment| {
            !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(allowed)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_parses_and_prints_back() {
        for (text, kind, bucket, prefix, printed) in [
            ("s3://events/eu/c-7/", StoreKind::S3, "events", "eu/c-7", "s3://events/eu/c-7"),
            ("S3://events", StoreKind::S3, "events", "", "s3://events"),
            ("gs://b.example.com/p", StoreKind::Gcs, "b.example.com", "p", "gs://b.example.com/p"),
            ("az://container/a/b", StoreKind::Azure, "container", "a/b", "az://container/a/b"),
            ("memory://", StoreKind::Memory, "", "", "memory://"),
            ("memory://a/b", StoreKind::Memory, "", "a/b", "memory:///a/b"),
            ("memory:///--@", StoreKind::Memory, "", "--@", "memory:///--@"),
            ("file:///var/lib/tidelog/bucket", StoreKind::File, "", "", "file:///var/lib/tidelog/bucket"),
        ] {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!((url.kind(), url.bucket(), url.prefix()), (kind, bucket, prefix), "{text}");
            assert_eq!(url.to_string(), printed);
            assert_eq!(url.to_string().parse::<StoreUrl>().unwrap(), url);
        }
        let url: StoreUrl = "file:///a/b".parse().unwrap();
        assert_eq!(url.folder(), Some(Path::new("/a/b")));
    }

    #[test]
    fn what_is_no_address_says_what_to_write() {
        let error = |text: &str| text.parse::<StoreUrl>().unwrap_err();
        assert_eq!(error("/var/data"), StoreUrlError::NoScheme { text: "/var/data".to_owned() });
        for (text, example) in [
            ("memory:", "memory://"),
            ("file:", "file:///absolute/path"),
            ("FILE:/data", "file:///absolute/path"),
            ("s3:bucket", "s3://bucket/prefix"),
        ] {
            assert_eq!(error(text), StoreUrlError::NoSlashes { text: text.to_owned(), example });
        }
        assert_eq!(error("C:data"), StoreUrlError::NoScheme { text: "C:data".to_owned() });
        assert_eq!(error("http://x/y"), StoreUrlError::UnknownScheme { scheme: "http".to_owned() });
        assert_eq!(error("file://data"), StoreUrlError::RelativePath { text: "data".to_owned() });
        assert_eq!(error("s3:///prefix"), StoreUrlError::BadBucket { bucket: String::new() });
        assert_eq!(error("s3://AKIA:secret@bucket/x"), StoreUrlError::Credentials);
        assert_eq!(
            error("s3://bucket/x?region=eu"),
            StoreUrlError::Query { text: "s3://bucket/x?region=eu".to_owned() }
        );
        assert_eq!(error("s3://bucket/a//b"), StoreUrlError::BadPrefix { prefix: "a//b".to_owned() });
        assert_eq!(error("s3://bucket/a/../b"), StoreUrlError::BadPrefix { prefix: "a/../b".to_owned() });
        assert_eq!(error("s3://bucket/a b"), StoreUrlError::BadPrefix { prefix: "a b".to_owned() });
        assert!(error("file://data").to_string().contains("file:///path"));
    }
}
