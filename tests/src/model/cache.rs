//! The cache of chunks, which outlives a process as the one on disk does.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use tidelog_object::{CacheUsage, ChunkCache, ChunkKey, MapCache};
use tidelog_runtime::Registry;
use tidelog_types::{BrokerIncarnation, ByteSize, TopicId};

/// See the module. Clones are the same cache.
#[derive(Clone)]
pub(crate) struct LastingCache {
    inner: Arc<MapCache>,
    /// A mistake: neither topic nor incarnation is part of the key.
    forgets_topics: bool,
}

impl LastingCache {
    pub(crate) fn new(forgets_topics: bool) -> Self {
        Self { inner: Arc::new(MapCache::new(ByteSize::mib(1), &Registry::new())), forgets_topics }
    }

    fn key(&self, mut key: ChunkKey) -> ChunkKey {
        if self.forgets_topics {
            key.topic_id = TopicId::from_bytes([0; 16]);
            key.upload.incarnation = BrokerIncarnation(0);
        }
        key
    }
}

impl ChunkCache for LastingCache {
    fn get<'a>(&'a self, key: &'a ChunkKey) -> BoxFuture<'a, Option<Bytes>> {
        let key = self.key(*key);
        Box::pin(async move { self.inner.get(&key).await })
    }

    fn insert(&self, key: ChunkKey, chunk: Bytes) {
        self.inner.insert(self.key(key), chunk);
    }

    fn clear(&self) -> BoxFuture<'_, ()> {
        self.inner.clear()
    }

    fn usage(&self) -> CacheUsage {
        self.inner.usage()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
