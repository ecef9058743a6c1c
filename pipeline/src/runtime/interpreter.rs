//! The interpreter of a rank's list of actions.
//!
//! The interpreter passes values from one program to the next, and keeps each value until its last use. An [`ActionHost`]
//! defines what a value is, and runs the programs. There are three hosts: a rank, where values are tensors; a replay, which
//! also observes the tensors; and a prediction of memory, where values are sizes in bytes.
//!
//! The certification of lists has its own interpreter, so that it finds faults of this one.

use burn::tensor::DType;
use tinderbox_deferred::Executable;
use tinderbox_fake::ValueId;

use crate::ActionResult;
use crate::cut::{Binding, Phase, StagePrograms};
use crate::kept::{Kept, Location};
use crate::lists::StepLists;
use crate::schedule::{Action, Compute, Message, MicroBatchIndex, StageIndex, Task};
use crate::trace::Given;

/// Runs programs and moves messages for an [`ActionInterpreter`].
pub(crate) trait ActionHost {
    /// A value that a program computes or reads, for one stage and micro-batch.
    type Value: Clone;

    /// Runs a program, and returns the values that it computes for other programs, in the order of [`Phase::outputs`].
    fn run(&mut self, job: Job<'_, Self::Value>) -> ActionResult<Vec<Self::Value>>;

    /// Runs two programs, at the same time if the host can. Default: one after the other.
    fn run_pair(
        &mut self,
        [first, second]: [Job<'_, Self::Value>; 2],
    ) -> ActionResult<[Vec<Self::Value>; 2]> {
        Ok([self.run(first)?, self.run(second)?])
    }

    /// Reports a named output of a micro-batch, or its loss if there is no name.
    fn report(&mut self, micro_batch: MicroBatchIndex, name: Option<&str>, value: Self::Value);

    /// Sends the values of a message to another rank.
    fn send(&mut self, _: Message, _: Vec<Self::Value>) -> ActionResult {
        unreachable!("stages without ranks send no messages")
    }

    /// Waits for a message with this number of values.
    fn receive(&mut self, _: Message, _: usize) -> ActionResult<Vec<Self::Value>> {
        unreachable!("stages without ranks receive no messages")
    }

    /// Runs any other action: a sum, an update, a message of parameters or norms. It uses no values of the interpreter.
    fn act(&mut self, action: Action) -> ActionResult;

    /// Called when a stage begins to keep a value.
    fn kept(&mut self, _: Location, _: ValueId, _: &Self::Value) {}

    /// Called when a stage has used a value for the last time.
    fn released(&mut self, _: Location, _: ValueId, _: &Self::Value) {}
}

/// A program that is about to run, with the values that it reads.
pub(crate) struct Job<'a, V> {
    pub(crate) task: Task,
    /// The program.
    pub(crate) phase: &'a Phase,
    /// The values of the [`Binding::Value`] inputs, in the order of the inputs.
    pub(crate) read: Vec<V>,
}

impl<V: Clone> Job<'_, V> {
    /// Returns all inputs of the program, which is loaded on a device, in their order. `given` returns an input that no program
    /// computes, such as a parameter, in the dtype in which the program reads it.
    pub(crate) fn inputs<I: From<V>>(
        self,
        loaded: &Executable,
        constants: &[V],
        mut given: impl FnMut(Given, DType) -> ActionResult<I>,
    ) -> ActionResult<Vec<I>> {
        let mut read = self.read.into_iter();
        let types = loaded.program().input_types().iter();
        // With the whole capacity, because a vector that grows moves its elements, and these are large.
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
    /// The lists, which decide which backwards are split. Without lists, every backward runs whole.
    pub(crate) lists: Option<&'a StepLists>,
    /// Whether each stage is on this rank. Such a stage gets the values of other stages of this rank without messages.
    pub(crate) is_local: Vec<bool>,
}

impl<'a> Step<'a> {
    /// Returns the programs of a stage for a micro-batch.
    fn of(&self, micro_batch: MicroBatchIndex, stage: StageIndex) -> &'a StagePrograms {
        &self.programs[micro_batch.index()][stage.index()]
    }

    /// Returns whether the backward of a stage runs as two programs.
    fn is_split(&self, stage: StageIndex, k: MicroBatchIndex) -> bool {
        self.lists.is_some_and(|of| of.is_split(stage, k.index()))
    }
}

/// Runs actions on a host.
pub(crate) struct ActionInterpreter<'a, H: ActionHost> {
    step: Step<'a>,
    pub(crate) host: H,
    /// The values that still have uses.
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
                // The lists are for all micro-batches. A micro-batch of another shape may have no values for an edge, and
                // sends an empty message, because the receiver waits for one.
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

    /// Collects the values that a program reads from earlier programs. This counts as one use of each value.
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

    /// Keeps the outputs of a program, and passes values to other stages of this rank. After a forward, reports the loss and
    /// the named outputs.
    fn finish(&mut self, task: Task, outputs: Vec<H::Value>) {
        let k = task.micro_batch;
        let programs = self.step.of(k, task.stage);
        let is_split = self.step.is_split(task.stage, k);
        let at = (task.stage, k);
        let phase = programs.phase(task.compute);
        let declared = phase.into_iter().flat_map(|phase| &phase.outputs);
        for ((id, consumers), output) in declared.zip(outputs) {
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

    /// Keeps a value that another stage has computed, for the stage and micro-batch that use it.
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

    /// Uses a value once, and releases it after its last use.
    fn consume(&mut self, at: Location, id: ValueId) -> H::Value {
        let consumed = self.values.consume(at, id);
        let (value, is_last) = consumed.expect("certified lists use values that are kept");
        if is_last {
            self.host.released(at, id, &value);
        }
        value
    }
}
