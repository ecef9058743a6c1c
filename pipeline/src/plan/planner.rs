//! The settings of a plan.

use std::fmt;

use tinderbox_planner::{
    Choice, Machine, Partition, Partitioner, PlanFileError, PlannerError, Step, partition,
};

use super::Plan;
use super::build::Planning;
use crate::batch::{Batch, samples_of, split_samples};
use crate::partition::{Cut, manual};
use crate::schedule::{Placement, RankIndex, ScheduleKind};
use crate::trace::Trace;
use crate::work::OperationTimes;
use crate::{BatchError, PlanError};

/// Creates plans of a trace for a machine; all settings have defaults.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use tinderbox_deferred::Deferred;
/// use tinderbox_pipeline::{Machine, Outputs, Planner, Traceable, schedule::ScheduleKind};
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
pub struct Planner<'a, B> {
    trace: &'a Trace<B>,
    machine: Machine,
    step: Step,
    times: Option<OperationTimes>,
    partitioner: Partitioner,
    cuts: Option<Vec<Cut>>,
    stage_to_rank: Option<Vec<RankIndex>>,
    /// Whether the schedule was set.
    is_scheduled: bool,
    recompute: Option<Box<dyn Fn(usize) -> bool + 'a>>,
    programs: bool,
    /// `None` to choose the best number.
    replicas: Option<usize>,
    /// The batch of a step, to choose the number of micro-batches.
    batch: Option<B>,
}

