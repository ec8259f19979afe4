//! The topics that a member of a consumer group subscribes to, as far as its metadata tells.
//!
//! ```text
//!  version i16 | topics: count i32, each: length i16, UTF-8 | user data: length i32 or -1, bytes | what later versions add
//! ```
//!
//! The broker hands this metadata on without a look, but for this one thing: offsets of a topic somebody subscribes to do
//! not expire. Every version begins as version 0, so that the version need not be known.

use std::{collections::BTreeSet, sync::Arc};

/// Adds the topics of one member's metadata to `topics`; `None` when it is not what a consumer writes.
pub(super) fn add_topics(metadata: &[u8], topics: &mut BTreeSet<Arc<str>>) -> Option<()> {
    let mut rest = metadata;
    if i16::from_be_bytes(take(&mut rest)?) < 0 {
        return None;
    }
    let count = usize::try_from(i32::from_be_bytes(take(&mut rest)?)).ok()?;
    for _ in 0..count {
        let length = usize::try_from(i16::from_be_bytes(take(&mut rest)?)).ok()?;
        let (name, after) = rest.split_at_checked(length)?;
        let name = std::str::from_utf8(name).ok()?;
        if !topics.contains(name) {
            topics.insert(Arc::from(name));
        }
        rest = after;
    }
    match i32::from_be_bytes(take(&mut rest)?) {
        -1 => Some(()),
        length => (usize::try_from(length).ok()? <= rest.len()).then_some(()),
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}
