//! What several crates must hold together: the map of known cases (`cases.toml`) and the real clients (`clients/`), which
//! `cargo xtask verify` runs against the built program.
