//! Executes one rank's list of actions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use tinderbox_deferred::{Executable, ProgramError, ProgramInput, RunContext};
use tinderbox_fake::{DeviceLabel, DynTensor, ValueId, is_host};

use super::clip::{Change, Clipping, Norms, each, scaled};
use super::link::{Abort, Link, LinkMessage, Tag};
use super::rank::{Rank, action_error, caught};
use super::round::{Part, Round, RoundReport};
use super::stage::{CutProgram, Stage};
use super::streamed::Activation;
use crate::cut::{Binding, Phase, StagePrograms};
use crate::kept::{Holders, Kept, Location};
use crate::schedule::{
    Action, Compute, Edge, Message, MicroBatchIndex, RankIndex, RankTimeline, Span, StageIndex,
    Task,
};
use crate::trace::Given;
use crate::{ActionError, LinkError, PipelineError};

/// The values of a round on one rank.
pub(super) struct RoundState {
    kept: Kept<DynTensor>,
    pub(super) norms: BTreeMap<StageIndex, Norms>,
    /// The sums of squares that this replica has computed, by stage, until they are part of `norms`.
    pub(super) own_squares: BTreeMap<StageIndex, Norms>,
    /// The change of the gradients of all stages, once it is known.
    pub(super) change: Option<Change>,
    /// The beginning of the round, if times and bytes are measured.
    epoch: Option<Instant>,
    /// Bytes of all values that are kept for later uses, counting values that share memory separately.
    bytes: u64,
    /// Nanoseconds in which programs ran.
    program_time: u64,
    pub(super) report: RoundReport,
}

impl RoundState {
    fn new(round: &Round) -> Self {
        Self {
            kept: Kept::default(),
            norms: BTreeMap::new(),
            own_squares: BTreeMap::new(),
            change: None,
            epoch: round.epoch,
            bytes: 0,
            program_time: 0,
            report: RoundReport::default(),
        }
    }

    /// Keeps a value of a stage and micro-batch for a number of uses.
    fn put(&mut self, location: Location, id: ValueId, value: DynTensor, uses: usize) {
        if self.epoch.is_some() && uses > 0 {
            self.bytes += value.bytes();
        }
        self.kept.put(location, id, value, uses);
    }

    /// Takes a value from all given stages that keep it; `None` if none does.
    pub(super) fn take_all(
        &mut self,
        (k, id): Activation,
        stages: &[StageIndex],
    ) -> Option<(DynTensor, Holders)> {
        let (value, holders) = self.kept.take_all(k, id, stages.iter().copied())?;
        if self.epoch.is_some() {
            let bytes = value.bytes() * holders.len() as u64;
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        Some((value, holders))
    }

    /// Gives a value back to the stages that kept it.
    pub(super) fn put_back(&mut self, (k, id): Activation, value: &DynTensor, holders: Holders) {
        for (stage, uses) in holders {
            self.put((stage, k), id, value.clone(), uses);
        }
    }

    /// Uses a value of a stage and micro-batch.
    fn take(&mut self, location: Location, id: ValueId) -> DynTensor {
        let kept = self.kept.take(location, id);
        let (value, is_last) = kept.expect("certified lists use values that are kept");
        if self.epoch.is_some() && is_last {
            self.bytes = self.bytes.saturating_sub(value.bytes());
        }
        value
    }

    /// Runs jobs, and adds their time.
    fn time<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let Some(epoch) = self.epoch else {
            return run();
        };
        let started = since(epoch);
        let made = run();
        self.program_time += since(epoch) - started;
        made
    }
}

/// A program with its inputs.
struct Job {
    cut: Arc<CutProgram>,
    executable: Executable,
    inputs: Vec<ProgramInput>,
    context: RunContext,
    abort: Abort,
}

impl Job {
    /// Runs the program, until a rank fails.
    fn run(self) -> Result<Vec<DynTensor>, ActionError> {
        let is_stopped = || self.abort.is_triggered();
        let made = self
            .executable
            .run_until(self.inputs, &self.context, &is_stopped);
        made.map_err(|source| match source {
            ProgramError::Stopped => LinkError::Aborted.into(),
            source => self.cut.indices.locate(source),
        })
    }
}

