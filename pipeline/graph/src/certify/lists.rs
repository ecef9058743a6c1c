//! Runs the lists of all ranks on fingerprints; a program is one step.

use std::collections::{BTreeMap, BTreeSet};

use super::CertifiedStep;
use super::refused::{Result, other_value};
use super::run::{ListRun, Progress, Version};
use super::sums::{Term, certify_sums};
use crate::CertifyError;
use crate::cut::{Binding, Phase};
use crate::schedule::{
    Action, Compute, MicroBatchIndex, RankIndex, ScheduleMode, StageIndex, Task,
};
use crate::trace::Given;

/// Proves that the lists combine the values of the programs to the step of the uncut graph:
///
/// - Each program receives the values that it names, of its micro-batch and of the parameters before the update.
/// - The gradient of each parameter is the sum over the micro-batches in their order, of all replicas in the order of the tree.
/// - Each running state is updated by the micro-batches in their order.
/// - Each stage that reads a carried tensor replaces it once by its new value.
/// - Each loss and each named output is reported once.
/// - Every copy of a parameter has the value after the update.
/// - No value is left.
///
/// Cost: linear in the actions and in the values that programs exchange, times the micro-batches.
///
/// # Errors
///
/// [`CertifyError`] for the first difference.
pub fn certify_lists(step: &CertifiedStep<'_>) -> Result<()> {
    let added = step.micro_batches.iter();
    let added = added.flat_map(|programs| &programs.gradients).copied();
    let added: BTreeSet<usize> = added.collect();
    let mut replicas = Vec::new();
    for (lists, first) in &step.replicas {
        let mut run = ListRun::new(step, &added, lists, *first);
        run.all()?;
        run.end()?;
        let sums = run.sums.iter_mut();
        replicas.push(sums.map(|sum| sum.finish(Term::plus)).collect());
    }
    match step.replicas[0].0.schedule.mode {
        ScheduleMode::Training => certify_sums(step, &replicas),
        ScheduleMode::ForwardOnly => Ok(()),
    }
}

impl<'a> ListRun<'a> {
    /// Runs all ranks, each until it waits for a message that was not sent yet.
    fn all(&mut self) -> Result<()> {
        let schedule = self.schedule();
        let mut heads = vec![0; schedule.ranks.len()];
        loop {
            let mut has_run = false;
            let mut waiting = None;
            for (rank, head) in heads.iter_mut().enumerate() {
                while let Some(action) = schedule.ranks[rank].get(*head) {
                    if let Action::Receive(message) = action
                        && !self.sent.contains_key(message)
                    {
                        waiting = waiting.or(Some((rank, *action)));
                        break;
                    }
                    self.act(RankIndex::new(rank), *action)?;
                    *head += 1;
                    has_run = true;
                }
            }
            match waiting {
                None => return Ok(()),
                Some(_) if has_run => {}
                Some((rank, action)) => {
                    self.at = Some((RankIndex::new(rank), action));
                    return Err(self.expected("a message that is sent", "no such message"));
                }
            }
        }
    }

    fn act(&mut self, rank: RankIndex, action: Action) -> Result<()> {
        self.at = Some((rank, action));
        let here = |stage| self.schedule().rank_of(stage) == Some(rank);
        let tasks = action.tasks().iter().map(|task| task.stage);
        if !tasks.chain([action.stage()]).all(here) {
            return Err(self.expected("an action of this rank's stages", "another"));
        }
        match action {
            Action::Compute(task) => {
                self.read(task)?;
                self.finish(task)
            }
            // Both programs of a pair read their inputs before either has produced outputs.
            Action::Overlap([forward, backward]) => {
                self.read(forward)?;
                self.read(backward)?;
                self.finish(forward)?;
                self.finish(backward)
            }
            Action::Send(message) => self.send(message),
            Action::Receive(message) => self.receive(message),
            Action::Reduce { stage, .. } => {
                self.complete(stage)?;
                let progress = &mut self.copies(stage).progress;
                *progress = Progress::Reduced.max(*progress);
                Ok(())
            }
            Action::Sum { stage } => self.sum_replicas(stage),
            Action::Update { stage } => self.update(stage),
            Action::Gather { stage } => self.gather(stage),
            _ => Err(self.expected("an action that ranks run", "another")),
        }
    }

