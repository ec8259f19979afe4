//! The small files beside a segment's batches.

use std::{io, sync::Arc};

use bytes::Bytes;
use tidelog_format::epochs::EpochChain;
use tidelog_types::{Offset, TopicPartition};

use super::{Interval, Segment};
use crate::engine::Engine;

pub(crate) async fn save(
    _engine: &Engine,
    _segment: &Segment,
    _intervals: &[Interval],
    _saved: usize,
) -> io::Result<()> {
    Ok(())
}
pub(crate) async fn replace(_engine: &Engine, _segment: &Segment, _intervals: &[Interval]) -> io::Result<()> {
    Ok(())
}
pub(crate) async fn load(_engine: &Engine, _segment: &Segment) -> io::Result<Option<Vec<Interval>>> {
    Ok(None)
}
pub(crate) async fn load_or_rebuild(
    _engine: &Engine,
    _segment: &Arc<Segment>,
) -> io::Result<Option<Vec<Interval>>> {
    Ok(None)
}
pub(crate) fn encode_epochs(_place: TopicPartition, epochs: &EpochChain) -> Bytes {
    Bytes::from(epochs.encode())
}
pub(crate) fn encode_snapshot(_place: TopicPartition, _offset: Offset, content: Bytes) -> Bytes {
    content
}
