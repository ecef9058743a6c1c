//! The interpreter of actions: which values each program of a stage reads, and how long the values that it computes are kept.
//!
//! An [`ActionHost`] defines the values and runs the programs. Values are tensors on a rank, tensors with an observer in a
//! replay, or sizes in bytes in a prediction of memory. The certification of lists has its own interpreter, so that it finds
//! faults of this one.

use burn::tensor::DType;
use tinderbox_deferred::Executable;
use tinderbox_fake::ValueId;

use crate::ActionResult;
use crate::cut::{Binding, Phase, StagePrograms};
use crate::kept::{Kept, Location};
use crate::lists::StepLists;
use crate::schedule::{Action, Compute, Message, MicroBatchIndex, StageIndex, Task};
use crate::trace::Given;

/// Runs the programs of an interpreter.
pub(crate) trait ActionHost {
    /// A value of a stage and micro-batch.
    type Value: Clone;

    /// Runs a program, and returns the values that it computes for other programs, in the order of [`Phase::outputs`].
    fn run(&mut self, job: Job<'_, Self::Value>) -> ActionResult<Vec<Self::Value>>;

    /// Runs two programs at the same time, if it can.
    fn run_pair(
        &mut self,
        [first, second]: [Job<'_, Self::Value>; 2],
    ) -> ActionResult<[Vec<Self::Value>; 2]> {
        Ok([self.run(first)?, self.run(second)?])
    }

    /// Receives the loss of a micro-batch, or a named output.
    fn report(&mut self, micro_batch: MicroBatchIndex, name: Option<&str>, value: Self::Value);

    /// Sends the values of a message to another rank.
    fn send(&mut self, _: Message, _: Vec<Self::Value>) -> ActionResult {
        unreachable!("stages without ranks send no messages")
    }

    /// Waits for a message with this number of values.
    fn receive(&mut self, _: Message, _: usize) -> ActionResult<Vec<Self::Value>> {
        unreachable!("stages without ranks receive no messages")
    }

    /// Runs an action that reads no value of a micro-batch: a sum, an update, a message of parameters or norms.
    fn act(&mut self, action: Action) -> ActionResult;

    /// Called when a stage begins to keep a value.
    fn kept(&mut self, _: Location, _: ValueId, _: &Self::Value) {}

    /// Called when a stage has used a value for the last time.
    fn released(&mut self, _: Location, _: ValueId, _: &Self::Value) {}
}

/// A program that is about to run.
pub(crate) struct Job<'a, V> {
    pub(crate) task: Task,
    pub(crate) phase: &'a Phase,
    /// The values of its [`Binding::Value`] inputs, in their order.
    pub(crate) read: Vec<V>,
}

impl<V: Clone> Job<'_, V> {
    /// Returns the inputs of the program, which is loaded on a device. `given` returns the inputs that no program computes, in
    /// the dtype in which the program reads them.
    pub(crate) fn inputs<I: From<V>>(
        self,
        loaded: &Executable,
        constants: &[V],
        mut given: impl FnMut(Given, DType) -> ActionResult<I>,
    ) -> ActionResult<Vec<I>> {
        let mut read = self.read.into_iter();
        let types = loaded.program().input_types().iter();
        // Inputs are large, so they are not moved again.
        let mut inputs = Vec::with_capacity(self.phase.inputs.len());
        for (binding, (_, dtype)) in self.phase.inputs.iter().zip(types) {
            inputs.push(match *binding {
                Binding::Given(of) => given(of, *dtype)?,
                Binding::Constant(position) => constants[position].clone().into(),
                Binding::Value(_) => read.next().expect("every value was read").into(),
            });
        }
        Ok(inputs)
    }
}

/// The programs of a step, and how they run.
pub(crate) struct Step<'a> {
    /// The programs of all stages, for each micro-batch.
    pub(crate) programs: Vec<&'a [StagePrograms]>,
    /// The lists; without them, every backward runs whole.
    pub(crate) lists: Option<&'a StepLists>,
    /// Whether each stage receives values from the others without messages.
    pub(crate) is_local: Vec<bool>,
}

impl<'a> Step<'a> {
    fn of(&self, micro_batch: MicroBatchIndex, stage: StageIndex) -> &'a StagePrograms {
        &self.programs[micro_batch.index()][stage.index()]
    }

    fn is_split(&self, stage: StageIndex, k: MicroBatchIndex) -> bool {
        self.lists.is_some_and(|of| of.is_split(stage, k.index()))
    }
}

/// Runs actions on a host.
pub(crate) struct ActionInterpreter<'a, H: ActionHost> {
    step: Step<'a>,
    pub(crate) host: H,
    /// The values that programs have yet to read.
    pub(crate) values: Kept<H::Value>,
}

