//! Executes one rank's list of actions.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};
use tinderbox_deferred::RunContext;
use tinderbox_fake::DynTensor;

use super::group::Group;
use super::link::{Link, Tag};
use super::rank::Rank;
use super::stage::{CutProgram, Stage};
use super::store::ValueStore;
use crate::ActionError;
use crate::cut::{Binding, Phase};
use crate::schedule::{
    Action, Compute, Edge, Message, MicroBatchIndex, Schedule, StageIndex, Task,
};

/// One micro-batch of a round.
#[derive(Debug)]
pub(crate) struct MicroInput {
    /// The programs for its shapes.
    pub(crate) cut: Arc<CutProgram>,
    /// Its tensors.
    pub(crate) inputs: Vec<DynTensor>,
    /// Its share of the samples.
    pub(crate) weight: f32,
}

/// A training step or an evaluation.
#[derive(Debug)]
pub(crate) struct Round {
    /// How many there were before.
    pub(crate) round: u64,
    /// The training step that random values belong to.
    pub(crate) step: u32,
    /// Learning rate; unused in an evaluation.
    pub(crate) lr: f64,
    /// The lists of all ranks.
    pub(crate) schedule: Arc<Schedule>,
    /// The micro-batches.
    pub(crate) micro_batches: Vec<MicroInput>,
}

/// What a rank hands to the driver after a round.
#[derive(Debug, Default)]
pub(crate) struct RoundReport {
    /// Loss of each micro-batch, where this rank makes it.
    pub(crate) losses: Vec<(usize, DynTensor)>,
    /// Named outputs of each micro-batch that this rank makes.
    pub(crate) outputs: Vec<(usize, String, DynTensor)>,
}

/// The values of a round on one rank, by stage and micro-batch.
#[derive(Default)]
pub(super) struct RoundState {
    stores: HashMap<(StageIndex, usize), ValueStore>,
    pub(super) report: RoundReport,
}

impl RoundState {
    fn store(&mut self, stage: StageIndex, micro_batch: MicroBatchIndex) -> &mut ValueStore {
        self.stores.entry((stage, micro_batch.index())).or_default()
    }

    /// Values that nobody took: none, after a whole round.
    pub(super) fn left_over(&self) -> usize {
        self.stores.values().map(ValueStore::len).sum()
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
            Action::Compute(task) => self.compute(task, round, state),
            Action::Send(message) => self.send(message, round, state, link),
            Action::Receive(message) => self.receive(message, round, state, link),
            Action::Reduce { stage, group: name } => self
                .stage_mut(stage)?
                .reduce(|gradient| Ok(group.all_reduce(name, gradient)?)),
            Action::Update { stage } => self.stage_mut(stage)?.update(round.lr),
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

    fn compute(
        &mut self,
        task: Task,
        round: &Round,
        state: &mut RoundState,
    ) -> Result<(), ActionError> {
        let Task {
            stage: index,
            compute,
            micro_batch,
        } = task;
        let input = &round.micro_batches[micro_batch.index()];
        let programs = &input.cut.stages[index.index()];
        let seed = self.seed();
        let stage = self.stage_mut(index)?;
        let loaded = stage.load(&input.cut)?;
        let (phase, executable) = match (compute, &programs.backward, &loaded.backward) {
            (Compute::Forward, _, _) => (&programs.forward, &loaded.forward),
            (Compute::Backward, Some(phase), Some(executable)) => (phase, executable),
            _ => return Err(ActionError::UnknownAction),
        };
        let store = state.store(index, micro_batch);
        let inputs = gather(stage, phase, input, &loaded.setup, store)?;
        let context = RunContext {
            seed,
            step: round.step,
            micro_batch: micro_batch.index() as u32,
        };
        let mut outputs = executable.run(inputs, &context)?.into_iter();
        for (value, takes) in &phase.outputs {
            if let Some(output) = outputs.next() {
                store.put(*value, output, *takes);
            }
        }
        for ((position, _), gradient) in phase.gradients.iter().zip(outputs) {
            stage.accumulate(*position, gradient);
        }
        if compute == Compute::Forward {
            if let Some(loss) = programs.loss {
                let loss = store.take(loss)?;
                state.report.losses.push((micro_batch.index(), loss));
            }
            for (name, value) in &programs.outputs {
                let value = state.store(index, micro_batch).take(*value)?;
                state
                    .report
                    .outputs
                    .push((micro_batch.index(), name.clone(), value));
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
                let ids = values_of(round, edge, micro_batch, edge.from.stage, true);
                let store = state.store(edge.from.stage, micro_batch);
                ids.iter()
                    .map(|id| store.take(*id))
                    .collect::<Result<Vec<_>, _>>()?
            }
            Message::Tie(tie) => {
                let layout = self.layout();
                self.stage_mut(tie.owner)?.shared_with(&layout, tie.replica)
            }
        };
        let to = self.rank_of(message.receiver())?;
        link.send(
            to,
            Tag {
                round: round.round,
                message,
            },
            values,
        )?;
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
        let values = link.poll(
            from,
            Tag {
                round: round.round,
                message,
            },
        )?;
        match message {
            Message::Values { edge, micro_batch } => {
                let to = edge.to.stage;
                let ids = values_of(round, edge, micro_batch, to, false);
                if ids.len() != values.len() {
                    let (expected, found) = (ids.len(), values.len());
                    return Err(ActionError::MessageLength { expected, found });
                }
                let device = self.stage_mut(to)?.device().clone();
                let takes = &programs_of(round, micro_batch, to).received;
                let store = state.store(to, micro_batch);
                for (id, value) in ids.iter().zip(values) {
                    store.put(
                        *id,
                        value.to_device(&device)?,
                        takes.get(id).copied().unwrap_or(0),
                    );
                }
            }
            Message::Tie(tie) => {
                let layout = self.layout();
                self.stage_mut(tie.replica)?
                    .take_shared(&layout, tie.owner, values)?;
            }
        }
        Ok(())
    }
}

fn programs_of(
    round: &Round,
    micro_batch: MicroBatchIndex,
    stage: StageIndex,
) -> &crate::cut::StagePrograms {
    &round.micro_batches[micro_batch.index()].cut.stages[stage.index()]
}

/// The values of a message. Micro-batches of other shapes may need fewer edges: theirs are empty.
fn values_of(
    round: &Round,
    edge: Edge,
    micro_batch: MicroBatchIndex,
    stage: StageIndex,
    leaves: bool,
) -> &[tinderbox_fake::ValueId] {
    let programs = programs_of(round, micro_batch, stage);
    let messages = if leaves {
        &programs.sends
    } else {
        &programs.receives
    };
    messages.get(&edge).map_or(&[], Vec::as_slice)
}

/// The inputs of a program, in its order.
fn gather(
    stage: &Stage,
    phase: &Phase,
    input: &MicroInput,
    setup: &[DynTensor],
    store: &mut ValueStore,
) -> Result<Vec<DynTensor>, ActionError> {
    let bindings = phase.inputs.iter();
    bindings
        .map(|binding| match *binding {
            Binding::Parameter(position) => stage.parameter(position),
            Binding::Input(position) => {
                Ok(input.inputs[position].clone().to_device(stage.device())?)
            }
            Binding::Weight => {
                let data = TensorData::new(vec![input.weight], [1]);
                Ok(Tensor::<1>::from_data(data, stage.device()).into())
            }
            Binding::Setup(position) => Ok(setup[position].clone()),
            Binding::Value(value) => store.take(value),
        })
        .collect()
}
