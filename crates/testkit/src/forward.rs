//! What stores and disks of testkit have in common: what a wrapper hands on unchanged, and what goes to methods of its own.

use std::{future::Future, pin::Pin};

use object_store::Result;

/// What an asynchronous method of [`object_store::ObjectStore`] returns.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Methods of [`object_store::ObjectStore`] that go to `self.$inner` as they are, for the body of its implementation. Those that
/// no wrapper here changes; with `and reads and lists` those too.
macro_rules! forward_to {
    ($($inner:ident).+) => {
        fn put_multipart_opts<'this, 'path, 'call>(
            &'this self,
            location: &'path object_store::path::Path,
            options: object_store::PutMultipartOptions,
        ) -> crate::forward::Answer<'call, Box<dyn object_store::MultipartUpload>>
        where
            'this: 'call,
            'path: 'call,
            Self: 'call,
        {
            self.$($inner).+.put_multipart_opts(location, options)
        }

        fn get_ranges<'this, 'path, 'ranges, 'call>(
            &'this self,
            location: &'path object_store::path::Path,
            ranges: &'ranges [std::ops::Range<u64>],
        ) -> crate::forward::Answer<'call, Vec<bytes::Bytes>>
        where
            'this: 'call,
            'path: 'call,
            'ranges: 'call,
            Self: 'call,
        {
            self.$($inner).+.get_ranges(location, ranges)
        }

        fn list_with_delimiter<'this, 'prefix, 'call>(
            &'this self,
            prefix: Option<&'prefix object_store::path::Path>,
        ) -> crate::forward::Answer<'call, object_store::ListResult>
        where
            'this: 'call,
            'prefix: 'call,
            Self: 'call,
        {
            self.$($inner).+.list_with_delimiter(prefix)
        }

        fn copy_opts<'this, 'from, 'to, 'call>(
            &'this self,
            from: &'from object_store::path::Path,
            to: &'to object_store::path::Path,
            options: object_store::CopyOptions,
        ) -> crate::forward::Answer<'call, ()>
        where
            'this: 'call,
            'from: 'call,
            'to: 'call,
            Self: 'call,
        {
            self.$($inner).+.copy_opts(from, to, options)
        }
    };
    ($($inner:ident).+, and reads and lists) => {
        crate::forward::forward_to!($($inner).+);

        fn get_opts<'this, 'path, 'call>(
            &'this self,
            location: &'path object_store::path::Path,
            options: object_store::GetOptions,
        ) -> crate::forward::Answer<'call, object_store::GetResult>
        where
            'this: 'call,
            'path: 'call,
            Self: 'call,
        {
            self.$($inner).+.get_opts(location, options)
        }

        fn list(
            &self,
            prefix: Option<&object_store::path::Path>,
        ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
            self.$($inner).+.list(prefix)
        }

        fn list_with_offset(
            &self,
            prefix: Option<&object_store::path::Path>,
            offset: &object_store::path::Path,
        ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
            self.$($inner).+.list_with_offset(prefix, offset)
        }
    };
}

/// Puts go to the type's own `put`.
macro_rules! own_puts {
    () => {
        fn put_opts<'this, 'path, 'call>(
            &'this self,
            location: &'path object_store::path::Path,
            payload: object_store::PutPayload,
            options: object_store::PutOptions,
        ) -> crate::forward::Answer<'call, object_store::PutResult>
        where
            'this: 'call,
            'path: 'call,
            Self: 'call,
        {
            Box::pin(self.put(location, payload, options))
        }
    };
}

/// Deletions go to the type's own `delete_one`, one after another.
macro_rules! own_deletions {
    () => {
        fn delete_stream(
            &self,
            locations: futures::stream::BoxStream<'static, object_store::Result<object_store::path::Path>>,
        ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::path::Path>> {
            let store = self.clone();
            let deleted = futures::StreamExt::then(locations, move |location| {
                let store = store.clone();
                async move { store.delete_one(location?).await }
            });
            futures::StreamExt::boxed(deleted)
        }
    };
}

/// Reads go to the type's own `get`, listings to its `list_from`.
macro_rules! own_reads {
    () => {
        fn get_opts<'this, 'path, 'call>(
            &'this self,
            location: &'path object_store::path::Path,
            options: object_store::GetOptions,
        ) -> crate::forward::Answer<'call, object_store::GetResult>
        where
            'this: 'call,
            'path: 'call,
            Self: 'call,
        {
            Box::pin(self.get(location, options))
        }

        fn list(
            &self,
            prefix: Option<&object_store::path::Path>,
        ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
            self.list_from(prefix, None)
        }

        fn list_with_offset(
            &self,
            prefix: Option<&object_store::path::Path>,
            offset: &object_store::path::Path,
        ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
            self.list_from(prefix, Some(offset))
        }
    };
}

pub(crate) use {forward_to, own_deletions, own_puts, own_reads};

/// Methods of [`tidelog_runtime::Disk`] and [`tidelog_runtime::DiskFile`] that go to `self.$inner` as they are, for the body of an
/// implementation: those that are named.
#[macro_export]
macro_rules! forward_disk {
    ($inner:ident: $($method:ident),+) => {
        $( $crate::forward_disk!(@ $inner $method); )+
    };
    (@ $inner:ident create_dir_all) => {
        fn create_dir_all(&self, path: &::std::path::Path) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.create_dir_all(path)
        }
    };
    (@ $inner:ident sync_dir) => {
        fn sync_dir(&self, path: &::std::path::Path) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.sync_dir(path)
        }
    };
    (@ $inner:ident rename) => {
        fn rename(&self, from: &::std::path::Path, to: &::std::path::Path) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.rename(from, to)
        }
    };
    (@ $inner:ident remove_file) => {
        fn remove_file(&self, path: &::std::path::Path) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.remove_file(path)
        }
    };
    (@ $inner:ident remove_dir_all) => {
        fn remove_dir_all(&self, path: &::std::path::Path) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.remove_dir_all(path)
        }
    };
    (@ $inner:ident list_dir) => {
        fn list_dir(&self, path: &::std::path::Path) -> ::tidelog_runtime::IoFuture<Vec<::tidelog_runtime::DirEntry>> {
            self.$inner.list_dir(path)
        }
    };
    (@ $inner:ident space) => {
        fn space(&self, path: &::std::path::Path) -> ::tidelog_runtime::IoFuture<::tidelog_runtime::DiskSpace> {
            self.$inner.space(path)
        }
    };
    (@ $inner:ident read_at) => {
        fn read_at(&self, position: u64, length: usize) -> ::tidelog_runtime::IoFuture<::bytes::Bytes> {
            self.$inner.read_at(position, length)
        }
    };
    (@ $inner:ident write_at) => {
        fn write_at(&self, position: u64, chunks: Vec<::bytes::Bytes>) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.write_at(position, chunks)
        }
    };
    (@ $inner:ident sync_data) => {
        fn sync_data(&self) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.sync_data()
        }
    };
    (@ $inner:ident allocate) => {
        fn allocate(&self, length: u64) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.allocate(length)
        }
    };
    (@ $inner:ident set_len) => {
        fn set_len(&self, length: u64) -> ::tidelog_runtime::IoFuture<()> {
            self.$inner.set_len(length)
        }
    };
    (@ $inner:ident len) => {
        fn len(&self) -> ::tidelog_runtime::IoFuture<u64> {
            self.$inner.len()
        }
    };
    (@ $inner:ident push_out) => {
        fn push_out(&self, position: u64, length: u64) {
            self.$inner.push_out(position, length);
        }
    };
}
