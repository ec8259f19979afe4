//! Makes checksums, lengths and places right again after a mutation, so that what lies behind them is reached.
//!
//! Written after `docs/formats`, not after the decoders. Bytes that are too short for a structure stay as they are.

use tidelog_format::crc::{Crc32c, crc32c};

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + field.len()) {
        place.copy_from_slice(field);
    }
}

fn long(number: usize) -> [u8; 8] {
    u64::try_from(number).unwrap_or(u64::MAX).to_be_bytes()
}

/// A small file of the log or the bucket: magic 4, version, reserved, length u64, CRC, payload.
pub(super) fn envelope(bytes: &mut [u8]) {
    let Some(payload) = bytes.len().checked_sub(20) else { return };
    put(bytes, 8, &long(payload));
    let crc = Crc32c::new().with(&bytes[..16]).with(&bytes[20..]).finish();
    put(bytes, 16, &crc.to_be_bytes());
}

/// A small file of the controller: magic 8, version, reserved, length u64, payload, CRC.
pub(super) fn sealed(bytes: &mut [u8]) {
    let Some(payload) = bytes.len().checked_sub(24) else { return };
    put(bytes, 12, &long(payload));
    let end = bytes.len() - 4;
    let crc = crc32c(&bytes[..end]);
    put(bytes, end, &crc.to_be_bytes());
}

/// A snapshot of the controller: a sealed state at the end of a sealed file.
pub(super) fn snapshot(bytes: &mut [u8]) {
    let end = bytes.len().saturating_sub(4);
    if let Some(at) = bytes.windows(8).position(|window| window == b"TIDECLST")
        && at < end
    {
        sealed(&mut bytes[at..end]);
    }
    sealed(bytes);
}

/// Record batches, one behind the other: each gets its checksum, the last one the length of what is left.
pub(super) fn batches(bytes: &mut [u8]) {
    let mut at = 0;
    while bytes.len() - at >= 61 {
        let left = bytes.len() - at;
        let stated = i32::from_be_bytes([bytes[at + 8], bytes[at + 9], bytes[at + 10], bytes[at + 11]]);
        let stated = usize::try_from(stated).unwrap_or(0).saturating_add(12);
        let size = if (61..=left).contains(&stated) { stated } else { left };
        put(bytes, at + 8, &i32::try_from(size - 12).unwrap_or(i32::MAX).to_be_bytes());
        let crc = crc32c(&bytes[at + 21..at + size]);
        put(bytes, at + 17, &crc.to_be_bytes());
        at += size;
    }
}

/// A file of fixed entries beside a segment, whose header is `header`; `entry` is the length of an entry with its checksum.
pub(super) fn entries(bytes: &mut [u8], header: &[u8], entry: usize) {
    put(bytes, 0, header);
    let header_crc = crc32c(&header[..60]).to_be_bytes();
    let (mut at, mut ordinal) = (64, 0_u64);
    while bytes.len().saturating_sub(at) >= entry {
        let fields = at..at + entry - 4;
        let crc = Crc32c::new()
            .with(&header_crc)
            .with(&ordinal.to_be_bytes())
            .with(&bytes[fields.clone()])
            .finish();
        put(bytes, fields.end, &crc.to_be_bytes());
        at += entry;
        ordinal += 1;
    }
    if bytes.get(at..).is_some_and(|rest| rest.len() == 16) {
        put(bytes, at, b"TLSE");
        put(bytes, at + 4, &ordinal.to_be_bytes());
        let crc = Crc32c::new().with(&header_crc).with(&bytes[at..at + 12]).finish();
        put(bytes, at + 12, &crc.to_be_bytes());
    }
}

/// A journal file: checksums everywhere, and with `places` also generation and position of every round and entry.
pub(super) fn journal(bytes: &mut [u8], places: bool) {
    for at in [0, 2048] {
        if bytes.len() >= at + 64 {
            let crc = crc32c(&bytes[at..at + 60]);
            put(bytes, at + 60, &crc.to_be_bytes());
        }
    }
    let field = |bytes: &[u8], at: usize| -> u64 {
        bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map_or(0, u64::from_be_bytes)
    };
    let (generation, base) = (field(bytes, 8), field(bytes, 16));
    let mut at = 4096;
    while bytes.len().saturating_sub(at) >= 64 {
        let place = base.wrapping_add(u64::try_from(at).unwrap_or(0)).to_be_bytes();
        if bytes[at..].starts_with(b"TLJR") {
            if places {
                put(bytes, at + 8, &generation.to_be_bytes());
                put(bytes, at + 16, &place);
            }
            let crc = crc32c(&bytes[at..at + 60]);
            put(bytes, at + 60, &crc.to_be_bytes());
        } else if bytes[at..].starts_with(b"JE") {
            if places {
                put(bytes, at + 8, &generation.to_be_bytes());
                put(bytes, at + 16, &place);
            }
            journal_entry(bytes, at);
        }
        at += 8;
    }
}

fn journal_entry(bytes: &mut [u8], at: usize) {
    let header = if bytes[at + 3] == 1 { 136 } else { 64 };
    if bytes.len() - at < header {
        return;
    }
    if header == 136 {
        let length = u32::from_be_bytes([bytes[at + 64], bytes[at + 65], bytes[at + 66], bytes[at + 67]]);
        let body = usize::try_from(length).ok().and_then(|length| bytes.get(at + 136..)?.get(..length));
        if let Some(crc) = body.map(crc32c) {
            put(bytes, at + 68, &crc.to_be_bytes());
        }
    }
    // The checksum covers what stands before it and behind it.
    let crc = Crc32c::new().with(&bytes[at..at + 4]).with(&bytes[at + 8..at + header]).finish();
    put(bytes, at + 4, &crc.to_be_bytes());
}

/// A file of the controllers' log: its header, and every record at its place.
pub(super) fn raft_log(bytes: &mut [u8]) {
    if bytes.len() < 64 {
        return;
    }
    let crc = crc32c(&bytes[..28]);
    put(bytes, 28, &crc.to_be_bytes());
    let number: [u8; 8] = bytes[12..20].try_into().unwrap_or_default();
    let mut at = 64;
    while bytes.len().saturating_sub(at) >= 40 {
        if bytes[at..].starts_with(b"TREC") {
            let left = bytes.len() - at - 40;
            let stated = u32::from_be_bytes([bytes[at + 8], bytes[at + 9], bytes[at + 10], bytes[at + 11]]);
            let length = usize::try_from(stated).unwrap_or(usize::MAX).min(left);
            put(bytes, at + 8, &u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
            put(bytes, at + 16, &number);
            put(bytes, at + 24, &long(at));
            let crc = crc32c(&bytes[at + 8..at + 40 + length]);
            put(bytes, at + 4, &crc.to_be_bytes());
        }
        at += 16;
    }
}

/// The footer of a segment object.
pub(super) fn footer(bytes: &mut [u8]) {
    let Some(start) = bytes.len().checked_sub(512) else { return };
    let crc = crc32c(&bytes[start..start + 508]);
    put(bytes, start + 508, &crc.to_be_bytes());
}

/// `meta.properties`: the last line's checksum.
pub(super) fn properties(bytes: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(bytes).trim_end().to_owned();
    let Some((body, _)) = text.rsplit_once('\n') else { return };
    let body = format!("{body}\n");
    *bytes = format!("{body}crc={:08x}\n", crc32c(body.as_bytes())).into_bytes();
}
