//! The search as a whole: named schedules, list schedules, and the best of both improved.

use crate::action::Compute;
use crate::dependencies::Dependencies;
use crate::error::VerifyError;
use crate::generate::ScheduleKind;
use crate::index::RankIndex;
use crate::lists::{Form, Schedule, ScheduleMode};
use crate::simulate::Costs;
use crate::verify::verify;

use super::bound::lower_bound;
use super::error::AutoError;
use super::evaluate::Evaluator;
use super::named::{Named, named};
use super::paths::{INPUT, Paths, WEIGHT};
use super::problem::{Lists, Problem, Turn, fixed_bytes};
use super::{greedy, search, variants};

/// How long [`auto`] searches, in actions timed: a measure that is the same on every machine.
///
/// A million take about a tenth of a second. The named schedules are timed whatever the effort, so
/// that no effort at all still gives the best of them. A list is searched well with some thousand
/// times its length: give a step of many ranks and micro-batches more than the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Effort(u64);

impl Effort {
    /// So many actions timed.
    #[must_use]
    pub const fn actions(count: u64) -> Self {
        Self(count)
    }
}

impl Default for Effort {
    /// Half a million actions.
    fn default() -> Self {
        Self(500_000)
    }
}

/// What [`auto`] may use.
#[derive(Debug, Clone, Copy, Default)]
pub struct AutoOptions<'a> {
    /// The bytes that each rank may hold, resident ones included. A rank beyond the end has no limit.
    pub memory_limits: Option<&'a [u64]>,
    /// How long to search.
    pub effort: Effort,
}

/// What [`auto`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auto {
    /// The schedule: compute actions alone, by the name of the named one if it is one, else `auto`.
    pub schedule: Schedule,
    /// The ticks of its step, as [`simulate`](crate::simulate()) has them.
    pub makespan: u64,
    /// The fastest named schedule with this stage-to-rank map that fits, and its ticks; `None` where
    /// the map is of no named schedule, or none fits.
    pub best_named: Option<(ScheduleKind, u64)>,
    /// Ticks that no schedule of these stages can be below. The optimum is not below it and may be
    /// above, most of all where memory is scarce and a rank has several stages.
    pub lower_bound: u64,
}

/// The share of the effort that list schedules may take, as a divisor.
const GREEDY_SHARE: u64 = 2;

/// What an entry of a list schedule costs, in entries timed.
const GREEDY_TURNS: u64 = 4;

/// List schedules that are slower than the best by more than this part of it are not looked at.
const GREEDY_SLACK: u64 = 50;

/// How many candidates are improved, each with its share of the effort.
const STARTS: usize = 3;

/// Finds a schedule for stages on ranks, at least as fast as every named one that fits.
///
/// The costs are those of [`simulate`](crate::simulate()), bytes included. The same inputs give the
/// same schedule. Time and memory grow with stages times micro-batches, and time with the effort.
///
/// ```
/// use tinderbox_schedule::{
///     AutoOptions, ComputeTimes, Costs, Dependencies, RankIndex, auto,
/// };
///
/// let times = ComputeTimes { forward: 100, input_gradient: 150, weight_gradient: 70 };
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
/// [`AutoError::Step`] for inputs that do not fit each other, and [`AutoError::Memory`] where a rank
/// may hold less than one micro-batch needs.
pub fn auto(
    stage_to_rank: &[RankIndex],
    micro_batches: usize,
    dependencies: &Dependencies,
    costs: &Costs,
    options: AutoOptions<'_>,
) -> Result<Auto, AutoError> {
    check(stage_to_rank, micro_batches, dependencies, costs)?;
    let limits = options.memory_limits.unwrap_or(&[]);
    let problem = Problem::new(stage_to_rank, micro_batches, dependencies, costs, limits);
    let Some(paths) = Paths::new(&problem) else {
        // The verifier says which edges form the circle.
        let lists = one_at_a_time(&problem, &all_programs(problem.stages()));
        verify(&problem.schedule_of("auto", &lists), dependencies)?;
        return Err(AutoError::Circle);
    };
    let serial = one_at_a_time(&problem, &paths.order);
    check_memory(&problem, &serial, limits)?;

    let bound = lower_bound(&problem, &paths);
    let mut evaluator = Evaluator::new(&problem);
    let named = named(&problem, &mut evaluator);
    let best_named = named.first().cloned();
    let mut pool = Pool {
        problem: &problem,
        candidates: Vec::new(),
    };
    if let Some(makespan) = evaluator.makespan(&serial, u64::MAX) {
        pool.enter(makespan, serial, None);
    }
    for one in named {
        pool.enter(one.makespan, one.lists, Some(one.kind));
    }
    evaluator.turns = 0;
    pool.list_schedules(
        &paths,
        &mut evaluator,
        bound,
        options.effort.0 / GREEDY_SHARE,
    );
    let best = pool.improve(&mut evaluator, bound, options.effort.0);
    let found = chosen(&problem, best, best_named.as_ref()).ok_or(AutoError::Circle)?;
    Ok(Auto {
        schedule: found.0,
        makespan: found.1,
        best_named: best_named.map(|named| (named.kind, named.makespan)),
        lower_bound: bound,
    })
}

/// The better of what the search and the generators have.
fn chosen(
    problem: &Problem<'_>,
    best: Option<Candidate>,
    named: Option<&Named>,
) -> Option<(Schedule, u64)> {
    if let Some(named) = named
        && best
            .as_ref()
            .is_none_or(|best| named.makespan < best.makespan)
    {
        return Some((named.schedule.clone(), named.makespan));
    }
    best.map(|best| {
        let name = best.kind.map_or("auto", ScheduleKind::name);
        (problem.schedule_of(name, &best.lists), best.makespan)
    })
}

