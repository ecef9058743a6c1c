//! Runs the programs of a training step again, alone.
//!
//! The programs are the programs of the ranks, on the same operands, so they compute the same bits. Schedules and messages,
//! which change no bits, are left out.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{NumericFingerprint, RunContext};
use tinderbox_fake::{DynTensor, FakeError, Mode, ValueId};

use super::digest::{ProgramDigest, ReplayedOperation, described, digest_of, place};
use crate::cut::{Binding, Phase};
use crate::kept::Kept;
use crate::runtime::caught::{action_error, caught};
use crate::runtime::driver::{
    Batches, Launch, Programs, precision_in_text, split_and_run, states, weights,
};
use crate::runtime::interpreter::{ActionHost, ActionInterpreter, Job, Step};
use crate::runtime::link::Abort;
use crate::runtime::pipeline::training::TracedBatches;
use crate::runtime::round::MicroInput;
use crate::schedule::{Action, Compute, MicroBatchIndex, Task};
use crate::trace::Given;
use crate::{
    ActionResult, Batch, BatchError, JointGraph, PipelineBuilder, PipelineError, ScheduleChoice,
    Stage, StartError, StepError,
};

/// An iterator that runs the programs of a training step. It runs the forwards from the first stage to the last, then the
/// backwards from the last to the first, each of all micro-batches, or of [one](Self::only).
/// [`PipelineBuilder::replay`](crate::PipelineBuilder::replay) creates it.
///
/// A stage is read before its forwards and again before its backwards, and dropped after them. Memory: the parameters of one
/// stage, and the values that the micro-batches keep for later programs, as in a pipeline with the schedule GPipe. A
/// [`ReplayedProgram`] has handles to the parameters that it has read, so a collection of all programs keeps the model in
/// memory.
#[derive(derive_more::Debug)]
#[debug("StepReplay {{ step: {step}, micro_batches: {selected:?}, left: {left:?}, .. }}")]
#[must_use]
pub struct StepReplay {
    launch: Launch,
    programs: Programs,
    step: u32,
    precision: String,
    micro_batches: Vec<MicroInput>,
    /// The micro-batches that are replayed.
    selected: Range<usize>,
    /// The programs that have not run yet.
    left: VecDeque<Task>,
    values: Kept<DynTensor>,
    /// The stage of the last program.
    stage: Option<Stage>,
    on_operation: Option<Box<OnOperation>>,
}

type OnOperation = dyn FnMut(&ReplayedOperation, &DynTensor);

/// A program that was run again.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplayedProgram {
    /// The digests of its inputs and operations.
    pub digest: ProgramDigest,
    /// Its inputs with their names: parameters by their paths, tensors of the batch, and values of other programs.
    pub inputs: Vec<(String, DynTensor)>,
    /// Its results for other programs, for the driver and for the update. A gradient is the gradient of the micro-batch,
    /// times its weight and the loss scale.
    pub outputs: Vec<(String, DynTensor)>,
}

impl<M: Module + Sync + 'static, B: Batch> PipelineBuilder<M, B> {
    /// Runs the programs of a training step again, alone, one after the other in this process, and returns the inputs and
    /// results of each. `step` is the number of training steps done before. On the CPU the values have the bits of the run,
    /// if the [source](Self::source) has the parameters before the step, and model, seed, precision, loss scale,
    /// number of micro-batches and batch are the same. Plan, replicas, schedule and processes change no bit for a batch with
    /// at least as many samples as micro-batches. The batch is the batch of all replicas. Sums of gradients and the update
    /// are not replayed. Settings of the builder for these and for ranks are ignored.
    ///
    /// A dynamic loss scale has its first value, unless [`resume_loss_scale`](Self::resume_loss_scale) sets the value of the
    /// step.
    ///
    /// ```
    /// # extern crate tinderbox_pipeline as tinderbox;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::{Device, Tensor};
    /// # use tinderbox_deferred::Deferred;
    /// # use tinderbox::{Machine, Outputs};
    /// use tinderbox::{Pipeline, Traceable};
    ///
    /// # let model = Deferred::new(|device: &Device| -> Vec<Linear> {
    /// #     (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect()
    /// # })?;
    /// # let batch = Tensor::<2>::ones([8, 8], &Device::flex());
    /// # let trace = model.trace(&batch, 4, |layers: &Vec<Linear>, x| {
    /// #     Outputs::loss(layers.iter().fold(x, |x, layer| layer.forward(x)).mean())
    /// # })?;
    /// # let plan = trace.plan(&Machine::local(2)?)?;
    /// let replay = Pipeline::builder(&model, &trace, &plan).replay(0, batch)?;
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
    /// [`StartError::NoReplaySource`] when a later step than the first has no source; when the source lacks values that the
    /// model needs.
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
        (self.optimizer, self.settings.average_decay) = (None, None);
        self.groups.clear();
        if self.trace.mode() == Mode::Inference {
            return Err(StartError::ForwardTrace.into());
        }
        if step > 0 && self.source.is_none() {
            return Err(StartError::NoReplaySource { step }.into());
        }
        let step = u32::try_from(step).map_err(|_| StepError::StepOverflow { step })?;
        let launch = self.checked()?;
        let mut programs = launch.prepare(&self.plan)?;
        launch.check_source()?;
        let trace = self.trace.keeping(launch.options.kept_programs);
        let batches = batches.into_iter().collect();
        let batches = TracedBatches {
            trace,
            fixed_shapes: launch.options.fixed_shapes,
            batches,
        };
        let micro_batches = micro_batches(&launch, &mut programs, step, &batches)?;
        let mut replay = StepReplay {
            step,
            precision: precision_in_text(launch.options.compute),
            selected: 0..micro_batches.len(),
            micro_batches,
            launch,
            programs,
            left: VecDeque::new(),
            values: Kept::default(),
            stage: None,
            on_operation: None,
        };
        replay.left = replay.tasks();
        Ok(replay)
    }
}

