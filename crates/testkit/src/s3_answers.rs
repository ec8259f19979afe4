//! The documents and checksums of S3's protocol, as the stand-in writes them.

use std::fmt::Write;

/// An error document.
pub(crate) fn error_document(code: &str, message: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{}</Code><Message>{}</Message><RequestId>0</RequestId></Error>",
        escape(code),
        escape(message)
    )
}

/// One object of a listing.
pub(crate) struct ListedObject {
    pub(crate) key: String,
    pub(crate) bytes: usize,
    pub(crate) etag: String,
    pub(crate) modified_ms: u64,
}

/// A page of a listing.
pub(crate) fn list_document(
    bucket: &str,
    prefix: &str,
    objects: &[ListedObject],
    next: Option<&str>,
) -> String {
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <Name>{}</Name><Prefix>{}</Prefix><KeyCount>{}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>{}</IsTruncated>",
        escape(bucket),
        escape(prefix),
        objects.len(),
        next.is_some()
    );
    for object in objects {
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size>\
             <StorageClass>STANDARD</StorageClass></Contents>",
            escape(&object.key),
            crate::http_date::iso_date(object.modified_ms),
            escape(&object.etag),
            object.bytes
        );
    }
    if let Some(next) = next {
        let _ = write!(text, "<NextContinuationToken>{}</NextContinuationToken>", escape(next));
    }
    text.push_str("</ListBucketResult>");
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Decodes `%XX`, and `+` where it stands for a space.
pub(crate) fn percent_decode(text: &str, plus_is_space: bool) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits =
                    std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
                match digits {
                    Some(byte) => {
                        bytes.push(byte);
                        rest = after;
                    }
                    None => bytes.push(b'%'),
                }
            }
            (b'+', _) if plus_is_space => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The value of a key in a query string, decoded.
pub(crate) fn query_value(query: &str, key: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(name, true) == key).then(|| percent_decode(value, true))
    })
}

/// CRC-64/NVME of a body, in the base64 of its header.
pub(crate) fn crc64_nvme_header(body: &[u8]) -> String {
    base64(&crc64_nvme(body).to_be_bytes())
}

fn crc64_nvme(body: &[u8]) -> u64 {
    const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;
    const TABLE: [u64; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut crc = index as u64;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
                bit += 1;
            }
            table[index] = crc;
            index += 1;
        }
        table
    };
    let step = |crc: u64, byte: &u8| {
        let index = usize::try_from((crc ^ u64::from(*byte)) & 0xff).unwrap_or(0);
        (crc >> 8) ^ TABLE[index]
    };
    !body.iter().fold(!0, step)
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let number = group
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0u32, |number, byte| number << 8 | u32::from(*byte));
        for place in 0..4 {
            if place <= group.len() {
                let digit = usize::try_from(number >> (18 - 6 * place) & 63).unwrap_or(0);
                text.push(char::from(ALPHABET[digit]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_catalogued_one() {
        assert_eq!(crc64_nvme(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(crc64_nvme_header(b"123456789"), "rosUhgp5mIg=");
    }

    #[test]
    fn queries_and_paths_are_decoded() {
        assert_eq!(
            query_value("list-type=2&prefix=a%2Fb%3D1+x&delete", "prefix").as_deref(),
            Some("a/b=1 x")
        );
        assert_eq!(query_value("list-type=2&delete", "delete").as_deref(), Some(""));
        assert_eq!(query_value("list-type=2", "delete"), None);
        assert_eq!(percent_decode("a%3D+%zz%4", false), "a=+%zz%4");
    }
}
