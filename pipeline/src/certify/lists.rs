//! Runs the lists of all ranks on fingerprints; a program is one step.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tinderbox_deferred::{ParameterPath, ParameterTable};
use tinderbox_fake::ValueId;

use super::copies::{Copies, Version};
use super::messages::{Contents, Made};
use super::programs::CertifiedPrograms;
use super::sums::{Term, certify_sums};
use crate::cut::{Binding, Layout, Phase, StagePrograms};
use crate::kept::{Kept, Location};
use crate::lists::StepLists;
use crate::schedule::{
    Action, Compute, Message, MicroBatchIndex, RankIndex, Schedule, ScheduleMode, StageIndex, Task,
};
use crate::sum::{Groups, TreeSum};
use crate::trace::Given;
use crate::{CertifyError, CertifySite};

/// The lists of a step, with their programs.
pub(crate) struct CertifiedStep<'a> {
    /// The lists of each replica, and its first micro-batch.
    pub(crate) replicas: Vec<(&'a StepLists, usize)>,
    /// The programs of each micro-batch of all replicas.
    pub(crate) micro_batches: Vec<&'a CertifiedPrograms>,
    /// The groups in which gradients are added.
    pub(crate) groups: Groups,
    pub(crate) table: &'a ParameterTable,
    pub(crate) layout: &'a Layout,
    /// Whether an update needs the norms of the gradients of all stages.
    pub(crate) global_norm: bool,
}

/// Proves that the lists combine the values of the programs to the step of the uncut graph: each
/// program receives the values that it names, of its micro-batch and of the parameters before the
/// update; the gradient of each parameter is the sum over the micro-batches in their order, of all replicas in the
/// order of the tree, and each
/// running state is updated by them in their order; each stage that reads a carried tensor replaces it once
/// by its new value; each loss and named output is reported once; every copy of a parameter has the value
/// after the update; no value is left.
///
/// Cost: linear in the actions and in the values that programs exchange, times the micro-batches.
///
/// # Errors
///
/// [`CertifyError`] for the first difference.
pub(crate) fn certify_lists(step: &CertifiedStep<'_>) -> Result<(), CertifyError> {
    let mut replicas = Vec::new();
    let added = step.micro_batches.iter();
    let added = added.flat_map(|programs| &programs.gradients).copied();
    let added: BTreeSet<usize> = added.collect();
    for (lists, first) in &step.replicas {
        let mut run = ListRun::new(step, &added, lists, *first);
        run.all()?;
        run.end()?;
        replicas.push(run.complete);
    }
    match step.replicas[0].0.schedule.mode {
        ScheduleMode::Training => certify_sums(step, &replicas),
        ScheduleMode::ForwardOnly => Ok(()),
    }
}

/// A step of a replica in progress. Its micro-batches count from 0.
pub(super) struct ListRun<'a> {
    pub(super) step: &'a CertifiedStep<'a>,
    /// The parameters to whose gradient any micro-batch of any replica adds.
    pub(super) added: &'a BTreeSet<usize>,
    pub(super) lists: &'a StepLists,
    /// Its first micro-batch among the micro-batches of all replicas.
    pub(super) first: usize,
    pub(super) micro_batches: &'a [&'a CertifiedPrograms],
    /// The sums of the gradients of each parameter in progress, and those that are complete.
    pub(super) sums: Vec<TreeSum<Term>>,
    pub(super) complete: Vec<Option<Term>>,
    pub(super) schedule: &'a Schedule,
    /// The micro-batches that add to the gradient of each parameter, in the order in which they are added.
    pub(super) addends: Vec<Vec<usize>>,
    /// The micro-batches that update each running state, in their order.
    pub(super) updaters: BTreeMap<usize, Vec<usize>>,
    heads: Vec<usize>,
    /// The current action and its rank.
    at: Option<(RankIndex, Action)>,
    /// The values that later programs use: `certify_programs` has proven how each is computed.
    kept: Kept<()>,
    /// Messages that were sent and not yet received.
    pub(super) sent: HashMap<Message, Contents>,
    /// By stage.
    pub(super) copies: Vec<Copies>,
    /// The stages whose norms each rank has.
    norms: Vec<BTreeSet<StageIndex>>,
    /// The new values of carried tensors that stages have: stage, micro-batch, position in the batch.
    pub(super) carried: BTreeSet<(StageIndex, usize, usize)>,
    /// How often each loss (`None`) and named output was reported.
    reported: BTreeMap<(usize, Option<&'a str>), usize>,
}

