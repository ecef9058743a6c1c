//! The policies with which the list scheduler runs.

use crate::arithmetic::sum;
use crate::task::Compute::{Forward, InputGradient, WeightGradient};

use super::greedy::{Policy, Preference};
use super::paths::Paths;
use super::problem::Problem;

const BACKWARD_FIRST: Preference = [InputGradient, Forward, WeightGradient];
const FORWARD_FIRST: Preference = [Forward, InputGradient, WeightGradient];
const WEIGHTS_EARLY: Preference = [InputGradient, WeightGradient, Forward];

/// The kinds of policies: the preferred program, the patience in thousandths, and whether backwards run in
/// two parts.
const KINDS: [(Preference, u64, bool); 8] = [
    (BACKWARD_FIRST, 0, true),
    (BACKWARD_FIRST, 500, true),
    (FORWARD_FIRST, 0, true),
    (BACKWARD_FIRST, 1000, true),
    (FORWARD_FIRST, 500, true),
    (BACKWARD_FIRST, 0, false),
    (FORWARD_FIRST, 1000, true),
    (WEIGHTS_EARLY, 0, true),
];

/// The maximum number of forwards that wait for their backward, in thousandths of the number that a stage starts until
/// the first of them returns, at the pace of the slowest rank. Without this bound, memory is the only
/// bound.
const DEPTHS_PERMILLE: [u64; 3] = [UNBOUNDED, 2000, 1500];

/// No bound on the micro-batches in flight.
const UNBOUNDED: u64 = u64::MAX;

/// The policies, the more promising ones first: by the number of test settings in which each was the best.
pub(super) fn policies(problem: &Problem<'_>, paths: &Paths) -> Vec<Policy> {
    let is_chunked = problem.stages_of.iter().any(|stages| stages.len() > 1);
    let orders: &[bool] = if is_chunked { &[false, true] } else { &[false] };
    let fitting = fitting_depth(problem, paths);
    let depths = DEPTHS_PERMILLE.into_iter().chain([fitting]);
    let depths = depths.map(|depth| in_flight(problem, paths, depth));
    let depths: Vec<Vec<usize>> = depths.collect();
    let mut policies = Vec::new();
    for (preference, patience_permille, is_split) in KINDS {
        for in_flight in &depths {
            for prefers_late_backwards in orders {
                policies.push(Policy {
                    preference,
                    is_split,
                    in_flight: in_flight.clone(),
                    patience_permille,
                    prefers_late_backwards: *prefers_late_backwards,
                });
            }
        }
    }
    policies
}

/// Returns, per stage, the maximum number of forwards that wait for their backward.
fn in_flight(problem: &Problem<'_>, paths: &Paths, depth_permille: u64) -> Vec<usize> {
    let pace = problem.stages_of.iter().map(|stages| {
        let work = stages.iter().map(|&stage| problem.least_work(stage));
        sum(work)
    });
    let pace = u128::from(pace.max().unwrap_or(0).max(1));
    let of_stage = |stage: usize| {
        if depth_permille == UNBOUNDED {
            return usize::MAX;
        }
        let trip = u128::from(paths.round_trip(stage)) * u128::from(depth_permille);
        let depth = usize::try_from(trip.div_ceil(pace * 1000));
        depth.unwrap_or(usize::MAX).max(1)
    };
    (0..problem.stages()).map(of_stage).collect()
}

/// Returns the largest depth at which everything in flight fits, up to the largest that is tried.
fn fitting_depth(problem: &Problem<'_>, paths: &Paths) -> u64 {
    let fits = |depth: u64| {
        let in_flight = in_flight(problem, paths, depth);
        problem.stages_of.iter().enumerate().all(|(rank, stages)| {
            let bytes = stages.iter().map(|&stage| {
                let each = problem.costs.stages[stage].activation_bytes;
                each.saturating_mul(in_flight[stage] as u64)
            });
            sum(bytes) <= problem.budgets[rank]
        })
    };
    let mut steps = (1..=40).rev().map(|step| step * 50);
    steps.find(|&depth| fits(depth)).unwrap_or(50)
}
