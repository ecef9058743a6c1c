//! Properties of every step: the evaluator equals the simulator, lists fit, the bound is below them.

use proptest::prelude::*;

use crate::{
    AutoError, ComputeTimes, Costs, Dependencies, Edge, Endpoint, LinkCosts, Network, RankIndex,
    Schedule, ScheduleKind, StageCosts, StageIndex, Tie, peak_bytes, simulate, verify,
};

use super::evaluate::Evaluator;
use super::paths::{Paths, lower_bound};
use super::problem::{Lists, Problem};
use super::{AutoOptions, auto, greedy, search, variants};

/// A step to schedule.
#[derive(Debug, Clone)]
struct Step {
    stage_to_rank: Vec<RankIndex>,
    micro_batches: usize,
    dependencies: Dependencies,
    costs: Costs,
    /// Bytes of each rank above what one micro-batch needs.
    slack: u64,
}

impl Step {
    fn auto(&self, limits: Option<&[u64]>) -> Result<super::Auto, AutoError> {
        let Self {
            stage_to_rank,
            micro_batches,
            dependencies,
            costs,
            ..
        } = self;
        let options = AutoOptions {
            memory_limits: limits,
            effort_actions: 4000,
        };
        auto(stage_to_rank, *micro_batches, dependencies, costs, options)
    }

    /// The needs of one micro-batch on each rank of a chain, and the slack.
    fn limits(&self) -> Vec<u64> {
        let ranks = self.stage_to_rank.iter().map(|rank| rank.index() + 1);
        let mut limits = vec![self.slack; ranks.max().unwrap_or(0)];
        for (rank, stage) in self.stage_to_rank.iter().zip(&self.costs.stages) {
            limits[rank.index()] += stage.resident_bytes + stage.activation_bytes;
        }
        limits
    }
}

fn any_stage() -> impl Strategy<Value = StageCosts> {
    let times = (0..20_u64, 0..30_u64, 0..20_u64, 0..20_u64, 0..5_u64);
    let bytes = (0..6_u64, 0..8_u64, 0..9_u64);
    let replicas = (0..4_u64, 0..4_u64, 0..6_u64);
    (times, bytes, replicas).prop_map(|(times, bytes, replicas)| StageCosts {
        reduce: replicas.0,
        sum: replicas.1,
        exchanged_bytes: replicas.2 << 20,
        forward: times.0,
        backward: times.1,
        input_gradient: times.2,
        weight_gradient: times.3,
        update: times.4,
        activation_bytes: bytes.0,
        weight_gradient_bytes: bytes.1,
        resident_bytes: bytes.2,
        transient_bytes: 0,
    })
}

