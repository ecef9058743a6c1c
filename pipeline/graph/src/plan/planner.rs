//! The planner: its settings, and the choice of the numbers of replicas and micro-batches.

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

/// A planner: divides the operations of a trace among stages, and places the stages on the ranks of a machine. The plan is for
/// the traced step.
///
/// All settings have defaults, and their order does not matter. Settings that contradict each other are an error of
/// [`plan`](Self::plan).
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
    /// The step of the plan. It holds the settings that have no field here, and the default schedule.
    step: Step,
    /// The schedule that was set.
    schedule: Option<ScheduleKind>,
    times: Option<OperationTimes>,
    division: Division,
    /// Whether a stage recomputes its activations. `None` if the partitioner decides.
    recompute: Option<Box<dyn Fn(usize) -> bool + 'a>>,
    /// Whether the plan contains the text of the programs.
    programs: bool,
    replicas: Replicas,
    /// Whether the planner chooses the number of micro-batches, instead of the number of the trace.
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

    /// Creates a plan from manual cuts, listed in the order of the forward. The plan has one more stage than there are cuts.
    /// Each stage is on its own rank.
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
    /// Creates a planner with default settings: the best contiguous stages, the micro-batches of the trace, times estimated
    /// from shapes, and a schedule that matches the machine's stages per rank.
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
    /// [`Machine::with_chunks`]. If the stages of another partitioner do not fit it, the planner searches for other lists of
    /// actions.
    pub fn schedule(mut self, schedule: ScheduleKind) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// Sets the number of replicas, a power of two. Default: 1.
    ///
    /// The ranks of the machine are divided equally among the replicas, and each replica has consecutive ranks. A replica has
    /// all stages, and runs its share of the micro-batches. The gradients of the replicas are summed before the update. Each
    /// replica keeps the state of the optimizer for its share of the parameters.
    ///
    /// A step has the same bits with every number of replicas that divides the number of groups of the
    /// [sum](crate::GradientSum).
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas.count = Some(replicas);
        self
    }

    /// Chooses the number of replicas with the shortest predicted step that fits the memory of the ranks. More replicas have
    /// fewer ranks each, so they also have fewer stages. A model with running states always has one replica.
    ///
    /// The prediction includes the exchange of gradients over the machine's links, and the optimizer's state, which replicas
    /// divide. This setting contradicts [`replicas`](Self::replicas).
    pub fn choose_replicas(mut self) -> Self {
        self.replicas.is_chosen = true;
        self
    }

    /// Chooses the number of micro-batches with the shortest predicted step that fits the memory of the ranks, instead of the
    /// number of the trace. It is the number of all replicas together. The planner tries the numbers that divide the samples
    /// of the traced batch, in ascending order, until three in a row are no faster.
    ///
    /// More micro-batches fill the pipeline better, and keep fewer activations under schedules such as 1F1B. But they have
    /// more operations, each with an overhead.
    ///
    /// The number changes values that a forward computes over its micro-batch, such as the statistics of batch norm. It also
    /// changes the bits of a run. To resume a run with other ranks, do not choose: trace the model with the number of the run.
    ///
    /// [Measured](Self::times) times are times of the traced micro-batch. For another micro-batch, the time of an operation
    /// changes in the ratio of its times from shapes. So the [rates](Machine::rates) have to be the rates of the measured
    /// device.
    ///
    /// Cost: a recording and a plan for each number.
    pub fn choose_micro_batches(mut self) -> Self {
        self.chooses_micro_batches = true;
        self
    }

    /// Sets the bytes of optimizer state, including averages, per byte of a parameter. Default: 2, as for Adam. The planner
    /// does not know the optimizer of the pipeline.
    pub fn optimizer_states(mut self, per_byte: u64) -> Self {
        self.step.optimizer_states = per_byte;
        self
    }

    /// Uses measured times of operations instead of estimates from shapes.
    pub fn times(mut self, times: OperationTimes) -> Self {
        self.times = Some(times);
        self
    }

    /// Sets the partitioner. Default: [`Partitioner::Chain`]. [`Partitioner::Auto`] runs all partitioners and chooses the best
    /// plan. That plan may have more stages than the machine, and a schedule of its own. This setting contradicts
    /// [`cuts`](Self::cuts) and [`streamed`](Self::streamed).
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.division.partitioner = Some(partitioner);
        self
    }

    /// Sets manual cuts, in the order of the forward, instead of a partitioner. This setting contradicts
    /// [`partitioner`](Self::partitioner) and [`streamed`](Self::streamed).
    pub fn cuts(mut self, cuts: &[Cut]) -> Self {
        self.division.cuts = Some(cuts.to_vec());
        self
    }

    /// Sets the rank of every stage of manual [cuts](Self::cuts), instead of the placement by the machine.
    pub fn on_ranks(mut self, stage_to_rank: &[RankIndex]) -> Self {
        self.division.stage_to_rank = Some(stage_to_rank.to_vec());
        self
    }

    /// Cuts into many small stages on one rank, for a model that is streamed with this memory limit, instead of by a
    /// partitioner. This setting contradicts [`cuts`](Self::cuts) and [`partitioner`](Self::partitioner).
    ///
    /// The parameters of a stage have at most a sixteenth of the limit, and at most 64 MiB. For training, they have at most a
    /// fourth of that, because the gradients, the optimizer's state and the new values of the stage are in memory too. The
    /// values that a stage keeps for the backwards of all micro-batches also have at most a sixteenth of the limit and 64 MiB.
    /// A stage exceeds these sizes only if one of its blocks does. A block is a group of operations that stay together, such
    /// as a linear layer.
    ///
    /// The default schedule is [`LoopedBfs`](ScheduleKind::LoopedBfs), in which each stage runs all micro-batches in turn.
    pub fn streamed(mut self, budget: MemoryBudget) -> Self {
        self.division.streamed = Some(budget);
        self
    }

    /// Allows the partitioner to recompute the activations of some stages in the backward, if their ranks have too little
    /// memory otherwise. The gradients have the same bits, also with dropout.
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
    /// - [`PlanError::Contradiction`]: two settings decide the same thing.
    /// - [`PlanError::RanksWithoutCuts`]: the ranks of manual cuts are set, but no cuts.
    /// - There are fewer operations than stages, or no plan fits the memory of the ranks.
    /// - A manual cut is at no module, or the graph can't be cut.
    /// - The schedule does not fit the stages, or the ranks can't be divided among the replicas.
    /// - With [`choose_micro_batches`](Self::choose_micro_batches): the traced batch has no samples.
    ///
    /// If every number that was tried is an error, returns the error for the most micro-batches.
    pub fn plan(mut self) -> Result<Plan, PlanError> {
        self.division.check()?;
        self.replicas.check()?;
        self.step.schedule = self.schedule_of_step();
        let (rates, times) = (&self.machine.rates, self.times.as_ref());
        let prepare = |samples| Planning::new(self.trace, samples, rates, times);
        if self.chooses_micro_batches {
            let samples = self.trace.samples().ok_or(BatchError::NoSamples)?;
            // Each replica needs at least one micro-batch.
            let least = self.replicas.given().unwrap_or(1);
            if least > samples {
                let replicas = least;
                return Err(PlanError::FewSamples { samples, replicas });
            }
            let counts = (least..=samples).filter(|count| samples.is_multiple_of(*count));
            return self.choose(counts, |count| prepare(Some(samples / count)));
        }
        let count = self.step.micro_batches;
        match self.replicas.given() {
            None => self.choose([count], |_| prepare(None)),
            Some(replicas) => {
                let planning = prepare(None)?;
                self.plan_of(&planning, (replicas, count), self.programs)
            }
        }
    }

    /// The schedule that was set, or the default schedule for the other settings.
    fn schedule_of_step(&self) -> ScheduleKind {
        let default = match self.division.streamed {
            Some(_) => ScheduleKind::LoopedBfs,
            None => self.step.schedule,
        };
        self.schedule.unwrap_or(default)
    }

    /// Creates the fastest plan of some numbers of micro-batches, and of all possible numbers of replicas if none is set.
    fn choose(
        &self,
        counts: impl IntoIterator<Item = usize>,
        planning_of: impl Fn(usize) -> Result<Planning, PlanError>,
    ) -> Result<Plan, PlanError> {
        /// The number of counts in a row without a faster plan after which larger counts are not tried.
        const MOST_NOT_FASTER: usize = 3;
        let mut tried: Vec<((usize, usize), Result<u64, PlanError>)> = Vec::new();
        let (mut best, mut not_faster, mut last) = (None, 0, None);
        for count in counts {
            match planning_of(count) {
                Ok(planning) => {
                    for replicas in self.possible_replicas(&planning, count) {
                        let numbers = (replicas, count);
                        tried.push((numbers, self.step_ns(&planning, numbers)));
                    }
                    // If the last count is chosen, nothing is recorded again.
                    last = Some((count, planning));
                }
                // Another count may be possible, for example if the forward compares the samples of a micro-batch.
                Err(error) => {
                    let replicas = self.replicas.given().unwrap_or(1);
                    tried.push(((replicas, count), Err(error)));
                }
            }
            let steps = tried.iter().filter_map(|(_, found)| found.as_ref().ok());
            let now = steps.min().copied();
            not_faster = if now == best { not_faster + 1 } else { 0 };
            best = now;
            if best.is_some() && not_faster == MOST_NOT_FASTER {
                break;
            }
        }
        let reasons = tried.iter();
        let reasons = reasons.map(|(numbers, found)| self.reason(*numbers, found));
        let reasons: Vec<String> = reasons.collect();
        // Of equally short steps, `min_by_key` chooses the first: fewer micro-batches, then fewer replicas.
        let steps = tried.iter();
        let steps = steps.filter_map(|(numbers, found)| Some((*found.as_ref().ok()?, *numbers)));
        let Some((_, numbers @ (_, chosen))) = steps.min_by_key(|(step_ns, _)| *step_ns) else {
            let errors = tried.into_iter();
            let errors = errors.filter_map(|((_, count), found)| Some((count, found.err()?)));
            // The error for the most micro-batches. Of several, the error for the fewest replicas.
            let most = errors.rev().max_by_key(|(count, _)| *count);
            let (_, error) = most.expect("one replica and one micro-batch are always possible");
            return Err(error);
        };
        let planning = match last {
            Some((count, planning)) if count == chosen => planning,
            _ => planning_of(chosen)?,
        };
        let mut plan = self.plan_of(&planning, numbers, self.programs)?;
        plan.choice.reasons.extend(reasons);
        Ok(plan)
    }

    /// The numbers of replicas that can run this many micro-batches, or only the number that was set.
    fn possible_replicas(&self, planning: &Planning, micro_batches: usize) -> Vec<usize> {
        if let Some(replicas) = self.replicas.given() {
            return vec![replicas];
        }
        let ranks = self.machine.ranks();
        let most = match planning.joint.updates().is_empty() {
            true => ranks.min(micro_batches),
            // Each micro-batch updates the running states, so one replica has to run all of them in order.
            false => 1,
        };
        let powers = (0..usize::BITS).map(|power| 1_usize << power);
        let powers = powers.take_while(|replicas| *replicas <= most);
        let powers = powers.filter(|replicas| ranks.is_multiple_of(*replicas));
        powers.collect()
    }

    /// Predicts the nanoseconds of a step with these numbers of replicas and micro-batches. Fails if it does not fit in memory.
    fn step_ns(&self, planning: &Planning, numbers: (usize, usize)) -> Result<u64, PlanError> {
        let plan = self.plan_of(planning, numbers, false)?;
        let prediction = &plan.prediction;
        match prediction.over_limit(&plan.machine) {
            Some(over) => Err(PlannerError::from(over).into()),
            None => Ok(prediction.step_ns),
        }
    }

    /// Describes the result for these numbers of replicas and micro-batches, on one line.
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

    /// Creates the plan for these numbers of replicas and micro-batches.
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
        // A plan has lists if its stages do not fit the schedule. Only some partitioners may have such stages.
        let has_to_fit = matches!(division.partitioner, None | Some(Partitioner::Chain));
        if self.schedule.is_some() && has_to_fit && plan.lists.is_some() {
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
            let by_machine = || Some(machine.stage_to_rank()).filter(|ranks| ranks.len() == stages);
            let ranks = self.division.stage_to_rank.clone().or_else(by_machine);
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
                // In training, the gradients, the optimizer's state and the new values of a stage are in memory too.
                let parts = match self.trace.mode() {
                    Mode::Training => 4,
                    Mode::Inference => 1,
                };
                let stage_bytes = budget.stage_bytes() / parts;
                // The limit is for the values of all micro-batches together.
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

/// The text of the error of one of several plans. Advice after the last colon is left out, because the planner tries other
/// plans by itself.
fn without_advice(error: &PlanError) -> String {
    let text = with_causes(error);
    match (error, text.rsplit_once(": ")) {
        (PlanError::Planner(_) | PlanError::ScheduleStages { .. }, Some((text, _))) => {
            text.to_owned()
        }
        _ => text,
    }
}
