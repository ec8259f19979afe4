//! `tidelog group describe`.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use anyhow::Result;
use serde_json::{Value, json};

use super::{number, told};
use crate::{
    cli::{Bootstrap, Table, print, print_json},
    client::{GroupAdmin, GroupDescription, GroupMember, LookedUp, Place},
    printable::named,
    telemetry,
};

/// How far a group is in one partition.
#[derive(Debug, PartialEq, Eq)]
struct Position<'a> {
    place: Place,
    committed: Option<i64>,
    log_start: Option<i64>,
    log_end: Option<i64>,
    member: Option<&'a GroupMember>,
    /// Why the log's ends are not known.
    error: Option<String>,
}

impl Position<'_> {
    /// Records between what was committed and the end of the log. What retention took is nobody's to read any more.
    fn lag(&self) -> Option<i64> {
        let from = self.committed?.max(self.log_start?);
        Some(self.log_end?.saturating_sub(from).max(0))
    }
}

pub(super) async fn run(group: &str, bootstrap: &Bootstrap) -> Result<ExitCode> {
    let mut admin = GroupAdmin::connect(&bootstrap.bootstrap).await?;
    let described = admin.describe(group).await?;
    if described.is_dead() {
        return Err(GroupDescription::not_found(group).into());
    }
    let offsets = admin.offsets(group).await?;
    let owners = owners(&described);
    let places: BTreeSet<Place> = offsets.keys().chain(owners.keys()).cloned().collect();
    let starts = admin.list_offsets(&places, LOG_START).await?;
    let ends = admin.list_offsets(&places, LOG_END).await?;
    let positions = positions(&offsets, &owners, &starts, &ends);
    for error in positions.iter().filter_map(|position| position.error.as_ref()) {
        telemetry::remark(error);
    }
    if let Some(remark) = uncommitted(&positions) {
        telemetry::remark(&remark);
    }
    if bootstrap.json {
        print_json(&document(&described, &positions))?;
    } else {
        print(&text(&described, &positions))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Kafka's special times of a log's ends.
pub(super) const LOG_START: i64 = -2;
pub(super) const LOG_END: i64 = -1;

/// Who was given which partition.
fn owners(described: &GroupDescription) -> BTreeMap<Place, &GroupMember> {
    let mut owners = BTreeMap::new();
    for member in &described.members {
        owners.extend(member.assigned.iter().flatten().map(|place| (place.clone(), member)));
    }
    owners
}

/// Each partition that the group has an offset in, or a member for.
fn positions<'a>(
    offsets: &BTreeMap<Place, i64>,
    owners: &BTreeMap<Place, &'a GroupMember>,
    starts: &LookedUp,
    ends: &LookedUp,
) -> Vec<Position<'a>> {
    let places: BTreeSet<&Place> = offsets.keys().chain(owners.keys()).collect();
    let one = |looked_up: &LookedUp, place: &Place| match looked_up.get(place) {
        Some(Ok(offset)) => (*offset, None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, None),
    };
    let position = |place: &Place| {
        let ((log_start, no_start), (log_end, no_end)) = (one(starts, place), one(ends, place));
        Position {
            place: place.clone(),
            committed: offsets.get(place).copied(),
            log_start,
            log_end,
            member: owners.get(place).copied(),
            error: no_start.or(no_end),
        }
    };
    places.into_iter().map(position).collect()
}

