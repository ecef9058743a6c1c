//! The order of a planner's settings: it does not matter, and settings that contradict each other are refused.

use burn::tensor::{Device, Tensor};
use tinderbox_pipeline::schedule::{RankIndex, ScheduleKind};
use tinderbox_pipeline::{
    Cut, Machine, MemoryBudget, Partitioner, Plan, PlanError, Planner, Trace, Traceable,
};
use tinderbox_pipeline_tests::{floats, full_text};
use tinderbox_simulation::Random;

use crate::models::{forward, mlp};

type Batch = Tensor<2>;
/// A setting, with its name.
type Setting = (&'static str, fn(Planner<'_, Batch>) -> Planner<'_, Batch>);

/// Stages of one layer.
const BUDGET: MemoryBudget = MemoryBudget::Values(16 * 4 * 300);

const STREAMED: Setting = ("streamed", |planner| planner.streamed(BUDGET));
const CUTS: Setting = ("cuts", |planner| {
    planner.cuts(&["layers.1", "layers.3", "layers.4"].map(Cut::before))
});
const ON_RANKS: Setting = ("on_ranks", |planner| {
    planner.on_ranks(&[0, 1, 0, 1].map(RankIndex::new))
});
const PARTITIONER: Setting = ("partitioner", |planner| {
    planner.partitioner(Partitioner::Mixed)
});
const REPLICAS: Setting = ("replicas", |planner| planner.replicas(2));
const CHOOSE_REPLICAS: Setting = ("choose_replicas", |planner| planner.choose_replicas());
const CHOOSE_MICRO_BATCHES: Setting = ("choose_micro_batches", |planner| {
    planner.choose_micro_batches()
});
const INTERLEAVED: Setting = ("schedule", |planner| {
    planner.schedule(ScheduleKind::Interleaved1F1B)
});
const GPIPE: Setting = ("schedule", |planner| planner.schedule(ScheduleKind::GPipe));
const MAY_RECOMPUTE: Setting = ("may_recompute", |planner| planner.may_recompute());
const RECOMPUTE: Setting = ("recompute", |planner| {
    planner.recompute(|stage| stage.is_multiple_of(2))
});
const STATES: Setting = ("optimizer_states", |planner| planner.optimizer_states(1));
const WITHOUT_PROGRAMS: Setting = ("without_programs", |planner| planner.without_programs());

/// Settings that may be combined, and the number of ranks.
const COMBINATIONS: [(usize, &[Setting]); 4] = [
    (
        4,
        &[
            GPIPE,
            PARTITIONER,
            REPLICAS,
            CHOOSE_MICRO_BATCHES,
            MAY_RECOMPUTE,
            RECOMPUTE,
            STATES,
            WITHOUT_PROGRAMS,
        ],
    ),
    (
        4,
        &[
            GPIPE,
            CHOOSE_REPLICAS,
            CHOOSE_MICRO_BATCHES,
            RECOMPUTE,
            STATES,
        ],
    ),
    (
        2,
        &[
            CUTS,
            ON_RANKS,
            INTERLEAVED,
            CHOOSE_MICRO_BATCHES,
            RECOMPUTE,
            STATES,
            WITHOUT_PROGRAMS,
        ],
    ),
    (
        1,
        &[
            STREAMED,
            INTERLEAVED,
            CHOOSE_MICRO_BATCHES,
            RECOMPUTE,
            STATES,
            WITHOUT_PROGRAMS,
        ],
    ),
];

/// A step of eight samples in four micro-batches.
fn trace() -> Trace<Batch> {
    let batch = floats([8, 8], 0, &Device::flex());
    mlp(6, 8).trace(&batch, 4, forward).unwrap()
}

/// Plans with settings in this order.
fn planned(trace: &Trace<Batch>, ranks: usize, settings: &[Setting]) -> Result<Plan, PlanError> {
    let planner = Planner::new(trace, &Machine::local(ranks).unwrap());
    let planner = settings
        .iter()
        .fold(planner, |planner, (_, set)| set(planner));
    planner.plan()
}

