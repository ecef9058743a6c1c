//! Executes one rank's list of actions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use burn::module::ParamId;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::{DType, Shape, TensorData};
use tinderbox_deferred::{Executable, ParameterPath, RunContext};
use tinderbox_fake::{DeviceLabel, DynTensor, ValueId, is_host};

use super::clip::{Change, Clipping, Norms, SquareSums, each, scaled};
use super::group::Group;
use super::link::{Link, Tag};
use super::lists::StepLists;
use super::rank::{Rank, guarded, since};
use super::stage::{CutProgram, Stage};
use super::store::ValueStore;
use crate::ActionError;
use crate::cut::{Binding, Phase, StagePrograms};
use crate::schedule::{
    Action, Compute, Edge, Message, MicroBatchIndex, RankTimeline, StageIndex, Task,
};

/// One micro-batch of a round.
#[derive(Debug)]
pub(crate) struct MicroInput {
    /// The programs for its shapes.
    pub(crate) cut: Arc<CutProgram>,
    /// Its tensors.
    pub(crate) inputs: Vec<DynTensor>,
    /// Its weight in the loss, times the loss scale.
    pub(crate) weight: f64,
}

/// The learning rate of each parameter.
#[derive(Clone)]
pub(crate) struct Rates(pub(crate) ModuleLearningRate);

impl Rates {
    pub(super) fn of(&self, path: &ParameterPath) -> f64 {
        // Ids are random per construction and say nothing here.
        self.0.lr_from_param(ParamId::new(), Some(path.as_str()))
    }
}

impl fmt::Debug for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rates").field(&self.0.base()).finish()
    }
}

/// A training step or an evaluation.
#[derive(Debug)]
pub(crate) struct Round {
    /// How many there were before.
    pub(crate) round: u64,
    /// The training step that random values belong to.
    pub(crate) step: u32,
    /// Learning rate; unused in an evaluation.
    pub(crate) lr: Rates,
    /// How gradients are clipped.
    pub(crate) clipping: Option<Clipping>,
    /// The factor on the loss, which is divided out of the gradients.
    pub(crate) loss_scale: Option<f64>,
    /// Whether nothing is updated where the loss or a gradient is not finite.
    pub(crate) stop_on_non_finite: bool,
    /// The lists of all ranks.
    pub(crate) lists: Arc<StepLists>,
    /// The micro-batches.
    pub(crate) micro_batches: Vec<MicroInput>,
    /// Numbers of the cuts that ranks keep loaded, those of the micro-batches among them.
    pub(crate) kept: BTreeSet<u64>,
    /// When the round began, if it is measured.
    pub(crate) epoch: Option<Instant>,
}

/// What a rank hands to the driver after a round.
#[derive(Debug, Default)]
pub(crate) struct RoundReport {
    /// Loss of each micro-batch, where this rank makes it.
    pub(crate) losses: Vec<(usize, DynTensor)>,
    /// Named outputs of each micro-batch that this rank makes.
    pub(crate) outputs: Vec<(usize, String, DynTensor)>,
    /// The norm of all gradients, where ranks need it.
    pub(crate) gradient_norm: Option<f64>,
    /// The squares of the gradients of each stage on the CPU, where ranks do not need the norm.
    pub(crate) squares: Vec<(StageIndex, SquareSums)>,
    /// Why nothing was updated: the positions of gradients that are not finite, in the order in which norms are
    /// added. Empty where only the loss is not.
    pub(crate) stopped: Option<Vec<usize>>,
    /// When each action ran, if the round was measured.
    pub(crate) timeline: Option<RankTimeline>,
}

/// The values of a round on one rank.
pub(super) struct RoundState {
    /// By stage and micro-batch.
    stores: Vec<ValueStore>,
    micro_batches: usize,
    pub(super) norms: BTreeMap<StageIndex, Norms>,
    /// What is done to the gradients of all stages, once it is known.
    pub(super) change: Option<Change>,
    /// Whether times and bytes are noted.
    epoch: Option<Instant>,
    /// Bytes of all values that wait to be taken; one that shares its memory counts as well.
    pub(super) bytes: u64,
    /// Nanoseconds that programs have run.
    pub(super) program_time: u64,
    pub(super) report: RoundReport,
}

impl RoundState {
    pub(super) fn new(round: &Round) -> Self {
        let schedule = &round.lists.schedule;
        let mut stores = Vec::new();
        stores.resize_with(
            schedule.stages * schedule.micro_batches,
            ValueStore::default,
        );
        Self {
            stores,
            micro_batches: schedule.micro_batches,
            norms: BTreeMap::new(),
            change: None,
            epoch: round.epoch,
            bytes: 0,
            program_time: 0,
            report: RoundReport::default(),
        }
    }

