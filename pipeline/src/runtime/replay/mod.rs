//! Runs the programs of a training step again, alone.
//!
//! The programs are those that ranks run, on the same operands, so they compute the same bits; schedules and messages, which
//! change none, are left out.

mod digest;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{MaterializeError, NumericFingerprint, Request, RunContext, Source};
use tinderbox_fake::{DynTensor, FakeError, Mode, ValueId};

pub use digest::{ProgramDigest, ReplayComparison, ReplayDifference, ReplayedOperation};
use digest::{described, digest_of, place};

use super::builder::PipelineBuilder;
use super::link::Abort;
use super::memory::device_of;
use super::prepared::Prepared;
use super::programs::{Programs, states};
use super::rank::{RankSetup, action_error, caught};
use super::round::MicroInput;
use super::run_settings::precision_in_text;
use super::stage::Stage;
use super::training::{split_all, splits};
use super::weights::weights;
use crate::batch::{Batch, samples_of};
use crate::cut::{Binding, Layout, Phase};
use crate::kept::Kept;
use crate::lists::ScheduleChoice;
use crate::schedule::{Compute, MicroBatchIndex, RankIndex, Task};
use crate::trace::{Given, JointGraph};
use crate::{ActionError, BatchError, PipelineError};

/// The programs of a training step, each run when it is asked for: the forwards from the first stage to the last, then the backwards
/// from the last to the first, each of all micro-batches, or of [one](Self::only).
/// [`PipelineBuilder::replay`](crate::PipelineBuilder::replay) begins it.
///
/// A stage is read for its forwards and again for its backwards, and dropped after them. Memory: the parameters of one stage, and
/// what the micro-batches keep for programs that have not run, as a pipeline with the schedule GPipe does. A [`ReplayedProgram`]
/// has handles to the parameters that it has read: to collect all of them is to keep the model.
pub struct StepReplay {
    step: u32,
    seed: Seed,
    most_micro_batches: usize,
    precision: String,
    micro_batches: Vec<MicroBatch>,
    /// Whether a forward reads what the forward of the micro-batch before has computed.
    has_states: bool,
    /// Those that are replayed.
    selected: Range<usize>,
    layout: Arc<Layout>,
    setups: Vec<Arc<RankSetup>>,
    source: Arc<dyn Source>,
    /// The programs that are left.
    left: VecDeque<Task>,
    kept: Kept<DynTensor>,
    /// The stage of the last program.
    stage: Option<Stage>,
    on_operation: Option<Box<OnOperation>>,
}

type OnOperation = dyn FnMut(&ReplayedOperation, &DynTensor);

#[derive(Clone)]
struct MicroBatch {
    joint: Arc<JointGraph>,
    input: Arc<MicroInput>,
}

/// A program that was run again.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplayedProgram {
    /// What it did, as digests.
    pub digest: ProgramDigest,
    /// What it read, with a name for each: parameters by their paths, tensors of the batch, and what other programs computed.
    pub inputs: Vec<(String, DynTensor)>,
    /// What it computed for other programs, for the driver, and for the update: gradients are the micro-batch's, times its
    /// weight and the loss scale.
    pub outputs: Vec<(String, DynTensor)>,
}

