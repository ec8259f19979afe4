//! Manifest pages: read once, kept for a while.
//!
//! **Owns** the one bounded memory of pages that a node read (they are immutable) and of how many entries each lists: for cold
//! reads and for background work alike. **Does not own** which pages exist: the replicated state names them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidelog_core::upload::PageEntries;
use tidelog_format::{
    DecodeError,
    keys::ObjectKey,
    manifest::{ManifestEntry, Page, PageId, PageLine},
};
use tidelog_object::{GetError, ObjectClient};
use tidelog_types::{ByteSize, ClusterId, TopicName, TopicPartition, limits};

use crate::kept::Kept;

/// Counts of entries that are remembered, a few bytes each.
const COUNTS_KEPT: usize = 65_536;

/// A page, as the store may answer it: what was written never exceeds the limit.
pub(crate) const PAGE_READ_BYTES: u64 = 2 * limits::MANIFEST_PAGE_BYTES_MAX as u64;

/// Why a page could not be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PageError {
    /// The store says that it does not exist. Where the replicated state names it, it was lost.
    #[error("page {key} does not exist")]
    NotFound {
        /// Its key.
        key: String,
    },
    /// The store did not answer, or refuses.
    #[error(transparent)]
    Get(GetError),
    /// It is not what was written.
    #[error("page {key} is damaged: {source}")]
    Damaged {
        /// Its key.
        key: String,
        /// What is wrong.
        #[source]
        source: DecodeError,
    },
    /// It belongs to another partition or cluster.
    #[error("page {key} says that it belongs elsewhere")]
    Foreign {
        /// Its key.
        key: String,
    },
}

impl PageError {
    /// Whether the store answered, and what it holds is not the page: asking again does not help.
    pub(crate) const fn is_of_the_page(&self) -> bool {
        match self {
            Self::NotFound { .. } | Self::Damaged { .. } | Self::Foreign { .. } => true,
            Self::Get(error) => matches!(error, GetError::Corrupt { .. }),
        }
    }
}

/// A page among all partitions'.
type PageKey = (TopicPartition, PageId);

/// Pages that were read. Clones are the same.
#[derive(Clone)]
pub struct ManifestPages {
    inner: Arc<Inner>,
}

struct Inner {
    cluster_id: ClusterId,
    kept: Kept<PageKey, Arc<[ManifestEntry]>>,
    counts: Mutex<BTreeMap<PageKey, u64>>,
}

impl fmt::Debug for ManifestPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManifestPages").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl ManifestPages {
    /// Keeps up to `memory` of pages; the least recently used goes first.
    #[must_use]
    pub fn new(cluster_id: ClusterId, memory: ByteSize) -> Self {
        let inner = Inner { cluster_id, kept: Kept::new(memory.get()), counts: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<PageKey, u64>> {
        self.inner.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a page lists, from memory or from the store.
    pub(crate) async fn read(
        &self,
        store: &ObjectClient,
        topic: &TopicName,
        place: TopicPartition,
        page: PageId,
    ) -> Result<Arc<[ManifestEntry]>, PageError> {
        if let Some(entries) = self.get(place, page) {
            return Ok(entries);
        }
        let key = ObjectKey::Page { topic: topic.clone(), place, page }.to_string();
        // Once more where the bytes are not the page: they may have been hurt on their way.
        let entries = match self.decode(&key, place, &fetch(store, &key).await?) {
            Ok(entries) => entries,
            Err(_) => self.decode(&key, place, &fetch(store, &key).await?)?,
        };
        self.keep(place, page, Arc::clone(&entries));
        Ok(entries)
    }

    /// The entries of a page as the store gave it.
    pub(crate) fn decode(
        &self,
        key: &str,
        place: TopicPartition,
        bytes: &[u8],
    ) -> Result<Arc<[ManifestEntry]>, PageError> {
        let decoded =
            Page::decode(bytes).map_err(|source| PageError::Damaged { key: key.to_owned(), source })?;
        if decoded.place != place || decoded.cluster_id != self.inner.cluster_id {
            return Err(PageError::Foreign { key: key.to_owned() });
        }
        Ok(decoded.entries.into())
    }

    /// What a page lists, if it is at hand.
    pub(crate) fn get(&self, place: TopicPartition, page: PageId) -> Option<Arc<[ManifestEntry]>> {
        self.inner.kept.get(&(place, page))
    }

    /// Those of a manifest's pages that are at hand.
    pub(crate) fn held(&self, place: TopicPartition, lines: &[PageLine]) -> PageEntries {
        let held = |line: &PageLine| self.get(place, line.page).map(|entries| (line.page, entries));
        lines.iter().filter_map(held).collect()
    }

    /// How many entries a page lists, if it was read before.
    pub(crate) fn count(&self, place: TopicPartition, page: PageId) -> Option<u64> {
        self.counts().get(&(place, page)).copied()
    }

    /// Bytes held now.
    pub(crate) fn bytes(&self) -> u64 {
        self.inner.kept.bytes()
    }

    pub(crate) fn keep(&self, place: TopicPartition, page: PageId, entries: Arc<[ManifestEntry]>) {
        let mut counts = self.counts();
        if counts.len() >= COUNTS_KEPT {
            counts.pop_first();
        }
        counts.insert((place, page), entries.len() as u64);
        drop(counts);
        let bytes = entries.len().saturating_mul(size_of::<ManifestEntry>());
        self.inner.kept.insert((place, page), entries, bytes as u64);
    }

    pub(crate) fn forget(&self, place: TopicPartition, page: PageId) {
        self.inner.kept.remove(&(place, page));
        self.counts().remove(&(place, page));
    }

    pub(crate) fn clear(&self) {
        self.inner.kept.clear();
    }
}

async fn fetch(store: &ObjectClient, key: &str) -> Result<bytes::Bytes, PageError> {
    match store.get(key, PAGE_READ_BYTES).await {
        Ok(fetched) => Ok(fetched.bytes),
        Err(GetError::NotFound { key }) => Err(PageError::NotFound { key }),
        Err(error) => Err(PageError::Get(error)),
    }
}
