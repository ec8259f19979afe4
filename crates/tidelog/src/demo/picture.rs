//! The picture at the end: where the bytes live.

use std::fmt::Write as _;

use tidelog_types::ByteSize;

/// Bytes by where they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// On local disk: journal, segments, metadata.
    pub(super) local: u64,
    /// In the cache of cold chunks.
    pub(super) cache: u64,
    /// In the bucket.
    pub(super) bucket: u64,
}

/// Draws one line a place, as long as its share.
pub(super) fn draw(places: Places) -> String {
    const WIDTH: u64 = 48;
    let rows = [
        ("hot", places.local, "local disk, journal included"),
        ("cache", places.cache, "chunks read from the bucket"),
        ("bucket", places.bucket, "sealed segments"),
    ];
    let most = rows.iter().map(|row| row.1).max().unwrap_or(0).max(1);
    let mut picture = String::from("where the bytes live\n");
    for (name, bytes, what) in rows {
        let length = usize::try_from((bytes.saturating_mul(WIDTH)).div_ceil(most)).unwrap_or(0);
        let bar = "█".repeat(length);
        // Writing to a string cannot fail.
        let _ = writeln!(picture, "  {name:<7} {bar:<48} {:>10}  {what}", ByteSize::bytes(bytes).to_string());
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_full_and_nothing_is_empty() {
        let picture = draw(Places { local: 1, cache: 0, bucket: 100 });
        let bars: Vec<usize> = picture.lines().skip(1).map(|line| line.matches('█').count()).collect();
        assert_eq!(bars, [1, 0, 48]);
    }
}
