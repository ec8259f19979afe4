//! Storing a batch with another codec than the producer chose.

use tidelog_types::limits::BATCH_HEADER_BYTES;

use super::{Attributes, DecodedBatch, LENGTH_PREFIX_BYTES, RawBatch, RecordError};
use crate::codec::{self, Codec};

impl RawBatch {
    /// The same records behind `codec`: every byte of them, and every field of the header but codec, length and CRC, stays.
    ///
    /// # Errors
    /// The records do not decompress, or to more than `bytes_max`, or the codec gave up.
    pub fn recompressed(
        &self,
        codec: Codec,
        level: Option<i32>,
        bytes_max: usize,
    ) -> Result<Self, RecordError> {
        let decoded = DecodedBatch::new(self, bytes_max)?;
        let body = codec::compress_level(codec, level, decoded.records())?;
        let length = i32::try_from(body.len() + BATCH_HEADER_BYTES - LENGTH_PREFIX_BYTES)
            .map_err(|_| codec::Error::TooLarge { bytes_max })?;
        let mut batch = Self { header: self.header, body: body.into() };
        let attributes = batch.header.attributes().with_codec(codec);
        batch.header.set_attributes(attributes);
        batch.header.set_length(length);
        batch.header.set_crc(batch.computed_crc());
        Ok(batch)
    }
}

impl Attributes {
    /// The same attributes with another codec.
    const fn with_codec(self, codec: Codec) -> Self {
        Self(self.0 & !Self::CODEC | codec.id() as i16)
    }
}

#[cfg(test)]
mod tests {
    use tidelog_types::{Offset, ProducerEpoch, ProducerId, Timestamp};

    use super::super::{BatchBuilder, BatchLimits, NewHeader, NewRecord, split_batches};
    use super::*;

    #[test]
    fn another_codec_keeps_every_record_and_every_other_field() {
        let value = "twelve bytes".repeat(100);
        let mut builder =
            BatchBuilder::new(Offset::ZERO).codec(Codec::Gzip).producer(ProducerId(7), ProducerEpoch(2), 5);
        for index in 0..20 {
            builder = builder.record(&NewRecord {
                timestamp: Some(Timestamp::from_millis(1_000 + index)),
                key: (index % 2 == 0).then_some(b"key"),
                value: Some(value.as_bytes()),
                headers: &[NewHeader { key: "h", value: None }],
            });
        }
        let sent = builder.build().unwrap();
        for codec in Codec::ALL {
            let stored = sent.recompressed(codec, None, 1 << 20).unwrap();
            assert_eq!(stored.header.attributes().codec(), Ok(codec));
            let again =
                split_batches(stored.to_bytes(), &BatchLimits::client(1 << 20)).next().unwrap().unwrap();
            assert_eq!(again, stored);
            assert_eq!(again.header.producer_id(), Some(ProducerId(7)));
            assert_eq!(again.header.base_sequence(), Some(5));
            assert_eq!(again.header.max_timestamp(), sent.header.max_timestamp());
            let (ours, theirs) =
                (DecodedBatch::new(&again, 1 << 20).unwrap(), DecodedBatch::new(&sent, 1 << 20).unwrap());
            assert_eq!(ours.records(), theirs.records());
        }
        assert!(matches!(
            sent.recompressed(Codec::None, None, 1_000),
            Err(RecordError::Decompress(codec::Error::TooLarge { .. }))
        ));
    }
}