/// A list that can run and fits.
#[derive(Debug, Clone)]
struct Candidate {
    makespan: u64,
    /// The bytes of all ranks' peaks, and the number of entries: what decides between equals.
    size: (u64, usize),
    lists: Lists,
    /// Its name, if it is a named one.
    kind: Option<ScheduleKind>,
}

/// The candidates found so far.
struct Pool<'a> {
    problem: &'a Problem<'a>,
    candidates: Vec<Candidate>,
}

impl Pool<'_> {
    fn enter(&mut self, makespan: u64, lists: Lists, kind: Option<ScheduleKind>) {
        let peaks = self.problem.peaks(&lists).into_iter();
        let size = (
            peaks.fold(0, u64::saturating_add),
            lists.iter().map(Vec::len).sum(),
        );
        self.candidates.push(Candidate {
            makespan,
            size,
            lists,
            kind,
        });
    }

    fn best(&self) -> Option<u64> {
        self.candidates
            .iter()
            .map(|candidate| candidate.makespan)
            .min()
    }

    /// Tries the policies of the list scheduler, until one reaches the bound or the effort is spent.
    fn list_schedules(
        &mut self,
        paths: &Paths,
        evaluator: &mut Evaluator<'_>,
        bound: u64,
        turns: u64,
    ) {
        for policy in variants::policies(self.problem, paths) {
            let best = self.best();
            if best == Some(bound) || evaluator.turns > turns {
                return;
            }
            let cutoff = best.map_or(u64::MAX, |best| best.saturating_add(best / GREEDY_SLACK));
            let lists = greedy::schedule(self.problem, &policy, cutoff);
            let entries = self.problem.stages() * self.problem.micro_batches * 3;
            evaluator.turns += GREEDY_TURNS * entries as u64;
            if let Some(lists) = lists
                && let Some(makespan) = evaluator.makespan(&lists, cutoff)
            {
                self.enter(makespan, lists, None);
            }
        }
    }

    /// Improves the best candidates of different makespans, and returns the best of all.
    fn improve(
        mut self,
        evaluator: &mut Evaluator<'_>,
        bound: u64,
        turns: u64,
    ) -> Option<Candidate> {
        // A stable sort: equals stay in the order in which they were tried.
        self.candidates
            .sort_by_key(|candidate| (candidate.makespan, candidate.size));
        self.candidates.dedup_by_key(|candidate| candidate.makespan);
        self.candidates.truncate(STARTS);
        let share = turns.saturating_sub(evaluator.turns) / self.candidates.len().max(1) as u64;
        let mut best = self.candidates.first().cloned();
        for start in &self.candidates {
            let found = search::improve(self.problem, evaluator, &start.lists, share, bound);
            if let (Some((makespan, lists)), Some(best)) = (found, &mut best)
                && makespan < best.makespan
            {
                best.makespan = makespan;
                best.lists = lists;
                best.kind = None;
            }
            if best.as_ref().is_some_and(|best| best.makespan <= bound) {
                break;
            }
        }
        best
    }
}

/// Refuses inputs that do not fit each other.
fn check(
    stage_to_rank: &[RankIndex],
    micro_batches: usize,
    dependencies: &Dependencies,
    costs: &Costs,
) -> Result<(), AutoError> {
    let expected = dependencies.stages();
    let world_size = stage_to_rank.iter().map(|rank| rank.index());
    let world_size = world_size.max().map_or(0, |last| last.saturating_add(1));
    // Ranks without a stage are possible, but a map that names a million of them is a mistake.
    let world_size = world_size.min(expected);
    let empty = Schedule {
        name: String::new(),
        mode: ScheduleMode::Training,
        form: Form::ComputeOnly,
        stages: expected,
        micro_batches,
        stage_to_rank: stage_to_rank.to_vec(),
        ranks: vec![Vec::new(); world_size],
    };
    match verify(&empty, dependencies) {
        // The counts and the map were accepted, and the lists are what is looked for.
        Ok(()) | Err(VerifyError::Missing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    if costs.stages.len() != expected {
        let found = costs.stages.len();
        return Err(VerifyError::Costs { expected, found }.into());
    }
    Ok(())
}

/// Refuses a limit that is below what one micro-batch at a time needs.
fn check_memory(problem: &Problem<'_>, serial: &Lists, limits: &[u64]) -> Result<(), AutoError> {
    for (rank, peak) in problem.peaks(serial).into_iter().enumerate() {
        let Some(&limit) = limits.get(rank) else {
            break;
        };
        let fixed = fixed_bytes(problem.costs, &problem.stages_of[rank]);
        let needed = peak.saturating_add(fixed);
        if needed > limit {
            let rank = RankIndex::new(rank);
            return Err(AutoError::Memory {
                rank,
                needed,
                limit,
            });
        }
    }
    Ok(())
}

/// All programs of one micro-batch, in the order of a chain.
fn all_programs(stages: usize) -> Vec<(usize, usize)> {
    let forwards = (0..stages).map(|stage| (stage, 0));
    let backwards = (0..stages).rev().map(|stage| (stage, INPUT));
    forwards.chain(backwards).collect()
}

/// One micro-batch after the other, each in the given order of stages and kinds of work.
fn one_at_a_time(problem: &Problem<'_>, order: &[(usize, usize)]) -> Lists {
    let mut lists = vec![Vec::new(); problem.ranks];
    for _ in 0..problem.micro_batches {
        for &(stage, kind) in order.iter().filter(|(_, kind)| *kind != WEIGHT) {
            let compute = match kind {
                INPUT => Compute::Backward,
                _ => Compute::Forward,
            };
            lists[problem.rank_of[stage]].push(Turn::new(stage, compute));
        }
    }
    lists
}
