//! A rank as the host of an interpreter: programs run on its device, messages cross its link.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{DType, Device};
use tinderbox_deferred::{ProgramError, ProgramInput, RunContext, Source};
use tinderbox_fake::{DynTensor, FakeError, ValueId, is_host};

use crate::cut::Phase;
use crate::kept::Location;
use crate::runtime::caught::{action_error, caught, device_failed};
use crate::runtime::clip::{GradientChange, Norms, SquareSums};
use crate::runtime::interpreter::{ActionHost, Job};
use crate::runtime::link::{Link, LinkMessage, Tag};
use crate::runtime::pass::Streaming;
use crate::runtime::progress::Watch;
use crate::runtime::round::{MicroInput, RankReport, ReplicaPart, Reported, Round};
use crate::runtime::stage::{RankSetup, Stage, check_length, stage_of};
use crate::schedule::{Action, Message, MicroBatchIndex, RankIndex, StageIndex, Task};
use crate::trace::Given;
use crate::{ActionError, ActionResult, LinkError, RankError, StartError};

/// A round in progress on a rank.
pub(super) struct OnRank<'a> {
    pub(super) rank: &'a mut Rank,
    pub(super) round: &'a Round,
    /// The part of the replica of the rank.
    pub(super) part: &'a ReplicaPart,
    pub(super) link: &'a mut dyn Link,
    pub(super) norms: BTreeMap<StageIndex, Norms>,
    /// The sums of squares that this replica has computed, by stage, until they are part of `norms`.
    pub(super) own_squares: BTreeMap<StageIndex, Norms>,
    /// The change of the gradients of all stages, once it is known.
    pub(super) change: Option<GradientChange>,
    /// Bytes of all values that are kept for later uses, counting values that share memory separately, if that is measured.
    pub(super) bytes: u64,
    /// Nanoseconds in which programs ran.
    pub(super) program_time: u64,
    pub(super) report: RankReport,
    pub(super) unread: Unread,
}

/// Values for the report of a rank that it has not read from its device.
#[derive(Default)]
pub(super) struct Unread {
    pub(super) losses: Vec<(usize, DynTensor)>,
    /// For each updated stage, the parameters of its pieces and the squares of their gradients.
    squares: Vec<(StageIndex, Vec<usize>, SquareSums)>,
    outputs: Vec<DynTensor>,
}

impl<'a> OnRank<'a> {
    pub(super) fn new(rank: &'a mut Rank, round: &'a Round, link: &'a mut dyn Link) -> Self {
        Self {
            part: &round.parts[rank.setup.replica],
            rank,
            round,
            link,
            norms: BTreeMap::new(),
            own_squares: BTreeMap::new(),
            change: None,
            bytes: 0,
            program_time: 0,
            report: RankReport::default(),
            unread: Unread::default(),
        }
    }

