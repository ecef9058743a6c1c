//! The whole search: named schedules, list schedules, and the improvement of the best of both.

use tinderbox_ids::{RankIndex, StageIndex};

use crate::arithmetic::sum;
use crate::dependencies::Dependencies;
use crate::error::{AutoError, VerifyError};
use crate::generate::ScheduleKind;
use crate::lists::{Schedule, ScheduleMode};
use crate::simulate::Costs;
use crate::task::Compute;
use crate::verify::verify;

use super::evaluate::Evaluator;
use super::paths::{Paths, lower_bound};
use super::problem::{FORWARD, INPUT, Lists, Problem, Turn, fixed_bytes};
use super::{greedy, search, variants};

/// Options of [`auto`].
#[derive(Debug, Clone, Copy)]
pub struct AutoOptions<'a> {
    /// The memory limit of each rank in bytes, resident ones included. Ranks beyond the end have no limit.
    pub memory_limits: Option<&'a [u64]>,
    /// The effort of the search in timed actions, a measure that does not depend on the machine: half a million by
    /// default.
    ///
    /// A million actions are timed in about a tenth of a second. The named schedules are always timed, so
    /// even without effort the result is the best of them. A list is searched well with several thousand
    /// times its length: increase the effort for a step of many ranks and micro-batches.
    pub effort_actions: u64,
}

impl Default for AutoOptions<'_> {
    fn default() -> Self {
        Self {
            memory_limits: None,
            effort_actions: 500_000,
        }
    }
}

/// The result of [`auto`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auto {
    /// The schedule: compute actions only, with the name of the named schedule if it is one, else `auto`.
    pub schedule: Schedule,
    /// The ticks of its step, as computed by [`simulate`](crate::simulate()).
    pub makespan: u64,
    /// The fastest named schedule with this stage-to-rank map that fits, and its ticks; `None` if
    /// no named schedule has the map, or none fits.
    pub best_named: Option<(ScheduleKind, u64)>,
    /// A lower bound of the ticks of all schedules of these stages. The optimum may be above it, in particular
    /// if memory is scarce and a rank has several stages: in a V under a tight limit, results are up to 1.5 times above it.
    pub lower_bound: u64,
}

/// The fraction of the effort that list schedules may use, as a divisor.
const GREEDY_SHARE: u64 = 2;

/// The cost of an entry of a list schedule, in timed entries.
const GREEDY_TURNS: u64 = 4;

/// List schedules that are slower than the best by more than this fraction of it are discarded.
const GREEDY_SLACK: u64 = 50;

/// The number of candidates that are improved, with equal fractions of the effort.
const STARTS: usize = 3;

