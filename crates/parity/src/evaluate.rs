//! From what a script says to values: variables, functions.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};

use crate::{
    lexer::name_of,
    records,
    script::Expression,
    value::{Tree, from_hex},
};

/// The longest text or list that a function makes.
const REPEATED_MAX: usize = 4 * 1024 * 1024;

/// The values of variables.
pub type Variables = BTreeMap<String, Tree>;

/// Works a value out.
///
/// # Errors
/// A variable that has no value, a function that does not exist or is not given what it needs.
pub fn evaluate(expression: &Expression, variables: &Variables) -> Result<Tree> {
    Ok(match expression {
        Expression::Null => Tree::Null,
        Expression::Bool(value) => Tree::Bool(*value),
        Expression::Int(value) => Tree::Int(*value),
        Expression::Text(text) => Tree::Text(fill(text, variables)?),
        Expression::Variable(name) => {
            variables.get(name).with_context(|| format!("${name} has no value"))?.clone()
        }
        Expression::Array(elements) => {
            Tree::Array(elements.iter().map(|element| evaluate(element, variables)).collect::<Result<_>>()?)
        }
        Expression::Struct(fields) => Tree::Struct(
            fields
                .iter()
                .map(|(name, _, value)| Ok((name.clone(), evaluate(value, variables)?)))
                .collect::<Result<_>>()?,
        ),
        Expression::Call(name, arguments) => call(name, arguments, variables)?,
    })
}

/// A text with its variables filled in.
///
/// # Errors
/// A variable that has no value.
pub fn fill(text: &str, variables: &Variables) -> Result<String> {
    let mut pieces = text.split('$');
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let name = name_of(piece);
        match variables.get(name).with_context(|| format!("${name} has no value"))? {
            Tree::Text(text) => filled.push_str(text),
            Tree::Int(value) => filled.push_str(&value.to_string()),
            other => bail!("${name} is no text: {other}"),
        }
        filled.push_str(&piece[name.len()..]);
    }
    Ok(filled)
}

/// The fields that are left out where a version lacks them.
#[must_use]
pub fn optional_fields(expression: &Expression) -> Vec<String> {
    match expression {
        Expression::Array(elements) | Expression::Call(_, elements) => {
            elements.iter().flat_map(optional_fields).collect()
        }
        Expression::Struct(fields) => fields
            .iter()
            .flat_map(|(name, optional, value)| {
                optional.then(|| name.clone()).into_iter().chain(optional_fields(value))
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn call(name: &str, arguments: &[Expression], variables: &Variables) -> Result<Tree> {
    if let ("times", [count, element]) = (name, arguments) {
        return times(&evaluate(count, variables)?, element, variables);
    }
    let arguments: Vec<Tree> =
        arguments.iter().map(|argument| evaluate(argument, variables)).collect::<Result<_>>()?;
    Ok(match (name, arguments.as_slice()) {
        ("hex", [Tree::Text(text)]) => Tree::Bytes(from_hex(text).context("hex takes hexadecimal digits")?),
        ("uuid", [Tree::Text(text)]) => {
            let id = from_hex(text).and_then(|id| id.try_into().ok());
            Tree::Uuid(id.context("an id is 32 hexadecimal digits")?)
        }
        ("batch", [Tree::Struct(fields)]) => Tree::Bytes(records::batch(fields)?),
        ("message", [Tree::Struct(fields)]) => Tree::Bytes(records::message(fields)?),
        ("repeat", [Tree::Text(text), Tree::Int(count)]) => {
            let count = usize::try_from(*count)?.min(REPEATED_MAX / text.len().max(1));
            Tree::Text(text.repeat(count))
        }
        ("add", [Tree::Int(one), Tree::Int(other)]) => {
            Tree::Int(one.checked_add(*other).context("the sum is out of range")?)
        }
        ("concat", parts) => {
            let mut joined = Vec::new();
            for part in parts {
                match part {
                    Tree::Bytes(bytes) => joined.extend_from_slice(bytes),
                    Tree::Text(text) => joined.extend_from_slice(text.as_bytes()),
                    other => bail!("concat takes bytes and texts, not {other}"),
                }
            }
            Tree::Bytes(joined)
        }
        // A structure with some of its fields replaced, and new ones.
        ("with", [Tree::Struct(base), Tree::Struct(fields)]) => {
            let mut merged = base.clone();
            for (name, value) in fields {
                match merged.iter_mut().find(|(own, _)| own == name) {
                    Some((_, own)) => own.clone_from(value),
                    None => merged.push((name.clone(), value.clone())),
                }
            }
            Tree::Struct(merged)
        }
        ("first", [Tree::Bytes(bytes), Tree::Int(count)]) => {
            Tree::Bytes(bytes.iter().copied().take(usize::try_from(*count)?).collect())
        }
        ("subscription", topics) => subscription(topics)?,
        ("assignment", [Tree::Text(topic), Tree::Array(partitions)]) => assignment(topic, partitions)?,
        _ => bail!("no function `{name}` takes these {} values", arguments.len()),
    })
}

/// So many elements, with `$i` from 0 on.
fn times(count: &Tree, element: &Expression, variables: &Variables) -> Result<Tree> {
    let Tree::Int(count) = count else { bail!("times takes a number first") };
    let mut variables = variables.clone();
    let mut elements = Vec::new();
    for index in 0..usize::try_from(*count)?.min(REPEATED_MAX) {
        variables.insert("i".to_owned(), Tree::Int(i64::try_from(index)?));
        elements.push(evaluate(element, &variables)?);
    }
    Ok(Tree::Array(elements))
}

fn text(bytes: &mut Vec<u8>, text: &str) -> Result<()> {
    bytes.extend_from_slice(&i16::try_from(text.len())?.to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    Ok(())
}

/// What consumers send with a join: `ConsumerProtocolSubscription` of version 1, without owned partitions.
fn subscription(topics: &[Tree]) -> Result<Tree> {
    let mut bytes = vec![0, 1];
    bytes.extend_from_slice(&i32::try_from(topics.len())?.to_be_bytes());
    for topic in topics {
        let Tree::Text(topic) = topic else { bail!("a subscription is of topics, not {topic}") };
        text(&mut bytes, topic)?;
    }
    // No user data, no owned partitions.
    bytes.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    Ok(Tree::Bytes(bytes))
}

/// What a leader gives to a member: `ConsumerProtocolAssignment` of version 1, of one topic.
fn assignment(topic: &str, partitions: &[Tree]) -> Result<Tree> {
    let mut bytes = vec![0, 1, 0, 0, 0, 1];
    text(&mut bytes, topic)?;
    bytes.extend_from_slice(&i32::try_from(partitions.len())?.to_be_bytes());
    for partition in partitions {
        let Tree::Int(partition) = partition else { bail!("a partition is a number") };
        bytes.extend_from_slice(&i32::try_from(*partition)?.to_be_bytes());
    }
    bytes.extend_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    Ok(Tree::Bytes(bytes))
}
