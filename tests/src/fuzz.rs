//! Every decoder of bytes from outside, as a plain function of any bytes.
//!
//! **Owns** the targets, what they assert, and what they begin with. A target panics where the decoder does, where it takes
//! more memory than its bound, or where what was read is not written and read again as itself.
//!
//! **Two drivers** share them: `cargo test` runs each a fixed number of times on inputs made of its seeds, the same in every
//! run (`it/fuzz.rs`); `cargo xtask fuzz` lets libFuzzer look for new paths (`src/bin/fuzz.rs`), with coverage counted in
//! this repository's crates. What it finds worth keeping goes to `corpus/`, one file a target.
//!
//! # What is bounded
//!
//! | input | allocated, at most | counted |
//! | --- | --- | --- |
//! | a frame | 40 × its bytes that are not records; records are slices of it | every allocation |
//! | a record of `__consumer_offsets` | 40 × its bytes | every allocation |
//! | batches, cut and checked | nothing | every allocation |
//! | compressed records | input and output (capped), four times, and 18 MiB of a codec's state (not zstd's window, which C allocates) | the peak |
//! | a file or object | [`FILE_ALLOCATED_PER_BYTE_MAX`] × its bytes; a page of a manifest, the most entries that it may have | every allocation |
//! | the controller's state | [`STATE_ALLOCATED_PER_BYTE_MAX`] × its bytes: an ordered map takes a node for eleven where it holds one | every allocation |
//! | what a person writes | [`TEXT_ALLOCATED_PER_BYTE_MAX`] × its bytes, and what is said of it, of every key where all are described | the peak |

pub mod allocation;
mod batches;
mod controller;
mod files;
pub mod mutate;
mod objects;
mod repair;
mod seeds;
mod settings;
mod wire;

/// What reading a file of the log or an object of the bucket may allocate for each of its bytes.
pub const FILE_ALLOCATED_PER_BYTE_MAX: usize = 40;

/// What reading the controller's state may allocate for each of its bytes.
pub const STATE_ALLOCATED_PER_BYTE_MAX: usize = 400;

/// What reading settings may allocate for each of their bytes.
pub const TEXT_ALLOCATED_PER_BYTE_MAX: usize = 1_000;

/// What any of them may allocate beside: a message about what is wrong, a structure of a fixed size.
pub const FIXED_BYTES: usize = 64 * 1024;

/// One decoder, or several that belong together.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Hands it any bytes.
    ///
    /// # Panics
    /// Where something is wrong with the decoder.
    pub run: fn(&[u8]),
    golden: fn() -> Vec<Vec<u8>>,
    /// The longest input that is made for it.
    pub bytes_max: usize,
    /// How many inputs `cargo test` makes for it.
    pub rounds: usize,
}

impl Target {
    /// The target of a name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// What a run begins with.
    ///
    /// # Panics
    /// Where a file of the repository is missing.
    #[must_use]
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let mut all = (self.golden)();
        all.extend(seeds::corpus(self.name));
        all
    }
}

const fn target(
    name: &'static str,
    run: fn(&[u8]),
    golden: fn() -> Vec<Vec<u8>>,
    bytes_max: usize,
    rounds: usize,
) -> Target {
    Target { name, run, golden, bytes_max, rounds }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("request", wire::request, wire::request_seeds, 4096, 240_000),
    target("response", wire::response, wire::response_seeds, 4096, 240_000),
    target("coordinator", wire::coordinator, wire::coordinator_seeds, 2048, 80_000),
    target("batches", batches::batches, batches::batch_seeds, 4096, 32_000),
    target("codecs", batches::codecs, batches::codec_seeds, 4096, 32_000),
    target("fetched", batches::fetched, batches::fetched_seeds, 4096, 40_000),
    target("journal", files::journal, files::journal_seeds, 32_768, 24_000),
    target("segment", files::segment, files::segment_seeds, 4096, 40_000),
    target("log-walk", files::log_walk, files::log_walk_seeds, 4096, 40_000),
    target("entry-files", files::entry_files, files::entry_file_seeds, 2048, 80_000),
    target("checkpoint", files::checkpoint, files::checkpoint_seeds, 2048, 80_000),
    target("leader-epochs", files::leader_epochs, files::leader_epoch_seeds, 512, 80_000),
    target("producers", files::producers, files::producer_seeds, 2048, 80_000),
    target("meta-properties", files::meta_properties, files::meta_seeds, 512, 80_000),
    target("page", objects::page, objects::page_seeds, 2048, 40_000),
    target("manifest", objects::manifest, objects::manifest_seeds, 2048, 80_000),
    target("footer", objects::footer, objects::footer_seeds, 1024, 80_000),
    target("serving-index", objects::serving_index, objects::serving_index_seeds, 2048, 40_000),
    target("cluster-json", objects::cluster_json, objects::cluster_json_seeds, 512, 80_000),
    target("broker-json", objects::broker_json, objects::broker_json_seeds, 512, 80_000),
    target("keys", objects::keys, objects::key_seeds, 512, 80_000),
    target("raft-log", controller::raft_log, Vec::new, 8192, 40_000),
    target("raft-snapshot", controller::raft_snapshot, Vec::new, 8192, 40_000),
    target("identity", controller::identity, Vec::new, 128, 80_000),
    target("cluster-state", controller::cluster_state, Vec::new, 8192, 40_000),
    target("command", controller::command, Vec::new, 2048, 80_000),
    target("config-file", settings::config_file, settings::config_seeds, 2048, 20_000),
    target("environment", settings::environment, settings::environment_seeds, 1024, 20_000),
    target("arguments", settings::arguments, settings::argument_seeds, 512, 4_000),
    target("topic-settings", settings::topic_settings, settings::topic_setting_seeds, 2048, 12_000),
    target("names", settings::names, settings::name_seeds, 512, 80_000),
    target("admin", settings::admin, settings::admin_seeds, 1024, 80_000),
];
