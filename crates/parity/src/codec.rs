//! Messages by the table of the wire: from names to bytes and back, wrong ones too.
//!
//! Only the table ([`tidelog_wire::StructSpec`]) is the product's. Reading and writing are done here a second time, more
//! strictly: an answer with an unknown tagged field or with bytes behind it is shown as such.

use anyhow::{Context as _, Result, bail, ensure};
use tidelog_wire::{ApiKey, Context, FieldSpec, Kind, StructSpec, Writer};

use crate::{
    records,
    value::{Tree, from_hex},
};

fn context(api: ApiKey, version: i16) -> Context {
    let flexible = api.flexible_versions().contains(version);
    Context { version, flexible, nullable: false, tagged: false, field: "" }
}

fn uvarint(bytes: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        bytes.push(value.to_le_bytes()[0] & 0x7f | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

/// A request's header and its body.
#[must_use]
pub fn request_frame(
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    client_id: &str,
    body: &[u8],
) -> Vec<u8> {
    let mut frame = api.key().to_be_bytes().to_vec();
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend_from_slice(&correlation_id.to_be_bytes());
    frame.extend_from_slice(&i16::try_from(client_id.len()).unwrap_or(0).to_be_bytes());
    frame.extend_from_slice(client_id.as_bytes());
    if api.request_header_version(version) >= 2 {
        frame.push(0);
    }
    frame.extend_from_slice(body);
    frame
}

/// The bytes of a request of which some fields are named. `optional` fields are left out where the version lacks them.
///
/// # Errors
/// A field that does not exist, or a value that is not of its type.
pub fn encode(api: ApiKey, version: i16, value: &Tree, optional: &[String]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write_struct(&mut bytes, api.request_spec(), context(api, version), value, optional)?;
    Ok(bytes)
}

fn write_struct(
    bytes: &mut Vec<u8>,
    spec: &'static StructSpec,
    context: Context,
    value: &Tree,
    optional: &[String],
) -> Result<()> {
    let Tree::Struct(fields) = value else { bail!("{} is a structure, not {value}", spec.name) };
    for (name, _) in fields {
        let field = spec.fields.iter().find(|field| field.name == name);
        let field = field.with_context(|| format!("{} has no `{name}`", spec.name))?;
        ensure!(
            field.versions.contains(context.version) || optional.contains(name),
            "{} has no `{name}` in version {}: write `{name}?` where that is meant",
            spec.name,
            context.version
        );
    }
    for field in spec.fields.iter().filter(|field| field.is_plain_in(context.version)) {
        let inner = field.context(context);
        match value.field(field.name) {
            Some(value) => write(bytes, field.kind, inner, value, optional)
                .with_context(|| format!("`{}`", field.name))?,
            None => {
                let mut writer = Writer::new();
                (field.write_default)(&mut writer, inner)?;
                bytes.extend_from_slice(&writer.into_bytes());
            }
        }
    }
    if context.flexible {
        let is_tagged =
            |field: &&FieldSpec| field.is_tagged_in(context.version) && value.field(field.name).is_some();
        uvarint(bytes, spec.fields.iter().filter(is_tagged).count());
        for field in spec.fields.iter().filter(is_tagged) {
            let mut content = Vec::new();
            let value = value.field(field.name).context("it was there")?;
            write(&mut content, field.kind, field.context(context), value, optional)?;
            uvarint(bytes, usize::try_from(field.tag.unwrap_or_default())?);
            uvarint(bytes, content.len());
            bytes.extend_from_slice(&content);
        }
    }
    Ok(())
}

fn write_length(
    bytes: &mut Vec<u8>,
    length: Option<usize>,
    context: Context,
    plain_bytes: usize,
) -> Result<()> {
    if context.flexible {
        uvarint(bytes, length.map_or(0, |length| length + 1));
    } else {
        let length = length.map_or(Ok(-1), i64::try_from)?;
        bytes.extend_from_slice(&length.to_be_bytes()[8 - plain_bytes..]);
    }
    Ok(())
}

fn write(bytes: &mut Vec<u8>, kind: Kind, context: Context, value: &Tree, optional: &[String]) -> Result<()> {
    match (kind, value) {
        (Kind::Bool, Tree::Bool(value)) => bytes.push(u8::from(*value)),
        (Kind::Bool | Kind::Int(1), Tree::Int(value)) => bytes.push(value.to_be_bytes()[7]),
        (Kind::Int(size), Tree::Int(value)) => bytes.extend_from_slice(&value.to_be_bytes()[8 - size..]),
        (Kind::Uuid, Tree::Uuid(id)) => bytes.extend_from_slice(id),
        (Kind::Uuid, Tree::Text(text)) => {
            let id = from_hex(text).filter(|id| id.len() == 16).context("an id is 32 hexadecimal digits")?;
            bytes.extend_from_slice(&id);
        }
        (Kind::String, Tree::Null) => write_length(bytes, None, context, 2)?,
        (Kind::String, Tree::Text(text)) => {
            write_length(bytes, Some(text.len()), context, 2)?;
            bytes.extend_from_slice(text.as_bytes());
        }
        // A text that is no UTF-8.
        (Kind::String, Tree::Bytes(text)) => {
            write_length(bytes, Some(text.len()), context, 2)?;
            bytes.extend_from_slice(text);
        }
        (Kind::Bytes | Kind::Records | Kind::Array { .. }, Tree::Null) => {
            write_length(bytes, None, context, 4)?
        }
        (Kind::Bytes, Tree::Text(text)) => {
            write_length(bytes, Some(text.len()), context, 4)?;
            bytes.extend_from_slice(text.as_bytes());
        }
        (Kind::Bytes | Kind::Records, Tree::Bytes(content)) => {
            write_length(bytes, Some(content.len()), context, 4)?;
            bytes.extend_from_slice(content);
        }
        (Kind::Records, Tree::Array(parts)) => {
            let mut content = Vec::new();
            for part in parts {
                let Tree::Bytes(part) = part else { bail!("records are bytes, not {part}") };
                content.extend_from_slice(part);
            }
            write_length(bytes, Some(content.len()), context, 4)?;
            bytes.extend_from_slice(&content);
        }
        (Kind::Array { element, .. }, Tree::Array(elements)) => {
            write_length(bytes, Some(elements.len()), context, 4)?;
            for value in elements {
                write(bytes, *element, Context { nullable: false, ..context }, value, optional)?;
            }
        }
        (Kind::Struct(_), Tree::Null) if context.nullable => {
            bytes.push(if context.tagged { 0 } else { 0xff })
        }
        (Kind::Struct(spec), value) => {
            if context.nullable {
                bytes.push(1);
            }
            write_struct(bytes, spec, context, value, optional)?;
        }
        (kind, value) => bail!("{value} is not of type {kind:?}"),
    }
    Ok(())
}

/// The rest of a frame.
struct Frame<'a>(&'a [u8]);

impl<'a> Frame<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("the answer ends inside of a field")?;
        self.0 = rest;
        Ok(taken)
    }

    fn int(&mut self, size: usize) -> Result<i64> {
        let bytes = self.take(size)?;
        let first = i64::from(bytes.first().context("a number has bytes")?.cast_signed());
        Ok(bytes[1..].iter().fold(first, |value, byte| value << 8 | i64::from(*byte)))
    }

    fn uvarint(&mut self) -> Result<usize> {
        let mut value = 0_usize;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.take(1)?[0];
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        bail!("a length has more than five bytes")
    }

    fn length(&mut self, context: Context, plain_bytes: usize) -> Result<Option<usize>> {
        if context.flexible {
            return Ok(self.uvarint()?.checked_sub(1));
        }
        match self.int(plain_bytes)? {
            -1 => Ok(None),
            length => Ok(Some(usize::try_from(length).context("a negative length")?)),
        }
    }
}

