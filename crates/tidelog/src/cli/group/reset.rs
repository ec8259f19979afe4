//! `tidelog group reset-offsets`.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use clap::{ArgGroup, Args};
use serde_json::json;
use tidelog_runtime::{Clock as _, SystemClock};
use tidelog_types::{Timestamp, TopicName};
use tidelog_wire::ErrorCode;

use super::{
    describe::{LOG_END, LOG_START},
    number, time,
};
use crate::{
    cli::{Bootstrap, Table, print_json},
    client::{ClientError, GroupAdmin, GroupDescription, LookedUp, Place},
    printable::named,
    telemetry,
};

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("scope").required(true).args(["topics", "all_topics"])))]
#[command(group(ArgGroup::new("target").required(true).args([
    "to_earliest", "to_latest", "to_offset", "shift_by", "to_datetime", "by_duration",
])))]
pub(crate) struct Options {
    /// The group's name; empty ("") is a name, too.
    group: String,
    /// A topic, or some of its partitions; may be repeated.
    #[arg(long = "topic", value_name = "TOPIC[:PARTITION,…]", value_parser = scope)]
    topics: Vec<Scope>,
    /// Every partition that the group has an offset in.
    #[arg(long)]
    all_topics: bool,
    /// To the log start offset.
    #[arg(long)]
    to_earliest: bool,
    /// To the end.
    #[arg(long)]
    to_latest: bool,
    /// To this offset.
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..), allow_hyphen_values = true)]
    to_offset: Option<i64>,
    /// So many offsets on from the committed one; back where it is negative.
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    shift_by: Option<i64>,
    /// To the first record from this time on: RFC 3339 (UTC where it has no zone), or milliseconds since 1970.
    #[arg(long, value_name = "TIME", value_parser = time::moment, allow_hyphen_values = true)]
    to_datetime: Option<Timestamp>,
    /// To the first record of this span up to now: ISO 8601, such as PT1H30M or P7D.
    #[arg(long, value_name = "SPAN", value_parser = time::span, allow_hyphen_values = true)]
    by_duration: Option<Duration>,
    /// Only shows what would be, which is what happens without --execute.
    #[arg(long, conflicts_with = "execute")]
    dry_run: bool,
    /// Commits the offsets.
    #[arg(long)]
    execute: bool,
    #[command(flatten)]
    pub(super) bootstrap: Bootstrap,
}

/// A topic, or some of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scope {
    topic: TopicName,
    /// All of them where none is named.
    partitions: Vec<i32>,
}

fn scope(text: &str) -> Result<Scope, String> {
    let wrong = || format!("`{text}` is not TOPIC or TOPIC:PARTITION,…");
    let (name, partitions) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let topic = TopicName::new(name).map_err(|error| error.to_string())?;
    let number = |text: &str| text.parse::<i32>().ok().filter(|number| *number >= 0).ok_or_else(wrong);
    let partitions = partitions.map_or(Ok(Vec::new()), |list| list.split(',').map(number).collect())?;
    Ok(Scope { topic, partitions })
}

/// Where offsets are to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Earliest,
    Latest,
    Offset(i64),
    Shift(i64),
    Time(Timestamp),
}

impl Target {
    /// What is asked for; `None` where nothing is, which the command line does not let pass.
    fn of(options: &Options, now: Timestamp) -> Option<Self> {
        let by_duration = options.by_duration.map(|span| {
            let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            Self::Time(Timestamp::from_millis(now.as_millis().saturating_sub(millis)))
        });
        (options.to_earliest.then_some(Self::Earliest))
            .or(options.to_latest.then_some(Self::Latest))
            .or(options.to_offset.map(Self::Offset))
            .or(options.shift_by.map(Self::Shift))
            .or(options.to_datetime.map(Self::Time))
            .or(by_duration)
    }
}

/// What becomes of one partition's offset.
#[derive(Debug, PartialEq, Eq)]
struct Move {
    committed: Option<i64>,
    offset: i64,
    note: Option<&'static str>,
}

