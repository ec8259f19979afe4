//! What the bucket holds, compared with what the manifest says.

use tidelog_core::cluster::ObjectName;
use tidelog_format::{
    batch::{BatchLimits, DecodedBatch, split_batches},
    keys::ObjectKey,
    manifest::{ManifestEntry, ManifestFile, Page},
    object::{Footer, section_matches},
};
use tidelog_replica::PartitionHandle;
use tidelog_types::TopicPartition;

use crate::node::Node;

impl Node {
    /// Every entry that the manifest names, pages included, from the bucket itself.
    pub(crate) async fn entries(&self, partition: &PartitionHandle) -> Vec<ManifestEntry> {
        let (place, topic) = (partition.place(), partition.topic().clone());
        let image = self.image(place);
        let mut entries = Vec::new();
        for line in &image.manifest.lines {
            let key = ObjectKey::Page { topic: topic.clone(), place, page: line.page }.to_string();
            let page = Page::decode(&self.client.get(&key, 1 << 20).await.unwrap().bytes).unwrap();
            assert_eq!(page.line(line.page), *line);
            entries.extend(page.entries.into_iter().filter(|entry| entry.range.end > image.log_start));
        }
        entries.extend(image.manifest.entries.iter().copied());
        assert!(entries.windows(2).all(|pair| pair[0].range.end == pair[1].range.base), "T1");
        entries
    }

    /// Reads every object that the manifest names; answers offset and value of every record in the bucket. Checks that each
    /// object decodes to exactly its entry (B86), and that it is the one of its footer.
    pub(crate) async fn records(&self, partition: &PartitionHandle) -> Vec<(u64, String)> {
        let mut records = Vec::new();
        for entry in self.entries(partition).await {
            let key = segment_key(partition, &entry);
            let bytes = self.client.get(&key, 1 << 30).await.unwrap().bytes;
            assert_eq!(bytes.len() as u64, entry.object_bytes);
            let footer = Footer::decode(&bytes, entry.object_bytes).unwrap();
            assert_eq!(footer.manifest_entry(), entry);
            assert_eq!(footer.identity.place, partition.place(), "T10");
            assert_eq!(footer.identity.cluster_id, self.controller.cluster_id(), "T10");
            let serving = usize::try_from(entry.index.position).unwrap()..;
            assert!(section_matches(
                &entry.index,
                &bytes[serving][..usize::try_from(entry.index.bytes).unwrap()]
            ));
            let batches = bytes.slice(..usize::try_from(entry.bytes).unwrap());
            let mut end = None;
            for batch in split_batches(batches, &BatchLimits::log()) {
                let batch = batch.unwrap();
                end = batch.header.end_offset();
                for record in DecodedBatch::new(&batch, 1 << 20).unwrap().iter() {
                    let record = record.unwrap();
                    if entry.range.contains(record.offset) {
                        let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
                        records.push((record.offset.get(), value));
                    }
                }
            }
            assert_eq!(end, Some(entry.range.end));
        }
        records
    }

    /// The published manifests in the bucket, newest first.
    pub(crate) async fn manifests(&self, part: &str) -> Vec<ManifestFile> {
        let mut files = Vec::new();
        for key in self.keys(part).await.into_keys().filter(|key| key.ends_with(".manifest")) {
            files.push(ManifestFile::decode(&self.client.get(&key, 1 << 20).await.unwrap().bytes).unwrap());
        }
        files
    }
}

pub(crate) fn segment_key(partition: &PartitionHandle, entry: &ManifestEntry) -> String {
    key(partition.topic().as_str(), partition.place(), &ObjectName::Segment { object: entry.object })
}

pub(crate) fn key(topic: &str, place: TopicPartition, object: &ObjectName) -> String {
    let topic = tidelog_types::TopicName::new(topic).unwrap();
    match *object {
        ObjectName::Segment { object } => ObjectKey::Segment { topic, place, object },
        ObjectName::Page { page } => ObjectKey::Page { topic, place, page },
        ObjectName::Manifest { version } => ObjectKey::Manifest { topic, place, version },
    }
    .to_string()
}
