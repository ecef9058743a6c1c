//! The settings of a plan.

use tinderbox_fake::Mode;
use tinderbox_path::with_causes;
use tinderbox_planner::{
    Choice, Machine, MemoryBudget, Partition, Partitioner, PlanFileError, PlannerError, Step, fine,
    partition,
};

use super::Plan;
use super::build::Planning;
use crate::PlanError;
use crate::batch::{Batch, samples_of};
use crate::partition::{Cut, manual};
use crate::schedule::{Placement, RankIndex, ScheduleKind};
use crate::trace::Trace;
use crate::work::OperationTimes;

/// Creates plans of a trace for a machine; all settings have defaults.
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
/// let example = Tensor::<2>::zeros([2, 8], &Device::flex());
/// let trace = model.trace(&example, |net: &Net, x| {
///     let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
///     Outputs::loss(y.mean())
/// })?;
/// let machine = Machine::local(2)?.with_memory(1 << 20);
/// let plan = Planner::new(&trace, &machine)
///     .schedule(ScheduleKind::GPipe)
///     .micro_batches(8)
///     .plan()?;
/// assert_eq!(plan.stages().len(), 2);
/// assert!(plan.file().prediction.step_ns > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[debug(
    "Planner {{ machine: {machine:?}, step: {step:?}, partitioner: {:?}, .. }}",
    division.partitioner
)]
#[must_use]
pub struct Planner<'a, B> {
    trace: &'a Trace<B>,
    machine: Machine,
    step: Step,
    times: Option<OperationTimes>,
    division: Division,
    /// Whether the schedule was set.
    is_scheduled: bool,
    recompute: Option<Box<dyn Fn(usize) -> bool + 'a>>,
    programs: bool,
    /// `None` to choose the best number.
    replicas: Option<usize>,
    /// The batch of a step, to choose the number of micro-batches.
    batch: Option<B>,
    /// The samples of a micro-batch; `None` for the samples of the example.
    samples: Option<usize>,
}

/// How operations are divided among stages: by cuts if there are any, else into small stages, else by a partitioner.
struct Division {
    partitioner: Partitioner,
    cuts: Option<Vec<Cut>>,
    stage_to_rank: Option<Vec<RankIndex>>,
    /// The bytes of parameters that a stage should have at most, and what it should keep for backwards, for many small stages.
    stage_bytes: Option<(u64, u64)>,
}

impl Plan {
    /// Creates the best plan for a machine, with the defaults of [`Planner`].
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn auto<B: Batch>(trace: &Trace<B>, machine: &Machine) -> Result<Self, PlanError> {
        Planner::new(trace, machine).plan()
    }

    /// Creates a plan from manual cuts, listed in the order of the forward: one more stage than there
    /// are cuts, each on its own rank.
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn manual<B: Batch>(trace: &Trace<B>, cuts: &[Cut]) -> Result<Self, PlanError> {
        let machine = Machine::local(cuts.len() + 1)?;
        Planner::new(trace, &machine).cuts(cuts).plan()
    }

    /// Creates a plan with a cut at every mark of the forward ([`cut`](tinderbox_fake::cut())).
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn at_marks<B: Batch>(trace: &Trace<B>) -> Result<Self, PlanError> {
        let program = trace.example_program()?;
        let cuts: Vec<Cut> = (0..program.marks().len()).map(Cut::mark).collect();
        Self::manual(trace, &cuts)
    }

    /// Creates a plan of many small stages for a model that is streamed with a memory limit, as
    /// [`Planner::streamed`] does for one rank.
    ///
    /// # Errors
    ///
    /// As [`Planner::plan`].
    pub fn streamed<B: Batch>(trace: &Trace<B>, budget: MemoryBudget) -> Result<Self, PlanError> {
        let machine = Machine::local(1)?;
        let planner = Planner::new(trace, &machine).streamed(budget);
        planner.without_programs().plan()
    }
}

impl<'a, B: Batch> Planner<'a, B> {
    /// Creates a planner for the best contiguous stages, with as many micro-batches as stages, under
    /// the schedule that matches the machine's stages per rank, with times estimated from shapes.
    pub fn new(trace: &'a Trace<B>, machine: &Machine) -> Self {
        let schedule = match (machine.chunks(), machine.placement()) {
            (1, _) => ScheduleKind::OneFOneB,
            (_, Placement::V) => ScheduleKind::Zbv,
            _ => ScheduleKind::Interleaved1F1B,
        };
        let stages = machine.stage_to_rank().len();
        Self {
            trace,
            machine: machine.clone(),
            step: Step::new(schedule, stages),
            times: None,
            division: Division {
                partitioner: Partitioner::Chain,
                cuts: None,
                stage_to_rank: None,
                stage_bytes: None,
            },
            is_scheduled: false,
            recompute: None,
            programs: true,
            replicas: Some(1),
            batch: None,
            samples: None,
        }
    }

