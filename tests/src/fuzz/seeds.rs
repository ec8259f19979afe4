//! What a run begins with: golden files, and the inputs that earlier runs found worth keeping (`tests/corpus`).

use std::{env, fs, path::PathBuf};

use tidelog_wire::ApiKey;

/// A file of the repository.
pub(super) fn read(path: &str) -> Vec<u8> {
    // Whose crate runs this is told by cargo: a target directory that several clones share may hold another one's build.
    let own =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = own.ancestors().find(|folder| folder.join("tests/corpus").is_dir());
    let root = root.expect("tests lies in the repository");
    fs::read(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A golden file of the formats.
pub(super) fn golden(name: &str) -> Vec<u8> {
    read(&format!("crates/format/tests/golden/{name}"))
}

/// The bytes of hexadecimal digits.
pub(super) fn bytes_of(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("hexadecimal digits are ASCII");
            u8::from_str_radix(pair, 16).unwrap_or_else(|error| panic!("`{pair}`: {error}"))
        })
        .collect()
}

/// The kept inputs of a target: one a line as hexadecimal digits; a line that begins with `#` says what follows it.
pub(super) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let text = String::from_utf8(read(&format!("tests/corpus/{target}.txt"))).expect("a corpus is text");
    text.lines().filter(|line| !line.starts_with('#')).map(bytes_of).collect()
}

/// The lines `API VERSION ROLE HEX` of a role.
pub(super) fn messages(text: &str, role: &str) -> impl Iterator<Item = (ApiKey, i16, Vec<u8>)> {
    text.lines().filter_map(move |line| {
        let [name, version, found, hex] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let api = *ApiKey::ALL.iter().find(|api| api.name() == name)?;
        (found == role).then(|| Some((api, version.parse().ok()?, bytes_of(hex)))).flatten()
    })
}