    fn phase(&self, task: Task) -> Result<&'a Phase> {
        let programs = self.programs(task.stage, task.micro_batch);
        let phase = programs.phase(task.compute);
        phase.ok_or_else(|| self.expected("a program that the stage has", task.compute.letter()))
    }

    /// Reads the inputs of a program.
    fn read(&mut self, task: Task) -> Result<()> {
        for binding in &self.phase(task)?.inputs {
            match *binding {
                Binding::Value(value) => {
                    self.consume((task.stage, task.micro_batch), value)?;
                }
                Binding::Given(Given::Parameter(position)) => {
                    let version = self.copies[task.stage.index()].versions.get(&position);
                    if version != Some(&Version::Before) {
                        let found = version.map_or("not on this stage", |found| found.text());
                        return Err(self.parameter(position, Version::Before, found));
                    }
                    self.read_state(task, position)?;
                }
                Binding::Given(Given::Input(position)) => self.read_carried(task, position)?,
                // Constants, the batch and the weight are the same in every run, or belong to the
                // task's micro-batch.
                Binding::Given(_) | Binding::Constant(_) => {}
            }
        }
        Ok(())
    }

    /// Keeps the outputs of a program.
    fn finish(&mut self, task: Task) -> Result<()> {
        let (rank, _) = self.at();
        let (stage, k) = (task.stage, task.micro_batch);
        let phase = self.phase(task)?;
        let is_split = self.replica.lists.is_split(stage, k.index());
        for (value, consumers) in &phase.outputs {
            self.put((stage, k), *value, consumers.of(is_split))?;
        }
        for position in &phase.gradients {
            self.add(task, *position)?;
        }
        for position in &phase.updates {
            self.advance(task, *position)?;
        }
        for position in &phase.carried {
            self.replace_carried(task, *position)?;
        }
        let programs = self.programs(stage, k);
        if task.compute == Compute::Forward {
            let loss = programs.loss.iter().map(|value| (None, value));
            let named = programs.outputs.iter();
            let named = named.map(|(name, value)| (Some(name.as_str()), value));
            for (name, value) in loss.chain(named) {
                self.consume((stage, k), *value)?;
                *self.reported.entry((k.index(), name)).or_default() += 1;
            }
        }
        // Other stages of this rank read the values without a message.
        for (edge, values) in &programs.sends {
            let to = edge.to.stage;
            if !edge.from.is_run_by(&task) || self.schedule().rank_of(to) != Some(rank) {
                continue;
            }
            let received = &self.programs(to, k).received;
            let is_split = self.replica.lists.is_split(to, k.index());
            for value in values {
                self.consume((stage, k), *value)?;
                let consumers = received.get(value);
                let uses = consumers.map_or(0, |consumers| consumers.of(is_split));
                self.put((to, k), *value, uses)?;
            }
        }
        Ok(())
    }

    /// Checks the state after a step.
    fn end(&self) -> Result<()> {
        if let Some((((stage, k), value), uses)) = self.kept.left() {
            let found = format!("{value} with {uses} uses left");
            let site = self.end_of(stage, Some(k));
            return Err(other_value(site, "no value that is still kept", found));
        }
        if let Some(message) = self.sent.keys().min() {
            let site = self.end_of(message.receiver(), None);
            let found = format!("{}", Action::Send(*message));
            return Err(other_value(site, "every message received", found));
        }
        self.end_reports()?;
        self.end_carried()?;
        match self.schedule().mode {
            ScheduleMode::Training => self.end_copies(),
            ScheduleMode::ForwardOnly => Ok(()),
        }
    }

    /// Checks that the losses and named outputs of all micro-batches, and no others, were reported once.
    fn end_reports(&self) -> Result<()> {
        let mut wanted: BTreeMap<(usize, Option<&str>), usize> = BTreeMap::new();
        for (k, programs) in self.replica.micro_batches.iter().enumerate() {
            let outputs = programs.joint.outputs().iter();
            let names = outputs.map(|(name, _)| Some(name.as_str()));
            let loss = programs.joint.loss().map(|_| None);
            wanted.extend(names.chain(loss).map(|name| ((k, name), 1)));
        }
        for of in wanted.keys().chain(self.reported.keys()) {
            let (expected, found) = (wanted.get(of), self.reported.get(of));
            if expected != found {
                let output = |name| format!("output `{name}`");
                return Err(CertifyError::Reported {
                    what: of.1.map_or("the loss".into(), output),
                    micro_batch: MicroBatchIndex::new(of.0),
                    expected: expected.copied().unwrap_or(0),
                    found: found.copied().unwrap_or(0),
                });
            }
        }
        Ok(())
    }

    /// Fails if a program reads a carried tensor that its stage does not replace, or has replaced.
    fn read_carried(&self, task: Task, position: usize) -> Result<()> {
        let k = task.micro_batch.index();
        let programs = self.replica.micro_batches[k];
        if !programs.joint.carried().contains_key(&position) {
            return Ok(());
        }
        let tensor = format!("tensor {position} of the batch");
        let programs = &programs.stages[task.stage.index()];
        let phase = programs.phase(task.compute);
        if !phase.is_some_and(|phase| phase.carried.contains(&position)) {
            let expected = format!("the new value of {tensor} from the stage that reads it");
            return Err(self.expected(&expected, "no new value"));
        }
        match self.carried.contains(&(task.stage, k, position)) {
            false => Ok(()),
            true => Err(self.expected(&tensor, "its new value")),
        }
    }

    /// Replaces a carried tensor.
    fn replace_carried(&mut self, task: Task, position: usize) -> Result<()> {
        let place = (task.stage, task.micro_batch.index(), position);
        if self.carried.insert(place) {
            return Ok(());
        }
        let expected = format!("one new value of tensor {position} of the batch");
        Err(self.expected(&expected, "a second one"))
    }

    /// Fails if no stage has replaced a carried tensor.
    fn end_carried(&self) -> Result<()> {
        for (k, programs) in self.replica.micro_batches.iter().enumerate() {
            for position in programs.joint.carried().keys() {
                let mut stages = (0..self.schedule().stages).map(StageIndex::new);
                if !stages.any(|stage| self.carried.contains(&(stage, k, *position))) {
                    let site = self.end_of(StageIndex::new(0), Some(MicroBatchIndex::new(k)));
                    let expected = format!("a new value of tensor {position} of the batch");
                    return Err(other_value(site, &expected, "none".into()));
                }
            }
        }
        Ok(())
    }
}
