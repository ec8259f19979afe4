//! Tests of the assignors.

use proptest::prelude::*;

use super::*;
use crate::groups::consumer::tests::{partitions, topic_id};

/// A member of a group that is assigned for in a test.
#[derive(Debug, Clone, Default)]
struct Given {
    id: String,
    instance_id: Option<String>,
    rack_id: Option<String>,
    topics: BTreeSet<TopicId>,
    previous: Partitions,
}

fn given(id: &str, topics: &[u8], previous: &[(u8, &[i32])]) -> Given {
    Given {
        id: id.to_owned(),
        topics: topics.iter().map(|made| topic_id(*made)).collect(),
        previous: partitions(previous),
        ..Given::default()
    }
}

fn topics(counts: &[(u8, i32)]) -> BTreeMap<TopicId, TopicSpec> {
    let spec = |partition_count| TopicSpec { partition_count, racks: Vec::new() };
    counts.iter().map(|(made, count)| (topic_id(*made), spec(*count))).collect()
}

fn assign(assignor: Assignor, members: &[Given], topics: &BTreeMap<TopicId, TopicSpec>) -> Vec<Partitions> {
    let members = members.iter().map(|member| MemberSpec {
        member_id: &member.id,
        instance_id: member.instance_id.as_deref(),
        rack_id: member.rack_id.as_deref(),
        topics: member.topics.clone(),
        previous: &member.previous,
    });
    assignor.assign(&GroupSpec { members: members.collect(), topics: topics.clone() })
}

#[test]
fn assignors_have_names() {
    assert_eq!(Assignor::from_name("uniform"), Some(Assignor::Uniform));
    assert_eq!(Assignor::from_name("range"), Some(Assignor::Range));
    assert_eq!(Assignor::from_name("Range"), None);
    assert!(assign(Assignor::Uniform, &[], &topics(&[])).is_empty());
}

#[test]
fn uniform_evens_out_over_all_topics() {
    let members = [given("m1", &[1, 2], &[]), given("m2", &[1, 2], &[])];
    let assigned = assign(Assignor::Uniform, &members, &topics(&[(1, 3), (2, 2)]));
    assert_eq!(assigned, [partitions(&[(1, &[0, 1, 2])]), partitions(&[(2, &[0, 1])])]);
}

#[test]
fn uniform_leaves_the_one_more_with_who_has_it() {
    let members = [given("m1", &[1], &[(1, &[2])]), given("m2", &[1], &[(1, &[0, 1])])];
    let assigned = assign(Assignor::Uniform, &members, &topics(&[(1, 3)]));
    assert_eq!(assigned, [partitions(&[(1, &[2])]), partitions(&[(1, &[0, 1])])]);
}

#[test]
fn uniform_takes_no_more_than_a_new_member_is_due() {
    let members = [
        given("m1", &[1], &[(1, &[0, 1, 2])]),
        given("m2", &[1], &[(1, &[3, 4, 5])]),
        given("m3", &[1], &[]),
    ];
    let assigned = assign(Assignor::Uniform, &members, &topics(&[(1, 6)]));
    assert_eq!(
        assigned,
        [partitions(&[(1, &[0, 1])]), partitions(&[(1, &[3, 4])]), partitions(&[(1, &[2, 5])])]
    );
}

#[test]
fn uniform_keeps_nothing_that_is_gone_or_claimed_twice() {
    let members = [given("m1", &[1], &[(1, &[0, 9]), (7, &[0])]), given("m2", &[1], &[(1, &[0, 1])])];
    let assigned = assign(Assignor::Uniform, &members, &topics(&[(1, 2)]));
    assert_eq!(assigned, [partitions(&[(1, &[0])]), partitions(&[(1, &[1])])]);
}