    /// Reads the report from the device of the rank; the tensors of outputs stay there.
    pub(super) fn read_report(mut self) -> Result<Reported, RankError> {
        let rank = self.rank.setup.rank;
        let failed = |place, action: &'static str| {
            move |source: FakeError| action_error(rank, place, action, source.into())
        };
        for (number, loss) in self.unread.losses {
            let place = (None, Some(MicroBatchIndex::new(number)));
            let data = loss.to_data().map_err(failed(place, "READ LOSS"))?;
            self.report.losses.push((number, data.iter::<f64>().next()));
        }
        for (stage, places, sums) in self.unread.squares {
            let sums = sums.read(|sums| sums.to_data());
            let sums = sums.map_err(failed((Some(stage), None), "READ NORMS"))?;
            let pieces = places.into_iter().zip(sums);
            let pieces = pieces.map(|(place, sums)| (stage, place, sums));
            self.report.squares.extend(pieces);
        }
        Ok((self.report, self.unread.outputs))
    }

    /// Loads a program, with its inputs.
    fn load(&mut self, job: Job<'_, DynTensor>) -> ActionResult<impl LoadedProgram + use<>> {
        let task = job.task;
        let (round, index) = (self.round, self.part.index(task.micro_batch));
        let micro = round.micro_batch(index);
        let stage = self.rank.stage_mut(task.stage);
        let (executable, constants) = stage.load(&micro.cut, task.compute)?;
        let given = |given, dtype| self.given(task, given, dtype, micro);
        let inputs = job.inputs(&executable, &constants, given)?;
        let context = RunContext {
            seed: self.rank.setup.settings.seed,
            step: round.step,
            micro_batch: index as u32,
        };
        let (cut, abort) = (micro.cut.clone(), self.rank.setup.abort.clone());
        Ok(move || {
            let made = executable.run_until(inputs, &context, &|| abort.is_triggered());
            made.map_err(|source| match source {
                ProgramError::Stopped => LinkError::Aborted.into(),
                source => cut.indices.locate(source),
            })
        })
    }

    /// Runs programs, waits for the device if times are measured, and adds the time.
    fn timed<T>(&mut self, run: impl FnOnce() -> ActionResult<T>) -> ActionResult<T> {
        let started = self.round.epoch.map(since);
        let made = run()?;
        flush_device(&self.rank.setup.device, self.round)?;
        if let (Some(epoch), Some(started)) = (self.round.epoch, started) {
            self.program_time += since(epoch) - started;
        }
        Ok(made)
    }

    /// An input that no program computes.
    fn given(
        &mut self,
        task: Task,
        given: Given,
        dtype: DType,
        micro: &MicroInput,
    ) -> ActionResult<ProgramInput> {
        let stage = self.rank.stage_mut(task.stage);
        let carry = self.round.carries.used.filter(|carry| !carry.is_first);
        match (given, carry) {
            (Given::Parameter(position), _) if let Some(rows) = stage.rows(position, dtype) => {
                Ok(rows)
            }
            (Given::Input(position), Some(carry))
                if let Some(index) = micro.cut.carried.index_of(position) =>
            {
                let at = (carry.number, task.micro_batch.index(), index);
                // The program that gets it has the only handle and may work in place.
                let value = stage.carried.remove(&at);
                let value = value.expect("the driver has checked that the stage has the value");
                Ok(value.into())
            }
            (given, _) => Ok(stage.given(given, dtype, micro)?.into()),
        }
    }

    /// Adds the gradients of a program, updates running states and replaces carried values: its last outputs. Returns the
    /// others.
    fn store(&mut self, task: Task, phase: &Phase, mut made: Vec<DynTensor>) -> Vec<DynTensor> {
        let (index, k) = (task.stage, task.micro_batch);
        let (round, number) = (self.round, self.part.index(k));
        let micro = round.micro_batch(number);
        let stage = self.rank.stage_mut(index);
        let mut outputs = made.drain(phase.outputs.len()..);
        for (position, gradient) in phase.gradients.iter().zip(&mut outputs) {
            // A weight of 0 adds nothing, even if the gradient is NaN.
            if micro.weight != 0.0 {
                stage.accumulate(*position, round.groups.of(number), gradient);
            }
        }
        for (position, value) in phase.updates.iter().zip(&mut outputs) {
            stage.held.update_state(*position, value);
        }
        if let Some(carry) = round.carries.used {
            for (position, value) in phase.carried.iter().zip(outputs) {
                let index = micro.cut.carried.index_of(*position);
                let index = index.expect("a program replaces carried tensors only");
                let at = (carry.number, k.index(), index);
                stage.carried.insert(at, value);
            }
        } else {
            drop(outputs);
        }
        made
    }

    /// Clips the gradients of a stage and runs its optimizer.
    fn update(&mut self, index: StageIndex) -> ActionResult {
        let change = self.change()?;
        let stage = self.rank.stage_mut(index);
        // Devices other than the CPU would wait after each step for the norms to be read.
        if is_host(stage.device()) && self.report.gradient_norm.is_none() {
            let places = stage.own_pieces().iter().map(|piece| piece.place);
            let sums = SquareSums::of(&stage.gradients.complete);
            self.unread.squares.push((index, places.collect(), sums));
        }
        let rates = self.round.rates.as_deref();
        let rates = rates.expect("only a training step updates");
        let updated = stage.update(rates, change)?;
        match self.rank.setup.layout.replicas {
            1 => self.share_on_rank(index),
            _ => self.send_updated(index, updated),
        }
    }

    /// Passes updated values to the copies on this rank. Copies on other ranks receive a message.
    pub(super) fn share_on_rank(&mut self, index: StageIndex) -> ActionResult {
        if self.rank.setup.streamed.is_some() {
            // Each stage reads them again.
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

    /// Waits for a message.
    pub(super) fn receive_from(
        &mut self,
        from: RankIndex,
        message: LinkMessage,
    ) -> ActionResult<Vec<DynTensor>> {
        let values = self.link.poll(from, self.tag(message));
        values.map_err(|error| match error {
            LinkError::Timeout { from, key, timeout } => ActionError::Late {
                from,
                message: key,
                timeout,
                doing: self.rank.watch.all_except(self.rank.setup.rank),
            },
            error => error.into(),
        })
    }

    /// Waits for a message of the schedule.
    fn receive_message(&mut self, message: Message) -> ActionResult<Vec<DynTensor>> {
        let from = self.rank_of(message.sender());
        self.receive_from(from, LinkMessage::Schedule(message))
    }

    /// The rank that runs a stage in this replica.
    pub(super) fn rank_of(&self, stage: StageIndex) -> RankIndex {
        let setup = &self.rank.setup;
        setup.layout.rank_in(setup.replica, stage)
    }

    pub(super) fn tag(&self, message: LinkMessage) -> Tag {
        let round = self.round.number;
        Tag { round, message }
    }
}

impl ActionHost for OnRank<'_> {
    type Value = DynTensor;

    fn run(&mut self, job: Job<'_, DynTensor>) -> ActionResult<Vec<DynTensor>> {
        let (task, phase) = (job.task, job.phase);
        let program = self.load(job)?;
        let made = self.timed(program)?;
        Ok(self.store(task, phase, made))
    }

    fn run_pair(&mut self, jobs: [Job<'_, DynTensor>; 2]) -> ActionResult<[Vec<DynTensor>; 2]> {
        let tasks = jobs.each_ref().map(|job| job.task);
        let phases = jobs.each_ref().map(|job| job.phase);
        let [first, second] = jobs;
        let programs = [self.load(first)?, self.load(second)?];
        let is_on_host = is_host(&self.rank.setup.device);
        let [first, second] = self.timed(|| run_both(tasks, programs, is_on_host))?;
        Ok([
            self.store(tasks[0], phases[0], first),
            self.store(tasks[1], phases[1], second),
        ])
    }

    fn report(&mut self, micro_batch: MicroBatchIndex, name: Option<&str>, value: DynTensor) {
        let number = self.part.index(micro_batch);
        match name {
            None => self.unread.losses.push((number, value)),
            Some(name) => {
                self.report.outputs.push((number, name.to_owned()));
                self.unread.outputs.push(value);
            }
        }
    }

    fn send(&mut self, message: Message, values: Vec<DynTensor>) -> ActionResult {
        let to = self.rank_of(message.receiver());
        let tag = self.tag(LinkMessage::Schedule(message));
        Ok(self.link.send(to, tag, values)?)
    }

    fn receive(&mut self, message: Message, count: usize) -> ActionResult<Vec<DynTensor>> {
        let values = self.receive_message(message)?;
        check_length(count, values.len())?;
        let device = &self.rank.setup.device;
        let here = values.into_iter().map(|value| value.to_device(device));
        Ok(here.collect::<Result<_, _>>()?)
    }

    fn act(&mut self, action: Action) -> ActionResult {
        match action {
            Action::Send(message @ Message::Tie(tie)) => {
                let values = self.rank.stage_mut(tie.owner).shared_with(tie.copy);
                return self.send(message, values);
            }
            Action::Send(message @ Message::Norm { from, .. }) => {
                let norms = self.norms_of(from)?.to_message();
                return self.send(message, vec![norms]);
            }
            Action::Receive(message @ Message::Tie(tie)) => {
                let values = self.receive_message(message)?;
                let copy = self.rank.stage_mut(tie.copy);
                return copy.replace_shared(tie.owner, values);
            }
            Action::Receive(message @ Message::Norm { from, .. }) => {
                let norms = read_norms(&self.receive_message(message)?)?;
                self.norms.insert(from, norms);
                return Ok(());
            }
            Action::Reduce { stage, .. } => {
                self.reduce(stage)?;
                if self.rank.setup.streamed.is_some() && self.needs_norms() {
                    // While the stage has its parameters.
                    self.norms_of(stage)?;
                }
                return Ok(());
            }
            Action::Sum { stage } => self.sum(stage)?,
            Action::Update { stage } => self.update(stage)?,
            Action::Gather { stage } => self.gather(stage)?,
            _ => unreachable!("certified lists have no other actions"),
        }
        flush_device(&self.rank.setup.device, self.round)
    }

    fn kept(&mut self, _: Location, _: ValueId, value: &DynTensor) {
        if self.round.epoch.is_some() {
            self.bytes += value.bytes();
        }
    }

    fn released(&mut self, _: Location, _: ValueId, value: &DynTensor) {
        if self.round.epoch.is_some() {
            self.bytes = self.bytes.saturating_sub(value.bytes());
        }
    }
}

/// A program with its inputs, which runs until a rank fails.
trait LoadedProgram: FnOnce() -> ActionResult<Vec<DynTensor>> + Send {}

impl<P: FnOnce() -> ActionResult<Vec<DynTensor>> + Send> LoadedProgram for P {}

/// Runs two programs. On the CPU they run at the same time, each on a thread of the rank's pool. Other devices run their
/// queue in order, in parallel to this thread, so one thread fills the queue.
fn run_both(
    tasks: [Task; 2],
    [first, second]: [impl LoadedProgram; 2],
    is_on_host: bool,
) -> ActionResult<[Vec<DynTensor>; 2]> {
    // The error names the program that failed.
    let named = |task: Task, program: ActionResult<Vec<DynTensor>>| {
        let program = program.map_err(Box::new);
        program.map_err(|source| ActionError::OfPair { task, source })
    };
    let (first, second) = match is_on_host {
        true => rayon::join(|| caught(first), || caught(second)),
        false => (caught(first), caught(second)),
    };
    Ok([named(tasks[0], first)?, named(tasks[1], second)?])
}

/// Reads norms from a message.
pub(super) fn read_norms(values: &[DynTensor]) -> ActionResult<Norms> {
    check_length(1, values.len())?;
    Ok(Norms::from_message(&values[0].to_data()?))
}

/// Nanoseconds since the beginning of a round.
pub(super) fn since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Makes the device start its queue, so that it runs in parallel to this thread. If times are measured, waits until the queue
/// is done. The CPU has no queue.
fn flush_device(device: &Device, round: &Round) -> ActionResult {
    let flushed = match round.epoch {
        Some(_) => device.sync(),
        None => device.flush(),
    };
    flushed.map_err(|error| device_failed(device, error))
}

/// The state of a rank.
pub(crate) struct Rank {
    pub(super) setup: Arc<RankSetup>,
    pub(super) watch: Arc<Watch>,
    pub(super) stages: Vec<Stage>,
    /// Supplies streamed stages with their values.
    pub(super) streaming: Option<Streaming>,
}

impl Rank {
    /// Creates the stages of a rank, with their parameters unless they are streamed. Only a streaming rank keeps the source.
    pub(super) fn new(
        setup: RankSetup,
        watch: Arc<Watch>,
        source: Arc<dyn Source>,
    ) -> Result<Self, StartError> {
        let setup = Arc::new(setup);
        let (rank, layout) = (setup.rank, &setup.layout);
        let stages = layout.stages().zip(&layout.ranks);
        let stages = stages.filter(|(_, of)| **of == setup.place);
        let stages = stages.map(|(stage, _)| match setup.streamed {
            Some(_) => Ok(Stage::streamed(stage, &setup)),
            None => Stage::new(stage, &setup, &*source),
        });
        let stages: Result<Vec<Stage>, _> = stages.collect();
        let stages = stages.map_err(|source| StartError::Materialize { rank, source })?;
        let bytes: u64 = stages.iter().map(Stage::parameter_bytes).sum();
        tracing::info!(rank = rank.index(), bytes, "parameters materialized");
        let streamed = setup.streamed.as_ref();
        let streaming = streamed.map(|streamed| Streaming::new(&setup, source, streamed));
        Ok(Self {
            streaming,
            setup,
            watch,
            stages,
        })
    }

    pub(super) fn stage_indices(&self) -> Vec<StageIndex> {
        self.stages.iter().map(Stage::index).collect()
    }

    pub(super) fn stage_mut(&mut self, index: StageIndex) -> &mut Stage {
        stage_of(&mut self.stages, index)
    }
}