impl<'a, H: ActionHost> ActionInterpreter<'a, H> {
    pub(crate) fn new(step: Step<'a>, host: H) -> Self {
        Self {
            step,
            host,
            values: Kept::default(),
        }
    }

    /// Runs one action.
    pub(crate) fn act(&mut self, action: &Action) -> ActionResult {
        match *action {
            Action::Compute(task) => self.run(task),
            Action::Overlap(tasks) => {
                let jobs = tasks.map(|task| self.job(task));
                let [first, second] = self.host.run_pair(jobs)?;
                self.finish(tasks[0], first);
                self.finish(tasks[1], second);
                Ok(())
            }
            Action::Send(message @ Message::Values { edge, micro_batch }) => {
                let sent = self.step.of(micro_batch, edge.from.stage).sends.get(&edge);
                let at = (edge.from.stage, micro_batch);
                // Micro-batches of other shapes may have fewer edges, which are empty.
                let sent = sent.into_iter().flatten();
                let values = sent.map(|id| self.consume(at, *id)).collect();
                self.host.send(message, values)
            }
            Action::Receive(message @ Message::Values { edge, micro_batch }) => {
                let received = self.step.of(micro_batch, edge.to.stage).receives.get(&edge);
                let ids = received.map_or(&[][..], Vec::as_slice);
                let values = self.host.receive(message, ids.len())?;
                for (id, value) in ids.iter().zip(values) {
                    self.put_received((edge.to.stage, micro_batch), *id, value);
                }
                Ok(())
            }
            action => self.host.act(action),
        }
    }

    /// Runs the program of a task.
    pub(crate) fn run(&mut self, task: Task) -> ActionResult {
        let job = self.job(task);
        let outputs = self.host.run(job)?;
        self.finish(task, outputs);
        Ok(())
    }

    /// Collects the values of other programs that a program reads.
    fn job(&mut self, task: Task) -> Job<'a, H::Value> {
        let phase = self.step.of(task.micro_batch, task.stage);
        let phase = phase.phase(task.compute);
        let phase = phase.expect("certified lists run programs that the stage has");
        let at = (task.stage, task.micro_batch);
        let read = phase.inputs.iter().filter_map(|binding| match binding {
            Binding::Value(id) => Some(self.consume(at, *id)),
            Binding::Given(_) | Binding::Constant(_) => None,
        });
        let read = read.collect();
        Job { task, phase, read }
    }

    /// Keeps the outputs of a program, reports the loss and the named outputs, and passes values to other stages of this rank.
    fn finish(&mut self, task: Task, outputs: Vec<H::Value>) {
        let k = task.micro_batch;
        let programs = self.step.of(k, task.stage);
        let is_split = self.step.is_split(task.stage, k);
        let at = (task.stage, k);
        let phase = programs.phase(task.compute);
        let made = phase.into_iter().flat_map(|phase| &phase.outputs);
        for ((id, consumers), output) in made.zip(outputs) {
            self.put(at, *id, output, consumers.of(is_split));
        }
        if task.compute == Compute::Forward {
            if let Some(loss) = programs.loss {
                let loss = self.consume(at, loss);
                self.host.report(k, None, loss);
            }
            for (name, id) in &programs.outputs {
                let value = self.consume(at, *id);
                self.host.report(k, Some(name), value);
            }
        }
        for (edge, ids) in &programs.sends {
            let to = edge.to.stage;
            if edge.from.is_run_by(&task) && self.step.is_local[to.index()] {
                for id in ids {
                    let value = self.consume(at, *id);
                    self.put_received((to, k), *id, value);
                }
            }
        }
    }

    /// Keeps a value of another stage for its uses by a stage.
    fn put_received(&mut self, at: Location, id: ValueId, value: H::Value) {
        let (stage, k) = at;
        let received = &self.step.of(k, stage).received;
        let consumers = received.get(&id).copied().unwrap_or_default();
        let uses = consumers.of(self.step.is_split(stage, k));
        self.put(at, id, value, uses);
    }

    fn put(&mut self, at: Location, id: ValueId, value: H::Value, uses: usize) {
        if uses > 0 {
            self.host.kept(at, id, &value);
            self.values.put(at, id, value, uses);
        }
    }

    /// Uses a value once.
    fn consume(&mut self, at: Location, id: ValueId) -> H::Value {
        let consumed = self.values.consume(at, id);
        let (value, is_last) = consumed.expect("certified lists use values that are kept");
        if is_last {
            self.host.released(at, id, &value);
        }
        value
    }
}