/// Finds a schedule for stages on ranks, at least as fast as every named one that fits.
///
/// The costs are the costs of [`simulate`](crate::simulate()), bytes included, on links whose sends never wait: the
/// [model](crate::LinkCosts::model) of the links is ignored. The same inputs return the
/// same schedule. Time and memory grow with stages times micro-batches, and time with the effort.
///
/// ```
/// use tinderbox_schedule::{
///     AutoOptions, ComputeTimes, Costs, Dependencies, RankIndex, auto,
/// };
///
/// let times = ComputeTimes::new(100, 150, 70);
/// let costs = Costs::uniform(4, times);
/// let ranks: Vec<RankIndex> = (0..4).map(RankIndex::new).collect();
/// let limits = [3; 4]; // `uniform` counts a byte per micro-batch in flight
/// let options = AutoOptions { memory_limits: Some(&limits), ..AutoOptions::default() };
/// let found = auto(&ranks, 8, &Dependencies::chain(4), &costs, options)?;
/// // No named schedule has so few micro-batches in flight.
/// assert_eq!(found.best_named, None);
/// assert!(found.makespan >= found.lower_bound);
/// # Ok::<(), tinderbox_schedule::AutoError>(())
/// ```
///
/// # Errors
///
/// [`AutoError::Verify`] for inconsistent inputs, and [`AutoError::Memory`] if the limit of a rank is
/// less than one micro-batch needs.
pub fn auto(
    stage_to_rank: &[RankIndex],
    micro_batches: usize,
    dependencies: &Dependencies,
    costs: &Costs,
    options: AutoOptions<'_>,
) -> Result<Auto, AutoError> {
    let (expected, found) = (dependencies.stages(), costs.stages.len());
    let empty = Schedule {
        stages: expected,
        micro_batches,
        ..Schedule::idle(ScheduleMode::Training, stage_to_rank)
    };
    match verify(&empty, dependencies) {
        // The counts and the map are valid, and the lists are yet to be found.
        Ok(()) | Err(VerifyError::Missing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    if found != expected {
        return Err(VerifyError::Costs { expected, found }.into());
    }
    let limits = options.memory_limits.unwrap_or(&[]);
    let problem = Problem::new(stage_to_rank, micro_batches, dependencies, costs, limits);
    let Some(paths) = Paths::new(&problem) else {
        // The verifier reports the edges that form the cycle.
        let stages = 0..problem.stages();
        let forwards = stages.clone().map(|stage| (stage, FORWARD));
        let backwards = stages.rev().map(|stage| (stage, INPUT));
        let order: Vec<(usize, usize)> = forwards.chain(backwards).collect();
        let lists = one_at_a_time(&problem, &order);
        verify(&problem.schedule_of("auto", &lists), dependencies)?;
        return Err(AutoError::Circle);
    };
    let serial = one_at_a_time(&problem, &paths.order);
    check_memory(&problem, &serial, limits)?;

    let bound = lower_bound(&problem, &paths);
    let mut pool = Pool {
        problem: &problem,
        evaluator: Evaluator::new(&problem),
        candidates: Vec::new(),
    };
    pool.enter(serial, None, u64::MAX);
    pool.enter_named();
    let named = pool.candidates.iter();
    let named = named.filter_map(|one| Some((one.kind?, one.makespan)));
    // The first of equally fast schedules.
    let best_named = named.min_by_key(|(_, makespan)| *makespan);
    pool.evaluator.turns = 0;
    pool.enter_list_schedules(&paths, bound, options.effort_actions / GREEDY_SHARE);
    let best = pool.improve(bound, options.effort_actions);
    let best = best.ok_or(AutoError::Circle)?;
    let name = best.kind.map_or("auto", ScheduleKind::name);
    Ok(Auto {
        schedule: problem.schedule_of(name, &best.lists),
        makespan: best.makespan,
        best_named,
        lower_bound: bound,
    })
}

/// A list that can run and fits.
#[derive(Debug, Clone)]
struct Candidate {
    makespan: u64,
    /// The bytes of all ranks' peaks, and the number of entries: the tie-breakers.
    size: (u64, usize),
    lists: Lists,
    /// Its name, if it is a named one.
    kind: Option<ScheduleKind>,
}

/// The candidates found so far.
struct Pool<'a> {
    problem: &'a Problem<'a>,
    evaluator: Evaluator<'a>,
    candidates: Vec<Candidate>,
}

impl Pool<'_> {
    /// Adds lists, if they can run, fit and are not slower than `cutoff`.
    fn enter(&mut self, lists: Lists, kind: Option<ScheduleKind>, cutoff: u64) {
        let Some(makespan) = self.evaluator.makespan(&lists, cutoff) else {
            return;
        };
        let entries = lists.iter().map(Vec::len).sum();
        let size = (sum(self.problem.peaks(&lists)), entries);
        self.candidates.push(Candidate {
            makespan,
            size,
            lists,
            kind,
        });
    }

    /// Adds the named schedules that have the problem's map.
    fn enter_named(&mut self) {
        let (ranks, micro_batches) = (self.problem.ranks, self.problem.micro_batches);
        for kind in ScheduleKind::ALL {
            let named = kind.generate(ranks, self.problem.stages() / ranks, micro_batches);
            let named = named.ok();
            let named = named.filter(|named| named.stage_to_rank == self.problem.stage_to_rank);
            // A test proves that every generator's schedule has lists.
            if let Some(lists) = named.and_then(|named| self.problem.lists_of(&named)) {
                self.enter(lists, Some(kind), u64::MAX);
            }
        }
    }

    /// Adds the results of the list scheduler, until one reaches the bound or the effort is used up.
    fn enter_list_schedules(&mut self, paths: &Paths, bound: u64, turns: u64) {
        for policy in variants::policies(self.problem, paths) {
            let best = self.candidates.iter().map(|one| one.makespan).min();
            if best == Some(bound) || self.evaluator.turns > turns {
                return;
            }
            let cutoff = best.map_or(u64::MAX, |best| best.saturating_add(best / GREEDY_SLACK));
            let lists = greedy::schedule(self.problem, &policy, cutoff);
            let entries = self.problem.stages() * self.problem.micro_batches * 3;
            self.evaluator.turns += GREEDY_TURNS * entries as u64;
            if let Some(lists) = lists {
                self.enter(lists, None, cutoff);
            }
        }
    }

    /// Improves the best candidates of different makespans, and returns the best of all.
    fn improve(mut self, bound: u64, turns: u64) -> Option<Candidate> {
        // A stable sort: equal makespans stay in the order in which they were tried.
        self.candidates.sort_by_key(|one| (one.makespan, one.size));
        self.candidates.dedup_by_key(|one| one.makespan);
        self.candidates.truncate(STARTS);
        let left = turns.saturating_sub(self.evaluator.turns);
        let share = left / self.candidates.len().max(1) as u64;
        let mut best = self.candidates.first().cloned()?;
        for start in &self.candidates {
            let evaluator = &mut self.evaluator;
            let found = search::improve(self.problem, evaluator, &start.lists, share, bound);
            if let Some((makespan, lists)) = found
                && makespan < best.makespan
            {
                (best.makespan, best.lists, best.kind) = (makespan, lists, None);
            }
            if best.makespan <= bound {
                break;
            }
        }
        Some(best)
    }
}

/// Checks that no limit is below what one micro-batch at a time needs.
fn check_memory(problem: &Problem<'_>, serial: &Lists, limits: &[u64]) -> Result<(), AutoError> {
    for (rank, (peak, &limit)) in problem.peaks(serial).into_iter().zip(limits).enumerate() {
        let fixed = fixed_bytes(problem.costs, &problem.stages_of[rank]);
        let needed = peak.saturating_add(fixed);
        if needed > limit {
            return Err(AutoError::Memory {
                rank: RankIndex::new(rank),
                needed,
                limit,
            });
        }
    }
    Ok(())
}

/// Returns lists that run one micro-batch after the other, each in the given order of stages and kinds of work.
fn one_at_a_time(problem: &Problem<'_>, order: &[(usize, usize)]) -> Lists {
    let mut lists = vec![Vec::new(); problem.ranks];
    for _ in 0..problem.micro_batches {
        for &(stage, kind) in order {
            let compute = match kind {
                FORWARD => Compute::Forward,
                INPUT => Compute::Backward,
                _ => continue,
            };
            let turn = Turn::new(StageIndex::new(stage), compute);
            lists[problem.rank_of(stage)].push(turn);
        }
    }
    lists
}
