//! The controller's files as plain functions of their bytes, for tests that hand any bytes to the decoders: each answers the
//! same content written anew, or nothing where the bytes are refused.

use tidelog_core::cluster::ClusterState;

use crate::{
    codec::{decode_snapshot, encode_snapshot, seal, unseal},
    identity::Identity,
    log_store, snapshot_store,
};

/// A file of the Raft log.
#[must_use]
pub fn log_file(bytes: &[u8]) -> Option<Vec<u8>> {
    log_store::rewritten(bytes)
}

/// A snapshot, the state in it included.
#[must_use]
pub fn snapshot_file(bytes: &[u8]) -> Option<Vec<u8>> {
    let (magic, version) = (snapshot_store::MAGIC, snapshot_store::VERSION);
    let (meta, state) = decode_snapshot(unseal(magic, version, bytes).ok()?).ok()?;
    let state = ClusterState::decode_snapshot(state).ok()?;
    Some(seal(magic, version, &encode_snapshot(&meta, &state.encode_snapshot())))
}

/// The file that says whose directory it is.
#[must_use]
pub fn identity_file(bytes: &[u8]) -> Option<Vec<u8>> {
    Identity::decode(bytes).ok().map(Identity::encode)
}