/// Splits batches as a training step does, and computes the weight of each micro-batch.
fn micro_batches(
    launch: &Launch,
    programs: &mut Programs,
    step: u32,
    batches: &dyn Batches,
) -> Result<Vec<MicroInput>, PipelineError> {
    let is_written = matches!(programs.choice, ScheduleChoice::Written(_));
    let context = (launch.settings.seed, step);
    let scale = launch.options.loss_scale;
    let factor = scale.map_or(1.0, |scale| scale.factor());
    let most = (
        launch.options.micro_batches,
        launch.options.samples,
        is_written,
    );
    split_and_run(batches, most, |parts, _| {
        let (prepared, counts) = programs.prepare(context, parts, 0)?;
        let mut inputs = prepared.own;
        let cuts: Vec<_> = inputs.iter().map(|input| &*input.cut).collect();
        programs.parts(Mode::Training, &cuts)?;
        for (input, weight) in inputs.iter_mut().zip(weights(counts)?) {
            input.weight = weight * factor;
        }
        Ok(inputs)
    })
}

impl StepReplay {
    /// Replays one micro-batch alone, counted from 0 among the micro-batches of all replicas. If forwards update running
    /// states, the forwards of the earlier micro-batches run too, without a report.
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
        self.left = self.tasks();
        Ok(self)
    }

    /// Sets a function that is called with the result of every operation, in the order in which they run.
    pub fn on_operation(
        mut self,
        call: impl FnMut(&ReplayedOperation, &DynTensor) + 'static,
    ) -> Self {
        self.on_operation = Some(Box::new(call));
        self
    }

    /// Returns the seed.
    pub fn seed(&self) -> Seed {
        self.launch.settings.seed
    }

    /// Returns the number of micro-batches of the step.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches.len()
    }

    /// Returns the number of micro-batches of a batch that has enough samples.
    pub fn most_micro_batches(&self) -> usize {
        self.launch.options.micro_batches
    }

    /// Returns the setting `precision` of [`Pipeline::run_settings`](crate::Pipeline::run_settings).
    pub fn precision(&self) -> &str {
        &self.precision
    }

    /// Returns the number of selected programs that have not run yet.
    pub fn programs_left(&self) -> usize {
        let is_selected = |task: &&Task| self.selected.contains(&task.micro_batch.index());
        self.left.iter().filter(is_selected).count()
    }

    /// The tasks of the selected micro-batches, and earlier tasks that compute running states.
    fn tasks(&self) -> VecDeque<Task> {
        let cuts: Vec<_> = self.micro_batches.iter().map(|one| &*one.cut).collect();
        // A forward reads the values that the forward of the previous micro-batch has computed.
        let has_states = !states(&cuts).is_empty();
        let stages = || self.programs.layout.stages();
        let forwards = stages().map(|stage| (stage, Compute::Forward));
        let backwards = stages().rev().map(|stage| (stage, Compute::Backward));
        let tasks = forwards.chain(backwards).flat_map(|(stage, compute)| {
            let first = match has_states && compute == Compute::Forward {
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

    /// Runs a program; returns `None` for one that is not selected.
    fn run(&mut self, task: Task) -> Result<Option<ReplayedProgram>, PipelineError> {
        let rank = self.programs.layout.ranks[task.stage.index()];
        let before = self.stage.take();
        let stage = match before.filter(|stage| stage.index() == task.stage) {
            Some(stage) => stage,
            None => {
                let (launch, abort) = (&self.launch, Abort::default());
                let setup = launch.setup(&self.programs, rank, &launch.options.devices, &abort);
                Stage::new(task.stage, &Arc::new(setup), &*launch.source)
                    .map_err(|source| StartError::Materialize { rank, source })?
            }
        };
        let ran = caught(|| self.run_task(stage, task));
        let place = (Some(task.stage), Some(task.micro_batch));
        Ok(ran.map_err(|source| action_error(rank, place, &task.to_string(), source))?)
    }

    fn run_task(&mut self, stage: Stage, task: Task) -> ActionResult<Option<ReplayedProgram>> {
        let number = task.micro_batch.index();
        let is_selected = self.selected.contains(&number);
        let programs = self.micro_batches.iter();
        let step = Step {
            programs: programs.map(|one| &*one.cut.programs.stages).collect(),
            lists: None,
            is_local: vec![true; self.programs.layout.ranks.len()],
        };
        let host = ReplayHost {
            context: RunContext {
                seed: self.seed(),
                step: self.step,
                micro_batch: number as u32,
            },
            input: &self.micro_batches[number],
            is_selected,
            on_operation: &mut self.on_operation,
            stage,
            report: None,
        };
        let mut interpreter = ActionInterpreter::new(step, host);
        interpreter.values = std::mem::take(&mut self.values);
        interpreter.run(task)?;
        self.values = interpreter.values;
        if !is_selected {
            self.values.forget((task.stage, task.micro_batch));
        }
        self.stage = Some(interpreter.host.stage);
        Ok(interpreter.host.report)
    }
}

/// A stage and an observer, as the host of an interpreter.
struct ReplayHost<'a> {
    context: RunContext,
    input: &'a MicroInput,
    is_selected: bool,
    on_operation: &'a mut Option<Box<OnOperation>>,
    stage: Stage,
    report: Option<ReplayedProgram>,
}

impl ReplayHost<'_> {
    /// Runs a program, and reports its inputs and results if it is selected.
    fn run_one(&mut self, job: Job<'_, DynTensor>) -> ActionResult<Vec<DynTensor>> {
        let input = self.input;
        let joint = &input.cut.programs.joint;
        let Job { task, phase, read } = job;
        let (executable, constants) = self.stage.load(&input.cut, task.compute)?;
        let read = read.into_iter();
        let read = read.map(|value| value.to_device(self.stage.device()));
        let read = read.collect::<Result<_, _>>()?;
        let given = |given, dtype| self.stage.given(given, dtype, input);
        let inputs = Job { task, phase, read }.inputs(&executable, &constants, given)?;
        let context = &self.context;
        let located = |source| input.cut.indices.locate(source);
        if !self.is_selected {
            return executable.run(inputs, context).map_err(located);
        }
        let mut report = ReplayedProgram::begin(joint, context.step, task, phase, &inputs)?;
        let (operations, call) = (&mut report.digest.operations, &mut self.on_operation);
        let mut unread: Option<FakeError> = None;
        let mut observe = |id, value: DynTensor| match ReplayedOperation::of(joint, id, &value) {
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
        };
        let made = executable.run_observed(inputs, context, &mut observe);
        if let Some(error) = unread {
            return Err(error.into());
        }
        let made = made.map_err(located)?;
        report.add_outputs(joint, phase, &made);
        self.report = Some(report);
        Ok(made)
    }
}

impl ActionHost for ReplayHost<'_> {
    type Value = DynTensor;

    fn run(&mut self, job: Job<'_, DynTensor>) -> ActionResult<Vec<DynTensor>> {
        let phase = job.phase;
        let mut made = self.run_one(job)?;
        let mut others = made.split_off(phase.outputs.len()).into_iter();
        // Gradients are only for the update.
        others.by_ref().take(phase.gradients.len()).for_each(drop);
        for (position, value) in phase.updates.iter().zip(others) {
            self.stage.held.update_state(*position, value);
        }
        Ok(made)
    }

    fn report(&mut self, _: MicroBatchIndex, _: Option<&str>, _: DynTensor) {}

    fn act(&mut self, _: Action) -> ActionResult {
        unreachable!("only programs are replayed")
    }
}