/// Reads the body of an answer; what cannot be read is said in its place.
#[must_use]
pub fn decode(api: ApiKey, version: i16, body: &[u8]) -> Tree {
    let mut frame = Frame(body);
    match read_struct(&mut frame, api.response_spec(), context(api, version)) {
        Ok(Tree::Struct(mut fields)) => {
            if !frame.0.is_empty() {
                fields.push(("bytes_behind_it".to_owned(), Tree::Bytes(frame.0.to_vec())));
            }
            Tree::Struct(fields)
        }
        Ok(other) => other,
        Err(error) => Tree::Text(format!("<not decoded: {error:#}>")),
    }
}

/// Reads the header of an answer: its correlation id and the body behind it.
///
/// # Errors
/// The frame is too short.
pub fn response_header(api: ApiKey, version: i16, bytes: &[u8]) -> Result<(i64, &[u8])> {
    let mut frame = Frame(bytes);
    let correlation_id = frame.int(4)?;
    if api.response_header_version(version) >= 1 {
        ensure!(frame.uvarint()? == 0, "the answer's header has tagged fields");
    }
    Ok((correlation_id, frame.0))
}

fn read_struct(frame: &mut Frame<'_>, spec: &'static StructSpec, context: Context) -> Result<Tree> {
    let mut fields = Vec::new();
    for field in spec.fields.iter().filter(|field| field.is_plain_in(context.version)) {
        let value =
            read(frame, field.kind, field.context(context)).with_context(|| format!("`{}`", field.name))?;
        fields.push((field.name.to_owned(), value));
    }
    if context.flexible {
        for _ in 0..frame.uvarint()? {
            let tag = frame.uvarint()?;
            let size = frame.uvarint()?;
            let mut content = Frame(frame.take(size)?);
            let is_it = |field: &&FieldSpec| {
                field.is_tagged_in(context.version)
                    && field.tag.is_some_and(|own| usize::try_from(own).is_ok_and(|own| own == tag))
            };
            let (name, value) = match spec.fields.iter().find(is_it) {
                Some(field) => {
                    (field.name.to_owned(), read(&mut content, field.kind, field.context(context))?)
                }
                None => (format!("tag_{tag}"), Tree::Bytes(content.take(size)?.to_vec())),
            };
            ensure!(content.0.is_empty(), "bytes follow the value of tagged field {tag}");
            fields.push((name, value));
        }
    }
    Ok(Tree::Struct(fields))
}