    fn store(&mut self, stage: StageIndex, micro_batch: MicroBatchIndex) -> &mut ValueStore {
        &mut self.stores[stage.index() * self.micro_batches + micro_batch.index()]
    }

    /// Keeps a value of a stage and micro-batch that is taken `takes` times.
    fn put(&mut self, (stage, k): Home, id: ValueId, value: DynTensor, takes: usize) {
        if self.epoch.is_some() && takes > 0 {
            self.bytes += value.bytes();
        }
        self.store(stage, k).put(id, value, takes);
    }

    /// Takes a value of a stage and micro-batch.
    fn take(&mut self, (stage, k): Home, id: ValueId) -> Result<DynTensor, ActionError> {
        let (value, is_last) = self.store(stage, k).take(id)?;
        if self.epoch.is_some() && is_last {
            self.bytes = self.bytes.saturating_sub(value.bytes());
        }
        Ok(value)
    }

    /// Runs jobs, and notes how long they took.
    fn time<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let Some(epoch) = self.epoch else {
            return run();
        };
        let started = since(epoch);
        let made = run();
        self.program_time += since(epoch) - started;
        made
    }

    /// Values that nobody took: none, after a whole round.
    pub(super) fn left_over(&self) -> usize {
        self.stores.iter().map(ValueStore::len).sum()
    }
}

/// To which stage and micro-batch a value belongs.
type Home = (StageIndex, MicroBatchIndex);

/// A program with all that it needs to run.
struct Job {
    cut: Arc<CutProgram>,
    executable: Executable,
    inputs: Vec<DynTensor>,
    context: RunContext,
}

impl Job {
    fn run(self) -> Result<Vec<DynTensor>, ActionError> {
        let made = self.executable.run(self.inputs, &self.context);
        made.map_err(|source| self.cut.indices.locate(source))
    }
}

impl Rank {
    /// Runs one action.
    pub(super) fn act(
        &mut self,
        action: &Action,
        round: &Round,
        state: &mut RoundState,
        link: &mut dyn Link,
        group: &mut dyn Group,
    ) -> Result<(), ActionError> {
        match *action {
            Action::Compute(task) => {
                let job = self.job(task, round, state)?;
                let outputs = state.time(|| self.hand_off(job.run()?, round))?;
                self.finish(task, outputs, round, state)
            }
            Action::Overlap([forward, backward]) => {
                let (first, second) = (
                    self.job(forward, round, state)?,
                    self.job(backward, round, state)?,
                );
                let run = |task: Task, job: Job| {
                    let done = guarded(|| job.run());
                    let done =
                        done.unwrap_or_else(|message| Err(ActionError::Panicked { message }));
                    done.map_err(|source| ActionError::OfPair {
                        task,
                        source: Box::new(source),
                    })
                };
                // At the same time, where the rank's pool has a thread for each. Another device works beside this
                // thread anyway, and in order of its queue: one thread fills it.
                let on_host = is_host(self.device());
                let (first, second) = state.time(|| {
                    let (first, second) = match on_host {
                        true => rayon::join(|| run(forward, first), || run(backward, second)),
                        false => (run(forward, first), run(backward, second)),
                    };
                    self.hand_off((first?, second?), round)
                })?;
                self.finish(forward, first, round, state)?;
                self.finish(backward, second, round, state)
            }
            Action::Send(message) => self.send(message, round, state, link),
            Action::Receive(message) => self.receive(message, round, state, link),
            Action::Reduce { stage, group: name } => self
                .stage_mut(stage)?
                .change_gradients(|gradient| Ok(group.all_reduce(name, gradient)?)),
            Action::Update { stage } => {
                self.update(stage, round, state)?;
                self.hand_off((), round)
            }
            _ => Err(ActionError::UnknownAction {
                action: action.to_string(),
            }),
        }
    }

    /// Has the device begin what was queued for it, so that it works while this thread goes on; where times are
    /// measured, waits until it is done. The CPU has done it already.
    fn hand_off<T>(&self, made: T, round: &Round) -> Result<T, ActionError> {
        let device = self.device();
        let handed = match round.epoch {
            Some(_) => device.sync(),
            None => device.flush(),
        };
        match handed {
            Ok(()) => Ok(made),
            Err(source) => Err(ActionError::Device {
                device: DeviceLabel::of(device),
                source: Box::new(source),
            }),
        }
    }

