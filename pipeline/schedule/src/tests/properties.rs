//! Properties of every generator, size and set of dependencies.

use std::collections::HashSet;

use proptest::prelude::*;

use super::{RankIndex, rich};
use crate::{
    Action, Compute, ComputeTimes, Costs, Dependencies, Form, Schedule, ScheduleMode, VerifyError,
    forward_only, gpipe, lower, one_f_one_b, peak_activations, simulate, verify,
};

const GENERATORS: [fn(usize, usize) -> Schedule; 3] = [gpipe, one_f_one_b, forward_only];

#[test]
fn every_generator_verifies_raw_and_lowered() {
    for p in 1..=16 {
        let (chain, rich) = (Dependencies::chain(p), rich(p));
        for m in 1..=64 {
            for generate in GENERATORS {
                let schedule = generate(p, m);
                let lowered = lower(&schedule, &chain);
                for schedule in [&schedule, &lowered] {
                    let (found, name) = (verify(schedule, &chain), &schedule.name);
                    assert_eq!(found, Ok(()), "{name} {p} {m}");
                }
                // The lists have the expected length: one message per boundary and direction.
                let training = usize::from(schedule.mode == ScheduleMode::Training);
                let compute = p * m * (1 + training);
                let messages = 2 * (p - 1) * m * (1 + training);
                assert_eq!(schedule.action_count(), compute);
                let all = compute + messages + 2 * p * training;
                assert_eq!(lowered.action_count(), all);
                if m % 13 == 1 {
                    assert_eq!(verify(&lower(&schedule, &rich), &rich), Ok(()));
                }
            }
        }
    }
}

#[test]
fn backwards_run_in_micro_batch_order_on_every_rank() {
    for (p, m) in (1..=16).flat_map(|p| (1..=64).map(move |m| (p, m))) {
        for generate in [gpipe, one_f_one_b] {
            for list in generate(p, m).ranks {
                let tasks = list.iter().flat_map(Action::tasks);
                let backwards = tasks.filter(|task| task.compute == Compute::Backward);
                let ks: Vec<usize> = backwards.map(|task| task.micro_batch.index()).collect();
                assert_eq!(ks, (0..m).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn one_f_one_b_without_enough_micro_batches_is_as_fast_as_gpipe() {
    let times = ComputeTimes::new(2, 3, 1);
    for (p, m) in (1..=8).flat_map(|p| (1..p).map(move |m| (p, m))) {
        let chain = Dependencies::chain(p);
        let costs = Costs::uniform(p, times);
        let makespan = |schedule| simulate(&schedule, &chain, &costs).unwrap().makespan();
        let [a, b] = [gpipe(p, m), one_f_one_b(p, m)].map(makespan);
        assert_eq!(a, b, "{p} {m}");
    }
}

/// A million actions, which a quadratic check would not finish.
#[test]
fn long_lists_are_checked_in_linear_time() {
    let (p, m) = (64, 2600);
    let chain = Dependencies::chain(p);
    let lowered = lower(&one_f_one_b(p, m), &chain);
    assert!(lowered.action_count() > 900_000);
    assert_eq!(verify(&lowered, &chain), Ok(()));
}

/// A schedule from a file can have any counts.
#[test]
fn absurd_counts_are_refused_without_allocating() {
    let mut schedule = gpipe(2, 2);
    for micro_batches in [3, 1 << 40, usize::MAX] {
        schedule.micro_batches = micro_batches;
        let (rank, action) = (RankIndex::new(0), "0F2".parse().unwrap());
        let expected = VerifyError::Missing { rank, action };
        assert_eq!(verify(&schedule, &Dependencies::chain(2)), Err(expected));
    }
}

fn any_word() -> impl Strategy<Value = String> {
    let letter = prop::sample::select(vec!["F", "B", "I", "W", "R", "S", "U", "G", "N"]);
    let side = (0..4_usize, letter, 0..3_usize).prop_map(|(stage, letter, k)| match letter {
        "S" | "U" | "G" | "N" => format!("{stage}{letter}"),
        _ => format!("{stage}{letter}{k}"),
    });
    let sign = prop::sample::select(vec!["", "", "<", ">", "&"]);
    (side.clone(), sign, side).prop_map(|(a, sign, b)| match sign {
        "" => a,
        _ => format!("{a}{sign}{b}"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// No text and no counts cause a panic, and accepted schedules are complete.
    #[test]
    fn arbitrary_lists_never_panic(
        words in prop::collection::vec(prop::collection::vec(any_word(), 0..12), 0..4),
        stages in 0..5_usize,
        micro_batches in 0..4_usize,
        map in prop::collection::vec(0..4_usize, 0..5),
        is_training: bool,
        is_lowered: bool,
        has_norm: bool,
    ) {
        let parse = |word: &String| word.parse::<Action>().ok();
        let schedule = Schedule {
            name: "any".to_owned(),
            mode: if is_training { ScheduleMode::Training } else { ScheduleMode::ForwardOnly },
            form: if is_lowered { Form::Lowered } else { Form::ComputeOnly },
            stages,
            micro_batches,
            stage_to_rank: map.into_iter().map(RankIndex::new).collect(),
            ranks: words.iter().map(|row| row.iter().filter_map(parse).collect()).collect(),
        };
        let mut rich = rich(stages);
        if has_norm {
            rich = rich.with_global_norm();
        }
        let lowered = lower(&schedule, &rich);
        prop_assert_eq!(lower(&lowered, &rich), lowered.clone());
        prop_assert_eq!(peak_activations(&schedule).len(), schedule.world_size());
        for schedule in [schedule, lowered] {
            if verify(&schedule, &rich).is_ok() {
                let distinct: HashSet<_> = schedule.ranks.iter().flatten().collect();
                prop_assert_eq!(distinct.len(), schedule.action_count());
                prop_assert!(schedule.action_count() >= stages * micro_batches);
            }
        }
    }

    /// Parsing the written word returns the same action; the serialized form is the same word.
    #[test]
    fn words_are_the_file_form(word in any_word()) {
        if let Ok(action) = word.parse::<Action>() {
            prop_assert_eq!(action.to_string(), word.clone());
            let json = serde_json::to_string(&action).unwrap();
            prop_assert_eq!(&json, &format!("{word:?}"));
            prop_assert_eq!(serde_json::from_str::<Action>(&json).unwrap(), action);
        }
    }
}