/// A round in progress on a rank.
pub(super) struct Running<'a> {
    pub(super) rank: &'a mut Rank,
    pub(super) round: &'a Round,
    /// What the replica of the rank runs.
    part: &'a Part,
    link: &'a mut dyn Link,
    pub(super) state: RoundState,
}

impl<'a> Running<'a> {
    pub(super) fn new(rank: &'a mut Rank, round: &'a Round, link: &'a mut dyn Link) -> Self {
        Self {
            part: &round.parts[rank.setup.replica],
            rank,
            round,
            link,
            state: RoundState::new(round),
        }
    }

    /// Runs the rank's list.
    pub(super) fn run(mut self) -> Result<RoundReport, PipelineError> {
        let round = self.round;
        let rank = self.rank.setup.rank;
        let actions = self.part.lists.schedule.actions(self.rank.setup.place);
        let mut timeline = round.epoch.map(|_| RankTimeline::default());
        for stage in &mut self.rank.stages {
            stage.clear_gradients();
            stage.keep_loaded(&round.kept);
            stage.carried.retain(&round.carries);
        }
        let held =
            |stage: &Stage| stage.gradient_bytes() + stage.cast_bytes() + stage.carried_bytes();
        let parameters: u64 = self.rank.stages.iter().map(Stage::parameter_bytes).sum();
        let mut held_by_stages: u64 = self.rank.stages.iter().map(held).sum();
        for action in actions {
            self.named(action, |running| running.announce(action))?;
        }
        if let Some(first) = actions.first() {
            self.named(first, |running| running.rank.begin(round.pass.as_ref()))?;
        }
        for action in actions {
            let start = round.epoch.map(since);
            self.rank.setup.progress.begin_action(round.round, *action);
            self.named(action, |running| {
                let _span = tracing::trace_span!("action", rank = rank.index(), %action).entered();
                let state = &mut running.state;
                running.rank.enter(round, action.stage(), state)?;
                running.act(action)
            })?;
            self.rank.setup.progress.report();
            if let (Some(timeline), Some(start), Some(epoch)) = (&mut timeline, start, round.epoch)
            {
                let (action, end) = (*action, since(epoch));
                timeline.spans.push(Span { action, start, end });
                if !matches!(action, Action::Send(_) | Action::Receive(_)) {
                    held_by_stages = self.rank.stages.iter().map(held).sum();
                }
                let held = parameters + held_by_stages + self.state.bytes;
                if timeline.bytes.last().is_none_or(|last| last.1 != held) {
                    timeline.bytes.push((end, held));
                }
            }
        }
        if let Some(last) = actions.last() {
            self.named(last, |running| {
                running.rank.leave(round, &mut running.state)
            })?;
        }
        debug_assert_eq!(
            self.state.kept.left(),
            None,
            "every value of a round is used"
        );
        let program_time = self.state.program_time;
        self.state.report.timeline = timeline.map(|timeline| RankTimeline {
            program_time,
            ..timeline
        });
        Ok(self.state.report)
    }

    /// Runs code of an action; its error names the action.
    fn named(
        &mut self,
        action: &Action,
        run: impl FnOnce(&mut Self) -> Result<(), ActionError>,
    ) -> Result<(), PipelineError> {
        let rank = self.rank.setup.rank;
        let micro_batch = action.micro_batch();
        let micro_batch = micro_batch.map(|k| MicroBatchIndex::new(self.part.index(k)));
        let place = (Some(action.stage()), micro_batch);
        caught(|| run(self))
            .map_err(|source| action_error(rank, place, &action.to_string(), source))
    }

    /// Announces to the link the messages for which an action will wait.
    fn announce(&mut self, action: &Action) -> Result<(), ActionError> {
        let awaited = match *action {
            Action::Receive(message) => vec![(self.rank_of(message.sender()), self.tag(message))],
            Action::Sum { stage } => self.awaited_sums(stage),
            Action::Gather { stage } => self.awaited_parameters(stage),
            _ => Vec::new(),
        };
        for (from, tag) in awaited {
            self.link.post_receive(from, tag)?;
        }
        Ok(())
    }

