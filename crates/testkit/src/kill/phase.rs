//! Which operation of the disk belongs to which phase of a node's life, from paths and bytes alone.

use std::path::Path;

use tidelog_core::cluster::Command;
use tidelog_types::TopicPartition;

/// What a node is doing, by the operation that it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Rounds of the journal: their writes and syncs.
    Produce,
    /// Segments: made, written behind, indexed, sealed.
    Roll,
    /// The checkpoint's file, and the journal files that it frees or makes.
    Checkpoint,
    /// Puts to the bucket.
    Upload,
    /// The controller's log where it takes commits and spills, and its snapshots and files.
    Commit,
    /// Local segment files that go.
    Eviction,
    /// Log starts, deleted topics, deletions from the bucket and the fences of the sweep.
    RetentionAndDeletion,
    /// Everything until the node serves.
    StartUp,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Produce,
        Self::Roll,
        Self::Checkpoint,
        Self::Upload,
        Self::Commit,
        Self::Eviction,
        Self::RetentionAndDeletion,
        Self::StartUp,
    ];

    /// Its name in plans and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Roll => "roll",
            Self::Checkpoint => "checkpoint",
            Self::Upload => "upload",
            Self::Commit => "commit",
            Self::Eviction => "eviction",
            Self::RetentionAndDeletion => "retention-and-deletion",
            Self::StartUp => "start-up",
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// What a file is, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    JournalFile,
    CheckpointFile,
    Controller,
    Segment,
    PartitionFile,
    PartitionFolder,
    /// The data directory, or the journal's folder.
    Directory,
}

/// Which place a path is, below a data directory.
pub(super) fn place_of(path: &Path) -> Option<Place> {
    let name = path.file_name()?.to_str()?;
    let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
    if name.parse::<TopicPartition>().is_ok() {
        return Some(Place::PartitionFolder);
    }
    if folder.parse::<TopicPartition>().is_ok() {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let is_segment = matches!(extension, "log" | "index" | "timeindex" | "txnindex");
        return Some(if is_segment { Place::Segment } else { Place::PartitionFile });
    }
    if folder == "controller" || name == "controller" {
        return Some(Place::Controller);
    }
    if name.ends_with(".journal") {
        return Some(Place::JournalFile);
    }
    if name.starts_with("log.checkpoint") {
        return Some(Place::CheckpointFile);
    }
    (name == "journal" || name == "data").then_some(Place::Directory)
}

/// The phase of bytes that go to the controller's log. Several commands may share a round: a commit counts before the rest.
pub(super) fn controller_phase(bytes: &[u8]) -> Option<Phase> {
    let mut phase = None;
    for command in commands(bytes) {
        match command {
            Command::CommitSegments { .. } | Command::SpillManifest { .. } => return Some(Phase::Commit),
            Command::AdvanceLogStart { .. }
            | Command::DeleteTopic { .. }
            | Command::DeletionDone { .. }
            | Command::FenceUploads { .. } => phase = Some(Phase::RetentionAndDeletion),
            _ => {}
        }
    }
    phase
}

/// Bytes of a record's header.
const RECORD_HEADER_BYTES: usize = 40;

/// The border that records begin on.
const RECORD_ALIGNMENT: usize = 16;

/// The commands in a round of the controller's log.
fn commands(bytes: &[u8]) -> Vec<Command> {
    let starts = (0..bytes.len()).step_by(RECORD_ALIGNMENT);
    starts.filter_map(|start| command_at(bytes.get(start..)?)).collect()
}

/// The command of the record that begins here: a record's header, the entry's id, its kind, and the command's length.
fn command_at(bytes: &[u8]) -> Option<Command> {
    let header = bytes.get(..RECORD_HEADER_BYTES)?;
    if header.get(..4)? != b"TREC" || header.get(12) != Some(&1) {
        return None;
    }
    let length = usize::try_from(u32::from_be_bytes(header.get(8..12)?.try_into().ok()?)).ok()?;
    let mut payload = bytes.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES.checked_add(length)?)?;
    let (has_id, rest) = payload.split_first()?;
    payload = rest;
    if *has_id == 1 {
        for _ in 0..3 {
            payload = number(payload)?.1;
        }
    }
    let (kind, rest) = payload.split_first()?;
    if *kind != 1 {
        return None;
    }
    let (length, rest) = number(rest)?;
    Command::decode(rest.get(..usize::try_from(length).ok()?)?).ok()
}