    /// Tells the link of a message that an action will wait for.
    pub(super) fn announce(
        &self,
        action: &Action,
        round: &Round,
        link: &mut dyn Link,
    ) -> Result<(), ActionError> {
        if let Action::Receive(message) = *action {
            let from = self.rank_of(message.sender())?;
            let round = round.round;
            link.post_receive(from, Tag { round, message })?;
        }
        Ok(())
    }

    /// Takes the inputs of a task's program.
    fn job(
        &mut self,
        task: Task,
        round: &Round,
        state: &mut RoundState,
    ) -> Result<Job, ActionError> {
        let input = &round.micro_batches[task.micro_batch.index()];
        let context = RunContext {
            seed: self.seed(),
            step: round.step,
            micro_batch: task.micro_batch.index() as u32,
        };
        let stage = self.stage_mut(task.stage)?;
        let (executable, setup) = stage.load(&input.cut, task.compute)?;
        let phase = phase_of(round, task)?;
        let home = (task.stage, task.micro_batch);
        let types = executable.program().input_types();
        let inputs = gather(stage, phase, types, input, &setup, |id| {
            state.take(home, id)
        })?;
        Ok(Job {
            cut: input.cut.clone(),
            executable,
            inputs,
            context,
        })
    }

    /// Keeps what a task's program made, adds its gradients, and reports what the driver asks for.
    fn finish(
        &mut self,
        task: Task,
        outputs: Vec<DynTensor>,
        round: &Round,
        state: &mut RoundState,
    ) -> Result<(), ActionError> {
        let Task {
            stage: index,
            compute,
            micro_batch,
        } = task;
        let programs = programs_of(round, micro_batch, index);
        let phase = phase_of(round, task)?;
        let is_split = round.lists.is_split(index, micro_batch.index());
        let mut outputs = outputs.into_iter();
        let home = (index, micro_batch);
        for ((value, takes), output) in phase.outputs.iter().zip(&mut outputs) {
            state.put(home, *value, output, takes.of(is_split));
        }
        // What weighs nothing adds nothing, also where it is not a number.
        if round.micro_batches[micro_batch.index()].weight != 0.0 {
            let stage = self.stage_mut(index)?;
            for (position, gradient) in phase.gradients.iter().zip(outputs) {
                stage.accumulate(*position, gradient);
            }
        }
        if compute == Compute::Forward {
            let number = micro_batch.index();
            if let Some(loss) = programs.loss {
                let loss = state.take(home, loss)?;
                state.report.losses.push((number, loss));
            }
            for (name, value) in &programs.outputs {
                let value = state.take(home, *value)?;
                state.report.outputs.push((number, name.clone(), value));
            }
        }
        self.hand_over(task, round, state)
    }

    /// Gives what a task made to the other stages of this rank: between them there are no messages.
    fn hand_over(
        &self,
        task: Task,
        round: &Round,
        state: &mut RoundState,
    ) -> Result<(), ActionError> {
        let programs = programs_of(round, task.micro_batch, task.stage);
        for (edge, ids) in &programs.sends {
            if !edge.from.is_run_by(&task) || !self.has_stage(edge.to.stage) {
                continue;
            }
            let to = programs_of(round, task.micro_batch, edge.to.stage);
            let is_split = round
                .lists
                .is_split(edge.to.stage, task.micro_batch.index());
            for id in ids {
                let value = state.take((task.stage, task.micro_batch), *id)?;
                let takes = to.received.get(id).copied().unwrap_or_default();
                let home = (edge.to.stage, task.micro_batch);
                state.put(home, *id, value, takes.of(is_split));
            }
        }
        Ok(())
    }

    /// Clips the gradients of a stage and runs its optimizer.
    fn update(
        &mut self,
        index: StageIndex,
        round: &Round,
        state: &mut RoundState,
    ) -> Result<(), ActionError> {
        let change = self.change(round, state)?;
        let is_on_host = is_host(self.device());
        let stage = self.stage_mut(index)?;
        // Read by the driver, it would have other devices than the CPU drain after each step.
        if is_on_host && state.report.gradient_norm.is_none() {
            state.report.squares.push((index, stage.square_sums()));
        }
        if let Change::Skip = change {
            stage.drop_gradients();
        } else {
            let each_by_itself = match &round.clipping {
                Some(Clipping::Each(config)) => Some(config),
                Some(Clipping::GlobalNorm(_)) | None => None,
            };
            stage.update(&round.lr, |gradient| {
                let gradient = match change {
                    Change::Scale(factor) => scaled(gradient, factor),
                    Change::Keep | Change::Skip => gradient,
                };
                match each_by_itself {
                    Some(config) => each(config, gradient),
                    None => Ok(gradient),
                }
            })?;
        }
        // Copies on this rank; those on others get a message.
        let layout = self.layout();
        for replica in self
            .stage_indices()
            .into_iter()
            .filter(|other| *other != index)
        {
            if !layout.replicas(replica).is_empty() {
                let values = self.stage_mut(index)?.shared_with(&layout, replica);
                self.stage_mut(replica)?
                    .take_shared(&layout, index, values)?;
            }
        }
        Ok(())
    }

