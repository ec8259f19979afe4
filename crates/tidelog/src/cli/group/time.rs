//! Moments and spans of time, as `--to-datetime` and `--by-duration` take them.

use std::{str::FromStr, time::Duration};

use tidelog_types::Timestamp;

const MOMENT: &str = "milliseconds since 1970, or RFC 3339 such as 2026-11-30T10:00:00Z, is expected";
const SPAN: &str = "a span of ISO 8601, such as PT1H30M or P7D, is expected";

const NEGATIVE_SPAN: &str = "a span that is not negative is expected: it reaches back from now";

const SECONDS_PER_DAY: i64 = 86_400;

/// Reads milliseconds since 1970, or a moment of RFC 3339; without a zone it is UTC, as for Kafka's tool.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let millis = text.parse::<i64>().ok().and_then(Timestamp::from_wire);
        return millis.ok_or_else(|| MOMENT.to_owned());
    }
    let millis = civil_millis(text).ok_or_else(|| MOMENT.to_owned())?;
    Timestamp::from_wire(millis).ok_or_else(|| "a moment from 1970 on is expected".to_owned())
}

/// Milliseconds since 1970; negative before it.
fn civil_millis(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.split('-');
    let (year, month, day): (i64, i64, i64) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if parts.next().is_some() || !(1..=12).contains(&month) || !(1..=days_of(year, month)).contains(&day) {
        return None;
    }
    let (time, zone_seconds) = zone(time)?;
    let (time, fraction) = time.split_once('.').map_or((time, None), |(time, rest)| (time, Some(rest)));
    let mut parts = time.split(':');
    let (hour, minute, second): (i64, i64, i64) =
        (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    // 60 is a leap second.
    if parts.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * SECONDS_PER_DAY + hour * 3_600 + minute * 60 + second;
    Some((seconds - zone_seconds) * 1_000 + fraction.map_or(Some(0), fraction_millis)?)
}

/// Parts a time of day from its zone, in seconds east of Greenwich.
fn zone(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    let Some(at) = time.rfind(['+', '-']) else { return Some((time, 0)) };
    let (time, offset) = time.split_at(at);
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = match offset.get(1..)? {
        text if text.contains(':') => text.split_once(':')?,
        text => text.split_at_checked(2)?,
    };
    let (hours, minutes): (i64, i64) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours <= 23 && minutes <= 59).then_some((time, sign * (hours * 3_600 + minutes * 60)))
}

fn digits<N: FromStr>(text: &str, count: usize) -> Option<N> {
    (text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// What stands behind a point, in milliseconds; what is finer is cut.
fn fraction_millis(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let padded: String = text.chars().chain("00".chars()).take(3).collect();
    padded.parse().ok()
}

const fn days_of(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days of the Gregorian calendar since 1970-01-01; years begin in March here, so that a leap day is the last.
const fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Reads a span of ISO 8601, of weeks, days, hours, minutes and seconds: months and years are of no fixed length.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let text = text.to_ascii_uppercase();
    let wrong = || {
        // As Java reads one: a sign before all of it, or before a number.
        let positive = text.replace('-', "");
        let is_negative = positive != text && iso_span(&positive).is_some();
        if is_negative { NEGATIVE_SPAN } else { SPAN }.to_owned()
    };
    iso_span(&text).ok_or_else(wrong)
}

fn iso_span(text: &str) -> Option<Duration> {
    let rest = text.strip_prefix('P')?;
    let (days, time) = rest.split_once('T').map_or((rest, None), |(days, time)| (days, Some(time)));
    let mut total = Duration::ZERO;
    let mut count = 0;
    for (text, units) in [(Some(days), &[('W', 604_800), ('D', 86_400)][..]), (time, &TIME_UNITS[..])] {
        let Some(mut text) = text else { continue };
        let before = count;
        for (unit, seconds) in units {
            let Some((amount, rest)) = text.split_once(*unit) else { continue };
            text = rest;
            let (whole, fraction) =
                amount.split_once('.').map_or((amount, None), |(whole, rest)| (whole, Some(rest)));
            if whole.is_empty() || !whole.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            let seconds = whole.parse::<u64>().ok()?.checked_mul(*seconds)?;
            total = total.checked_add(Duration::from_secs(seconds))?;
            if let Some(fraction) = fraction.filter(|_| *unit == 'S') {
                let millis = u64::try_from(fraction_millis(fraction)?).ok()?;
                total = total.checked_add(Duration::from_millis(millis))?;
            } else if fraction.is_some() {
                return None;
            }
            count += 1;
        }
        // Something that is no unit, or a `T` that nothing follows.
        if !text.is_empty() || (time.is_some() && units[0].0 == 'H' && count == before) {
            return None;
        }
    }
    (count > 0).then_some(total)
}

const TIME_UNITS: [(char, u64); 3] = [('H', 3_600), ('M', 60), ('S', 1)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_milliseconds_or_rfc_3339() {
        for (text, millis) in [
            ("0", 0),
            ("1735689600000", 1_735_689_600_000),
            ("1970-01-01T00:00:00Z", 0),
            ("2025-01-01T00:00:00Z", 1_735_689_600_000),
            ("2025-01-01T01:30:00+01:30", 1_735_689_600_000),
            ("2024-12-31T19:00:00-0500", 1_735_689_600_000),
            ("2025-01-01T00:00:00", 1_735_689_600_000),
            ("2025-01-01 00:00:00.5z", 1_735_689_600_500),
            ("2025-01-01T00:00:00.123456789Z", 1_735_689_600_123),
            ("2024-02-29T23:59:60Z", 1_709_251_200_000),
            ("2000-03-01T00:00:00Z", 951_868_800_000),
        ] {
            assert_eq!(moment(text), Ok(Timestamp::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "now",
            "-1",
            "99999999999999999999",
            "2025-01-01",
            "2025-13-01T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2025-01-00T00:00:00Z",
            "2025-01-01T24:00:00Z",
            "2025-01-01T00:60:00Z",
            "2025-01-01T00:00Z",
            "2025-01-01T00:00:00.Z",
            "2025-01-01T00:00:00+1",
            "2025-01-01T00:00:00+25:00",
            "25-01-01T00:00:00Z",
            "2025-01-01T00:00:00ZZ",
        ] {
            assert_eq!(moment(text), Err(MOMENT.to_owned()), "{text}");
        }
        assert_eq!(moment("1969-12-31T23:59:59Z"), Err("a moment from 1970 on is expected".to_owned()));
    }

    #[test]
    fn a_span_is_of_iso_8601() {
        for (text, millis) in [
            ("PT1H30M", 5_400_000),
            ("P7D", 604_800_000),
            ("P1W", 604_800_000),
            ("P1DT2H3M4.5S", 93_784_500),
            ("pt90s", 90_000),
            ("PT0S", 0),
            ("PT0.0019S", 1),
        ] {
            assert_eq!(span(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "P",
            "PT",
            "P1DT",
            "1H",
            "P1H",
            "P1M",
            "P1Y",
            "PT1.5H",
            "-PT",
            "--execute",
            "PT1S1H",
            "PT1",
            "PTH",
        ] {
            assert_eq!(span(text), Err(SPAN.to_owned()), "{text}");
        }
        for text in ["PT-1H", "-PT1H", "-pt1h", "P-1DT-2H", "-P7D"] {
            assert_eq!(span(text), Err(NEGATIVE_SPAN.to_owned()), "{text}");
        }
        assert_eq!(span("P99999999999999999999D"), Err(SPAN.to_owned()));
        assert_eq!(span("P18446744073709551615D"), Err(SPAN.to_owned()));
    }
}