/// A number of seven bits a byte, the low ones first.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?.checked_add(1)?;
    let (digits, rest) = bytes.split_at_checked(length)?;
    let value = digits
        .iter()
        .rev()
        .try_fold(0_u64, |value, digit| value.checked_mul(128).map(|value| value | u64::from(digit & 0x7f)));
    Some((value?, rest))
}

#[cfg(test)]
mod tests {
    use tidelog_types::{LeaderEpoch, Offset, PartitionIndex, TopicId};

    use super::*;

    fn round(commands: &[Command]) -> Vec<u8> {
        let mut out = Vec::new();
        for command in commands {
            let start = out.len();
            out.extend_from_slice(b"TREC");
            out.extend_from_slice(&[0; RECORD_HEADER_BYTES - 4]);
            // An entry's id: term 1, node 1, index 300.
            out.extend_from_slice(&[1, 1, 1, 0xac, 0x02, 1]);
            let encoded = command.encode();
            assert!(encoded.len() < 128, "its length is one byte here");
            out.push(u8::try_from(encoded.len()).unwrap());
            out.extend_from_slice(&encoded);
            let payload = u32::try_from(out.len() - start - RECORD_HEADER_BYTES).unwrap();
            out[start + 8..start + 12].copy_from_slice(&payload.to_be_bytes());
            out[start + 12] = 1;
            out.resize(out.len().next_multiple_of(RECORD_ALIGNMENT), 0);
        }
        out
    }

    #[test]
    fn the_controllers_commands_are_told_from_its_bytes() {
        let tick = Command::Tick { elapsed_ms: 5 };
        let commit = Command::CommitSegments { commits: Vec::new() };
        let place = TopicPartition { topic_id: TopicId::from_bytes([7; 16]), partition: PartitionIndex(3) };
        let start = Command::AdvanceLogStart {
            place,
            leader_epoch: LeaderEpoch::from_wire(4).unwrap(),
            to: Offset::new(500).unwrap(),
        };
        assert_eq!(commands(&round(&[tick.clone(), start.clone()])), [tick.clone(), start.clone()]);
        assert_eq!(controller_phase(&round(std::slice::from_ref(&tick))), None);
        assert_eq!(controller_phase(&round(&[tick, start.clone()])), Some(Phase::RetentionAndDeletion));
        assert_eq!(controller_phase(&round(&[start, commit])), Some(Phase::Commit));
        assert_eq!(controller_phase(&[0xff; 200]), None);
        let cut = round(&[Command::CommitSegments { commits: Vec::new() }]);
        assert_eq!(controller_phase(&cut[..44]), None);
    }

    #[test]
    fn paths_have_their_places() {
        let partition = format!(
            "/d/data/{}",
            TopicPartition { topic_id: TopicId::from_bytes([7; 16]), partition: PartitionIndex(3) }
        );
        for (path, place) in [
            ("/d/data/journal/00000000000000000001.journal".to_owned(), Some(Place::JournalFile)),
            ("/d/data/journal".to_owned(), Some(Place::Directory)),
            ("/d/data/log.checkpoint.new".to_owned(), Some(Place::CheckpointFile)),
            ("/d/data/controller/log-5".to_owned(), Some(Place::Controller)),
            (format!("{partition}/00000000000000000001.log"), Some(Place::Segment)),
            (format!("{partition}/00000000000000000001.index"), Some(Place::Segment)),
            (format!("{partition}/00000000000000000001.snapshot.new"), Some(Place::PartitionFile)),
            (partition, Some(Place::PartitionFolder)),
            ("/d/data/meta.properties".to_owned(), None),
        ] {
            assert_eq!(place_of(Path::new(&path)), place, "{path}");
        }
    }
}