impl<M: Module + Sync + 'static, B: Batch> PipelineBuilder<M, B> {
    /// Runs the programs of a training step again, alone, one after the other in this process, and gives what each reads and
    /// computes. `step` is the number of training steps done before. On the CPU the values have the bits of the run, if the
    /// [source](Self::source) has the parameters that it had before the step, and model, seed, precision, loss scale, number of
    /// micro-batches and batch are the same. Plan, replicas, schedule and processes change no bit of a batch with at least as
    /// many samples as micro-batches. The batch is the batch of all replicas. Sums of gradients and the update are not a part,
    /// and nothing of the builder that is only for these or for ranks is used.
    ///
    /// A dynamic loss scale is the scale of the beginning, unless [`resume_loss_scale`](Self::resume_loss_scale) sets the scale
    /// of the step.
    ///
    /// ```
    /// # extern crate tinderbox_pipeline as tinderbox;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::{Device, Tensor};
    /// # use tinderbox_deferred::Deferred;
    /// # use tinderbox::{Machine, Outputs, Plan};
    /// use tinderbox::{Pipeline, Traceable};
    ///
    /// # let model = Deferred::new(|device: &Device| -> Vec<Linear> {
    /// #     (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect()
    /// # })?;
    /// # let batch = Tensor::<2>::ones([8, 8], &Device::flex());
    /// # let trace = model.trace(&batch.clone().narrow(0, 0, 2), |layers: &Vec<Linear>, x| {
    /// #     Outputs::loss(layers.iter().fold(x, |x, layer| layer.forward(x)).mean())
    /// # })?;
    /// # let plan = Plan::auto(&trace, &Machine::local(2)?)?;
    /// let replay = Pipeline::new(&model, &trace, &plan).micro_batches(4).replay(0, batch)?;
    /// for program in replay.only(3)? {
    ///     let program = program?;
    ///     let loss = program.outputs.iter().find(|(name, _)| name == "loss");
    ///     assert!(loss.is_none() || program.digest.stage.index() == 1);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start) and [`Pipeline::step`](crate::Pipeline::step) before anything runs;
    /// [`PipelineError::NoReplaySource`] when a later step than the first has no source; when the source has not what the model
    /// needs.
    pub fn replay(self, step: u64, batch: B) -> Result<StepReplay, PipelineError> {
        self.replay_accumulated(step, [batch])
    }

    /// As [`replay`](Self::replay), for a step by [`step_accumulated`](crate::Pipeline::step_accumulated).
    ///
    /// # Errors
    ///
    /// As [`replay`](Self::replay).
    pub fn replay_accumulated(
        mut self,
        step: u64,
        batches: impl IntoIterator<Item = B>,
    ) -> Result<StepReplay, PipelineError> {
        // Nothing is updated.
        self.remove_optimizers();
        if self.trace.mode() == Mode::Inference {
            return Err(PipelineError::ForwardTrace);
        }
        if step > 0 && self.source.is_none() {
            return Err(PipelineError::NoReplaySource { step });
        }
        let compute = self.trace.compute_dtype();
        let number = u32::try_from(step).map_err(|_| PipelineError::StepOverflow { step })?;
        let source = self.source_of_values();
        let Prepared {
            settings,
            layout,
            schedule,
            micro_batches: most_micro_batches,
            ..
        } = Prepared::of(&self)?;
        let (table, device) = (
            self.model.parameters(),
            device_of(RankIndex::new(0), &self.devices),
        );
        let requests = table
            .distinct()
            .map(|parameter| Request::of(table, parameter, device));
        let requests: Vec<Request> = requests.collect();
        let checked = source.check(table, &requests);
        checked.map_err(|source| PipelineError::Materialize {
            rank: RankIndex::new(0),
            source: MaterializeError::from(source),
        })?;
        let mut programs = Programs::new(
            self.trace,
            layout.clone(),
            schedule,
            &settings,
            self.loss_scale,
            self.kept_programs,
        );
        let batches: Vec<B> = batches.into_iter().collect();
        let context = (settings.seed, number);
        let (micro_batches, has_states) =
            prepare(&mut programs, context, &batches, most_micro_batches)?;
        let factor = self.loss_scale.map_or(1.0, |scale| scale.factor());
        let micro_batches = micro_batches.into_iter().map(|(joint, mut input)| {
            input.weight *= factor;
            MicroBatch {
                joint,
                input: Arc::new(input),
            }
        });
        let micro_batches: Vec<MicroBatch> = micro_batches.collect();
        let setup = |rank: RankIndex| {
            Arc::new(RankSetup {
                rank,
                replica: 0,
                place: rank,
                layout: layout.clone(),
                table: table.clone(),
                device: device_of(rank, &self.devices).clone(),
                settings: settings.clone(),
                progress: Arc::default(),
                abort: Abort::default(),
                streamed: None,
            })
        };
        let mut replay = StepReplay {
            step: number,
            seed: settings.seed,
            most_micro_batches,
            precision: precision_in_text(compute),
            selected: 0..micro_batches.len(),
            micro_batches,
            has_states,
            setups: (0..layout.rank_count())
                .map(|rank| setup(RankIndex::new(rank)))
                .collect(),
            left: VecDeque::new(),
            layout,
            source,
            kept: Kept::default(),
            stage: None,
            on_operation: None,
        };
        replay.left = replay.programs();
        Ok(replay)
    }
}