impl<'a> ListRun<'a> {
    fn new(
        step: &'a CertifiedStep<'a>,
        added: &'a BTreeSet<usize>,
        lists: &'a StepLists,
        first: usize,
    ) -> Self {
        let schedule = &lists.schedule;
        let micro_batches = &step.micro_batches[first..][..schedule.micro_batches];
        let mut addends = vec![Vec::new(); step.table.len()];
        let mut updaters: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (k, programs) in micro_batches.iter().enumerate() {
            for position in &programs.updates {
                updaters.entry(*position).or_default().push(k);
            }
            for position in &programs.gradients {
                addends[*position].push(k);
            }
        }
        Self {
            step,
            added,
            lists,
            first,
            micro_batches,
            sums: vec![TreeSum::default(); step.table.len()],
            complete: vec![None; step.table.len()],
            schedule,
            heads: vec![0; schedule.ranks.len()],
            at: None,
            kept: Kept::default(),
            sent: HashMap::new(),
            copies: (0..schedule.stages)
                .map(|stage| Copies::new(step.layout, StageIndex::new(stage)))
                .collect(),
            norms: vec![BTreeSet::new(); schedule.ranks.len()],
            carried: BTreeSet::new(),
            reported: BTreeMap::new(),
            addends,
            updaters,
        }
    }

    /// Runs all ranks, each until it waits for a message that was not sent yet.
    fn all(&mut self) -> Result<(), CertifyError> {
        loop {
            let mut has_run = false;
            let mut waiting = None;
            for rank in 0..self.heads.len() {
                while let Some(action) = self.schedule.ranks[rank].get(self.heads[rank]) {
                    if let Action::Receive(message) = action
                        && !self.sent.contains_key(message)
                    {
                        waiting = waiting.or(Some((rank, *action)));
                        break;
                    }
                    self.act(RankIndex::new(rank), *action)?;
                    self.heads[rank] += 1;
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

    fn act(&mut self, rank: RankIndex, action: Action) -> Result<(), CertifyError> {
        self.at = Some((rank, action));
        let here = |stage| self.schedule.rank_of(stage) == Some(rank);
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
                self.reduce(stage);
                Ok(())
            }
            Action::Sum { stage } => self.sum_replicas(stage),
            Action::Update { stage } => self.update(stage),
            Action::Gather { stage } => self.gather(stage),
            _ => Err(self.expected("an action that ranks run", "another")),
        }
    }

    /// The current action and its rank.
    pub(super) fn at(&self) -> (RankIndex, Action) {
        self.at.expect("an action runs")
    }

    /// The stages whose norms the rank has.
    pub(super) fn norms(&mut self) -> &mut BTreeSet<StageIndex> {
        let (rank, _) = self.at();
        &mut self.norms[rank.index()]
    }

    pub(super) fn site(&self) -> Box<CertifySite> {
        let (rank, action) = self.at();
        Box::new(CertifySite {
            rank,
            stage: action.stage(),
            micro_batch: action.micro_batch(),
            at: format!("action {action}"),
        })
    }

    pub(super) fn programs(&self, stage: StageIndex, k: MicroBatchIndex) -> &'a StagePrograms {
        &self.micro_batches[k.index()].stages[stage.index()]
    }

    /// The error of an action that expected something else.
    pub(super) fn expected(&self, expected: &str, found: impl Into<String>) -> CertifyError {
        other_value(self.site(), expected, found.into())
    }

    fn phase(&self, task: Task) -> Result<&'a Phase, CertifyError> {
        let programs = self.programs(task.stage, task.micro_batch);
        let phase = programs.phase(task.compute);
        phase.ok_or_else(|| self.expected("a program that the stage has", task.compute.letter()))
    }

    /// Keeps a value for all its uses at a stage.
    pub(super) fn put(
        &mut self,
        location: Location,
        made: Made,
        needed: ValueId,
        uses: usize,
    ) -> Result<(), CertifyError> {
        let wanted = Made {
            value: needed,
            micro_batch: location.1,
        };
        if made != wanted {
            return Err(self.expected(&wanted.to_string(), made.to_string()));
        }
        match self.kept.put(location, needed, (), uses) {
            true => Ok(()),
            false => Err(self.expected("each value once", format!("{made} again"))),
        }
    }