impl ReplayedProgram {
    /// The program of a task that is about to run, with its inputs.
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

    /// Adds the results of the program: values for other programs and the driver, gradients, and new values of running states.
    fn add_outputs(&mut self, joint: &JointGraph, phase: &Phase, made: &[DynTensor]) {
        let path = |position: &usize| &joint.parameter(*position).path;
        let values = phase.outputs.iter().map(|(id, _)| name(joint, *id));
        let gradients = phase.gradients.iter();
        let gradients = gradients.map(|at| format!("gradient of `{}`", path(at)));
        let updates = phase.updates.iter();
        let updates = updates.map(|at| format!("new value of `{}`", path(at)));
        let names = values.chain(gradients).chain(updates);
        self.outputs.extend(names.zip(made.iter().cloned()));
    }
}

/// The name of a value.
fn name(joint: &JointGraph, value: ValueId) -> String {
    let output = joint.outputs().iter().find(|(_, of)| *of == value);
    match (joint.given(value), joint.graph().value(value).producer) {
        (Some(Given::Parameter(position)), _) => joint.parameter(position).path.to_string(),
        (Some(Given::Input(position)), _) => match &*joint.inputs()[position].leaf.name {
            "" => "batch".to_owned(),
            name => format!("batch.{name}"),
        },
        (Some(Given::Weight), _) => "weight of the loss".to_owned(),
        _ if joint.loss() == Some(value) => "loss".to_owned(),
        _ if let Some((name, _)) = output => name.clone(),
        (None, Some(node)) => {
            let name = joint.graph().node(node).name();
            described(&name, place(joint, node).as_deref(), node.index())
        }
        (None, None) => format!("constant {value}"),
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