/// The graph and the inputs of each micro-batch.
type Inputs = Vec<(Arc<JointGraph>, MicroInput)>;

/// Splits batches as a training step does, and computes the weight of each micro-batch. Returns their graphs and inputs, and
/// whether a forward updates running states.
fn prepare<B: Batch>(
    programs: &mut Programs<B>,
    context: (Seed, u32),
    batches: &[B],
    micro_batches: usize,
) -> Result<(Inputs, bool), PipelineError> {
    let samples = batches.iter().map(samples_of);
    let samples = samples.collect::<Result<Vec<usize>, _>>()?;
    let is_written = matches!(programs.choice(), ScheduleChoice::Written(_));
    let mut first = None;
    for counts in splits(&samples, micro_batches, is_written)? {
        let parts = split_all(batches, &samples, &counts)?;
        let joints = parts
            .iter()
            .map(|(part, _)| programs.joint(Mode::Training, part));
        let joints = joints.collect::<Result<Vec<_>, _>>()?;
        let (mut inputs, counts) = programs.prepare(Mode::Training, context, parts, 0)?;
        let cuts: Vec<_> = inputs.iter().map(|input| &*input.cut).collect();
        match programs.parts(Mode::Training, &cuts) {
            Err(error @ (PipelineError::Generate(_) | PipelineError::Lists(_))) => {
                first.get_or_insert(error);
            }
            Err(error) => return Err(error),
            Ok(_) => {
                let has_states = !states(&cuts).is_empty();
                for (input, weight) in inputs.iter_mut().zip(weights(counts)?) {
                    input.weight = weight;
                }
                return Ok((joints.into_iter().zip(inputs).collect(), has_states));
            }
        }
    }
    Err(first.unwrap_or(BatchError::NoBatches.into()))
}

impl StepReplay {
    /// Replays one micro-batch alone, counted from 0 among the micro-batches of all replicas. If forwards update running states,
    /// the forwards of the micro-batches before it are run as well, without a report.
    ///
    /// # Errors
    ///
    /// When there is no such micro-batch.
    pub fn only(mut self, micro_batch: usize) -> Result<Self, PipelineError> {
        let count = self.micro_batches.len();
        if micro_batch >= count {
            return Err(BatchError::NoMicroBatch { micro_batch, count }.into());
        }
        self.selected = micro_batch..micro_batch + 1;
        self.left = self.programs();
        Ok(self)
    }

    /// Sets a function that gets the result of every operation, in the order in which they run.
    #[must_use]
    pub fn on_operation(
        mut self,
        call: impl FnMut(&ReplayedOperation, &DynTensor) + 'static,
    ) -> Self {
        self.on_operation = Some(Box::new(call));
        self
    }