    /// Uses a value of a stage.
    pub(super) fn take(
        &mut self,
        location: Location,
        value: ValueId,
    ) -> Result<Made, CertifyError> {
        let made = Made {
            value,
            micro_batch: location.1,
        };
        match self.kept.take(location, value) {
            Some(_) => Ok(made),
            None => Err(self.expected(&made.to_string(), "nothing")),
        }
    }

    /// Reads the inputs of a program.
    fn read(&mut self, task: Task) -> Result<(), CertifyError> {
        for binding in &self.phase(task)?.inputs {
            match *binding {
                Binding::Value(value) => {
                    self.take((task.stage, task.micro_batch), value)?;
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

    /// The path of a parameter.
    pub(super) fn path(&self, position: usize) -> &ParameterPath {
        &self.step.table.iter().as_slice()[position].path
    }

    pub(super) fn parameter(
        &self,
        position: usize,
        expected: Version,
        found: &'static str,
    ) -> CertifyError {
        let what = format!("`{}` is", self.path(position));
        differs(self.site(), what, expected.text().into(), found.into())
    }

    /// Keeps the outputs of a program.
    fn finish(&mut self, task: Task) -> Result<(), CertifyError> {
        let (rank, _) = self.at();
        let (stage, k) = (task.stage, task.micro_batch);
        let phase = self.phase(task)?;
        let is_split = self.lists.is_split(stage, k.index());
        for (value, takes) in &phase.outputs {
            let made = Made {
                value: *value,
                micro_batch: k,
            };
            self.put((stage, k), made, *value, takes.of(is_split))?;
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
            if let Some(value) = programs.loss {
                self.take((stage, k), value)?;
                *self.reported.entry((k.index(), None)).or_default() += 1;
            }
            for (name, value) in &programs.outputs {
                self.take((stage, k), *value)?;
                let of = (k.index(), Some(name.as_str()));
                *self.reported.entry(of).or_default() += 1;
            }
        }
        // Other stages of this rank read the values without a message.
        for (edge, values) in &programs.sends {
            let to = edge.to.stage;
            if !edge.from.is_run_by(&task) || self.schedule.rank_of(to) != Some(rank) {
                continue;
            }
            let received = &self.programs(to, k).received;
            let is_split = self.lists.is_split(to, k.index());
            for value in values {
                let made = self.take((stage, k), *value)?;
                let uses = received.get(value).map_or(0, |takes| takes.of(is_split));
                self.put((to, k), made, *value, uses)?;
            }
        }
        Ok(())
    }

    /// Checks the state after a step.
    fn end(&self) -> Result<(), CertifyError> {
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
        match self.schedule.mode {
            ScheduleMode::Training => self.end_copies(),
            ScheduleMode::ForwardOnly => Ok(()),
        }
    }

    pub(super) fn end_of(&self, stage: StageIndex, k: Option<MicroBatchIndex>) -> Box<CertifySite> {
        Box::new(CertifySite {
            rank: self.schedule.rank_of(stage).unwrap_or(RankIndex::new(0)),
            stage,
            micro_batch: k,
            at: "end of the step".into(),
        })
    }

    /// Checks that every loss and named output of every micro-batch was reported once, and no other.
    fn end_reports(&self) -> Result<(), CertifyError> {
        let mut wanted: BTreeMap<(usize, Option<&str>), usize> = BTreeMap::new();
        for (k, programs) in self.micro_batches.iter().enumerate() {
            let names = programs.outputs.iter().map(|name| Some(name.as_str()));
            let loss = programs.loss.then_some(None);
            wanted.extend(names.chain(loss).map(|name| ((k, name), 1)));
        }
        let all = wanted.keys().chain(self.reported.keys());
        for of in all {
            let (expected, found) = (wanted.get(of), self.reported.get(of));
            if expected != found {
                return Err(CertifyError::Reported {
                    what: of
                        .1
                        .map_or("the loss".into(), |name| format!("output `{name}`")),
                    micro_batch: MicroBatchIndex::new(of.0),
                    expected: expected.copied().unwrap_or(0),
                    found: found.copied().unwrap_or(0),
                });
            }
        }
        Ok(())
    }
}

/// The error of a place in a step that expected another value.
pub(super) fn other_value(site: Box<CertifySite>, expected: &str, found: String) -> CertifyError {
    CertifyError::Value {
        site,
        expected: expected.to_owned(),
        found,
    }
}

/// The error of a computation that differs from the recorded one.
pub(super) fn differs(
    site: Box<CertifySite>,
    what: String,
    expected: String,
    found: String,
) -> CertifyError {
    CertifyError::Differs {
        site,
        what,
        expected,
        found,
    }
}
