//! Manifest pages: read once, kept for a while, and written.
//!
//! **Owns** a bounded memory of pages that were read (they are immutable) and of how many entries each lists. **Does not own**
//! which pages exist: the replicated state names them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidelog_core::upload::PageEntries;
use tidelog_format::{
    DecodeError,
    keys::ObjectKey,
    manifest::{ManifestEntry, Page, PageId, PageLine},
};
use tidelog_object::{GetError, ObjectClient};
use tidelog_types::{ClusterId, TopicName, TopicPartition, limits};

/// Pages kept in memory: of 3,000 entries and 150 bytes each that is 29 MB at most.
const PAGES_KEPT: usize = 64;

/// Counts of entries that are remembered, a few bytes each.
const COUNTS_KEPT: usize = 65_536;

/// A page, as the store may answer it: what was written never exceeds the limit.
const PAGE_READ_BYTES: u64 = 2 * limits::MANIFEST_PAGE_BYTES_MAX as u64;

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

#[derive(Default)]
struct Kept {
    pages: BTreeMap<PageId, (Arc<[ManifestEntry]>, u64)>,
    counts: BTreeMap<PageId, u64>,
    uses: u64,
}

/// Pages that were read.
#[derive(Default)]
pub(crate) struct Pages {
    kept: Mutex<Kept>,
}

impl Pages {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a page lists, from memory or from the store.
    pub(crate) async fn read(
        &self,
        store: &ObjectClient,
        cluster_id: ClusterId,
        topic: &TopicName,
        place: TopicPartition,
        page: PageId,
    ) -> Result<Arc<[ManifestEntry]>, PageError> {
        if let Some(entries) = self.get(page) {
            return Ok(entries);
        }
        let key = ObjectKey::Page { topic: topic.clone(), place, page }.to_string();
        let fetched = match store.get(&key, PAGE_READ_BYTES).await {
            Ok(fetched) => fetched,
            Err(GetError::NotFound { key }) => return Err(PageError::NotFound { key }),
            Err(error) => return Err(PageError::Get(error)),
        };
        let decoded = match Page::decode(&fetched.bytes) {
            Ok(decoded) => decoded,
            Err(source) => return Err(PageError::Damaged { key, source }),
        };
        if decoded.place != place || decoded.cluster_id != cluster_id {
            return Err(PageError::Foreign { key });
        }
        let entries: Arc<[ManifestEntry]> = decoded.entries.into();
        self.keep(page, Arc::clone(&entries));
        Ok(entries)
    }

    fn get(&self, page: PageId) -> Option<Arc<[ManifestEntry]>> {
        let mut kept = self.lock();
        kept.uses += 1;
        let used = kept.uses;
        kept.pages.get_mut(&page).map(|(entries, last)| {
            *last = used;
            Arc::clone(entries)
        })
    }

    /// Those of a manifest's pages that are at hand.
    pub(crate) fn held(&self, lines: &[PageLine]) -> PageEntries {
        let kept = self.lock();
        let held =
            |line: &PageLine| kept.pages.get(&line.page).map(|(entries, _)| (line.page, Arc::clone(entries)));
        lines.iter().filter_map(held).collect()
    }

    /// How many entries a page lists, if it was read before.
    pub(crate) fn count(&self, page: PageId) -> Option<u64> {
        self.lock().counts.get(&page).copied()
    }

    pub(crate) fn keep(&self, page: PageId, entries: Arc<[ManifestEntry]>) {
        let mut kept = self.lock();
        kept.uses += 1;
        let used = kept.uses;
        if kept.counts.len() >= COUNTS_KEPT {
            kept.counts.pop_first();
        }
        kept.counts.insert(page, entries.len() as u64);
        kept.pages.insert(page, (entries, used));
        if kept.pages.len() > PAGES_KEPT {
            let oldest = kept.pages.iter().min_by_key(|(_, (_, used))| *used).map(|(page, _)| *page);
            if let Some(oldest) = oldest {
                kept.pages.remove(&oldest);
            }
        }
    }

    pub(crate) fn forget(&self, page: PageId) {
        let mut kept = self.lock();
        kept.pages.remove(&page);
        kept.counts.remove(&page);
    }
}
