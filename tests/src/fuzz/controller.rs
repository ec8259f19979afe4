//! The controllers' files and what stands in them.

use tidelog_controller::outside;
use tidelog_core::cluster::{ClusterState, Command};

use super::{FIXED_BYTES, STATE_ALLOCATED_PER_BYTE_MAX, allocation::measured, repair};

/// Reads a file as it is and repaired. What is read has a form, and that form is read as itself.
fn file(input: &[u8], repair: fn(&mut [u8]), rewrite: fn(&[u8]) -> Option<Vec<u8>>) {
    let mut repaired = input.to_vec();
    repair(&mut repaired);
    for bytes in [input, &repaired] {
        let (written, spent) = measured(|| rewrite(bytes));
        let allowed = STATE_ALLOCATED_PER_BYTE_MAX * bytes.len() + FIXED_BYTES;
        assert!(spent.total <= allowed, "{spent:?} for {} bytes", bytes.len());
        let Some(written) = written else { continue };
        assert!(rewrite(&written).as_ref() == Some(&written), "what was written is read as itself");
    }
}

pub(super) fn raft_log(input: &[u8]) {
    file(input, repair::raft_log, outside::log_file);
}

pub(super) fn raft_snapshot(input: &[u8]) {
    file(input, repair::snapshot, outside::snapshot_file);
}

pub(super) fn identity(input: &[u8]) {
    file(input, repair::sealed, outside::identity_file);
}

pub(super) fn cluster_state(input: &[u8]) {
    file(input, repair::sealed, |bytes| {
        ClusterState::decode_snapshot(bytes).ok().map(|state| state.encode_snapshot())
    });
}

pub(super) fn command(input: &[u8]) {
    file(input, |_| (), |bytes| Command::decode(bytes).ok().map(|command| command.encode()));
}