/// A chain with a skip, its gradient, a tie and a message to a backward.
fn dependencies(stages: usize, is_rich: bool, has_norm: bool) -> Dependencies {
    let mut edges = Dependencies::chain(stages).edges().to_vec();
    let mut ties = Vec::new();
    if is_rich && stages > 1 {
        let [first, last] = [0, stages - 1].map(StageIndex::new);
        for (from, to) in [
            (Endpoint::forward(first), Endpoint::forward(last)),
            (Endpoint::backward(last), Endpoint::backward(first)),
            (Endpoint::forward(first), Endpoint::backward(last)),
        ] {
            edges.push(Edge { from, to });
        }
        let (owner, copy) = (first, last);
        ties.push(Tie { owner, copy });
    }
    let set = Dependencies::new(stages, edges, ties);
    match has_norm {
        true => set.with_global_norm(),
        false => set,
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let stages = prop::collection::vec((any_stage(), 0..3_usize), 1..6);
    let switches = (any::<bool>(), any::<bool>());
    let links = (0..10_u64, 0..5_u64, 0..3_u64);
    let replicas = prop::sample::select(vec![(1, false), (1, true), (2, true), (4_usize, true)]);
    let numbers = (1..6_usize, replicas);
    (stages, numbers, switches, links, 0..20_u64).prop_map(
        |(stages, (micro_batches, (replicas, has_replicas)), switches, links, slack)| {
            let mut dependencies = dependencies(stages.len(), switches.0, switches.1);
            if has_replicas {
                dependencies = dependencies.with_replicas();
            }
            let ranks = stages.len();
            let map = stages.iter().map(|(_, rank)| RankIndex::new(*rank % ranks));
            let edges = dependencies.edges().iter().enumerate();
            let messages = edges.map(|(size, edge)| (*edge, (size as u64) << 20));
            let costs = Costs {
                message_bytes: messages.collect(),
                link: LinkCosts::new(links.0, links.1),
                network: (links.2 == 1).then(|| Network {
                    machine_of: (0..ranks * replicas).map(|rank| rank % 2).collect(),
                    link: LinkCosts::new(3 * links.0 + 1, 0),
                }),
                replicas,
                overhead: links.2,
                ..Costs::of_stages(stages.iter().map(|(stage, _)| *stage).collect())
            };
            Step {
                stage_to_rank: map.collect(),
                micro_batches,
                dependencies,
                costs,
                slack,
            }
        },
    )
}

/// Returns whether no rank exceeds its memory limit.
fn fits(schedule: &Schedule, costs: &Costs, limits: &[u64]) -> bool {
    let mut peaks = peak_bytes(schedule, costs).into_iter().zip(limits);
    peaks.all(|(peak, limit)| peak <= *limit)
}

/// Checks that the lists have the simulator's makespan and bytes, are accepted, and are read back.
fn check_lists(
    problem: &Problem<'_>,
    lists: &Lists,
    makespan: u64,
    limits: &[u64],
) -> Result<(), TestCaseError> {
    let schedule = problem.schedule_of("auto", lists);
    let read = problem.lists_of(&schedule);
    prop_assert_eq!(read.as_ref(), Some(lists));
    let timeline = simulate(&schedule, problem.dependencies, problem.costs).unwrap();
    prop_assert_eq!(timeline.makespan(), makespan, "{}", schedule);
    prop_assert!(fits(&schedule, problem.costs, limits));
    let peaks = problem.peaks(lists).into_iter().zip(&problem.stages_of);
    let peaks = peaks.map(|(peak, stages)| {
        let stages = stages.iter().map(|&stage| problem.costs.stages[stage]);
        peak + stages.map(|stage| stage.resident_bytes).sum::<u64>()
    });
    for ((peak, found), list) in peaks.zip(peak_bytes(&schedule, problem.costs)).zip(lists) {
        // A rank without actions has no peak.
        prop_assert!(peak == found || list.is_empty(), "{peak} {found}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Under any policy and a limit of as little as one micro-batch, the list scheduler ends; its
    /// lists, and the lists of a search from there, have the simulator's time and bytes.
    #[test]
    fn lists_agree_with_the_simulator(step in any_step()) {
        let limits = step.limits();
        let Step { stage_to_rank, micro_batches, dependencies, costs, .. } = &step;
        let problem = Problem::new(stage_to_rank, *micro_batches, dependencies, costs, &limits);
        let paths = Paths::new(&problem).unwrap();
        let bound = lower_bound(&problem, &paths);
        let mut evaluator = Evaluator::new(&problem);
        for (index, policy) in variants::policies(&problem, &paths).iter().enumerate() {
            let lists = greedy::schedule(&problem, policy, u64::MAX);
            prop_assert!(lists.is_some(), "{policy:?} stalls");
            let lists = lists.unwrap();
            let makespan = evaluator.makespan(&lists, u64::MAX);
            prop_assert!(makespan.is_some(), "{policy:?} does not fit: {lists:?}");
            let makespan = makespan.unwrap();
            prop_assert!(bound <= makespan, "{bound} is above {makespan}");
            prop_assert_eq!(evaluator.makespan(&lists, makespan), Some(makespan));
            if makespan > 0 {
                prop_assert_eq!(evaluator.makespan(&lists, makespan - 1), None);
            }
            if index % 8 == 0 {
                check_lists(&problem, &lists, makespan, &limits)?;
                let found = search::improve(&problem, &mut evaluator, &lists, 3000, 0);
                let (improved, lists) = found.unwrap();
                prop_assert!(bound <= improved && improved <= makespan);
                check_lists(&problem, &lists, improved, &limits)?;
            }
        }
    }

    /// A schedule is found exactly if one micro-batch fits; it runs, and is the same every time.
    #[test]
    fn every_step_has_its_schedule(step in any_step(), missing in 0..2_u64) {
        let needs = Step { slack: 0, ..step.clone() }.limits();
        let slack = step.slack;
        let limits: Vec<u64> = needs.iter().map(|need| (need + slack * (1 - missing)).saturating_sub(missing)).collect();
        let short = needs.iter().zip(&limits).position(|(need, limit)| limit < need);
        match step.auto(Some(&limits)) {
            Ok(found) => {
                prop_assert_eq!(short, None);
                prop_assert_eq!(verify(&found.schedule, &step.dependencies), Ok(()));
                prop_assert!(fits(&found.schedule, &step.costs, &limits));
                let timeline = simulate(&found.schedule, &step.dependencies, &step.costs).unwrap();
                prop_assert_eq!(timeline.makespan(), found.makespan);
                prop_assert!(found.lower_bound <= found.makespan);
                prop_assert_eq!(step.auto(Some(&limits)), Ok(found));
            }
            Err(AutoError::Memory { rank, needed, limit }) => {
                prop_assert_eq!(short, Some(rank.index()));
                prop_assert_eq!(limits[rank.index()], limit);
                prop_assert_eq!(needs[rank.index()], needed);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn every_named_schedule_has_lists() {
    for kind in ScheduleKind::ALL {
        let sizes = (1..=5).flat_map(|p| (1..=3).map(move |v| (p, v)));
        for ((ranks, chunks), micro_batches) in sizes.flat_map(|s| (1..=11).map(move |m| (s, m))) {
            let Ok(schedule) = kind.generate(ranks, chunks, micro_batches) else {
                assert!(!kind.chunks().contains(chunks));
                continue;
            };
            let map = &schedule.stage_to_rank;
            let chain = Dependencies::chain(schedule.stages);
            let costs = Costs::uniform(schedule.stages, ComputeTimes::new(1, 1, 1));
            let problem = Problem::new(map, micro_batches, &chain, &costs, &[]);
            let has_lists = problem.lists_of(&schedule).is_some();
            assert!(has_lists, "{kind} {ranks} {chunks} {micro_batches}");
        }
    }
}

/// The pairs of a named schedule have the simulator's time, also after changes of its lists.
#[test]
fn pairs_agree_with_the_simulator() {
    for (ranks, micro_batches) in [(2, 4), (3, 7), (4, 8)] {
        let schedule = ScheduleKind::DualPipeV.generate(ranks, 2, micro_batches);
        let schedule = schedule.unwrap();
        let chain = Dependencies::chain(schedule.stages);
        let mut costs = Costs::uniform(schedule.stages, ComputeTimes::new(7, 11, 5));
        (costs.overhead, costs.link.latency) = (2, 3);
        let map = &schedule.stage_to_rank;
        let problem = Problem::new(map, micro_batches, &chain, &costs, &[]);
        let bound = lower_bound(&problem, &Paths::new(&problem).unwrap());
        let lists = problem.lists_of(&schedule).unwrap();
        assert!(lists.iter().flatten().any(|turn| turn.is_paired));
        let mut evaluator = Evaluator::new(&problem);
        let makespan = evaluator.makespan(&lists, u64::MAX).unwrap();
        check_lists(&problem, &lists, makespan, &[]).unwrap();
        let found = search::improve(&problem, &mut evaluator, &lists, 20_000, 0);
        let (improved, lists) = found.unwrap();
        assert!(bound <= improved && improved <= makespan);
        check_lists(&problem, &lists, improved, &[]).unwrap();
    }
}

/// Times that add up to more than a number holds: the evaluation ends, as the simulator does.
#[test]
fn endless_times_end() {
    let times = ComputeTimes::new(u64::MAX, 1, 1);
    let mut step = Step {
        stage_to_rank: (0..2).map(RankIndex::new).collect(),
        micro_batches: 2,
        dependencies: Dependencies::chain(2).with_replicas().with_global_norm(),
        costs: Costs::uniform(2, times),
        slack: 0,
    };
    step.costs.replicas = 2;
    step.costs.link.latency = u64::MAX;
    let found = step.auto(None).unwrap();
    let timeline = simulate(&found.schedule, &step.dependencies, &step.costs).unwrap();
    assert_eq!(timeline.makespan(), found.makespan);
}