/// A plan that was tried, with its numbers of replicas and micro-batches.
struct Tried {
    replicas: usize,
    micro_batches: usize,
    plan: Result<Plan, PlanError>,
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
            partitioner: Partitioner::Chain,
            cuts: None,
            stage_to_rank: None,
            is_scheduled: false,
            recompute: None,
            programs: true,
            replicas: Some(1),
            batch: None,
        }
    }

    /// Sets the schedule of the step. Stages by [`Partitioner::Chain`] or manual cuts have to fit it; see
    /// [`Machine::with_chunks`]. The other partitioners search for lists where their placement does not.
    #[must_use]
    pub fn schedule(mut self, schedule: ScheduleKind) -> Self {
        self.step.schedule = schedule;
        self.is_scheduled = true;
        self
    }

    /// Divides the ranks of the machine among replicas: each of them has all stages on its part of the ranks, and its share
    /// of the micro-batches ([`Plan::replicas`]). Default: one replica.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Chooses the number of replicas, and so that of stages, with the shortest predicted step of those that fit the memory
    /// of the ranks. The prediction counts the exchange of gradients, over the machine's links, and the optimizer's state,
    /// which replicas divide.
    #[must_use]
    pub fn choose_replicas(mut self) -> Self {
        self.replicas = None;
        self
    }

    /// Sets the number of micro-batches of a step, of all replicas, at least 1. Default: the number of stages.
    #[must_use]
    pub fn micro_batches(mut self, count: usize) -> Self {
        self.step.micro_batches = count;
        self.batch = None;
        self
    }

    /// Chooses the number of micro-batches of a whole batch like this one, of all replicas, with the shortest predicted step
    /// that fits the memory of the ranks: each number that divides its samples is tried. More micro-batches fill the
    /// pipeline better and keep fewer activations, and have more operations, each with an overhead.
    ///
    /// [Measured](Self::times) times are those of the traced micro-batch: an operation takes as many times longer or shorter
    /// for another one as its time from shapes. Cost: a recording and a plan for each number.
    #[must_use]
    pub fn choose_micro_batches(mut self, batch: &B) -> Self {
        self.batch = Some(batch.clone());
        self
    }

    /// Sets the bytes of optimizer state per byte of a parameter. Default: 2, as for Adam.
    #[must_use]
    pub fn optimizer_states(mut self, per_byte: u64) -> Self {
        self.step.optimizer_states = per_byte;
        self
    }

    /// Uses measured times instead of estimates from shapes.
    #[must_use]
    pub fn times(mut self, times: OperationTimes) -> Self {
        self.times = Some(times);
        self
    }

    /// Sets the partitioner. Default: [`Partitioner::Chain`]. [`Partitioner::Auto`] chooses the best of
    /// all, which may have more stages than the machine, with its own schedule.
    #[must_use]
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.partitioner = partitioner;
        self
    }

    /// Cuts manually, in the order of the forward, instead of by a partitioner.
    #[must_use]
    pub fn cuts(mut self, cuts: &[Cut]) -> Self {
        self.cuts = Some(cuts.to_vec());
        self
    }

    /// Sets the rank of every stage for manual cuts, instead of the machine's placement.
    #[must_use]
    pub fn on_ranks(mut self, stage_to_rank: &[RankIndex]) -> Self {
        self.stage_to_rank = Some(stage_to_rank.to_vec());
        self
    }

    /// Allows the partitioner to recompute activations in the backward, stage by stage, to fit the
    /// memory of ranks. The gradients are the same, bit for bit, dropout included.
    #[must_use]
    pub fn may_recompute(mut self) -> Self {
        self.step.may_recompute = true;
        self
    }

    /// Sets the stages that recompute their activations, overriding the partitioner.
    #[must_use]
    pub fn recompute(mut self, stages: impl Fn(usize) -> bool + 'a) -> Self {
        self.recompute = Some(Box::new(stages));
        self
    }

    /// Omits the text of the stages' programs from the plan, for a smaller file.
    #[must_use]
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
    /// can't be cut, or the batch of [`choose_micro_batches`](Self::choose_micro_batches) can't be split or recorded.
    pub fn plan(self) -> Result<Plan, PlanError> {
        if self.step.micro_batches == 0 {
            return Err(PlanError::NoMicroBatches);
        }
        let rates = &self.machine.rates;
        let Some(batch) = &self.batch else {
            let planning = Planning::new(self.trace, rates, self.times.clone())?;
            let micro_batches = self.step.micro_batches;
            return match self.replicas {
                Some(replicas) => self.plan_of(&planning, replicas, micro_batches),
                None => self.fastest(self.try_replicas(&planning, micro_batches)),
            };
        };
        let samples = samples_of(batch)?;
        let mut tried = Vec::new();
        for count in (1..=samples).filter(|count| samples.is_multiple_of(*count)) {
            let (part, _) = split_samples(batch, samples, count)?.swap_remove(0);
            let planning = Planning::of_batch(self.trace, &part, rates, self.times.as_ref())?;
            tried.extend(self.try_replicas(&planning, count));
        }
        match (tried.is_empty(), self.replicas) {
            (true, Some(replicas)) => Err(PlanError::from(BatchError::TooFewSamples {
                samples,
                micro_batches: replicas,
            })),
            _ => self.fastest(tried),
        }
    }

    /// Plans a number of micro-batches for each possible number of replicas that has at most as many.
    fn try_replicas(&self, planning: &Planning, micro_batches: usize) -> Vec<Tried> {
        let ranks = self.machine.ranks();
        let possible: Vec<usize> = match self.replicas {
            Some(replicas) => vec![replicas],
            None => {
                let powers = (0..usize::BITS).map(|power| 1_usize << power);
                let powers = powers.take_while(|replicas| *replicas <= ranks);
                powers
                    .filter(|replicas| ranks.is_multiple_of(*replicas))
                    .collect()
            }
        };
        let possible = possible.into_iter().filter(|count| *count <= micro_batches);
        let tried = possible.map(|replicas| {
            let plan = self.plan_of(planning, replicas, micro_batches);
            let plan = plan.and_then(|plan| {
                match plan.file().prediction.over_limit(&plan.file().machine) {
                    Some(over) => Err(PlannerError::from(over).into()),
                    None => Ok(plan),
                }
            });
            Tried {
                replicas,
                micro_batches,
                plan,
            }
        });
        tried.collect()
    }

    /// Returns the first of the fastest plans; without any, the first error.
    fn fastest(&self, tried: Vec<Tried>) -> Result<Plan, PlanError> {
        let reasons: Vec<String> = tried
            .iter()
            .map(|tried| {
                let Tried {
                    replicas,
                    micro_batches,
                    plan,
                } = tried;
                let mut tried = Vec::new();
                if self.replicas.is_none() {
                    let ranks = self.machine.ranks() / replicas;
                    tried.push(format!("{replicas} replicas of {ranks} ranks"));
                }
                if self.batch.is_some() {
                    tried.push(format!("{micro_batches} micro-batches"));
                }
                let found = match plan {
                    Ok(plan) => format!("{:.3} ms", plan.file().prediction.step_ns as f64 / 1e6),
                    Err(error) => without_advice(error),
                };
                format!("{}: {found}", tried.join(", "))
            })
            .collect();
        let time = |plan: &Plan| plan.file().prediction.step_ns;
        let fastest = tried
            .into_iter()
            .map(|tried| tried.plan)
            .min_by_key(|plan| plan.as_ref().map_or(u64::MAX, time));
        let mut plan = fastest.expect("one replica and one micro-batch are always possible")?;
        plan.file.choice.reasons.extend(reasons);
        Ok(plan)
    }

    /// Creates the plan of a number of replicas and micro-batches.
    fn plan_of(
        &self,
        planning: &Planning,
        replicas: usize,
        micro_batches: usize,
    ) -> Result<Plan, PlanError> {
        let machine = self.machine.of_replica(replicas)?;
        let step = Step {
            replicas,
            micro_batches,
            ..self.step.clone()
        };
        let keeps_placement = self.cuts.is_some() || matches!(self.partitioner, Partitioner::Chain);
        let must_fit = self.is_scheduled && keeps_placement;
        let (mut partition, choice) = match &self.cuts {
            Some(cuts) => {
                let starts = manual(&planning.joint, cuts)?;
                let stages = starts.len();
                let ranks = self.stage_to_rank.clone().unwrap_or_else(|| {
                    let ranks = machine.stage_to_rank();
                    match ranks.len() == stages {
                        true => ranks,
                        false => (0..stages).map(RankIndex::new).collect(),
                    }
                });
                if ranks.len() != stages {
                    return Err(PlanFileError::StageMap {
                        expected: stages,
                        found: ranks.len(),
                    }
                    .into());
                }
                let blocks = planning.joint.forward().nodes().len();
                let partition = Partition::contiguous(blocks, &starts, ranks, vec![false; stages]);
                let shown: Vec<String> = cuts.iter().map(Cut::to_string).collect();
                let reason = match shown.is_empty() {
                    true => "not cut".to_owned(),
                    false => format!("cut by hand {}", shown.join(", ")),
                };
                let choice = Choice {
                    partitioner: "manual".to_owned(),
                    reasons: vec![reason],
                };
                (partition, choice)
            }
            None => {
                let work = planning.work()?;
                let planned = partition(self.partitioner, work, &machine, &step)?;
                (planning.of_operations(planned.partition), planned.choice)
            }
        };
        let used = partition
            .stage_to_rank
            .iter()
            .map(|rank| rank.index() + 1)
            .max();
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
        let plan = planning.plan(&machine, &step, &partition, choice, self.programs)?;
        match must_fit && plan.file().lists.is_some() {
            true => Err(PlanError::ScheduleStages {
                schedule: step.schedule,
                ranks: partition.stage_to_rank,
            }),
            false => Ok(plan),
        }
    }
}

/// The text of an error of one of several plans, without what to do instead.
fn without_advice(error: &PlanError) -> String {
    let text = error.to_string();
    match text.rsplit_once(": use ") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}

impl<B> fmt::Debug for Planner<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planner")
            .field("machine", &self.machine)
            .field("step", &self.step)
            .field("partitioner", &self.partitioner)
            .finish_non_exhaustive()
    }
}
