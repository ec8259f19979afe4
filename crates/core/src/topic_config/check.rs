//! Checks of values, with Kafka's words for what is wrong.

use thiserror::Error;
use tidelog_types::shown;

use super::keys::{ConfigType, Key, Rule};

/// The longest value: whoever asks for the settings is told it in a string, and a list can be made longer word by word.
const VALUE_BYTES_MAX: usize = 0x7fff;

/// Why a configuration is refused. The texts are Kafka's, since people search for them; what a client sent is cut in them.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// No topic has such a key.
    #[error("Unknown topic config name: {}", shown(key))]
    UnknownTopicKey {
        /// The name that was given.
        key: String,
    },
    /// No broker has such a key.
    #[error("Unknown broker config name: {}", shown(key))]
    UnknownBrokerKey {
        /// The name that was given.
        key: String,
    },
    /// No group has such a key.
    #[error("Unknown group config name: {}", shown(key))]
    UnknownGroupKey {
        /// The name that was given.
        key: String,
    },
    /// The key cannot be altered while the broker runs.
    #[error("Cannot update these configs dynamically: [{}]", shown(key))]
    ReadOnly {
        /// The key.
        key: String,
    },
    /// Nothing here acts on the key of a topic or a group.
    #[error("Cannot set {key}: it has no effect here, and keeps its default")]
    WithoutEffect {
        /// The key.
        key: &'static str,
    },
    /// The key is one broker's alone.
    #[error(
        "Cannot update these configs at default cluster level, broker id must be specified: [{}]",
        shown(key)
    )]
    OfOneBroker {
        /// The key.
        key: String,
    },
    /// A null where a value is needed.
    #[error("Null value not supported for topic configs: {}", shown(key))]
    Null {
        /// The key.
        key: String,
    },
    /// The value breaks the key's type or rule.
    #[error("Invalid value {value} for configuration {key}: {reason}")]
    Invalid {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// The rule, in Kafka's words.
        reason: String,
    },
    /// APPEND or SUBTRACT on a key that holds no list.
    #[error("Can't {operation} to key {} because its type is not LIST.", shown(key))]
    NotAList {
        /// The key.
        key: String,
        /// `APPEND` or `SUBTRACT`.
        operation: &'static str,
    },
    /// Two values that cannot stand together.
    #[error("{text}")]
    Conflict {
        /// Which, and why.
        text: String,
    },
}

fn invalid(key: &Key, value: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        key: key.name.to_owned(),
        value: value.chars().take(256).collect(),
        reason: reason.into(),
    }
}

/// The words of a list value: separated by commas, spaces around them dropped, empty ones too.
pub(super) fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// A value as it is told: of a list the words alone, each once.
pub(super) fn told(key: &Key, value: &str) -> String {
    if key.kind != ConfigType::List {
        return value.to_owned();
    }
    let mut told: Vec<&str> = Vec::new();
    for word in words(value) {
        if !told.contains(&word) {
            told.push(word);
        }
    }
    told.join(",")
}

/// Whether nothing stands before, behind or between commas.
fn has_empty_word(value: &str) -> bool {
    value.split(',').any(|word| word.trim().is_empty())
}

pub(super) fn boolean(value: &str) -> Option<bool> {
    let value = value.trim();
    if value.eq_ignore_ascii_case("true") {
        Some(true)
    } else if value.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

/// Checks a value against its key's type and rule.
///
/// # Errors
/// Kafka's words for what is wrong.
pub fn check(key: &Key, value: &str) -> Result<(), ConfigError> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(invalid(key, value, format!("Value must be at most {VALUE_BYTES_MAX} bytes long")));
    }
    match key.kind {
        ConfigType::Boolean => match boolean(value) {
            Some(_) => Ok(()),
            None => Err(invalid(key, value, "Expected value to be either true or false")),
        },
        ConfigType::String => check_word(key, value.trim(), value),
        ConfigType::Class | ConfigType::Password => Ok(()),
        ConfigType::List if key.rule == Rule::Any => Ok(()),
        ConfigType::List => check_list(key, value),
        ConfigType::Double => check_ratio(key, value),
        ConfigType::Short => match value.trim().parse::<i16>() {
            Ok(number) => check_number(key, value, i64::from(number)),
            Err(_) => Err(invalid(key, value, "Not a number of type SHORT")),
        },
        ConfigType::Int => match value.trim().parse::<i32>() {
            Ok(number) => check_number(key, value, i64::from(number)),
            Err(_) => Err(invalid(key, value, "Not a number of type INT")),
        },
        ConfigType::Long => match value.trim().parse::<i64>() {
            Ok(number) => check_number(key, value, number),
            Err(_) => Err(invalid(key, value, "Not a number of type LONG")),
        },
    }
}