#[test]
fn uniform_prefers_racks_only_where_they_differ() {
    let members = [within(given("m1", &[1], &[]), "r1"), within(given("m2", &[1], &[]), "r2")];
    let mut image = topics(&[(1, 4)]);
    place(&mut image, 1, &["r2", "r2", "r1", "r1"]);
    assert_eq!(
        assign(Assignor::Uniform, &members, &image),
        [partitions(&[(1, &[2, 3])]), partitions(&[(1, &[0, 1])])]
    );
    place(&mut image, 1, &["r2", "r2", "r2", "r2"]);
    assert_eq!(
        assign(Assignor::Uniform, &members, &image),
        [partitions(&[(1, &[0, 1])]), partitions(&[(1, &[2, 3])])]
    );
    // Neither balance nor what members have gives way to a rack.
    let members = [within(given("m1", &[1], &[(1, &[0, 1])]), "r1"), within(given("m2", &[1], &[]), "r1")];
    place(&mut image, 1, &["r2", "r2", "r1", "r1"]);
    assert_eq!(
        assign(Assignor::Uniform, &members, &image),
        [partitions(&[(1, &[0, 1])]), partitions(&[(1, &[2, 3])])]
    );
}

#[test]
fn mixed_subscriptions_are_evened_out_as_far_as_they_reach() {
    let members = [given("m1", &[1], &[]), given("m2", &[1, 2], &[]), given("m3", &[2], &[])];
    let assigned = assign(Assignor::Uniform, &members, &topics(&[(1, 2), (2, 4)]));
    assert_eq!(assigned.iter().map(count).collect::<Vec<_>>(), [2, 2, 2]);
    // Only one subscriber: all of it, however much.
    let members = [given("m1", &[1], &[]), given("m2", &[2], &[])];
    let assigned = assign(Assignor::Uniform, &members, &topics(&[(1, 5), (2, 1)]));
    assert_eq!(assigned, [partitions(&[(1, &[0, 1, 2, 3, 4])]), partitions(&[(2, &[0])])]);
}

#[test]
fn mixed_subscriptions_move_only_what_balance_needs() {
    let members = [
        given("m1", &[1], &[(1, &[0, 1, 2, 3])]),
        given("m2", &[1, 2], &[(2, &[0])]),
        given("m3", &[2], &[]),
    ];
    let assigned = assign(Assignor::Uniform, &members, &topics(&[(1, 4), (2, 2)]));
    assert_eq!(
        assigned,
        [partitions(&[(1, &[0, 1, 2])]), partitions(&[(1, &[3]), (2, &[0])]), partitions(&[(2, &[1])])]
    );
}

/// A member in a rack.
fn within(member: Given, rack: &str) -> Given {
    Given { rack_id: Some(rack.to_owned()), ..member }
}