fn read(frame: &mut Frame<'_>, kind: Kind, context: Context) -> Result<Tree> {
    let element_context = Context { nullable: false, ..context };
    Ok(match kind {
        Kind::Bool => match frame.int(1)? {
            0 => Tree::Bool(false),
            1 => Tree::Bool(true),
            other => Tree::Int(other),
        },
        Kind::Int(size) => Tree::Int(frame.int(size)?),
        Kind::Float => Tree::Text(f64::from_bits(frame.int(8)?.cast_unsigned()).to_string()),
        Kind::Uuid => Tree::Uuid(frame.take(16)?.try_into().context("sixteen bytes")?),
        Kind::String => match frame.length(context, 2)? {
            None => Tree::Null,
            Some(length) => {
                let bytes = frame.take(length)?;
                str::from_utf8(bytes).map_or_else(|_| Tree::Bytes(bytes.to_vec()), Tree::text)
            }
        },
        Kind::Bytes | Kind::Records => match frame.length(context, 4)? {
            None => Tree::Null,
            Some(length) if matches!(kind, Kind::Records) => records::decode(frame.take(length)?),
            Some(length) => Tree::Bytes(frame.take(length)?.to_vec()),
        },
        Kind::Array { element, .. } => match frame.length(context, 4)? {
            None => Tree::Null,
            Some(count) => {
                let mut elements = Vec::new();
                for _ in 0..count {
                    elements.push(read(frame, *element, element_context)?);
                }
                Tree::Array(elements)
            }
        },
        Kind::Struct(spec) => {
            if context.nullable && frame.int(1)? < i64::from(context.tagged) {
                return Ok(Tree::Null);
            }
            read_struct(frame, spec, element_context)?
        }
    })
}

#[cfg(test)]
mod tests {
    use tidelog_wire::{
        Message as _, Str,
        messages::{CreateTopicsRequest, MetadataResponse, create_topics::CreatableTopic},
    };

    use super::*;

    #[test]
    fn a_request_by_names_is_the_products_own() {
        let topic = CreatableTopic { name: Str::from("t"), num_partitions: 3, ..CreatableTopic::default() };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let named = Tree::Struct(vec![(
            "topics".to_owned(),
            Tree::Array(vec![Tree::Struct(vec![
                ("name".to_owned(), Tree::text("t")),
                ("num_partitions".to_owned(), Tree::Int(3)),
            ])]),
        )]);
        for version in 2..=7 {
            let bytes = encode(ApiKey::CreateTopics, version, &named, &[]).unwrap();
            assert_eq!(bytes, request.to_bytes(version).unwrap(), "version {version}");
        }
    }

    #[test]
    fn an_answer_is_read_by_names_and_what_follows_it_is_shown() {
        let response = MetadataResponse { controller_id: 7, ..MetadataResponse::default() };
        for version in 0..=13 {
            let mut bytes = response.to_bytes(version).unwrap().to_vec();
            let read = decode(ApiKey::Metadata, version, &bytes);
            assert_eq!(
                read.at("controller_id"),
                (version >= 1).then_some(&Tree::Int(7)),
                "version {version}"
            );
            assert_eq!(read.at("bytes_behind_it"), None);
            bytes.push(9);
            let read = decode(ApiKey::Metadata, version, &bytes);
            assert_eq!(read.at("bytes_behind_it"), Some(&Tree::Bytes(vec![9])));
            bytes.truncate(bytes.len() - 2);
            assert!(decode(ApiKey::Metadata, version, &bytes).to_string().contains("not decoded"));
        }
    }
}