    /// Runs one action.
    fn act(&mut self, action: &Action) -> Result<(), ActionError> {
        match *action {
            Action::Compute(task) => {
                let job = self.job(task)?;
                let setup = &self.rank.setup;
                let run = || flush_device(job.run()?, &setup.device, self.round);
                let outputs = self.state.time(run)?;
                self.finish(task, outputs);
                Ok(())
            }
            Action::Overlap([forward, backward]) => {
                let (first, second) = (self.job(forward)?, self.job(backward)?);
                let run = |task: Task, job: Job| {
                    caught(|| job.run()).map_err(|source| ActionError::OfPair {
                        task,
                        source: Box::new(source),
                    })
                };
                let device = &self.rank.setup.device;
                // Both run at the same time, with a thread of the rank's pool each. Other devices run
                // their queue in order, in parallel to this thread, so one thread fills the queue.
                let (first, second) = self.state.time(|| {
                    let (first, second) = match is_host(device) {
                        true => rayon::join(|| run(forward, first), || run(backward, second)),
                        false => (run(forward, first), run(backward, second)),
                    };
                    flush_device((first?, second?), device, self.round)
                })?;
                self.finish(forward, first);
                self.finish(backward, second);
                Ok(())
            }
            Action::Send(message) => self.send(message),
            Action::Receive(message) => self.receive(message),
            Action::Reduce { stage, .. } => {
                self.reduce(stage)?;
                let setup = &self.rank.setup;
                if setup.streamed.is_some() && setup.settings.needs_norms(self.round.loss_scale) {
                    // While the stage has its parameters.
                    self.norms_of(stage)?;
                }
                Ok(())
            }
            Action::Sum { stage } => {
                self.sum(stage)?;
                flush_device((), &self.rank.setup.device, self.round)
            }
            Action::Update { stage } => {
                self.update(stage)?;
                flush_device((), &self.rank.setup.device, self.round)
            }
            Action::Gather { stage } => {
                self.gather(stage)?;
                flush_device((), &self.rank.setup.device, self.round)
            }
            _ => unreachable!("certified lists have no other actions"),
        }
    }

    /// Collects the inputs of a task's program.
    fn job(&mut self, task: Task) -> Result<Job, ActionError> {
        let index = self.part.index(task.micro_batch);
        let input = self.round.micro_batch(index);
        let phase = self.phase_of(task);
        let stage = self.rank.stage_mut(task.stage);
        let (executable, constants) = stage.load(&input.cut, task.compute)?;
        let carry = self.round.carry.filter(|carry| !carry.is_first);
        let carried = |position| {
            let index = input.cut.carried.index_of(position)?;
            Some((carry?.number, (task.micro_batch.index(), index)))
        };
        let bindings = phase.inputs.iter();
        let bindings = bindings.zip(executable.program().input_types());
        let inputs = bindings.map(|(binding, (_, dtype))| {
            let value = match *binding {
                Binding::Given(Given::Parameter(position))
                    if let Some(rows) = stage.rows(position, *dtype) =>
                {
                    return Ok(rows);
                }
                Binding::Given(Given::Input(position))
                    if let Some((carry, at)) = carried(position) =>
                {
                    let value = stage.carried.take(carry, at);
                    value.expect("the driver has checked that the stage has the value")
                }
                Binding::Given(given) => stage.given(given, *dtype, input)?,
                Binding::Constant(position) => constants[position].clone(),
                Binding::Value(value) => self.state.take((task.stage, task.micro_batch), value),
            };
            Ok(value.into())
        });
        let inputs = inputs.collect::<Result<Vec<ProgramInput>, ActionError>>()?;
        Ok(Job {
            cut: input.cut.clone(),
            executable,
            inputs,
            context: RunContext {
                seed: self.rank.setup.settings.seed,
                step: self.round.step,
                micro_batch: index as u32,
            },
            abort: self.rank.setup.abort.clone(),
        })
    }

