//! Pages of a listing.
//!
//! **Owns** that pages advance: each is asked for by the last key of the one before, so that no token of the store's is
//! trusted; what repeats, goes back or is out of order is an error and never taken for an absence.

use futures::StreamExt;
use object_store::{ObjectMeta, list::PaginatedListOptions, path::Path};
use tidelog_types::Timestamp;

use crate::{
    ListError, ObjectClient,
    client::{Inner, modified},
    http::Exchange,
    limits::{LIST_ANSWER_BYTES_MAX, LIST_PAGE_KEYS_MAX},
    metrics::RequestKind,
    transfer::{Ended, TryError, classify},
};

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key, below the client's prefix.
    pub key: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was written, by the store's clock.
    pub modified: Timestamp,
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage {
    /// Objects in ascending order of their keys.
    pub objects: Vec<Listed>,
    /// The store's clock when it answered, or earlier.
    pub store_time: Timestamp,
    /// Whether more follow; ask again after the last key.
    pub more: bool,
}

impl ObjectClient {
    /// One page of the keys that begin with `prefix` and come after the key `after`, at most `limit` and 1000.
    ///
    /// Every page is asked for by the last key of the one before it, never by a token of the store's.
    ///
    /// # Errors
    /// See [`ListError`]. No absence may be concluded from an error.
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<ListPage, ListError> {
        let inner = &*self.inner;
        let limit = limit.clamp(1, LIST_PAGE_KEYS_MAX);
        let mut tries = inner.tries(prefix, 0);
        loop {
            let exchange = Exchange::new();
            let work = inner.list_once(prefix, after, limit, &exchange);
            let error =
                match inner.attempt(RequestKind::List, 0, LIST_ANSWER_BYTES_MAX, &exchange, work).await {
                    Ok(page) => return inner.checked_page(page, prefix, after),
                    Err(error) => error,
                };
            match tries.after(error).await {
                Ok(()) => {}
                Err(Ended::Gave(failure)) => return Err(ListError::Retriable(failure)),
                Err(Ended::Refused(refusal)) => return Err(ListError::Refused(refusal)),
                Err(Ended::WrongAnswer(failure)) => {
                    let reason = failure.reason;
                    return Err(ListError::Untrustworthy { prefix: prefix.to_owned(), reason });
                }
            }
        }
    }
}

impl Inner {
    async fn list_once(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        exchange: &Exchange,
    ) -> Result<ListPage, TryError> {
        let full = self.full_key(prefix);
        let full_after = after.map(|after| self.full_key(after));
        let (found, more) = match &self.backing.paged {
            Some(paged) => {
                let mut options =
                    PaginatedListOptions { offset: full_after, max_keys: Some(limit), ..Default::default() };
                options.extensions.insert(exchange.clone());
                let page = paged.list_paginated(Some(&full), options).await;
                let page = page.map_err(|error| classify(&error, exchange.status()))?;
                (page.result.objects, page.page_token.is_some())
            }
            None => self.list_stream(&full, full_after.as_deref(), limit).await?,
        };
        let store_time = exchange.date().or_else(|| self.backing.date.last());
        let store_time = store_time.unwrap_or_else(|| self.clock.wall());
        let objects = found.iter().filter_map(|meta| {
            let key = meta.location.as_ref();
            let key = match self.url.prefix() {
                "" => key,
                prefix => key.strip_prefix(prefix)?.strip_prefix('/')?,
            };
            Some(Listed { key: key.to_owned(), bytes: meta.size, modified: modified(meta) })
        });
        Ok(ListPage { objects: objects.collect(), store_time, more })
    }

    /// A page from a store that only lists folders: everything below the prefix's last slash, sorted here.
    async fn list_stream(
        &self,
        full: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<ObjectMeta>, bool), TryError> {
        let folder = full.rsplit_once('/').map(|(folder, _)| folder);
        let folder = folder.map(Path::parse).transpose().map_err(|error| TryError::Refused {
            reason: error.to_string(),
            advice: "prefixes are segments between single slashes",
        })?;
        // Stores in the network list in order and start where they are told; a folder does neither.
        let in_order = self.backing.kind.is_remote();
        let mut stream = match after.map(Path::parse) {
            Some(Ok(after)) if in_order => self.backing.store.list_with_offset(folder.as_ref(), &after),
            _ => self.backing.store.list(folder.as_ref()),
        };
        let mut found = Vec::new();
        while let Some(meta) = stream.next().await {
            let meta = meta.map_err(|error| classify(&error, None))?;
            let key = meta.location.as_ref();
            if key.starts_with(full) && after.is_none_or(|after| key > after) {
                found.push(meta);
            }
            if in_order && found.len() > limit {
                break;
            }
            // The least keys are what counts; the rest need not be held.
            if found.len() >= limit.saturating_mul(4).saturating_add(4) {
                found.sort_by(|one, other| one.location.as_ref().cmp(other.location.as_ref()));
                found.truncate(limit + 1);
            }
        }
        found.sort_by(|one, other| one.location.as_ref().cmp(other.location.as_ref()));
        let more = found.len() > limit;
        found.truncate(limit);
        Ok((found, more))
    }

    /// A page that advances: some stores return the key to start after, and some repeat a page for ever.
    fn checked_page(
        &self,
        mut page: ListPage,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<ListPage, ListError> {
        let untrustworthy = |reason: &str| {
            Err(ListError::Untrustworthy { prefix: prefix.to_owned(), reason: reason.to_owned() })
        };
        if !page.objects.is_sorted_by(|one, other| one.key < other.key) {
            return untrustworthy("its keys are not in order");
        }
        page.objects.retain(|object| after.is_none_or(|after| object.key.as_str() > after));
        if page.objects.iter().any(|object| !object.key.starts_with(prefix)) {
            return untrustworthy("it has keys of another prefix");
        }
        if page.more && page.objects.is_empty() {
            return untrustworthy("a page without a new key says that more follow");
        }
        Ok(page)
    }
}
