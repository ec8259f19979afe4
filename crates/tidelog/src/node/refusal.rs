//! What a person should do where a start is refused.
//!
//! Every refusal says which thing is wrong, why, and what helps; the parts below know the first two.

use std::{error::Error, io, path::Path};

use anyhow::anyhow;
use tidelog_broker::BindError;
use tidelog_controller::{StartError, StoreError};
use tidelog_log::OpenError;
use tidelog_runtime::is_disk_full;

/// An error with its causes in one line, each once, and then what to do.
fn refused(error: &(dyn Error + 'static), advice: &str) -> anyhow::Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    anyhow!("{text}: {advice}")
}

/// The data directory cannot be used.
pub(super) fn directory(directory: &Path, error: &OpenError) -> anyhow::Error {
    let advice = match error {
        OpenError::Locked { .. } => {
            "stop that process, or give this one a directory of its own with --data-dir".to_owned()
        }
        OpenError::Newer { .. } => {
            format!(
                "run the version that wrote {}, or a newer one; this version changes nothing in it",
                directory.display()
            )
        }
        OpenError::Foreign(_) | OpenError::OtherCluster { .. } => {
            "nothing in it was changed: give this node a directory of its own with --data-dir".to_owned()
        }
        OpenError::Damaged { .. } => {
            "restore the file from a copy, or start with an empty directory: what is in the bucket stays there"
                .to_owned()
        }
        OpenError::Io { source, .. } => refused_by_disk(source).to_owned(),
    };
    refused(error, &advice)
}

/// What helps where the system refused a file or folder of the data directory.
fn refused_by_disk(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "let this user read and write there, or name another folder with --data-dir"
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "it is no folder: name one with --data-dir"
        }
        _ if is_disk_full(source) => {
            "free space on its file system, of which a node needs some 64 MiB for itself, or name a folder elsewhere with \
             --data-dir"
        }
        _ => "name a folder that this user can write with --data-dir",
    }
}

/// A Kafka listener cannot be bound.
pub(super) fn listener(error: &BindError) -> anyhow::Error {
    let advice = match error {
        BindError::Config(_) => "set an address by which clients reach this node with --advertise",
        BindError::InUse { .. } => {
            "stop that process, or listen elsewhere with --listen (`listen` of the file's listener)"
        }
        BindError::Io { .. } => "listen on an address of this machine with --listen",
    };
    refused(error, advice)
}

/// The admin listener cannot be bound.
pub(super) fn admin_listener(address: &str, error: &io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::AddrInUse {
        anyhow!(
            "admin listener: {address} is in use by another process: stop that process, or listen elsewhere with \
             --admin-listen"
        )
    } else {
        anyhow!(
            "admin listener: {address} cannot be bound: {error}: listen on an address of this machine with --admin-listen"
        )
    }
}

/// The controller does not start.
pub(super) fn controller(data_dir: &Path, error: &StartError) -> anyhow::Error {
    let advice = match error {
        StartError::AnotherCluster { .. } | StartError::AnotherNode { .. } => format!(
            "{} holds parts of two nodes: give each node a directory of its own with --data-dir, and the node_id that it \
             was made with",
            data_dir.display()
        ),
        StartError::StateMissing { .. } => {
            "or start with an empty directory and another prefix of the bucket".to_owned()
        }
        StartError::Store(StoreError::Io { source, .. }) => refused_by_disk(source).to_owned(),
        StartError::Store(StoreError::Damaged { .. }) => format!(
            "restore {} from a copy; nothing in the bucket was changed",
            data_dir.join("controller").display()
        ),
        StartError::Timing(_) | StartError::Raft(_) => {
            "this is a defect of the program: report it".to_owned()
        }
    };
    refused(error, &advice)
}

/// There are no keys for a store that nothing of this cluster is in yet.
pub(super) fn no_credentials(store: &str, reason: &str) -> anyhow::Error {
    anyhow!(
        "there are no credentials for {store}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the \
         machine a role ({reason})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io_error(kind: io::ErrorKind) -> OpenError {
        OpenError::Io { operation: "create", path: "/data".to_owned(), source: kind.into() }
    }

    #[test]
    fn a_folder_that_is_not_allowed_is_told_once_and_with_what_helps() {
        let told = directory(Path::new("/data"), &io_error(io::ErrorKind::PermissionDenied)).to_string();
        assert_eq!(
            told,
            "create /data: permission denied: let this user read and write there, or name another folder with --data-dir"
        );
        let told = directory(Path::new("/data"), &io_error(io::ErrorKind::StorageFull)).to_string();
        assert!(told.contains("free space on its file system"), "{told}");
    }

    #[test]
    fn a_newer_directory_is_not_called_damaged() {
        let newer = OpenError::Newer { path: "/data/meta.properties".to_owned(), found: 2, known: 1 };
        assert_eq!(
            directory(Path::new("/data"), &newer).to_string(),
            "/data/meta.properties has format version 2, this version reads 1: run the version that wrote /data, or a newer \
             one; this version changes nothing in it"
        );
    }
}
