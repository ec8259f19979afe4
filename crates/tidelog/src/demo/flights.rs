//! The demo's data: the departures from New York in 2013, and what each becomes as a record.

use std::{fmt::Write as _, io::Read as _, str};

use anyhow::{Context as _, Result, bail, ensure};
use tidelog_types::Timestamp;

/// The file as it ships with the program; `assets/README.md` says where it comes from.
const FLIGHTS: &[u8] = include_bytes!("../../assets/flights-2013.csv.zst");

/// How many departures it holds.
pub(super) const FLIGHT_COUNT: u64 = 336_776;

/// The columns by the place where they stand; the header line must say the same.
const COLUMNS: [&str; 19] = [
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "air_time",
    "distance",
    "hour",
    "minute",
    "time_hour",
];
const CARRIER: usize = 9;
const FLIGHT: usize = 10;
const TAILNUM: usize = 11;
const TIME_HOUR: usize = 18;

/// Columns whose values are texts; all others are numbers.
const TEXTS: [usize; 5] = [CARRIER, TAILNUM, 12, 13, TIME_HOUR];

/// What stands where nothing is known.
const UNKNOWN: &str = "NA";

/// All lines, unpacked once.
#[derive(Debug)]
pub(super) struct Flights {
    text: String,
}

/// One departure: a line of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight<'a> {
    fields: [&'a str; COLUMNS.len()],
    time: Timestamp,
}

impl Flights {
    /// Unpacks the file and checks its header.
    ///
    /// # Errors
    /// Where the file that ships with the program is damaged.
    pub(super) fn read() -> Result<Self> {
        let mut text = String::new();
        zstd::Decoder::new(FLIGHTS)
            .and_then(|mut file| file.read_to_string(&mut text))
            .context("unpack the flights")?;
        let header = text.lines().next().context("the flights have no header")?;
        ensure!(header.split(',').eq(COLUMNS), "the flights have other columns: {header}");
        Ok(Self { text })
    }

    /// Every departure in the order of the file.
    pub(super) fn iter(&self) -> impl Iterator<Item = Result<Flight<'_>>> {
        self.text.lines().skip(1).map(Flight::parse)
    }
}

impl<'a> Flight<'a> {
    fn parse(line: &'a str) -> Result<Self> {
        let mut fields = [""; COLUMNS.len()];
        let mut found = line.split(',');
        for field in &mut fields {
            *field = found.next().with_context(|| format!("a flight lacks fields: {line}"))?;
        }
        ensure!(found.next().is_none(), "a flight has too many fields: {line}");
        let time = parse_time(fields[TIME_HOUR])?;
        Ok(Self { fields, time })
    }

    /// The record's timestamp: the scheduled hour.
    #[must_use]
    pub(super) fn time(&self) -> Timestamp {
        self.time
    }

    /// The key in topic `flights`: carrier and flight number.
    #[must_use]
    pub(super) fn key(&self) -> String {
        format!("{}{}", self.fields[CARRIER], self.fields[FLIGHT])
    }

    /// The key in topic `aircraft`: the aircraft's tail number, where it is known.
    #[must_use]
    pub(super) fn aircraft(&self) -> Option<&'a str> {
        Some(self.fields[TAILNUM]).filter(|tail| *tail != UNKNOWN && !tail.is_empty())
    }

    /// The line as one JSON object, `null` where nothing is known.
    pub(super) fn write_json(&self, json: &mut String) {
        json.clear();
        for (index, (name, value)) in COLUMNS.iter().zip(self.fields).enumerate() {
            json.push(if index == 0 { '{' } else { ',' });
            // Writing to a string cannot fail.
            let _ = if value == UNKNOWN || value.is_empty() {
                write!(json, "\"{name}\":null")
            } else if TEXTS.contains(&index) {
                write!(json, "\"{name}\":\"{value}\"")
            } else {
                write!(json, "\"{name}\":{value}")
            };
        }
        json.push('}');
    }
}

/// Reads `2013-01-01T10:00:00Z`.
fn parse_time(text: &str) -> Result<Timestamp> {
    let bytes = text.as_bytes();
    let shape_is_right = bytes.len() == 20
        && [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'Z')]
            .iter()
            .all(|(at, mark)| bytes[*at] == *mark);
    if !shape_is_right {
        bail!("`{text}` is not a time");
    }
    let number = |from: usize, to: usize| -> Result<u64> {
        let digits = str::from_utf8(&bytes[from..to])?;
        digits.parse().with_context(|| format!("`{text}` is not a time"))
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    ensure!(year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day), "`{text}` is not a time");
    let seconds = (number(11, 13)? * 60 + number(14, 16)?) * 60 + number(17, 19)?;
    Ok(Timestamp::from_millis((days_since_1970(year, month, day) * 86_400 + seconds) * 1000))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, years beginning in March so that the leap day comes last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    const DAYS_TO_1970: u64 = 719_468;
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let era = year / 400;
    let year_of_era = year % 400;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - DAYS_TO_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_utc() {
        assert_eq!(parse_time("1970-01-01T00:00:00Z").unwrap().as_millis(), 0);
        assert_eq!(parse_time("2013-01-01T10:00:00Z").unwrap().as_millis(), 1_357_034_400_000);
        assert_eq!(parse_time("2013-12-31T23:59:59Z").unwrap().as_millis(), 1_388_534_399_000);
        assert_eq!(parse_time("2000-02-29T00:00:00Z").unwrap().as_millis(), 951_782_400_000);
        assert!(parse_time("2013-01-01 10:00:00Z").is_err());
    }

    #[test]
    fn the_first_flight_becomes_a_record() {
        let flights = Flights::read().unwrap();
        let first = flights.iter().next().unwrap().unwrap();
        let mut json = String::new();
        first.write_json(&mut json);
        assert_eq!(first.key(), "UA1545");
        assert_eq!(first.aircraft(), Some("N14228"));
        assert!(json.starts_with(r#"{"year":2013,"month":1,"day":1,"dep_time":517,"#), "{json}");
        assert!(json.ends_with(r#""minute":15,"time_hour":"2013-01-01T10:00:00Z"}"#), "{json}");
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }

    #[test]
    fn the_file_holds_what_is_promised_and_its_times_fall_back() {
        let flights = Flights::read().unwrap();
        let mut count = 0;
        let mut latest = Timestamp::default();
        let mut fall_days_max = 0;
        for flight in flights.iter() {
            let time = flight.unwrap().time();
            fall_days_max = fall_days_max.max(latest.millis_since(time) / 86_400_000);
            latest = latest.max(time);
            count += 1;
        }
        assert_eq!((count, fall_days_max), (FLIGHT_COUNT, 333));
    }
}
