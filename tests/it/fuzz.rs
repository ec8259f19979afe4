//! Every target on its seeds and on a fixed number of inputs made of them. `TIDELOG_FUZZ_ROUNDS=10` makes ten times as many,
//! others than the first ones.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidelog_tests::fuzz::{
    TARGETS, Target,
    allocation::assert_counting,
    mutate::{Random, mutated},
};

fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        println!(
            "{} fails for this input, as a line of tests/corpus/{}.txt:\n{hex}",
            target.name, target.name
        );
        resume_unwind(panic);
    }
}

fn campaign(name: &str) {
    assert_counting();
    let target = Target::find(name).expect("a campaign is of a target");
    let seeds = target.seeds();
    assert!(!seeds.is_empty(), "{name} has no seeds");
    for seed in &seeds {
        run(target, seed);
    }
    let times: usize =
        std::env::var("TIDELOG_FUZZ_ROUNDS").map_or(1, |text| text.parse().expect("a number of rounds"));
    let mut random = Random(name.bytes().fold(17, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte)));
    for _ in 0..target.rounds * times {
        let (input, other) = (&seeds[random.below(seeds.len())], &seeds[random.below(seeds.len())]);
        run(target, &mutated(input, other, &mut random, target.bytes_max));
    }
}

macro_rules! campaigns {
    ($($function:ident = $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $function() {
                campaign($name);
            }
        )*

        #[test]
        fn every_target_has_a_campaign() {
            assert_eq!([$($name),*].as_slice(), TARGETS.iter().map(|target| target.name).collect::<Vec<_>>());
        }
    };
}

campaigns! {
    any_bytes_are_a_request_or_refused = "request",
    any_bytes_are_a_response_or_refused = "response",
    any_bytes_are_a_record_of_a_coordinator_or_refused = "coordinator",
    any_bytes_are_batches_or_refused = "batches",
    any_bytes_decompress_within_their_cap_or_are_refused = "codecs",
    any_bytes_are_fetched_records_or_refused = "fetched",
    any_bytes_are_a_journal_or_refused = "journal",
    any_bytes_are_a_segment_whatever_the_pieces = "segment",
    any_bytes_are_a_log_to_walk_over = "log-walk",
    any_bytes_are_a_file_beside_a_segment_or_refused = "entry-files",
    any_bytes_are_a_checkpoint_or_refused = "checkpoint",
    any_bytes_are_leader_epochs_or_refused = "leader-epochs",
    any_bytes_are_a_producer_snapshot_or_refused = "producers",
    any_bytes_are_meta_properties_or_refused = "meta-properties",
    any_bytes_are_a_page_or_refused = "page",
    any_bytes_are_a_manifest_or_refused = "manifest",
    any_bytes_are_a_footer_or_refused = "footer",
    any_bytes_are_a_serving_index_or_refused = "serving-index",
    any_bytes_are_a_claim_of_a_prefix_or_refused = "cluster-json",
    any_bytes_are_a_claim_of_a_broker_or_refused = "broker-json",
    any_text_is_a_key_or_refused = "keys",
    any_bytes_are_a_raft_log_or_refused = "raft-log",
    any_bytes_are_a_raft_snapshot_or_refused = "raft-snapshot",
    any_bytes_are_an_identity_or_refused = "identity",
    any_bytes_are_a_cluster_state_or_refused = "cluster-state",
    any_bytes_are_a_command_or_refused = "command",
    any_text_is_a_configuration_or_told_what_is_wrong = "config-file",
    any_environment_is_a_configuration_or_told_what_is_wrong = "environment",
    any_arguments_are_a_verb_or_a_wrong_usage = "arguments",
    any_settings_of_a_topic_resolve_or_are_refused = "topic-settings",
    any_text_is_a_name_or_refused = "names",
    any_bytes_are_an_admin_exchange_or_refused = "admin",
}
