//! The settings of a plan.

use tinderbox_fake::Mode;
use tinderbox_ids::with_causes;
use tinderbox_planner::{
    Choice, Machine, MemoryBudget, Partition, Partitioner, Plan, PlanFileError, PlannerError, Step,
    fine, partition,
};

use super::build::Planning;
use super::settings::{Division, Replicas};
use crate::partition::manual;
use crate::schedule::{Placement, RankIndex, ScheduleKind};
use crate::{Batch, BatchError, Cut, OperationTimes, PlanError, Trace};

/// Creates plans of a trace for a machine; all settings have defaults. The step is the traced one.
///
/// The order of the settings does not matter. Settings that contradict each other are an error of [`plan`](Self::plan).
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use tinderbox_deferred::Deferred;
/// use tinderbox_graph::{Machine, Outputs, Planner, Traceable, schedule::ScheduleKind};
///
/// #[derive(Module, Debug)]
/// struct Net {
///     layers: Vec<Linear>,
/// }
///
/// let model = Deferred::new(|device| Net {
///     layers: (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect(),
/// })?;
/// let batch = Tensor::<2>::zeros([16, 8], &Device::flex());
/// let trace = model.trace(&batch, 8, |net: &Net, x| {
///     let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
///     Outputs::loss(y.mean())
/// })?;
/// let machine = Machine::local(2)?.with_memory_limit(1 << 20);
/// let plan = Planner::new(&trace, &machine).schedule(ScheduleKind::GPipe).plan()?;
/// assert_eq!(plan.stages.len(), 2);
/// assert_eq!(plan.step.micro_batches, 8);
/// assert!(plan.prediction.step_ns > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("Planner {{ machine: {machine:?}, step: {step:?}, division: {division:?}, .. }}")]
#[must_use]
pub struct Planner<'a, B> {
    trace: &'a Trace<B>,
    machine: Machine,
    /// The step, with the defaults of the settings that are not here.
    step: Step,
    schedule: Option<ScheduleKind>,
    times: Option<OperationTimes>,
    division: Division,
    recompute: Option<Box<dyn Fn(usize) -> bool + 'a>>,
    programs: bool,
    replicas: Replicas,
    /// Whether the number of micro-batches is chosen.
    chooses_micro_batches: bool,
}

impl<B: Batch> Trace<B> {
    /// Creates the best plan for a machine, with the defaults of [`Planner`].
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn plan(&self, machine: &Machine) -> Result<Plan, PlanError> {
        Planner::new(self, machine).plan()
    }

    /// Creates a plan from manual cuts, listed in the order of the forward: one more stage than there
    /// are cuts, each on its own rank.
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn plan_at(&self, cuts: &[Cut]) -> Result<Plan, PlanError> {
        let machine = Machine::local(cuts.len() + 1)?;
        Planner::new(self, &machine).cuts(cuts).plan()
    }

    /// Creates a plan with a cut at every mark of the forward ([`mark`](tinderbox_fake::mark())).
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn plan_at_marks(&self) -> Result<Plan, PlanError> {
        let program = self.example_program()?;
        let cuts: Vec<Cut> = (0..program.marks().len()).map(Cut::mark).collect();
        self.plan_at(&cuts)
    }

    /// Creates a plan of many small stages for a model that is streamed with a memory limit, as
    /// [`Planner::streamed`] does for one rank.
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn plan_streamed(&self, budget: MemoryBudget) -> Result<Plan, PlanError> {
        let machine = Machine::local(1)?;
        let planner = Planner::new(self, &machine).streamed(budget);
        planner.without_programs().plan()
    }
}