    /// Keeps the outputs of a task's program, adds its gradients, updates running states, replaces carried
    /// values, and reports the loss and outputs.
    fn finish(&mut self, task: Task, outputs: Vec<DynTensor>) {
        let (index, k) = (task.stage, task.micro_batch);
        let programs = self.programs_of(k, index);
        let phase = self.phase_of(task);
        let number = self.part.index(k);
        let micro_batch = self.round.micro_batch(number);
        let is_split = self.part.lists.is_split(index, k.index());
        let mut outputs = outputs.into_iter();
        let location = (index, k);
        for ((value, takes), output) in phase.outputs.iter().zip(&mut outputs) {
            self.state.put(location, *value, output, takes.of(is_split));
        }
        let stage = self.rank.stage_mut(index);
        for (position, gradient) in phase.gradients.iter().zip(&mut outputs) {
            // A weight of 0 adds nothing, even if the gradient is NaN.
            if micro_batch.weight != 0.0 {
                stage.accumulate(*position, self.round.groups.of(number), gradient);
            }
        }
        for (position, value) in phase.updates.iter().zip(&mut outputs) {
            stage.update_state(*position, value);
        }
        if let Some(carry) = self.round.carry {
            let tensors = &micro_batch.cut.carried;
            for (position, value) in phase.carried.iter().zip(outputs) {
                let index = tensors.index_of(*position);
                let index = index.expect("a program replaces carried tensors only");
                stage.carried.put(carry.number, (k.index(), index), value);
            }
        }
        if task.compute == Compute::Forward {
            if let Some(loss) = programs.loss {
                let loss = self.state.take(location, loss);
                self.state.report.losses.push((number, loss));
            }
            for (name, value) in &programs.outputs {
                let value = self.state.take(location, *value);
                let output = (number, name.clone(), value);
                self.state.report.outputs.push(output);
            }
        }
        self.pass_to_local_stages(task);
    }

    /// Passes the outputs of a task to the other stages of this rank without messages.
    fn pass_to_local_stages(&mut self, task: Task) {
        let k = task.micro_batch;
        for (edge, ids) in &self.programs_of(k, task.stage).sends {
            let (to, setup) = (edge.to.stage, &self.rank.setup);
            let is_here = setup.layout.ranks[to.index()] == setup.place;
            if edge.from.is_run_by(&task) && is_here {
                for id in ids {
                    let value = self.state.take((task.stage, k), *id);
                    self.put_received((to, k), *id, value);
                }
            }
        }
    }

    /// Keeps a value of another stage for its uses by a stage.
    fn put_received(&mut self, location: Location, id: ValueId, value: DynTensor) {
        let (stage, k) = location;
        let received = &self.programs_of(k, stage).received;
        let takes = received.get(&id).copied().unwrap_or_default();
        let uses = takes.of(self.part.lists.is_split(stage, k.index()));
        self.state.put(location, id, value, uses);
    }

    /// Clips the gradients of a stage and runs its optimizer.
    fn update(&mut self, index: StageIndex) -> Result<(), ActionError> {
        let change = self.change()?;
        let setup = self.rank.setup.clone();
        let stage = self.rank.stage_mut(index);
        // Reading the norms on the driver would make devices other than the CPU wait after each step.
        if is_host(&setup.device) && self.state.report.gradient_norm.is_none() {
            let places = stage.own_pieces().iter().map(|piece| piece.place);
            let sums = (index, places.collect(), stage.square_sums());
            self.state.report.squares.push(sums);
        }
        let updated = if let Change::Skip = change {
            stage.drop_gradients();
            vec![None; stage.own_pieces().len()]
        } else {
            let each_by_itself = match &setup.settings.clipping {
                Some(Clipping::Each(config)) => Some(config),
                Some(Clipping::GlobalNorm(_)) | None => None,
            };
            stage.update(&self.round.lr, |gradient| {
                if setup.abort.is_triggered() {
                    return Err(LinkError::Aborted.into());
                }
                let gradient = match change {
                    Change::Scale(factor) => scaled(gradient, factor),
                    Change::Keep | Change::Skip => gradient,
                };
                match each_by_itself {
                    Some(config) => each(config, gradient),
                    None => Ok(gradient),
                }
            })?
        };
        match setup.settings.replicas {
            1 => self.share_on_rank(index),
            _ => self.send_updated(index, updated),
        }
    }

    /// Passes updated values to the copies on this rank; those on others receive a message.
    pub(super) fn share_on_rank(&mut self, index: StageIndex) -> Result<(), ActionError> {
        if self.rank.setup.streamed.is_some() {
            // Each stage reads them anew.
            return Ok(());
        }
        let others = self.rank.stage_indices().into_iter();
        for copy in others.filter(|other| *other != index) {
            let values = self.rank.stage_mut(index).shared_with(copy);
            let copy = self.rank.stage_mut(copy);
            copy.replace_shared(index, values)?;
        }
        Ok(())
    }

