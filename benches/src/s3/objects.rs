//! The objects, and the parts of uploads that are not complete.

use std::collections::BTreeMap;

use bytes::Bytes;

/// An object as it lies in memory.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) bytes: Bytes,
    pub(super) etag: String,
    pub(super) modified_seconds: u64,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) lifecycle: Option<Bytes>,
}

#[derive(Debug)]
struct Upload {
    place: (String, String),
    parts: BTreeMap<u32, Bytes>,
}

/// All buckets.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) buckets: BTreeMap<String, Bucket>,
    uploads: BTreeMap<String, Upload>,
    stored: u64,
}

/// Why a conditional put was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    NoBucket,
    NoKey,
    Precondition,
}

impl Objects {
    pub(super) fn with_buckets(names: &[String]) -> Self {
        let buckets = names.iter().map(|name| (name.clone(), Bucket::default())).collect();
        Self { buckets, ..Self::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.buckets.values().map(|bucket| bucket.objects.len()).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.buckets
            .values()
            .flat_map(|bucket| bucket.objects.values())
            .map(|object| object.bytes.len() as u64)
            .sum()
    }

    pub(super) fn find(&self, bucket: &str, key: &str) -> Option<Object> {
        self.buckets.get(bucket)?.objects.get(key).cloned()
    }

    /// Whether a put with these conditions may go on. Checked and carried out under one lock: of racing creators one wins.
    pub(super) fn check(
        &self,
        bucket: &str,
        key: &str,
        create: bool,
        replace: Option<&str>,
    ) -> Result<(), Refusal> {
        let bucket = self.buckets.get(bucket).ok_or(Refusal::NoBucket)?;
        let current = bucket.objects.get(key).map(|object| object.etag.as_str());
        match (create, replace, current) {
            (true, _, Some(_)) => Err(Refusal::Precondition),
            (_, Some(_), None) => Err(Refusal::NoKey),
            (_, Some(asked), Some(current)) if asked != current => Err(Refusal::Precondition),
            _ => Ok(()),
        }
    }

    pub(super) fn put(&mut self, bucket: &str, key: &str, bytes: Bytes, modified_seconds: u64) -> String {
        self.stored += 1;
        let etag = format!("\"{:032x}\"", self.stored);
        let object = Object { bytes, etag: etag.clone(), modified_seconds };
        self.buckets.entry(bucket.to_owned()).or_default().objects.insert(key.to_owned(), object);
        etag
    }

    pub(super) fn remove(&mut self, bucket: &str, key: &str) {
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.objects.remove(key);
        }
    }

    pub(super) fn begin_upload(&mut self, bucket: &str, key: &str) -> String {
        self.stored += 1;
        let id = format!("upload-{}", self.stored);
        let upload = Upload { place: (bucket.to_owned(), key.to_owned()), parts: BTreeMap::new() };
        self.uploads.insert(id.clone(), upload);
        id
    }

    /// Keeps a part and answers its ETag; `None` where there is no such upload.
    pub(super) fn put_part(&mut self, id: &str, number: u32, bytes: Bytes) -> Option<String> {
        self.uploads.get_mut(id)?.parts.insert(number, bytes);
        Some(format!("\"part-{number}\""))
    }

    /// Joins the named parts, in order; `None` where the upload or a part is missing.
    pub(super) fn complete_upload(
        &mut self,
        id: &str,
        numbers: &[u32],
        modified_seconds: u64,
    ) -> Option<String> {
        let upload = self.uploads.get(id)?;
        let parts: Option<Vec<&Bytes>> = numbers.iter().map(|number| upload.parts.get(number)).collect();
        let whole = Bytes::from(parts?.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>());
        let (bucket, key) = upload.place.clone();
        self.uploads.remove(id);
        Some(self.put(&bucket, &key, whole, modified_seconds))
    }

    pub(super) fn abort_upload(&mut self, id: &str) -> bool {
        self.uploads.remove(id).is_some()
    }
}
