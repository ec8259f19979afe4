//! What several crates must hold together: the map of known cases (`cases.toml`), the real clients (`clients/`), which
//! `cargo xtask verify` runs against the built program, and the targets that hand any bytes to every decoder ([`fuzz`]).

pub mod fuzz;