/// The elements in a random order.
fn shuffled(settings: &[Setting], random: &mut Random) -> Vec<Setting> {
    let mut settings = settings.to_vec();
    for last in (1..settings.len()).rev() {
        settings.swap(last, random.below(last as u64 + 1) as usize);
    }
    settings
}

fn names(settings: &[Setting]) -> Vec<&'static str> {
    settings.iter().map(|(name, _)| *name).collect()
}

#[test]
fn settings_give_the_same_plan_in_any_order() {
    let trace = trace();
    for (ranks, all) in COMBINATIONS {
        let expected = planned(&trace, ranks, all).unwrap();
        let reversed: Vec<Setting> = all.iter().rev().copied().collect();
        assert_eq!(planned(&trace, ranks, &reversed).unwrap(), expected);
        for seed in 0..12 {
            let settings = shuffled(all, &mut Random::new(seed));
            let found = planned(&trace, ranks, &settings).unwrap();
            assert_eq!(found, expected, "seed {seed}: {:?}", names(&settings));
            assert_eq!(found.to_json(), expected.to_json());
        }
    }
}

/// Some of the settings give a plan or an error that does not depend on their order either.
#[test]
fn some_settings_give_the_same_result_in_any_order() {
    let trace = trace();
    let mut plans = 0;
    for (ranks, all) in COMBINATIONS {
        for seed in 0..12 {
            let mut random = Random::new(seed);
            let is_some = all.iter().filter(|_| random.below(2) == 0);
            let some: Vec<Setting> = is_some.copied().collect();
            let mut found = || {
                let settings = shuffled(&some, &mut random);
                let plan = planned(&trace, ranks, &settings);
                plan.map_err(|error| full_text(&error))
            };
            let (first, second) = (found(), found());
            assert_eq!(first, second, "seed {seed}: {:?}", names(&some));
            plans += usize::from(first.is_ok());
        }
    }
    assert!(plans >= 24, "{plans}");
}

/// A setting is stronger than the default of another one, also if it is made first.
#[test]
fn a_schedule_replaces_the_default_of_a_streamed_model() {
    let trace = trace();
    let schedule = |settings: &[Setting]| planned(&trace, 1, settings).unwrap().step.schedule;
    assert_eq!(schedule(&[STREAMED]), ScheduleKind::LoopedBfs);
    for settings in [[STREAMED, INTERLEAVED], [INTERLEAVED, STREAMED]] {
        assert_eq!(schedule(&settings), ScheduleKind::Interleaved1F1B);
    }
}

#[test]
fn contradictory_settings_are_refused() {
    let trace = trace();
    for (settings, expected) in [
        (
            [STREAMED, CUTS],
            "`Planner::streamed` and `Planner::cuts` both decide the cuts of the model: call one of them",
        ),
        (
            [STREAMED, PARTITIONER],
            "`Planner::streamed` and `Planner::partitioner` both decide the cuts of the model: call one of them",
        ),
        (
            [CUTS, PARTITIONER],
            "`Planner::cuts` and `Planner::partitioner` both decide the cuts of the model: call one of them",
        ),
        (
            [REPLICAS, CHOOSE_REPLICAS],
            "`Planner::replicas` and `Planner::choose_replicas` both decide the number of replicas: call one of them",
        ),
        (
            [ON_RANKS, PARTITIONER],
            "`Planner::on_ranks` places the stages of manual cuts, and there are no cuts: call `Planner::cuts` too, or leave it out",
        ),
    ] {
        let [first, second] = settings;
        for settings in [[first, second], [second, first]] {
            let error = planned(&trace, 4, &settings).unwrap_err();
            assert_eq!(full_text(&error), expected, "{:?}", names(&settings));
        }
    }
}
