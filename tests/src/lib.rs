//! What several crates must hold together: the map of known cases (`cases.toml`), the real clients (`clients/`), which
//! `cargo xtask verify` runs against the built program, the targets that hand any bytes to every decoder ([`fuzz`]), and the crash
//! model of a whole node ([`model`]).

pub mod fuzz;
pub mod model;
