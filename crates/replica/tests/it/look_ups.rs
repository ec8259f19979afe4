//! Look-ups by time and epoch on the local log.

use tidelog_core::read_plan::{Isolation, LeadershipMismatch, ListOffsetsTarget, ListedOffset};
use tidelog_format::codec::Codec;
use tidelog_replica::{LookUpError, PartitionHandle};
use tidelog_sim::run;

use crate::node::{DEADLINE, LOCAL, Node, append_all, epoch, offset, sent, time, timed, values};

async fn list(partition: &PartitionHandle, target: ListOffsetsTarget) -> ListedOffset {
    partition.list_offsets(target, Isolation::ReadUncommitted, None, DEADLINE).await.unwrap()
}

#[test]
fn offsets_carry_the_epoch_of_their_record_over_restarts() {
    // B20, B61
    run(1, |context| async move {
        let mut disk = context.disk.clone();
        let mut epochs = Vec::new();
        for life in 0..4_u64 {
            let current = context
                .life(&disk, async |supervisor| {
                    let node = Node::start(&context, &disk, supervisor).await;
                    let partition = if life == 0 {
                        node.create_topic("t", 1, &[LOCAL]).await
                    } else {
                        node.partition("t")
                    };
                    let current = partition.snapshot().leader_epoch;
                    if life < 3 {
                        assert_eq!(
                            append_all(&partition, sent(timed(&[(life * 100, "a"), (life * 100, "b")])))
                                .await,
                            life * 2
                        );
                    } else {
                        let first = list(&partition, ListOffsetsTarget::Earliest).await;
                        assert_eq!((first.offset, first.leader_epoch), (Some(offset(0)), Some(epochs[0])));
                        let second = list(&partition, ListOffsetsTarget::Time(time(150))).await;
                        assert_eq!((second.offset, second.leader_epoch), (Some(offset(4)), Some(epochs[2])));
                        let latest = list(&partition, ListOffsetsTarget::Latest).await;
                        assert_eq!((latest.offset, latest.leader_epoch), (Some(offset(6)), Some(current)));
                        for (at, known) in (1..).zip(&epochs) {
                            let end =
                                partition.offset_for_leader_epoch(*known, None, DEADLINE).await.unwrap();
                            assert_eq!(end, Some((*known, offset(at * 2))));
                        }
                        let end = partition.offset_for_leader_epoch(current, None, DEADLINE).await.unwrap();
                        assert_eq!(end, Some((current, offset(6))));
                        let newer = current.next().unwrap();
                        assert_eq!(
                            partition.offset_for_leader_epoch(newer, None, DEADLINE).await.unwrap(),
                            None
                        );
                        let fenced = partition
                            .list_offsets(
                                ListOffsetsTarget::Latest,
                                Isolation::ReadUncommitted,
                                Some(epochs[0]),
                                DEADLINE,
                            )
                            .await;
                        assert!(matches!(
                            fenced,
                            Err(LookUpError::Leadership(LeadershipMismatch::FencedEpoch))
                        ));
                    }
                    node.stop().await;
                    current
                })
                .await
                .unwrap();
            epochs.push(current);
            disk = disk.kill();
        }
        assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "each registration raises the epoch");
    });
}

#[test]
fn a_look_up_by_time_is_exact_on_timestamps_that_fall_back() {
    // B22
    run(2, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                let none = ListedOffset::default();
                assert_eq!(
                    list(&partition, ListOffsetsTarget::Time(time(0))).await,
                    none,
                    "an empty partition"
                );
                assert_eq!(list(&partition, ListOffsetsTarget::MaxTimestamp).await, none);
                let records: Vec<u64> = (0..120).map(|index| (index * 37) % 101).collect();
                for (index, chunk) in records.chunks(4).enumerate() {
                    let chunk: Vec<(u64, &str)> = chunk.iter().map(|millis| (*millis, "v")).collect();
                    let codec = Codec::ALL[index % 5];
                    append_all(&partition, sent(timed(&chunk).codec(codec))).await;
                    if index == 12 {
                        partition.roll().await.unwrap();
                    }
                }
                for wanted in 0..=101 {
                    let expected = records.iter().position(|millis| *millis >= wanted);
                    let listed = list(&partition, ListOffsetsTarget::Time(time(wanted))).await;
                    assert_eq!(listed.offset.map(|at| at.get()), expected.map(|at| at as u64), "at {wanted}");
                    assert_eq!(listed.timestamp.map(|at| at.as_millis()), expected.map(|at| records[at]));
                }
                let largest = records.iter().max().unwrap();
                let first = records.iter().position(|millis| millis == largest).unwrap();
                let listed = list(&partition, ListOffsetsTarget::MaxTimestamp).await;
                assert_eq!(listed.offset.map(|at| at.get()), Some(first as u64));
                assert_eq!(listed.leader_epoch, Some(partition.snapshot().leader_epoch));
                partition.delete_records(None).await.unwrap();
                assert_eq!(list(&partition, ListOffsetsTarget::Time(time(0))).await, none, "all was deleted");
                let earliest = list(&partition, ListOffsetsTarget::Earliest).await;
                assert_eq!(earliest.leader_epoch, Some(partition.snapshot().leader_epoch));
                node.stop().await;
            })
            .await
            .unwrap();
    });
}

#[test]
fn epochs_below_a_log_start_end_where_the_log_begins() {
    // B61
    run(3, |context| async move {
        let disk = context.disk.clone();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.create_topic("t", 1, &[LOCAL]).await;
                append_all(&partition, sent(values(&["a", "b"]))).await;
                node.stop().await;
            })
            .await
            .unwrap();
        let disk = disk.kill();
        context
            .life(&disk, async |supervisor| {
                let node = Node::start(&context, &disk, supervisor).await;
                let partition = node.partition("t");
                append_all(&partition, sent(values(&["c", "d"]))).await;
                partition.delete_records(Some(offset(3))).await.unwrap();
                let end = partition.offset_for_leader_epoch(epoch(0), None, DEADLINE).await.unwrap();
                assert_eq!(end, Some((epoch(0), offset(3))));
            })
            .await
            .unwrap();
    });
}