    /// Sets the schedule of the step. Stages by [`Partitioner::Chain`] or manual cuts have to fit it; see
    /// [`Machine::with_chunks`]. The other partitioners search for lists where their placement does not.
    pub fn schedule(mut self, schedule: ScheduleKind) -> Self {
        self.step.schedule = schedule;
        self.is_scheduled = true;
        self
    }

    /// Divides the ranks of the machine among replicas: each of them has all stages on its part of the ranks, and its share
    /// of the micro-batches ([`Plan::replicas`]). Default: one replica.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Chooses the number of replicas, and so the number of stages, with the shortest predicted step of those that fit the
    /// memory of the ranks; one for a model with running states. The prediction counts the exchange of gradients, over the
    /// machine's links, and the optimizer's state, which replicas divide.
    pub fn choose_replicas(mut self) -> Self {
        self.replicas = None;
        self
    }

    /// Sets the number of micro-batches of a step, of all replicas, at least 1. Default: the number of stages.
    pub fn micro_batches(mut self, count: usize) -> Self {
        self.step.micro_batches = count;
        self.batch = None;
        self
    }

    /// Chooses the number of micro-batches of a whole batch like this one, of all replicas, with the shortest predicted step
    /// that fits the memory of the ranks. The numbers that divide its samples are tried, from 1 on, until three in a row are
    /// no faster. More micro-batches fill the pipeline better, and have more operations, each with an overhead; under
    /// schedules such as 1F1B they keep fewer activations.
    ///
    /// What a forward computes over its micro-batch, such as the statistics of batch norm, depends on the number. The bits of
    /// a run do too: set it for a run that is resumed with other ranks.
    ///
    /// [Measured](Self::times) times are the times of the traced micro-batch: an operation takes as many times longer or
    /// shorter for another one as its time from shapes, so the [rates](Machine::rates) have to be the rates of the measured
    /// device. Cost: a recording and a plan for each number.
    pub fn choose_micro_batches(mut self, batch: &B) -> Self {
        self.batch = Some(batch.clone());
        self
    }

    /// Plans micro-batches of so many samples instead of the samples of the traced one.
    pub fn samples(mut self, samples: Option<usize>) -> Self {
        self.samples = samples;
        self
    }