    /// Returns the seed.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Returns the number of micro-batches of the step.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches.len()
    }

    /// Returns the number of micro-batches of a batch that has enough samples.
    pub fn most_micro_batches(&self) -> usize {
        self.most_micro_batches
    }

    /// Returns the setting `precision` of [`Pipeline::run_settings`](crate::Pipeline::run_settings).
    pub fn precision(&self) -> &str {
        &self.precision
    }

    /// Returns how many programs are left to be replayed.
    pub fn programs_left(&self) -> usize {
        let left = self.left.iter();
        left.filter(|task| self.selected.contains(&task.micro_batch.index()))
            .count()
    }

    /// All programs, those before the selected ones among them that compute running states.
    fn programs(&self) -> VecDeque<Task> {
        let stages = || self.layout.stages();
        let forwards = stages().map(|stage| (stage, Compute::Forward));
        let backwards = stages().rev().map(|stage| (stage, Compute::Backward));
        let tasks = forwards.chain(backwards).flat_map(|(stage, compute)| {
            let first = match self.has_states && compute == Compute::Forward {
                true => 0,
                false => self.selected.start,
            };
            (first..self.selected.end).map(move |number| Task {
                stage,
                compute,
                micro_batch: MicroBatchIndex::new(number),
            })
        });
        tasks.collect()
    }

    /// Runs a program; returns nothing for one that is not selected.
    fn run(&mut self, task: Task) -> Result<Option<ReplayedProgram>, PipelineError> {
        let rank = self.layout.ranks[task.stage.index()];
        let same = self
            .stage
            .take()
            .filter(|stage| stage.index() == task.stage);
        let mut stage = match same {
            Some(stage) => stage,
            None => Stage::new(task.stage, &self.setups[rank.index()], &*self.source)
                .map_err(|source| PipelineError::Materialize { rank, source })?,
        };
        let ran = caught(|| self.run_task(&mut stage, task));
        let place = (Some(task.stage), Some(task.micro_batch));
        let report = ran.map_err(|source| action_error(rank, place, &task.to_string(), source))?;
        self.stage = Some(stage);
        Ok(report)
    }

    fn run_task(
        &mut self,
        stage: &mut Stage,
        task: Task,
    ) -> Result<Option<ReplayedProgram>, ActionError> {
        let number = task.micro_batch.index();
        let is_selected = self.selected.contains(&number);
        let MicroBatch { joint, input } = self.micro_batches[number].clone();
        let programs = &input.cut.programs.stages[task.stage.index()];
        let phase = programs.phase(task.compute);
        let phase = phase.expect("a graph with a backward has one for every stage");
        let (executable, constants) = stage.load(&input.cut, task.compute)?;
        let types = executable.program().input_types().iter();
        let bindings = phase.inputs.iter().zip(types);
        let inputs = bindings.map(|(binding, (_, dtype))| match *binding {
            Binding::Value(value) => {
                let kept = self.kept.take((task.stage, task.micro_batch), value);
                let (value, _) = kept.expect("the programs before have computed it");
                Ok(value.to_device(stage.device())?)
            }
            Binding::Constant(position) => Ok(constants[position].clone()),
            Binding::Given(given) => stage.given(given, *dtype, &input),
        });
        let inputs = inputs.collect::<Result<Vec<DynTensor>, ActionError>>()?;
        let context = RunContext {
            seed: self.seed,
            step: self.step,
            micro_batch: number as u32,
        };
        let (outputs, mut report) = match is_selected {
            false => (executable.run(inputs, &context), None),
            true => {
                let mut report = ReplayedProgram::begin(&joint, self.step, task, phase, &inputs)?;
                let (operations, call) = (&mut report.digest.operations, &mut self.on_operation);
                let mut unread: Option<FakeError> = None;
                let made = executable.run_observed(inputs, &context, &mut |id, value| {
                    match ReplayedOperation::of(&joint, id, &value) {
                        Ok(Some(operation)) => {
                            if let Some(call) = call {
                                call(&operation, &value);
                            }
                            operations.push(operation);
                        }
                        Ok(None) => {}
                        Err(error) => {
                            unread.get_or_insert(error);
                        }
                    }
                });
                if let Some(error) = unread {
                    return Err(error.into());
                }
                (made, Some(report))
            }
        };
        let outputs = outputs.map_err(|source| input.cut.indices.locate(source))?;
        let mut outputs = outputs.into_iter();
        let location = (task.stage, task.micro_batch);
        for ((id, takes), value) in phase.outputs.iter().zip(&mut outputs) {
            if let Some(report) = &mut report {
                report.outputs.push((name(&joint, *id), value.clone()));
            }
            self.kept.put(location, *id, value, takes.of(false));
        }
        let path = |position: &usize| &joint.parameter(*position).path;
        for (position, value) in phase.gradients.iter().zip(&mut outputs) {
            if let Some(report) = &mut report {
                let name = format!("gradient of `{}`", path(position));
                report.outputs.push((name, value));
            }
        }
        for (position, value) in phase.updates.iter().zip(&mut outputs) {
            if let Some(report) = &mut report {
                let name = format!("new value of `{}`", path(position));
                report.outputs.push((name, value.clone()));
            }
            stage.update_state(*position, value);
        }
        // What the driver takes, and what other stages do.
        if task.compute == Compute::Forward {
            let named = programs.outputs.iter().map(|(_, id)| id);
            for id in programs.loss.iter().chain(named) {
                self.kept.take(location, *id);
            }
        }
        for (edge, ids) in &programs.sends {
            // The backwards of those that are not replayed do not run.
            let is_read = is_selected || edge.to.compute == Compute::Forward;
            if !edge.from.is_run_by(&task) || !is_read {
                continue;
            }
            let to = edge.to.stage;
            let received = &input.cut.programs.stages[to.index()].received;
            for id in ids {
                let (value, _) = self.kept.take(location, *id).expect("it was just computed");
                let takes = received.get(id).map_or(0, |takes| takes.of(false));
                self.kept.put((to, task.micro_batch), *id, value, takes);
            }
        }
        if !is_selected {
            self.kept.forget(location);
        }
        Ok(report)
    }
}