impl<'a, B: Batch> Planner<'a, B> {
    /// Creates a planner for the best contiguous stages, with the micro-batches of the trace, under
    /// the schedule that matches the machine's stages per rank, with times estimated from shapes.
    pub fn new(trace: &'a Trace<B>, machine: &Machine) -> Self {
        let schedule = match (machine.chunks(), machine.placement()) {
            (1, _) => ScheduleKind::OneFOneB,
            (_, Placement::V) => ScheduleKind::Zbv,
            _ => ScheduleKind::Interleaved1F1B,
        };
        Self {
            trace,
            machine: machine.clone(),
            step: Step::new(schedule, trace.micro_batches()),
            schedule: None,
            times: None,
            division: Division::default(),
            recompute: None,
            programs: true,
            replicas: Replicas::default(),
            chooses_micro_batches: false,
        }
    }

    /// Sets the schedule of the step. Stages by [`Partitioner::Chain`] or manual cuts have to fit it; see
    /// [`Machine::with_chunks`]. The other partitioners search for lists where their placement does not.
    pub fn schedule(mut self, schedule: ScheduleKind) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// Divides the ranks of the machine among replicas, a power of two: each of them has all stages on its part of the ranks,
    /// and its share of the micro-batches. Gradients of the replicas are summed before the update. The ranks of a replica follow
    /// the ranks of the one before. Each replica keeps the state of the optimizer for its share of the parameters. Default: one
    /// replica.
    ///
    /// A step has the same bits with any number of replicas that divides the groups of the [sum](crate::GradientSum).
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas.count = Some(replicas);
        self
    }

    /// Chooses the number of replicas, and so the number of stages, with the shortest predicted step of those that fit the
    /// memory of the ranks; one for a model with running states. The prediction counts the exchange of gradients, over the
    /// machine's links, and the optimizer's state, which replicas divide. It contradicts [`replicas`](Self::replicas).
    pub fn choose_replicas(mut self) -> Self {
        self.replicas.is_chosen = true;
        self
    }

    /// Chooses the number of micro-batches of the traced batch, of all replicas, with the shortest predicted step
    /// that fits the memory of the ranks, in place of the number of the trace. The numbers that divide the samples of the batch
    /// are tried, from 1 on, until three in a row are no faster. More micro-batches fill the pipeline better, and have more
    /// operations, each with an overhead; under schedules such as 1F1B they keep fewer activations.
    ///
    /// What a forward computes over its micro-batch, such as the statistics of batch norm, depends on the number. The bits of
    /// a run do too: trace the model with the number of the run for one that is resumed with other ranks.
    ///
    /// [Measured](Self::times) times are the times of the traced micro-batch: an operation takes as many times longer or
    /// shorter for another one as its time from shapes, so the [rates](Machine::rates) have to be the rates of the measured
    /// device. Cost: a recording and a plan for each number.
    pub fn choose_micro_batches(mut self) -> Self {
        self.chooses_micro_batches = true;
        self
    }

    /// Sets the bytes of optimizer state per byte of a parameter, averages included. Default: 2, as for Adam; the optimizer itself
    /// is not asked.
    pub fn optimizer_states(mut self, per_byte: u64) -> Self {
        self.step.optimizer_states = per_byte;
        self
    }

    /// Uses measured times instead of estimates from shapes.
    pub fn times(mut self, times: OperationTimes) -> Self {
        self.times = Some(times);
        self
    }

    /// Sets the partitioner. Default: [`Partitioner::Chain`]. [`Partitioner::Auto`] chooses the best of
    /// all, which may have more stages than the machine, with its own schedule. It contradicts [`cuts`](Self::cuts) and
    /// [`streamed`](Self::streamed).
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.division.partitioner = Some(partitioner);
        self
    }

    /// Cuts manually, in the order of the forward, instead of by a partitioner. It contradicts
    /// [`partitioner`](Self::partitioner) and [`streamed`](Self::streamed).
    pub fn cuts(mut self, cuts: &[Cut]) -> Self {
        self.division.cuts = Some(cuts.to_vec());
        self
    }

    /// Sets the rank of every stage of manual [cuts](Self::cuts), instead of the machine's placement.
    pub fn on_ranks(mut self, stage_to_rank: &[RankIndex]) -> Self {
        self.division.stage_to_rank = Some(stage_to_rank.to_vec());
        self
    }

    /// Cuts into many small stages on one rank, for a model that is streamed with this memory limit, instead
    /// of by a partitioner. A stage has at most 64 MiB of parameters and a sixteenth of the limit, and keeps as much for backwards, or
    /// it has one block with more: operations that stay together, such as a linear layer. For training, it has a fourth of the
    /// parameters, because gradients, the optimizer's state and new values are there too. Unless another is set, the schedule is
    /// [`LoopedBfs`](ScheduleKind::LoopedBfs), in which each stage runs all micro-batches in turn.
    pub fn streamed(mut self, budget: MemoryBudget) -> Self {
        self.division.streamed = Some(budget);
        self
    }

    /// Allows the partitioner to recompute activations in the backward, stage by stage, to fit the
    /// memory of ranks. The gradients are the same, bit for bit, dropout included.
    pub fn may_recompute(mut self) -> Self {
        self.step.may_recompute = true;
        self
    }

    /// Sets the stages that recompute their activations, overriding the partitioner.
    pub fn recompute(mut self, stages: impl Fn(usize) -> bool + 'a) -> Self {
        self.recompute = Some(Box::new(stages));
        self
    }

    /// Omits the text of the stages' programs from the plan, for a smaller file. Text of more than 4 MiB is always omitted.
    pub fn without_programs(mut self) -> Self {
        self.programs = false;
        self
    }

    /// Creates the plan. The same inputs produce the same plan.
    ///
    /// # Errors
    ///
    /// [`PlanError::Contradiction`] when two settings decide the same, and [`PlanError::RanksWithoutCuts`]. When there are fewer
    /// operations than stages, no plan fits the memory of the ranks, a manual cut is at no module, the schedule does not fit the
    /// stages, the ranks can't be divided among the replicas, the graph can't be cut, or the traced batch of [`choose_micro_batches`](Self::choose_micro_batches) has no samples. If no number fits
    /// that is to be chosen, it returns the error of most micro-batches.
    pub fn plan(mut self) -> Result<Plan, PlanError> {
        self.division.check()?;
        self.replicas.check()?;
        self.step.schedule = self.schedule_of_step();
        let (rates, times) = (&self.machine.rates, self.times.as_ref());
        let of_samples = |samples| Planning::new(self.trace, samples, rates, times);
        if self.chooses_micro_batches {
            let samples = self.trace.samples().ok_or(BatchError::NoSamples)?;
            let least = self.replicas.given().unwrap_or(1);
            if least > samples {
                let replicas = least;
                return Err(PlanError::FewSamples { samples, replicas });
            }
            let counts = (least..=samples).filter(|count| samples.is_multiple_of(*count));
            return self.choose(counts, |count| of_samples(Some(samples / count)));
        }
        let count = self.step.micro_batches;
        match self.replicas.given() {
            None => self.choose([count], |_| of_samples(None)),
            Some(replicas) => {
                let planning = of_samples(None)?;
                self.plan_of(&planning, (replicas, count), self.programs)
            }
        }
    }

    /// The schedule that was set, or the default of the other settings.
    fn schedule_of_step(&self) -> ScheduleKind {
        let default = match self.division.streamed {
            Some(_) => ScheduleKind::LoopedBfs,
            None => self.step.schedule,
        };
        self.schedule.unwrap_or(default)
    }

    /// Chooses one of some numbers of micro-batches, and the number of replicas if that is not set.
    fn choose(
        &self,
        counts: impl IntoIterator<Item = usize>,
        planning_of: impl Fn(usize) -> Result<Planning, PlanError>,
    ) -> Result<Plan, PlanError> {
        /// After so many numbers without a faster plan, larger ones are not tried.
        const SLOWER: usize = 3;
        let mut tried: Vec<((usize, usize), Result<u64, PlanError>)> = Vec::new();
        let (mut best, mut slower, mut last) = (None, 0, None);
        for count in counts {
            match planning_of(count) {
                Ok(planning) => {
                    for replicas in self.possible_replicas(&planning, count) {
                        let numbers = (replicas, count);
                        tried.push((numbers, self.step_ns(&planning, numbers)));
                    }
                    last = Some((count, planning));
                }
                // Such as the error of a forward that compares samples with each other.
                Err(error) => {
                    let replicas = self.replicas.given().unwrap_or(1);
                    tried.push(((replicas, count), Err(error)));
                }
            }
            let steps = tried.iter().filter_map(|(_, found)| found.as_ref().ok());
            let now = steps.min().copied();
            slower = if now == best { slower + 1 } else { 0 };
            best = now;
            if best.is_some() && slower == SLOWER {
                break;
            }
        }
        let reasons = tried.iter();
        let reasons = reasons.map(|(numbers, found)| self.reason(*numbers, found));
        let reasons: Vec<String> = reasons.collect();
        // The first of the shortest steps.
        let steps = tried.iter();
        let steps = steps.filter_map(|(numbers, found)| Some((*found.as_ref().ok()?, *numbers)));
        let Some((_, numbers)) = steps.min_by_key(|(step_ns, _)| *step_ns) else {
            let errors = tried.into_iter();
            let errors = errors.filter_map(|((_, count), found)| Some((count, found.err()?)));
            // The error of most micro-batches, of several the one with the fewest replicas.
            let most = errors.rev().max_by_key(|(count, _)| *count);
            let (_, error) = most.expect("one replica and one micro-batch are always possible");
            return Err(error);
        };
        let planning = match last {
            Some((count, planning)) if count == numbers.1 => planning,
            _ => planning_of(numbers.1)?,
        };
        let mut plan = self.plan_of(&planning, numbers, self.programs)?;
        plan.choice.reasons.extend(reasons);
        Ok(plan)
    }

    /// The numbers of replicas that may be chosen, or the one that was set.
    fn possible_replicas(&self, planning: &Planning, micro_batches: usize) -> Vec<usize> {
        if let Some(replicas) = self.replicas.given() {
            return vec![replicas];
        }
        let ranks = self.machine.ranks();
        let most = match planning.joint.updates().is_empty() {
            true => ranks.min(micro_batches),
            // Running states follow the order of the micro-batches.
            false => 1,
        };
        let powers = (0..usize::BITS).map(|power| 1_usize << power);
        let powers = powers.take_while(|replicas| *replicas <= most);
        let powers = powers.filter(|replicas| ranks.is_multiple_of(*replicas));
        powers.collect()
    }

    /// The step of numbers of replicas and micro-batches, for a comparison.
    fn step_ns(&self, planning: &Planning, numbers: (usize, usize)) -> Result<u64, PlanError> {
        let plan = self.plan_of(planning, numbers, false)?;
        let prediction = &plan.prediction;
        match prediction.over_limit(&plan.machine) {
            Some(over) => Err(PlannerError::from(over).into()),
            None => Ok(prediction.step_ns),
        }
    }

    /// What was found for numbers of replicas and micro-batches, on one line.
    fn reason(&self, numbers: (usize, usize), step_ns: &Result<u64, PlanError>) -> String {
        let (replicas, micro_batches) = numbers;
        let mut texts = Vec::new();
        if self.replicas.is_chosen {
            let ranks = self.machine.ranks() / replicas;
            texts.push(format!("{replicas} replicas of {ranks} ranks"));
        }
        if self.chooses_micro_batches {
            texts.push(format!("{micro_batches} micro-batches"));
        }
        let found = match step_ns {
            Ok(step_ns) => format!("{:.3} ms", *step_ns as f64 / 1e6),
            Err(error) => without_advice(error),
        };
        format!("{}: {found}", texts.join(", "))
    }

    /// Creates the plan of a number of replicas and micro-batches.
    fn plan_of(
        &self,
        planning: &Planning,
        (replicas, micro_batches): (usize, usize),
        with_programs: bool,
    ) -> Result<Plan, PlanError> {
        let machine = self.machine.of_replica(replicas)?;
        let step = Step {
            replicas,
            micro_batches,
            ..self.step.clone()
        };
        let (mut partition, choice) = self.divided(planning, &machine, &step)?;
        let ranks = partition.stage_to_rank.iter();
        let used = ranks.map(|rank| rank.index() + 1).max();
        if let Some(used) = used.filter(|used| replicas > 1 && *used > machine.ranks()) {
            return Err(PlanError::ReplicaRanks {
                used,
                replicas,
                ranks: machine.ranks(),
            });
        }
        if let Some(recompute) = &self.recompute {
            partition.recompute = (0..partition.stages()).map(recompute).collect();
        }
        let plan = planning.plan(&machine, &step, &partition, choice, with_programs)?;
        let division = &self.division;
        let is_placed = matches!(division.partitioner, None | Some(Partitioner::Chain));
        if self.schedule.is_some() && is_placed && plan.lists.is_some() {
            let (schedule, ranks) = (step.schedule, partition.stage_to_rank);
            return Err(PlanError::ScheduleStages { schedule, ranks });
        }
        Ok(plan)
    }

    /// Divides the operations among stages.
    fn divided(
        &self,
        planning: &Planning,
        machine: &Machine,
        step: &Step,
    ) -> Result<(Partition, Choice), PlanError> {
        let choice = |partitioner: &str, reason: String| Choice {
            partitioner: partitioner.to_owned(),
            reasons: vec![reason],
        };
        if let Some(cuts) = &self.division.cuts {
            let shown: Vec<String> = cuts.iter().map(Cut::to_string).collect();
            let reason = match shown.is_empty() {
                true => "not cut".to_owned(),
                false => format!("cut by hand {}", shown.join(", ")),
            };
            let starts = manual(&planning.joint, cuts)?;
            let stages = starts.len();
            let placed = || Some(machine.stage_to_rank()).filter(|ranks| ranks.len() == stages);
            let ranks = self.division.stage_to_rank.clone().or_else(placed);
            let ranks = ranks.unwrap_or_else(|| (0..stages).map(RankIndex::new).collect());
            let (expected, found) = (stages, ranks.len());
            if expected != found {
                return Err(PlanFileError::StageMap { expected, found }.into());
            }
            let operations = planning.joint.forward().nodes().len();
            let recompute = vec![false; stages];
            let partition = Partition::contiguous(operations, &starts, ranks, recompute);
            return Ok((partition, choice("manual", reason)));
        }
        let work = &planning.work;
        let (partition, choice) = match self.division.streamed {
            Some(budget) => {
                // Of a stage that is updated, gradients, the optimizer's state and new values are there too.
                let parts = match self.trace.mode() {
                    Mode::Training => 4,
                    Mode::Inference => 1,
                };
                let stage_bytes = budget.stage_bytes() / parts;
                // Of all micro-batches.
                let kept_bytes = budget.stage_bytes() / step.micro_batches.max(1) as u64;
                let reason = format!(
                    "stages of at most {stage_bytes} bytes of parameters and {kept_bytes} of a micro-batch for backwards, or of one block"
                );
                let partition = fine(work, stage_bytes, kept_bytes);
                (partition, choice("fine", reason))
            }
            None => {
                let partitioner = self.division.partitioner.unwrap_or(Partitioner::Chain);
                let planned = partition(partitioner, work, machine, step)?;
                (planned.partition, planned.choice)
            }
        };
        Ok((planning.of_operations(partition), choice))
    }
}

/// The text of an error of one of several plans, without what to do instead.
fn without_advice(error: &PlanError) -> String {
    let text = with_causes(error);
    match (error, text.rsplit_once(": ")) {
        (PlanError::Planner(_) | PlanError::ScheduleStages { .. }, Some((text, _))) => {
            text.to_owned()
        }
        _ => text,
    }
}