fn check_number(key: &Key, value: &str, number: i64) -> Result<(), ConfigError> {
    match key.rule {
        Rule::AtLeast(least) | Rule::Between(least, _) if number < least => {
            Err(invalid(key, value, format!("Value must be at least {least}")))
        }
        Rule::Between(_, most) if number > most => {
            Err(invalid(key, value, format!("Value must be no more than {most}")))
        }
        Rule::GzipLevel if number != -1 && !(1..=9).contains(&number) => {
            Err(invalid(key, value, "Value must be between 1 and 9 or equal to -1"))
        }
        Rule::Any
        | Rule::AtLeast(_)
        | Rule::Between(..)
        | Rule::GzipLevel
        | Rule::Ratio
        | Rule::OneOf(_)
        | Rule::OneOfAnyCase(_)
        | Rule::EachOf(_)
        | Rule::OffsetReset
        | Rule::ThrottledReplicas => Ok(()),
    }
}

fn check_ratio(key: &Key, value: &str) -> Result<(), ConfigError> {
    match value.trim().parse::<f64>() {
        Ok(number) if key.rule == Rule::Any && number.is_finite() => Ok(()),
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(()),
        Ok(number) if number < 0.0 => Err(invalid(key, value, "Value must be at least 0")),
        Ok(number) if number > 1.0 => Err(invalid(key, value, "Value must be no more than 1")),
        Ok(_) | Err(_) => Err(invalid(key, value, "Not a number of type DOUBLE")),
    }
}

fn check_word(key: &Key, word: &str, value: &str) -> Result<(), ConfigError> {
    match key.rule {
        Rule::OneOf(allowed) | Rule::EachOf(allowed) if !allowed.contains(&word) => {
            Err(invalid(key, value, format!("String must be one of: {}", allowed.join(", "))))
        }
        Rule::OneOfAnyCase(allowed) if !allowed.iter().any(|one| one.eq_ignore_ascii_case(word)) => {
            let text = format!("String must be one of (case insensitive): {}", allowed.join(", "));
            Err(invalid(key, value, text))
        }
        Rule::OffsetReset if !is_offset_reset(word) => Err(invalid(
            key,
            value,
            "Must be `earliest`, `latest` or `by_duration:` and an ISO-8601 duration",
        )),
        Rule::Any
        | Rule::AtLeast(_)
        | Rule::Between(..)
        | Rule::GzipLevel
        | Rule::Ratio
        | Rule::OneOf(_)
        | Rule::OneOfAnyCase(_)
        | Rule::EachOf(_)
        | Rule::OffsetReset
        | Rule::ThrottledReplicas => Ok(()),
    }
}

/// `earliest`, `latest`, or how far back: `by_duration:P1DT2H`.
fn is_offset_reset(word: &str) -> bool {
    let Some(duration) = word.strip_prefix("by_duration:") else {
        return matches!(word, "earliest" | "latest");
    };
    let duration = duration.to_ascii_uppercase();
    let Some(parts) = duration.strip_prefix('P').filter(|parts| parts.len() <= 64) else { return false };
    let (days, time) = match parts.split_once('T') {
        Some((days, time)) => (days, Some(time)),
        None => (parts, None),
    };
    // Numbers, each with its unit, in the units' order.
    let units = |text: &str, units: &[char]| {
        let (mut rest, mut count) = (text, 0);
        for unit in units {
            if let Some((number, after)) = rest.split_once(*unit) {
                let is_good = number.parse::<f64>().is_ok_and(|number| number >= 0.0)
                    && number.starts_with(|first: char| first.is_ascii_digit())
                    && (*unit == 'S' || number.bytes().all(|byte| byte.is_ascii_digit()));
                if !is_good {
                    return None;
                }
                (rest, count) = (after, count + 1);
            }
        }
        rest.is_empty().then_some(count)
    };
    match (units(days, &['D']), time.map(|time| units(time, &['H', 'M', 'S']))) {
        (Some(days), None) => days > 0,
        (Some(_), Some(Some(time))) => time > 0,
        _ => false,
    }
}

fn check_list(key: &Key, value: &str) -> Result<(), ConfigError> {
    if key.rule == Rule::ThrottledReplicas {
        let pair = |word: &str| {
            word.split_once(':').is_some_and(|(partition, broker)| {
                partition.parse::<u32>().is_ok() && broker.parse::<u32>().is_ok()
            })
        };
        if value.trim() == "*" || words(value).all(pair) {
            return Ok(());
        }
        return Err(invalid(
            key,
            value,
            "Must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ));
    }
    if !value.trim().is_empty() && has_empty_word(value) {
        check_word(key, "", value)?;
    }
    let mut seen = Vec::new();
    for word in words(value) {
        check_word(key, word, word)?;
        // Kafka takes a topic's policy twice for once.
        if seen.contains(&word) && matches!(key.rule, Rule::EachOf(_)) {
            return Err(invalid(
                key,
                value,
                format!("Configuration '{}' values must not be duplicated.", key.name),
            ));
        }
        seen.push(word);
    }
    if seen.is_empty() && matches!(key.rule, Rule::EachOf(_)) {
        return Err(invalid(key, value, format!("Configuration '{}' must not be empty.", key.name)));
    }
    Ok(())
}