impl ReplayedProgram {
    /// The program of a task that is about to run, with what it reads.
    fn begin(
        joint: &JointGraph,
        step: u32,
        task: Task,
        phase: &Phase,
        inputs: &[DynTensor],
    ) -> Result<Self, FakeError> {
        let mut program = Self {
            digest: ProgramDigest {
                step: u64::from(step) + 1,
                micro_batch: task.micro_batch,
                stage: task.stage,
                compute: task.compute,
                inputs: Vec::new(),
                operations: Vec::new(),
                numerics: NumericFingerprint::of_process().clone(),
            },
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let ids = phase.program.inputs().iter();
        for ((id, binding), value) in ids.zip(&phase.inputs).zip(inputs) {
            let name = name(joint, *id);
            if !matches!(binding, Binding::Value(_)) {
                let digest = (name.clone(), digest_of(value)?);
                program.digest.inputs.push(digest);
            }
            program.inputs.push((name, value.clone()));
        }
        Ok(program)
    }
}

/// The name of a value.
fn name(joint: &JointGraph, value: ValueId) -> String {
    match joint.given(value) {
        Some(Given::Parameter(position)) => return joint.parameter(position).path.to_string(),
        Some(Given::Input(position)) => {
            return match &*joint.inputs()[position].leaf.name {
                "" => "batch".to_owned(),
                name => format!("batch.{name}"),
            };
        }
        Some(Given::Weight) => return "weight of the loss".to_owned(),
        None => {}
    }
    if joint.loss() == Some(value) {
        return "loss".to_owned();
    }
    if let Some((name, _)) = joint.outputs().iter().find(|(_, of)| *of == value) {
        return name.clone();
    }
    match joint.graph().value(value).producer {
        Some(node) => {
            let name = joint.graph().node(node).name();
            described(&name, place(joint, node).as_deref(), node.index())
        }
        None => format!("constant {value}"),
    }
}

impl Iterator for StepReplay {
    type Item = Result<ReplayedProgram, PipelineError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let task = self.left.pop_front()?;
            let ran = self.run(task);
            if ran.is_err() {
                self.left.clear();
            }
            if let Some(ran) = ran.transpose() {
                return Some(ran);
            }
        }
    }
}

impl fmt::Debug for StepReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepReplay")
            .field("step", &self.step)
            .field("micro_batches", &self.selected)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