const BELOW_START: &str = "below the log start: set to it";
const ABOVE_END: &str = "above the log end: set to it";
const NO_RECORD: &str = "no record from that time on: set to the log end";

/// Where a partition goes whose log has these ends; `found` is what its leader knows of a time.
fn planned(
    target: Target,
    committed: Option<i64>,
    (start, end): (i64, i64),
    found: Option<i64>,
) -> Option<Move> {
    let (wanted, note) = match target {
        Target::Earliest => (start, None),
        Target::Latest => (end, None),
        Target::Offset(offset) => (offset, None),
        Target::Shift(count) => (committed?.saturating_add(count), None),
        Target::Time(_) => found.map_or((end, Some(NO_RECORD)), |offset| (offset, None)),
    };
    let (offset, note) = if wanted < start {
        (start, Some(BELOW_START))
    } else if wanted > end {
        (end, Some(ABOVE_END))
    } else {
        (wanted, note)
    };
    Some(Move { committed, offset, note })
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let Some(target) = Target::of(&options, SystemClock::new().wall()) else {
        anyhow::bail!("nothing is asked for");
    };
    let group = &options.group;
    let mut admin = GroupAdmin::connect(&options.bootstrap.bootstrap).await?;
    let described = admin.describe(group).await?;
    refuse_members(&described)?;
    let committed = admin.offsets(group).await?;
    if described.is_dead() && options.all_topics {
        return Err(GroupDescription::not_found(group).into());
    }
    let places = if options.all_topics {
        committed.keys().cloned().collect()
    } else {
        places(&mut admin, &options.topics).await?
    };
    let moves = moves(&mut admin, target, &places, &committed).await?;
    if options.execute {
        let offsets = moves.iter().map(|(place, to)| (place.clone(), to.offset)).collect();
        admin.commit(group, &offsets).await?;
    }
    show(&options, &moves)?;
    if options.dry_run || !options.execute {
        telemetry::remark("nothing is changed: --execute commits these offsets");
    }
    Ok(ExitCode::SUCCESS)
}

/// A member would commit over what was set, and read on from where it is.
fn refuse_members(described: &GroupDescription) -> Result<(), ClientError> {
    if described.is_dead() || (described.state == "Empty" && described.members.is_empty()) {
        return Ok(());
    }
    let (state, count) = (&described.state, described.members.len());
    let members = if count == 1 { "member" } else { "members" };
    Err(ClientError::Refused {
        what: format!("reset offsets of group {}", named(&described.group)),
        code: ErrorCode::NonEmptyGroup.code(),
        message: Some(format!("it is {state}, with {count} {members}: stop them first, all of them")),
    })
}

/// The partitions that are named.
async fn places(admin: &mut GroupAdmin, scopes: &[Scope]) -> Result<BTreeSet<Place>, ClientError> {
    let mut places = BTreeSet::new();
    for Scope { topic, partitions } in scopes {
        if partitions.is_empty() {
            let count = admin.partition_count(topic.as_str()).await?;
            places.extend((0..count).map(|partition| (topic.to_string(), partition)));
        } else {
            places.extend(partitions.iter().map(|partition| (topic.to_string(), *partition)));
        }
    }
    Ok(places)
}

/// Where each partition goes.
async fn moves(
    admin: &mut GroupAdmin,
    target: Target,
    places: &BTreeSet<Place>,
    committed: &BTreeMap<Place, i64>,
) -> Result<BTreeMap<Place, Move>> {
    let mut starts = admin.list_offsets(places, LOG_START).await?;
    let mut found = match target {
        Target::Time(time) => admin.list_offsets(places, time.to_wire()).await?,
        _ => LookedUp::new(),
    };
    // The end is asked last: what was found before it is not behind it.
    let mut ends = admin.list_offsets(places, LOG_END).await?;
    let mut moves = BTreeMap::new();
    for place in places {
        let start = taken(&mut starts, place)?.ok_or(ClientError::Incomplete("a log start offset"))?;
        let end = taken(&mut ends, place)?.ok_or(ClientError::Incomplete("an end offset"))?;
        let time = taken(&mut found, place)?;
        let committed = committed.get(place).copied();
        let Some(to) = planned(target, committed, (start, end), time) else {
            anyhow::bail!("partition {} of {} has no committed offset to shift", place.1, place.0);
        };
        moves.insert(place.clone(), to);
    }
    Ok(moves)
}