/// The records that the group is behind, of the partitions where that is known; `None` where it is of none.
fn total_lag(positions: &[Position<'_>]) -> Option<i64> {
    positions.iter().filter_map(Position::lag).reduce(i64::saturating_add)
}

/// What is to be said of partitions that are in no sum.
fn uncommitted(positions: &[Position<'_>]) -> Option<String> {
    let count = positions.iter().filter(|position| position.committed.is_none()).count();
    (count > 0).then(|| {
        let partitions = if count == 1 { "partition" } else { "partitions" };
        format!("nothing was committed of {count} {partitions}: the lag does not count what is there")
    })
}

fn document(described: &GroupDescription, positions: &[Position<'_>]) -> Value {
    let place = |(topic, partition): &Place| json!({ "topic": topic, "partition": partition });
    let member = |member: &GroupMember| {
        json!({
            "member_id": member.member_id, "instance_id": member.instance_id, "client_id": member.client_id,
            "host": member.host,
            "assigned": member.assigned.as_ref().map(|places| places.iter().map(place).collect::<Vec<_>>()),
        })
    };
    let position = |position: &Position<'_>| {
        json!({
            "topic": position.place.0, "partition": position.place.1, "committed": position.committed,
            "log_start": position.log_start, "log_end": position.log_end, "lag": position.lag(),
            "member_id": position.member.map(|member| &member.member_id),
            "client_id": position.member.map(|member| &member.client_id),
            "host": position.member.map(|member| &member.host), "error": position.error,
        })
    };
    json!({
        "group": described.group, "state": described.state, "type": described.kind,
        "protocol_type": described.protocol_type, "protocol": described.protocol, "coordinator": described.coordinator, "lag": total_lag(positions),
        "members": described.members.iter().map(member).collect::<Vec<_>>(),
        "partitions": positions.iter().map(position).collect::<Vec<_>>(),
    })
}

fn text(described: &GroupDescription, positions: &[Position<'_>]) -> String {
    let mut group =
        Table::new(&["GROUP", "STATE", "TYPE", "PROTOCOL TYPE", "PROTOCOL", "MEMBERS", "LAG", "COORDINATOR"]);
    group.row([
        named(&described.group).to_owned(),
        described.state.clone(),
        described.kind.to_owned(),
        told(&described.protocol_type),
        told(&described.protocol),
        described.members.len().to_string(),
        number(total_lag(positions)),
        described.coordinator.clone(),
    ]);
    let mut members = Table::new(&["MEMBER", "INSTANCE", "CLIENT", "HOST", "ASSIGNED"]);
    for member in &described.members {
        members.row([
            member.member_id.clone(),
            told(member.instance_id.as_deref().unwrap_or_default()),
            told(&member.client_id),
            told(&member.host),
            assigned(member.assigned.as_deref()),
        ]);
    }
    let mut partitions =
        Table::new(&["TOPIC", "PARTITION", "COMMITTED", "LOG START", "LOG END", "LAG", "MEMBER"]);
    for position in positions {
        partitions.row([
            position.place.0.clone(),
            position.place.1.to_string(),
            number(position.committed),
            number(position.log_start),
            number(position.log_end),
            number(position.lag()),
            position.member.map_or_else(|| "-".to_owned(), |member| member.member_id.clone()),
        ]);
    }
    format!("{}{}{}", group.render(), members.render(), partitions.render())
}

/// A cell such as `flights:0,1 lines:4`.
fn assigned(places: Option<&[Place]>) -> String {
    let Some(places) = places else { return "not a consumer's".to_owned() };
    let mut by_topic: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (topic, partition) in places {
        by_topic.entry(topic).or_default().push(partition.to_string());
    }
    let topics = by_topic.into_iter().map(|(topic, partitions)| format!("{topic}:{}", partitions.join(",")));
    told(&topics.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ClientError;

    fn place(topic: &str, partition: i32) -> Place {
        (topic.to_owned(), partition)
    }

    fn described() -> GroupDescription {
        let member = |id: &str, assigned| GroupMember {
            member_id: id.to_owned(),
            instance_id: (id == "m-2").then(|| "two".to_owned()),
            client_id: "client".to_owned(),
            host: "/10.0.0.1".to_owned(),
            assigned,
        };
        GroupDescription {
            group: "g".to_owned(),
            state: "Stable".to_owned(),
            kind: "classic",
            protocol_type: "consumer".to_owned(),
            protocol: "range".to_owned(),
            coordinator: "node:9092".to_owned(),
            members: vec![
                member("m-1", Some(vec![place("a", 0), place("a", 1), place("b", 0)])),
                member("m-2", Some(Vec::new())),
                member("m-3", None),
            ],
        }
    }

    fn at(offsets: &[(&str, i32, i64)]) -> LookedUp {
        offsets
            .iter()
            .map(|(topic, partition, offset)| (place(topic, *partition), Ok(Some(*offset))))
            .collect()
    }

    #[test]
    fn a_partition_is_shown_that_has_an_offset_or_a_member() {
        let described = described();
        let offsets = BTreeMap::from([(place("a", 0), 7), (place("a", 1), 2), (place("gone", 3), 9)]);
        let starts = at(&[("a", 0, 0), ("a", 1, 5), ("b", 0, 0)]);
        let mut ends = at(&[("a", 0, 10), ("a", 1, 6), ("b", 0, 4)]);
        let gone = ClientError::Refused { what: "partition 3 of gone".to_owned(), code: 3, message: None };
        ends.insert(place("gone", 3), Err(gone));
        let positions = positions(&offsets, &owners(&described), &starts, &ends);
        assert_eq!(
            text(&described, &positions),
            "GROUP  STATE   TYPE     PROTOCOL TYPE  PROTOCOL  MEMBERS  LAG  COORDINATOR\n\
             g      Stable  classic  consumer       range           3    4  node:9092\n\
             MEMBER  INSTANCE  CLIENT  HOST       ASSIGNED\n\
             m-1     -         client  /10.0.0.1  a:0,1 b:0\n\
             m-2     two       client  /10.0.0.1  -\n\
             m-3     -         client  /10.0.0.1  not a consumer's\n\
             TOPIC  PARTITION  COMMITTED  LOG START  LOG END  LAG  MEMBER\n\
             a              0          7          0       10    3  m-1\n\
             a              1          2          5        6    1  m-1\n\
             b              0          -          0        4    -  m-1\n\
             gone           3          9          -        -    -  -\n"
        );
        let told = "partition 3 of gone: UNKNOWN_TOPIC_OR_PARTITION";
        assert_eq!(positions[3].error.as_deref(), Some(told));
        let document = document(&described, &positions);
        assert_eq!(document["lag"], 4);
        assert_eq!(
            document["partitions"][1],
            json!({
                "topic": "a", "partition": 1, "committed": 2, "log_start": 5, "log_end": 6, "lag": 1,
                "member_id": "m-1", "client_id": "client", "host": "/10.0.0.1", "error": null,
            })
        );
        assert_eq!(document["members"][2]["assigned"], Value::Null);
        assert_eq!(document["members"][0]["assigned"][2], json!({ "topic": "b", "partition": 0 }));
    }

    #[test]
    fn an_offset_past_the_end_is_no_lag_below_zero() {
        let position = |committed, log_end| Position {
            place: place("a", 0),
            committed: Some(committed),
            log_start: Some(0),
            log_end: Some(log_end),
            member: None,
            error: None,
        };
        assert_eq!(position(9, 4).lag(), Some(0));
        assert_eq!(position(4, 9).lag(), Some(5));
        assert_eq!(total_lag(&[position(0, i64::MAX), position(0, i64::MAX)]), Some(i64::MAX));
        assert_eq!(uncommitted(&[position(0, 1)]), None);
    }

    #[test]
    fn a_group_that_never_committed_has_no_lag_and_it_is_said() {
        let never = Position {
            place: place("a", 0),
            committed: None,
            log_start: Some(0),
            log_end: Some(9),
            member: None,
            error: None,
        };
        assert_eq!(total_lag(std::slice::from_ref(&never)), None);
        let said = "nothing was committed of 1 partition: the lag does not count what is there";
        assert_eq!(uncommitted(&[never]).as_deref(), Some(said));
    }
}