    fn send(
        &mut self,
        message: Message,
        round: &Round,
        state: &mut RoundState,
        link: &mut dyn Link,
    ) -> Result<(), ActionError> {
        let values = match message {
            Message::Values { edge, micro_batch } => {
                let programs = programs_of(round, micro_batch, edge.from.stage);
                let home = (edge.from.stage, micro_batch);
                values_of(&programs.sends, edge)
                    .iter()
                    .map(|id| state.take(home, *id))
                    .collect::<Result<Vec<_>, _>>()?
            }
            Message::Tie(tie) => {
                let layout = self.layout();
                self.stage_mut(tie.owner)?.shared_with(&layout, tie.replica)
            }
            Message::Norm { from, .. } => vec![self.norms_of(from, round, state)?.to_message()],
        };
        let to = self.rank_of(message.receiver())?;
        let round = round.round;
        link.send(to, Tag { round, message }, values)?;
        Ok(())
    }

    fn receive(
        &mut self,
        message: Message,
        round: &Round,
        state: &mut RoundState,
        link: &mut dyn Link,
    ) -> Result<(), ActionError> {
        let from = self.rank_of(message.sender())?;
        let tag = Tag {
            round: round.round,
            message,
        };
        let values = link.poll(from, tag)?;
        match message {
            Message::Values { edge, micro_batch } => {
                let to = edge.to.stage;
                let programs = programs_of(round, micro_batch, to);
                let ids = values_of(&programs.receives, edge);
                check_length(ids.len(), values.len())?;
                let device = self.stage_mut(to)?.device().clone();
                let is_split = round.lists.is_split(to, micro_batch.index());
                for (id, value) in ids.iter().zip(values) {
                    let takes = programs.received.get(id).copied().unwrap_or_default();
                    let value = value.to_device(&device)?;
                    state.put((to, micro_batch), *id, value, takes.of(is_split));
                }
            }
            Message::Tie(tie) => {
                let layout = self.layout();
                self.stage_mut(tie.replica)?
                    .take_shared(&layout, tie.owner, values)?;
            }
            Message::Norm { from, .. } => {
                check_length(1, values.len())?;
                let data = values[0].to_data()?;
                state.norms.insert(from, Norms::from_message(&data));
            }
        }
        Ok(())
    }
}

fn check_length(expected: usize, found: usize) -> Result<(), ActionError> {
    match expected == found {
        true => Ok(()),
        false => Err(ActionError::MessageLength { expected, found }),
    }
}

fn programs_of(round: &Round, micro_batch: MicroBatchIndex, stage: StageIndex) -> &StagePrograms {
    &round.micro_batches[micro_batch.index()].cut.stages[stage.index()]
}

fn phase_of(round: &Round, task: Task) -> Result<&Phase, ActionError> {
    let (stage, compute) = (task.stage, task.compute);
    let phase = programs_of(round, task.micro_batch, stage).phase(compute);
    phase.ok_or(ActionError::NoProgram { stage, compute })
}

/// The values of a message. Micro-batches of other shapes may need fewer edges: theirs are empty.
fn values_of(messages: &BTreeMap<Edge, Vec<ValueId>>, edge: Edge) -> &[ValueId] {
    messages.get(&edge).map_or(&[], Vec::as_slice)
}

/// The inputs of a program, in its order.
fn gather(
    stage: &mut Stage,
    phase: &Phase,
    types: &[(Shape, DType)],
    input: &MicroInput,
    setup: &[DynTensor],
    mut take: impl FnMut(ValueId) -> Result<DynTensor, ActionError>,
) -> Result<Vec<DynTensor>, ActionError> {
    let bindings = phase.inputs.iter().zip(types);
    bindings
        .map(|(binding, (_, dtype))| match *binding {
            Binding::Parameter(position) => stage.parameter(position, *dtype),
            Binding::Input(position) => {
                Ok(input.inputs[position].clone().to_device(stage.device())?)
            }
            Binding::Weight => {
                let data = TensorData::new(vec![input.weight], [1]).convert_dtype(*dtype);
                Ok(DynTensor::from_data(data, stage.device()))
            }
            Binding::Setup(position) => Ok(setup[position].clone()),
            Binding::Value(value) => take(value),
        })
        .collect()
}