fn taken(looked_up: &mut LookedUp, place: &Place) -> Result<Option<i64>, ClientError> {
    looked_up.remove(place).unwrap_or(Ok(None))
}

fn show(options: &Options, moves: &BTreeMap<Place, Move>) -> Result<()> {
    if options.bootstrap.json {
        let partition = |((topic, partition), to): (&Place, &Move)| {
            json!({
                "topic": topic, "partition": partition, "committed": to.committed, "offset": to.offset,
                "note": to.note,
            })
        };
        let partitions: Vec<_> = moves.iter().map(partition).collect();
        return print_json(
            &json!({ "group": options.group, "executed": options.execute, "partitions": partitions }),
        );
    }
    let mut table = Table::new(&["TOPIC", "PARTITION", "COMMITTED", "NEW OFFSET", "NOTE"]);
    for ((topic, partition), to) in moves {
        table.row([
            topic.clone(),
            partition.to_string(),
            number(to.committed),
            to.offset.to_string(),
            to.note.unwrap_or_default().to_owned(),
        ]);
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_goes_where_it_is_told_within_the_log() {
        let ends = (10, 100);
        let at = |target, found| {
            let to = planned(target, Some(50), ends, found).unwrap();
            (to.offset, to.note)
        };
        assert_eq!(at(Target::Earliest, None), (10, None));
        assert_eq!(at(Target::Latest, None), (100, None));
        assert_eq!(at(Target::Offset(10), None), (10, None));
        assert_eq!(at(Target::Offset(9), None), (10, Some(BELOW_START)));
        assert_eq!(at(Target::Offset(100), None), (100, None));
        assert_eq!(at(Target::Offset(101), None), (100, Some(ABOVE_END)));
        assert_eq!(at(Target::Shift(-40), None), (10, None));
        assert_eq!(at(Target::Shift(-41), None), (10, Some(BELOW_START)));
        assert_eq!(at(Target::Shift(i64::MIN), None), (10, Some(BELOW_START)));
        assert_eq!(at(Target::Shift(i64::MAX), None), (100, Some(ABOVE_END)));
        let time = Target::Time(Timestamp::from_millis(5));
        assert_eq!(at(time, Some(70)), (70, None));
        assert_eq!(at(time, None), (100, Some(NO_RECORD)));
        assert_eq!(planned(Target::Shift(1), None, ends, None), None);
        let first = Move { committed: None, offset: 10, note: None };
        assert_eq!(planned(Target::Earliest, None, ends, None), Some(first));
    }

    #[test]
    fn a_group_with_members_is_left_alone() {
        let mut described = GroupDescription {
            group: "g".to_owned(),
            state: "Empty".to_owned(),
            kind: "classic",
            protocol_type: String::new(),
            protocol: String::new(),
            coordinator: String::new(),
            members: Vec::new(),
        };
        refuse_members(&described).unwrap();
        described.state = "Dead".to_owned();
        refuse_members(&described).unwrap();
        described.state = "PreparingRebalance".to_owned();
        let refused = refuse_members(&described).unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::NonEmptyGroup));
        assert_eq!(
            refused.to_string(),
            "reset offsets of group g: NON_EMPTY_GROUP: it is PreparingRebalance, with 0 members: stop them first, all of them"
        );
    }

    #[test]
    fn a_scope_is_a_topic_or_some_of_its_partitions() {
        let topic = |name| TopicName::new(name).unwrap();
        assert_eq!(scope("t"), Ok(Scope { topic: topic("t"), partitions: Vec::new() }));
        assert_eq!(scope("t:0,12"), Ok(Scope { topic: topic("t"), partitions: vec![0, 12] }));
        for wrong in ["t:", "t:,", "t:-1", "t:1,", "t:0:1", ":0", "a b"] {
            assert!(scope(wrong).is_err(), "{wrong}");
        }
    }
}
