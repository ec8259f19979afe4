//! Listings, and the documents in which S3 speaks.

use std::collections::BTreeSet;

use super::{http::Head, objects::Bucket};

/// A page has at most this many keys, as S3's.
const PAGE_KEYS_MAX: usize = 1000;

/// `ListObjectsV2` of a bucket.
pub(super) fn page(head: &Head, name: &str, bucket: &Bucket) -> String {
    let value = |name: &str| head.query_value(name).filter(|value| !value.is_empty());
    let prefix = value("prefix").unwrap_or_default();
    let delimiter = value("delimiter");
    let limit =
        value("max-keys").and_then(|keys| keys.parse().ok()).unwrap_or(PAGE_KEYS_MAX).min(PAGE_KEYS_MAX);
    let after = value("continuation-token").or_else(|| value("start-after")).unwrap_or_default();
    let mut contents = String::new();
    let mut folders = BTreeSet::new();
    let (mut count, mut last, mut is_cut) = (0, String::new(), false);
    for (key, object) in bucket.objects.range(prefix.clone()..) {
        if !key.starts_with(&prefix) {
            break;
        }
        if key.as_str() <= after.as_str() {
            continue;
        }
        let folder = delimiter.as_ref().and_then(|delimiter| {
            let end = prefix.len() + key[prefix.len()..].find(delimiter.as_str())? + delimiter.len();
            Some(key[..end].to_owned())
        });
        if folder.as_ref().is_some_and(|folder| folders.contains(folder) || *folder == after) {
            last.clone_from(key);
            continue;
        }
        if count >= limit {
            is_cut = true;
            break;
        }
        count += 1;
        last.clone_from(key);
        match folder {
            Some(folder) => {
                folders.insert(folder);
            }
            None => contents.push_str(&format!(
                "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size><StorageClass>STANDARD\
                 </StorageClass></Contents>",
                escape(key),
                iso_time(object.modified_seconds),
                escape(&object.etag),
                object.bytes.len(),
            )),
        }
    }
    for folder in &folders {
        contents.push_str(&format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escape(folder)));
    }
    let next = if is_cut {
        format!("<NextContinuationToken>{}</NextContinuationToken>", escape(&last))
    } else {
        String::new()
    };
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>{}\
         </Name><Prefix>{}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>{limit}</MaxKeys><IsTruncated>{is_cut}</IsTruncated>\
         {contents}{next}</ListBucketResult>",
        escape(name),
        escape(&prefix),
    )
}

/// The texts of all elements of a name in a document that a client sent.
pub(super) fn elements(document: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    document
        .split(&open)
        .skip(1)
        .filter_map(|rest| rest.split_once(&close))
        .map(|(text, _)| {
            text.trim()
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&amp;", "&")
        })
        .collect()
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Year, month and day of a number of days since 1970, by Howard Hinnant's `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// As in a listing: `2026-11-29T18:00:00.000Z`.
pub(super) fn iso_time(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86_400);
    let of_day = seconds % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

/// As in a header: `Sun, 29 Nov 2026 18:00:00 GMT`.
pub(super) fn http_time(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let named = |names: &[&'static str], index: u64| {
        usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or("")
    };
    let (day_name, month_name) = (named(&DAYS, days % 7), named(&MONTHS, month - 1));
    let of_day = seconds % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{day_name}, {day:02} {month_name} {year} {hour:02}:{minute:02}:{second:02} GMT")
}
