//! How far ahead of a reader the bucket is read.
//!
//! **Owns** the window of one sequential reader: it opens with the second read in sequence, doubles while what was read
//! ahead is used, and collapses on a seek.
//!
//! **Does not own** bytes, requests, objects or budgets: those who carry an order out say how much of it they did.
//!
//! ```text
//!   read already     reader      asked for            window
//!  -----------------|---------|====================|.........|
//!                             `------ ahead -------'
//!                             `---------- window -------------'
//! ```

/// Bounds of one reader's window, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadaheadLimits {
    /// The window that opens with the second read in sequence.
    pub first: u64,
    /// The largest window.
    pub max: u64,
    /// The largest request: an order of more is whole requests.
    pub request: u64,
}

/// The window of one reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readahead {
    limits: ReadaheadLimits,
    window: u64,
    ahead: u64,
}

impl Readahead {
    /// A reader whose first read is not known to be followed by another: nothing is read ahead.
    #[must_use]
    pub const fn new(limits: ReadaheadLimits) -> Self {
        Self { limits, window: 0, ahead: 0 }
    }

    /// Bytes that are to be ahead of the reader.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// Bytes ahead of the reader that were asked for.
    #[must_use]
    pub const fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The reader went on where it was and took `bytes`. Answers how many bytes to ask for behind those that are ahead; 0
    /// while there is no room for a whole request, or for half of a small window: few large requests instead of many small ones.
    #[must_use]
    pub fn advance(&mut self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        // At least what it takes at a time, else every other read would wait.
        let first = self.limits.first.max(bytes);
        let grown = if self.window == 0 { first } else { self.window.saturating_mul(2).max(first) };
        self.window = grown.min(self.limits.max);
        self.ahead = self.ahead.saturating_sub(bytes);
        let room = self.limits.request.min(self.window / 2);
        if self.ahead > self.window - room {
            return 0;
        }
        let order = self.window - self.ahead;
        if order > self.limits.request { order - order % self.limits.request.max(1) } else { order }
    }

    /// `bytes` of an order were asked for.
    pub fn asked(&mut self, bytes: u64) {
        self.ahead = self.ahead.saturating_add(bytes);
    }

    /// The reader went elsewhere, or what was ahead is gone.
    pub fn collapse(&mut self) {
        (self.window, self.ahead) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn readahead() -> Readahead {
        Readahead::new(ReadaheadLimits { first: MIB, max: 32 * MIB, request: 16 * MIB })
    }

    #[test]
    fn a_large_window_is_kept_full_by_whole_requests() {
        let mut reader = Readahead::new(ReadaheadLimits { first: MIB, max: 48 * MIB, request: 16 * MIB });
        let mut orders = Vec::new();
        for read in 0..100 {
            let order = reader.advance(MIB);
            reader.asked(order);
            if order > 0 && read >= 10 {
                orders.push((read, order / MIB));
            }
            assert!(read < 10 || reader.ahead() > 31 * MIB, "two requests are under way at least");
        }
        let steps: Vec<i32> = orders.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(
            orders.iter().all(|(_, order)| *order == 16) && steps.iter().all(|step| *step == 16),
            "{orders:?}"
        );
    }

    #[test]
    fn the_window_doubles_while_it_is_used_up_to_its_limit() {
        let mut reader = readahead();
        let mut orders = Vec::new();
        for _ in 0..40 {
            let order = reader.advance(MIB);
            reader.asked(order);
            orders.push((reader.window() / MIB, order / MIB, reader.ahead() / MIB));
        }
        let opening = [(1, 1, 1), (2, 2, 2), (4, 3, 4), (8, 5, 8), (16, 9, 16), (32, 16, 31)];
        assert_eq!(orders[..6], opening);
        // From then on a request of half a window every sixteen reads.
        let later: Vec<u64> =
            orders[6..].iter().map(|(_, order, _)| *order).filter(|order| *order > 0).collect();
        assert_eq!(later, [16, 16]);
        assert!(orders.iter().all(|(window, _, ahead)| *window <= 32 && *ahead <= 32));
    }

    #[test]
    fn a_seek_collapses_it() {
        let mut reader = readahead();
        for _ in 0..10 {
            let order = reader.advance(4 * MIB);
            reader.asked(order);
        }
        assert_eq!(reader.window(), 32 * MIB);
        reader.collapse();
        assert_eq!(reader, readahead());
    }

    #[test]
    fn it_opens_with_at_least_what_the_reader_takes_at_a_time() {
        let mut reader = readahead();
        assert_eq!(reader.advance(4 * MIB), 4 * MIB);
        assert_eq!(reader.advance(0), 0, "a read that gave nothing is no sign of use");
        let mut reader = readahead();
        assert_eq!(reader.advance(100), MIB);
    }

    #[test]
    fn a_reader_that_overtakes_asks_for_a_whole_window() {
        let mut reader = readahead();
        let first = reader.advance(MIB);
        reader.asked(first);
        assert_eq!(reader.advance(3 * MIB), 3 * MIB);
        assert_eq!(reader.ahead(), 0, "nobody carried the order out");
    }
}