    fn send(&mut self, message: Message) -> Result<(), ActionError> {
        let values = match message {
            Message::Values { edge, micro_batch } => {
                let programs = self.programs_of(micro_batch, edge.from.stage);
                let ids = values_of(&programs.sends, edge).iter();
                let location = (edge.from.stage, micro_batch);
                ids.map(|id| self.state.take(location, *id)).collect()
            }
            Message::Tie(tie) => self.rank.stage_mut(tie.owner).shared_with(tie.copy),
            Message::Norm { from, .. } => vec![self.norms_of(from)?.to_message()],
        };
        let (to, tag) = (self.rank_of(message.receiver()), self.tag(message));
        self.send_to(to, tag, values)
    }

    pub(super) fn send_to(
        &mut self,
        to: RankIndex,
        tag: Tag,
        values: Vec<DynTensor>,
    ) -> Result<(), ActionError> {
        Ok(self.link.send(to, tag, values)?)
    }

    /// Waits for a message.
    pub(super) fn receive_from(
        &mut self,
        from: RankIndex,
        tag: Tag,
    ) -> Result<Vec<DynTensor>, ActionError> {
        let values = self.link.poll(from, tag);
        values.map_err(|error| match error {
            LinkError::Timeout { from, key, timeout } => ActionError::Late {
                from,
                message: key,
                timeout,
                doing: self.rank.watch.all_but(self.rank.setup.rank),
            },
            error => error.into(),
        })
    }

    fn receive(&mut self, message: Message) -> Result<(), ActionError> {
        let (from, tag) = (self.rank_of(message.sender()), self.tag(message));
        let values = self.receive_from(from, tag)?;
        match message {
            Message::Values { edge, micro_batch } => {
                let to = edge.to.stage;
                let ids = values_of(&self.programs_of(micro_batch, to).receives, edge);
                check_length(ids.len(), values.len())?;
                for (id, value) in ids.iter().zip(values) {
                    let value = value.to_device(&self.rank.setup.device)?;
                    self.put_received((to, micro_batch), *id, value);
                }
            }
            Message::Tie(tie) => {
                let copy = self.rank.stage_mut(tie.copy);
                copy.replace_shared(tie.owner, values)?;
            }
            Message::Norm { from, .. } => {
                check_length(1, values.len())?;
                let data = values[0].to_data()?;
                self.state.norms.insert(from, Norms::from_message(&data));
            }
        }
        Ok(())
    }

    /// The rank that runs a stage in this replica.
    fn rank_of(&self, stage: StageIndex) -> RankIndex {
        let setup = &self.rank.setup;
        setup.layout.rank_in(setup.replica, stage)
    }

    fn tag(&self, message: Message) -> Tag {
        Tag {
            round: self.round.round,
            message: LinkMessage::Schedule(message),
        }
    }

    fn programs_of(&self, micro_batch: MicroBatchIndex, stage: StageIndex) -> &'a StagePrograms {
        let micro_batch = self.round.micro_batch(self.part.index(micro_batch));
        &micro_batch.cut.programs.stages[stage.index()]
    }

    fn phase_of(&self, task: Task) -> &'a Phase {
        let phase = self
            .programs_of(task.micro_batch, task.stage)
            .phase(task.compute);
        phase.expect("certified lists run programs that the stage has")
    }
}

/// Nanoseconds since the beginning of a round.
fn since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Makes the device start its queue, so that it runs in parallel to this thread; if times are measured,
/// waits until it is done. The CPU has no queue.
fn flush_device<T>(made: T, device: &Device, round: &Round) -> Result<T, ActionError> {
    let flushed = match round.epoch {
        Some(_) => device.sync(),
        None => device.flush(),
    };
    match flushed {
        Ok(()) => Ok(made),
        Err(source) => Err(ActionError::Device {
            device: DeviceLabel::of(device),
            source: Box::new(source),
        }),
    }
}

pub(super) fn check_length(expected: usize, found: usize) -> Result<(), ActionError> {
    match expected == found {
        true => Ok(()),
        false => Err(ActionError::MessageLength { expected, found }),
    }
}

/// The values of a message. Micro-batches of other shapes may have fewer edges, which are empty.
fn values_of(messages: &BTreeMap<Edge, Vec<ValueId>>, edge: Edge) -> &[ValueId] {
    messages.get(&edge).map_or(&[], Vec::as_slice)
}