    /// Sets the bytes of optimizer state per byte of a parameter. Default: 2, as for Adam.
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
    /// all, which may have more stages than the machine, with its own schedule.
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.division.partitioner = partitioner;
        self
    }

    /// Cuts manually, in the order of the forward, instead of by a partitioner.
    pub fn cuts(mut self, cuts: &[Cut]) -> Self {
        self.division.cuts = Some(cuts.to_vec());
        self
    }

    /// Sets the rank of every stage for manual cuts, instead of the machine's placement.
    pub fn on_ranks(mut self, stage_to_rank: &[RankIndex]) -> Self {
        self.division.stage_to_rank = Some(stage_to_rank.to_vec());
        self
    }

    /// Cuts into many small stages on one rank, for a model that is streamed with this memory limit, instead
    /// of by a partitioner. A stage has at most 64 MiB of parameters and a sixteenth of the limit, and keeps as much for backwards, or
    /// it has one block with more: operations that stay together, such as a linear layer. For training, it has a fourth of the
    /// parameters, because gradients, the optimizer's state and new values are there too. Sets the number of micro-batches to 1
    /// and the schedule to [`LoopedBfs`](ScheduleKind::LoopedBfs), in which each stage runs all micro-batches in turn.
    pub fn streamed(mut self, budget: MemoryBudget) -> Self {
        // Of a stage that is updated, gradients, the optimizer's state and new values are there too.
        let parts = match self.trace.mode() {
            Mode::Training => 4,
            Mode::Inference => 1,
        };
        self.division.stage_bytes = Some((budget.stage_bytes() / parts, budget.stage_bytes()));
        self.step.schedule = ScheduleKind::LoopedBfs;
        self.micro_batches(1)
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
    /// When there are fewer operations than stages, no plan fits the memory of the ranks, a manual cut
    /// is at no module, the schedule does not fit the stages, the ranks can't be divided among the replicas, the graph
    /// can't be cut, or the batch of [`choose_micro_batches`](Self::choose_micro_batches) can't be split. If no number fits
    /// that is to be chosen, it returns the error of most micro-batches.
    pub fn plan(self) -> Result<Plan, PlanError> {
        let (rates, times) = (&self.machine.rates, self.times.as_ref());
        let of_samples = |samples| Planning::new(self.trace, samples, rates, times);
        if let Some(batch) = &self.batch {
            self.trace.check_batch(batch)?;
            let samples = samples_of(batch)?;
            let least = self.replicas.unwrap_or(1);
            if least > samples {
                let replicas = least;
                return Err(PlanError::FewSamples { samples, replicas });
            }
            let counts = (least..=samples).filter(|count| samples.is_multiple_of(*count));
            return self.choose(counts, |count| of_samples(Some(samples / count)));
        }
        match (self.step.micro_batches, self.replicas) {
            (0, _) => Err(PlanError::NoMicroBatches),
            (count, None) => self.choose([count], |_| of_samples(self.samples)),
            (count, Some(replicas)) => {
                let planning = of_samples(self.samples)?;
                self.plan_of(&planning, (replicas, count), self.programs)
            }
        }
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
                Err(error) => tried.push(((self.replicas.unwrap_or(1), count), Err(error))),
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
        plan.file.choice.reasons.extend(reasons);
        Ok(plan)
    }

    /// The numbers of replicas that may be chosen, or the one that was set.
    fn possible_replicas(&self, planning: &Planning, micro_batches: usize) -> Vec<usize> {
        if let Some(replicas) = self.replicas {
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
        powers
            .filter(|replicas| ranks.is_multiple_of(*replicas))
            .collect()
    }

    /// The step of numbers of replicas and micro-batches, for a comparison.
    fn step_ns(&self, planning: &Planning, numbers: (usize, usize)) -> Result<u64, PlanError> {
        let plan = self.plan_of(planning, numbers, false)?;
        let prediction = &plan.file().prediction;
        match prediction.over_limit(&plan.file().machine) {
            Some(over) => Err(PlannerError::from(over).into()),
            None => Ok(prediction.step_ns),
        }
    }

    /// What was found for numbers of replicas and micro-batches, on one line.
    fn reason(
        &self,
        (replicas, micro_batches): (usize, usize),
        step_ns: &Result<u64, PlanError>,
    ) -> String {
        let mut numbers = Vec::new();
        if self.replicas.is_none() {
            let ranks = self.machine.ranks() / replicas;
            numbers.push(format!("{replicas} replicas of {ranks} ranks"));
        }
        if self.batch.is_some() {
            numbers.push(format!("{micro_batches} micro-batches"));
        }
        let found = match step_ns {
            Ok(step_ns) => format!("{:.3} ms", *step_ns as f64 / 1e6),
            Err(error) => without_advice(error),
        };
        format!("{}: {found}", numbers.join(", "))
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
        let is_placed = division.cuts.is_some() || division.partitioner == Partitioner::Chain;
        match self.is_scheduled && is_placed && plan.file().lists.is_some() {
            true => Err(PlanError::ScheduleStages {
                schedule: step.schedule,
                ranks: partition.stage_to_rank,
            }),
            false => Ok(plan),
        }
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
            let partition = self.by_cuts(planning, machine, cuts)?;
            return Ok((partition, choice("manual", reason)));
        }
        let work = &planning.work;
        let (partition, choice) = match self.division.stage_bytes {
            Some((stage_bytes, kept_bytes)) => {
                // Of all micro-batches.
                let kept_bytes = kept_bytes / self.step.micro_batches.max(1) as u64;
                let reason = format!(
                    "stages of at most {stage_bytes} bytes of parameters and {kept_bytes} of a micro-batch for backwards, or of one block"
                );
                let partition = fine(work, stage_bytes, kept_bytes);
                (partition, choice("fine", reason))
            }
            None => {
                let planned = partition(self.division.partitioner, work, machine, step)?;
                (planned.partition, planned.choice)
            }
        };
        Ok((planning.of_operations(partition), choice))
    }

    fn by_cuts(
        &self,
        planning: &Planning,
        machine: &Machine,
        cuts: &[Cut],
    ) -> Result<Partition, PlanError> {
        let starts = manual(&planning.joint, cuts)?;
        let stages = starts.len();
        let placed = || Some(machine.stage_to_rank()).filter(|ranks| ranks.len() == stages);
        let ranks = self.division.stage_to_rank.clone().or_else(placed);
        let ranks = ranks.unwrap_or_else(|| (0..stages).map(RankIndex::new).collect());
        if ranks.len() != stages {
            let error = PlanFileError::StageMap {
                expected: stages,
                found: ranks.len(),
            };
            return Err(error.into());
        }
        let operations = planning.joint.forward().nodes().len();
        let recompute = vec![false; stages];
        Ok(Partition::contiguous(operations, &starts, ranks, recompute))
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