/// Has each partition of a topic in one rack.
fn place(image: &mut BTreeMap<TopicId, TopicSpec>, topic: u8, racks: &[&'static str]) {
    image.get_mut(&topic_id(topic)).unwrap().racks =
        racks.iter().map(|rack| BTreeSet::from([Arc::from(*rack)])).collect();
}

#[test]
fn mixed_subscriptions_prefer_racks_within_the_same_sizes() {
    let members = [
        within(given("m1", &[1], &[]), "r1"),
        within(given("m2", &[1, 2], &[]), "r2"),
        within(given("m3", &[2], &[]), "r1"),
    ];
    let mut image = topics(&[(1, 4), (2, 2)]);
    place(&mut image, 1, &["r2", "r2", "r1", "r1"]);
    place(&mut image, 2, &["r1", "r1"]);
    assert_eq!(
        assign(Assignor::Uniform, &members, &image),
        [partitions(&[(1, &[2, 3])]), partitions(&[(1, &[0, 1])]), partitions(&[(2, &[0, 1])])]
    );
}

#[test]
fn mixed_subscriptions_move_what_comes_near_and_keep_what_need_not_move() {
    let members = [
        within(given("m1", &[1], &[(1, &[0, 1, 2, 3])]), "r1"),
        within(given("m2", &[1, 2], &[]), "r2"),
        within(given("m3", &[2], &[]), "r1"),
    ];
    let mut image = topics(&[(1, 4), (2, 1)]);
    place(&mut image, 1, &["r2", "r2", "r1", "r1"]);
    place(&mut image, 2, &["r1"]);
    let assigned = assign(Assignor::Uniform, &members, &image);
    assert_eq!(
        assigned,
        [partitions(&[(1, &[2, 3])]), partitions(&[(1, &[0, 1])]), partitions(&[(2, &[0])])],
        "of what m1 has, what is near m2 moves"
    );
}

#[test]
fn range_prefers_racks_and_keeps_the_same_numbers_together() {
    let members = [within(given("m1", &[1, 2], &[]), "r1"), within(given("m2", &[1, 2], &[]), "r2")];
    let mut image = topics(&[(1, 4), (2, 4)]);
    place(&mut image, 1, &["r2", "r1", "r1", "r2"]);
    place(&mut image, 2, &["r2", "r1", "r2", "r2"]);
    // 2 is near nobody in both topics: it makes up the size of m1, in both.
    assert_eq!(
        assign(Assignor::Range, &members, &image),
        [partitions(&[(1, &[1, 2]), (2, &[1, 2])]), partitions(&[(1, &[0, 3]), (2, &[0, 3])])]
    );
    // All in one rack: ranges as ever.
    place(&mut image, 1, &["r2"; 4]);
    place(&mut image, 2, &["r2"; 4]);
    assert_eq!(
        assign(Assignor::Range, &members, &image),
        [partitions(&[(1, &[0, 1]), (2, &[0, 1])]), partitions(&[(1, &[2, 3]), (2, &[2, 3])])]
    );
}

#[test]
fn range_does_not_give_a_near_member_more_than_its_share() {
    let members = [within(given("m1", &[1], &[]), "r1"), given("m2", &[1], &[])];
    let mut image = topics(&[(1, 3)]);
    place(&mut image, 1, &["r2", "r1", "r1"]);
    assert_eq!(
        assign(Assignor::Range, &members, &image),
        [partitions(&[(1, &[1, 2])]), partitions(&[(1, &[0])])]
    );
    place(&mut image, 1, &["r1", "r1", "r2"]);
    let reversed = [given("m1", &[1], &[]), within(given("m2", &[1], &[]), "r1")];
    assert_eq!(
        assign(Assignor::Range, &reversed, &image),
        [partitions(&[(1, &[1, 2])]), partitions(&[(1, &[0])])]
    );
}

#[test]
fn range_gives_the_same_numbers_of_every_topic() {
    let members = [given("m1", &[1, 2], &[]), given("m2", &[1, 2], &[])];
    let assigned = assign(Assignor::Range, &members, &topics(&[(1, 3), (2, 3)]));
    assert_eq!(assigned, [partitions(&[(1, &[0, 1]), (2, &[0, 1])]), partitions(&[(1, &[2]), (2, &[2])])]);
}

#[test]
fn range_counts_the_subscribers_of_each_topic() {
    let members =
        [given("m1", &[1, 2], &[]), given("m2", &[1], &[]), given("m3", &[2], &[]), given("m4", &[2], &[])];
    let assigned = assign(Assignor::Range, &members, &topics(&[(1, 3), (2, 2)]));
    assert_eq!(
        assigned,
        [
            partitions(&[(1, &[0, 1]), (2, &[0])]),
            partitions(&[(1, &[2])]),
            partitions(&[(2, &[1])]),
            partitions(&[])
        ]
    );
}

#[test]
fn range_puts_static_members_first_by_instance_id() {
    let fixed = |member: Given, instance: &str| Given { instance_id: Some(instance.to_owned()), ..member };
    let members =
        [given("a", &[1], &[]), fixed(given("x", &[1], &[]), "i2"), fixed(given("z", &[1], &[]), "i1")];
    let assigned = assign(Assignor::Range, &members, &topics(&[(1, 3)]));
    assert_eq!(assigned, [partitions(&[(1, &[2])]), partitions(&[(1, &[1])]), partitions(&[(1, &[0])])]);
}

fn count(partitions: &Partitions) -> usize {
    partitions.values().map(BTreeSet::len).sum()
}

const RACKS: [&str; 3] = ["r1", "r2", "r3"];

/// Partition counts of up to five topics, with racks or without, and members with subscriptions and what they had.
fn group(same: bool) -> impl Strategy<Value = (BTreeMap<TopicId, TopicSpec>, Vec<Given>)> {
    let counts = proptest::collection::vec(0_i32..12, 1..5);
    let member = (any::<u8>(), proptest::collection::btree_set((1_u8..6, 0_i32..12), 0..12));
    (counts, proptest::collection::vec(member, 1..12), any::<bool>()).prop_map(
        move |(counts, members, racks)| {
            let image: Vec<(u8, i32)> = (1_u8..).zip(counts).collect();
            let mut taken = BTreeSet::new();
            let members = members.into_iter().enumerate().map(|(index, (mask, had))| {
                let subscribed = image.iter().filter(|(made, _)| same || mask & (1 << made) != 0);
                let mut previous = Partitions::new();
                for (made, partition) in had {
                    if taken.insert((made, partition)) {
                        previous.entry(topic_id(made)).or_default().insert(partition);
                    }
                }
                let topics = subscribed.map(|(made, _)| topic_id(*made)).collect();
                let rack_id = RACKS.get(usize::from(mask) % 4).map(|rack| (*rack).to_owned());
                Given { id: format!("m{index:02}"), rack_id, topics, previous, ..Given::default() }
            });
            let members = members.collect();
            let mut image = topics(&image);
            if racks {
                for (topic, spec) in image.values_mut().enumerate() {
                    let of = |partition| BTreeSet::from([Arc::from(RACKS[(topic + partition) % 3])]);
                    spec.racks = (0..usize::try_from(spec.partition_count).unwrap()).map(of).collect();
                }
            }
            (image, members)
        },
    )
}

/// Every partition of a topic with subscribers has one owner, which subscribes to it.
fn check_owners(image: &BTreeMap<TopicId, TopicSpec>, members: &[Given], assigned: &[Partitions]) {
    let mut owned = BTreeSet::new();
    for (member, partitions) in members.iter().zip(assigned) {
        for (topic, partitions) in partitions {
            assert!(member.topics.contains(topic), "{topic} is not subscribed to");
            for partition in partitions {
                assert!(owned.insert((*topic, *partition)), "{topic}-{partition} has two owners");
            }
        }
    }
    let expected: BTreeSet<_> = image
        .iter()
        .filter(|(topic, _)| members.iter().any(|member| member.topics.contains(*topic)))
        .flat_map(|(topic, spec)| (0..spec.partition_count).map(move |partition| (*topic, partition)))
        .collect();
    assert_eq!(owned, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn equal_subscriptions_are_balanced_and_move_as_little_as_can_be((image, members) in group(true)) {
        let assigned = assign(Assignor::Uniform, &members, &image);
        check_owners(&image, &members, &assigned);
        let sizes: Vec<usize> = assigned.iter().map(count).collect();
        let (least, most) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{sizes:?}");

        let valid = |member: &Given| -> usize {
            let of = |(topic, had): (&TopicId, &BTreeSet<i32>)| {
                image.get(topic).map_or(0, |spec| had.iter().filter(|p| **p < spec.partition_count).count())
            };
            member.previous.iter().map(of).sum()
        };
        let total: usize = sizes.iter().sum();
        let (share, extra) = (total / members.len(), total % members.len());
        let above = members.iter().filter(|member| valid(member) > share).count();
        let most_kept: usize = members.iter().map(|member| valid(member).min(share)).sum::<usize>() + above.min(extra);
        let kept: usize = members.iter().zip(&assigned).map(|(member, assigned)| {
            let of = |(topic, now): (&TopicId, &BTreeSet<i32>)| {
                member.previous.get(topic).map_or(0, |had| had.intersection(now).count())
            };
            assigned.iter().map(of).sum::<usize>()
        }).sum();
        prop_assert_eq!(kept, most_kept);
    }

    #[test]
    fn mixed_subscriptions_are_balanced_where_they_meet((image, members) in group(false)) {
        let assigned = assign(Assignor::Uniform, &members, &image);
        check_owners(&image, &members, &assigned);
        for (from, has) in assigned.iter().enumerate() {
            for topic in has.keys() {
                for (to, member) in members.iter().enumerate().filter(|(_, member)| member.topics.contains(topic)) {
                    prop_assert!(
                        count(has) <= count(&assigned[to]) + 1,
                        "{} has {} and could give of {topic} to {}", from, count(has), member.id
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_assigned_already_stays((image, members) in group(false), assignor in 0_usize..2) {
        let assignor = Assignor::ALL[assignor];
        let assigned = assign(assignor, &members, &image);
        check_owners(&image, &members, &assigned);
        let again: Vec<Given> = members.iter().zip(&assigned)
            .map(|(member, assigned)| Given { previous: assigned.clone(), ..member.clone() })
            .collect();
        prop_assert_eq!(assign(assignor, &again, &image), assigned);
    }
}
