//! What the leader of a classic consumer group gives a member, as Kafka's `ConsumerProtocolAssignment` lays it out.
//!
//! ```text
//!  version i16 | topics: count i32, each: length i16, UTF-8; partitions: count i32, each i32 | user data: length i32 or -1, bytes | …
//! ```
//!
//! Every version begins as version 0. What stands behind the topics is the assignor's and of later versions, and is not read.

use super::Place;

/// The protocol type of groups whose members are consumers.
pub(super) const PROTOCOL_TYPE: &str = "consumer";

/// The partitions of an assignment, in order; none of an empty one, `None` of bytes that are none.
pub(super) fn partitions(assignment: &[u8]) -> Option<Vec<Place>> {
    // A member that was given nothing yet.
    if assignment.is_empty() {
        return Some(Vec::new());
    }
    let mut rest = assignment;
    if i16::from_be_bytes(take(&mut rest)?) < 0 {
        return None;
    }
    let mut places = Vec::new();
    // Counts are not believed: each element must be there, and the bytes end.
    for _ in 0..count(&mut rest)? {
        let length = usize::try_from(i16::from_be_bytes(take(&mut rest)?)).ok()?;
        let (name, after) = rest.split_at_checked(length)?;
        let name = std::str::from_utf8(name).ok()?;
        rest = after;
        for _ in 0..count(&mut rest)? {
            places.push((name.to_owned(), i32::from_be_bytes(take(&mut rest)?)));
        }
    }
    places.sort();
    Some(places)
}

fn count(rest: &mut &[u8]) -> Option<u32> {
    u32::try_from(i32::from_be_bytes(take(rest)?)).ok()
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two topics, as the Java client's range assignor writes them: version 1, no user data.
    const WRITTEN: &[u8] =
        b"\0\x01\0\0\0\x02\0\x01t\0\0\0\x02\0\0\0\x03\0\0\0\x01\0\x01a\0\0\0\x01\0\0\0\0\xff\xff\xff\xff";

    #[test]
    fn an_assignment_is_read_whatever_stands_behind_its_topics() {
        let expected = vec![("a".to_owned(), 0), ("t".to_owned(), 1), ("t".to_owned(), 3)];
        assert_eq!(partitions(WRITTEN), Some(expected.clone()));
        assert_eq!(partitions(&[WRITTEN, b"what a version 9 adds"].concat()), Some(expected.clone()));
        assert_eq!(partitions(&WRITTEN[..WRITTEN.len() - 4]), Some(expected));
        assert_eq!(partitions(b"\0\0\0\0\0\0"), Some(Vec::new()));
        assert_eq!(partitions(b""), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_assignment_is_not_read() {
        for length in 1..WRITTEN.len() - 4 {
            assert_eq!(partitions(&WRITTEN[..length]), None, "{length}");
        }
        for wrong in [
            &b"\xff\xff\0\0\0\0"[..],
            b"\0\0\xff\xff\xff\xff",
            b"\0\0\x7f\xff\xff\xff",
            b"\0\0\0\0\0\x01\xff\xff",
            b"\0\0\0\0\0\x01\0\x01\xff\0\0\0\0",
            b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff",
            b"not an assignment",
        ] {
            assert_eq!(partitions(wrong), None, "{wrong:?}");
        }
    }
}
