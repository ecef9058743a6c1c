//! Messages, sums of gradients and updates of a step.

use super::refused::{Result, differs, other_value};
use super::run::{Contents, ListRun, Progress, Version, text as value_text};
use super::sums::Term;
use crate::CertifyError;
use crate::schedule::{Compute, Message, StageIndex, Task};

impl ListRun<'_> {
    pub(super) fn send(&mut self, message: Message) -> Result<()> {
        let parcel = match message {
            Message::Values { edge, micro_batch } => {
                let sends = &self.programs(edge.from.stage, micro_batch).sends;
                let values = sends.get(&edge).map_or(&[][..], Vec::as_slice);
                for value in values {
                    self.consume((edge.from.stage, micro_batch), *value)?;
                }
                Contents::Values(values.to_vec())
            }
            Message::Tie(tie) => {
                let versions = &self.copies[tie.owner.index()].versions;
                let shared = self.step.layout.shared(tie.owner, tie.copy);
                let shared = shared.filter_map(|at| Some((at, *versions.get(&at)?)));
                Contents::Parameters(shared.collect())
            }
            Message::Norm { from, .. } => {
                self.measure(from)?;
                Contents::Norms
            }
        };
        match self.sent.insert(message, parcel) {
            None => Ok(()),
            Some(_) => Err(self.expected("each message once", "a duplicate")),
        }
    }

    pub(super) fn receive(&mut self, message: Message) -> Result<()> {
        let parcel = self.sent.remove(&message);
        match (message, parcel) {
            (Message::Values { edge, micro_batch }, Some(Contents::Values(values))) => {
                let to = edge.to.stage;
                let programs = self.programs(to, micro_batch);
                let needed = programs.receives.get(&edge).map_or(&[][..], Vec::as_slice);
                self.same_length(needed.len(), values.len())?;
                let is_split = self.replica.lists.is_split(to, micro_batch.index());
                for (needed, made) in needed.iter().zip(values) {
                    if made != *needed {
                        let needed = value_text(*needed, micro_batch);
                        return Err(self.expected(&needed, value_text(made, micro_batch)));
                    }
                    let consumers = programs.received.get(needed);
                    let uses = consumers.map_or(0, |consumers| consumers.of(is_split));
                    self.put((to, micro_batch), *needed, uses)?;
                }
                Ok(())
            }
            (Message::Tie(tie), Some(Contents::Parameters(values))) => {
                let needed: Vec<usize> = self.step.layout.shared(tie.owner, tie.copy).collect();
                self.same_length(needed.len(), values.len())?;
                for (position, (sent, version)) in needed.into_iter().zip(values) {
                    if position != sent {
                        let found = "the value of another parameter";
                        return Err(self.parameter(position, Version::After, found));
                    }
                    self.copies(tie.copy).versions.insert(position, version);
                }
                Ok(())
            }
            (Message::Norm { from, .. }, Some(Contents::Norms)) => {
                self.norms().insert(from);
                Ok(())
            }
            _ => Err(self.expected("a message of its kind", "another")),
        }
    }

    fn same_length(&self, needed: usize, found: usize) -> Result<()> {
        if needed == found {
            return Ok(());
        }
        let needed = format!("a message of {needed} values");
        Err(self.expected(&needed, format!("one of {found}")))
    }

    /// Adds a gradient of a micro-batch to its sum.
    pub(super) fn add(&mut self, task: Task, position: usize) -> Result<()> {
        let k = task.micro_batch.index();
        let addends = &self.changes.addends[position];
        let copies = &mut self.copies[task.stage.index()];
        let Some(added) = copies.added.get_mut(&position) else {
            let owner = self.step.layout.owners[position];
            let needed = format!("its parts at its owner, stage {owner}, alone");
            return Err(self.sum(position, needed, Some(k)));
        };
        match addends.get(*added) {
            Some(next) if *next == k => {
                *added += 1;
                let number = self.replica.first + k;
                let group = self.step.groups.of(number);
                self.sums[position].add(group, Term::of(number), Term::plus);
                Ok(())
            }
            next => Err(self.sum(position, text(next.copied()), Some(k))),
        }
    }

    fn sum(&self, position: usize, expected: String, found: Option<usize>) -> CertifyError {
        let path = self.path(position);
        let what = format!("the gradient of `{path}` adds");
        differs(self.site(), [what, expected, text(found)])
    }

    /// Fails unless the earlier micro-batches, and no others, have updated a running state that a program reads.
    pub(super) fn read_state(&self, task: Task, position: usize) -> Result<()> {
        let Some(updaters) = self.changes.updaters.get(&position) else {
            return Ok(());
        };
        let k = task.micro_batch.index();
        let advanced = self.copies[task.stage.index()].advanced(position);
        let earlier = updaters.partition_point(|updater| *updater < k);
        match task.compute == Compute::Forward && advanced == earlier {
            true => Ok(()),
            false => Err(self.state(position, earlier, advanced)),
        }
    }

    /// Updates a running state.
    pub(super) fn advance(&mut self, task: Task, position: usize) -> Result<()> {
        self.read_state(task, position)?;
        let owner = self.step.layout.owners[position];
        if task.stage != owner {
            let needed = format!("its owner, stage {owner}, alone");
            return Err(self.expected(&needed, format!("stage {}", task.stage)));
        }
        let advanced = &mut self.copies(task.stage).advanced;
        *advanced.entry(position).or_default() += 1;
        Ok(())
    }

    fn state(&self, position: usize, expected: usize, found: usize) -> CertifyError {
        let what = format!("`{}` is", self.path(position));
        let text = |count: usize| format!("its value after {count} micro-batches");
        differs(self.site(), [what, text(expected), text(found)])
    }

    /// Fails if a micro-batch is missing in a gradient or in the updates of a running state.
    pub(super) fn complete(&self, stage: StageIndex) -> Result<()> {
        for (position, updaters) in &self.changes.updaters {
            let advanced = self.copies[stage.index()].advanced(*position);
            let is_owner = self.step.layout.owners[*position] == stage;
            if is_owner && advanced != updaters.len() {
                return Err(self.state(*position, updaters.len(), advanced));
            }
        }
        for (position, added) in &self.copies[stage.index()].added {
            if let Some(next) = self.changes.addends[*position].get(*added) {
                return Err(self.sum(*position, text(Some(*next)), None));
            }
        }
        Ok(())
    }

    fn has_replicas(&self) -> bool {
        self.step.replicas.len() > 1
    }

    /// Fails unless this is the last part of its update that a stage has done.
    fn last_done(&self, stage: StageIndex, part: Progress, expected: &str) -> Result<()> {
        match self.copies[stage.index()].progress == part {
            true => Ok(()),
            false => Err(self.expected(expected, format!("stage {stage} at another time"))),
        }
    }

    /// Sums the gradients of a stage over the replicas, which [`certify_sums`](super::sums::certify_sums) does.
    pub(super) fn sum_replicas(&mut self, stage: StageIndex) -> Result<()> {
        self.last_done(stage, Progress::Reduced, "a sum after the reduce")?;
        self.copies(stage).progress = Progress::Summed;
        Ok(())
    }

    /// Fails unless the gradients of a stage are complete in all replicas, and the stage is not updated.
    fn check_summed(&self, stage: StageIndex, expected: &str) -> Result<()> {
        self.complete(stage)?;
        let summed = match self.has_replicas() {
            true => Progress::Summed,
            false => Progress::Reduced,
        };
        self.last_done(stage, summed, expected)
    }

    /// Records the norms of the gradients of a stage.
    fn measure(&mut self, stage: StageIndex) -> Result<()> {
        self.check_summed(stage, "norms after the reduce and before the update")?;
        self.norms().insert(stage);
        Ok(())
    }

    /// Updates the parameters of a stage, and the copies on stages of the same rank.
    pub(super) fn update(&mut self, stage: StageIndex) -> Result<()> {
        self.check_summed(stage, "one update after the reduce")?;
        if self.step.global_norm {
            let (rank, _) = self.at();
            let stages: Vec<StageIndex> = self.schedule().stages_of(rank).collect();
            for own in &stages {
                if !self.norms().contains(own) {
                    self.measure(*own)?;
                }
            }
            self.all_norms()?;
        }
        self.copies(stage).progress = Progress::Updated;
        // Each of several replicas has updated some of them only.
        if !self.has_replicas() {
            self.settle(stage);
        }
        Ok(())
    }

    /// Receives the parameters of a stage that the other replicas have updated.
    pub(super) fn gather(&mut self, stage: StageIndex) -> Result<()> {
        self.last_done(stage, Progress::Updated, "a gather after the update")?;
        self.copies(stage).progress = Progress::Gathered;
        self.settle(stage);
        Ok(())
    }

    /// Gives the parameters of a stage, and their copies on stages of the same rank, their updated values.
    fn settle(&mut self, stage: StageIndex) {
        let owned: Vec<usize> = self.copies[stage.index()].added.keys().copied().collect();
        for position in owned {
            let changes = self.changes.added.contains(&position)
                || self.changes.updaters.contains_key(&position);
            let version = match changes {
                true => Version::After,
                false => Version::Before,
            };
            self.copies(stage).versions.insert(position, version);
        }
        let (rank, _) = self.at();
        let stages = self.schedule().stages_of(rank);
        for other in stages.filter(|other| *other != stage) {
            let shared: Vec<usize> = self.step.layout.shared(stage, other).collect();
            for position in shared {
                let version = self.copies[stage.index()].versions[&position];
                self.copies(other).versions.insert(position, version);
            }
        }
    }

    /// Fails unless the norms of every stage that owns parameters are available.
    fn all_norms(&mut self) -> Result<()> {
        let owners = self.copies.iter().enumerate();
        let owners = owners.filter(|(_, copies)| !copies.added.is_empty());
        let owners: Vec<StageIndex> = owners.map(|(stage, _)| StageIndex::new(stage)).collect();
        let norms = self.norms();
        match owners.into_iter().find(|stage| !norms.contains(stage)) {
            None => Ok(()),
            Some(stage) => Err(self.expected(&format!("the norms of stage {stage}"), "no norms")),
        }
    }

    /// Checks that every stage was updated and every copy has the value of its owner.
    pub(super) fn end_copies(&self) -> Result<()> {
        let done = match self.has_replicas() {
            true => Progress::Gathered,
            false => Progress::Updated,
        };
        for (index, copies) in self.copies.iter().enumerate() {
            let site = || self.end_of(StageIndex::new(index), None);
            if copies.progress != done {
                let found = "no update".into();
                return Err(other_value(site(), "an update of the stage", found));
            }
            for (position, version) in &copies.versions {
                let owner = self.step.layout.owners[*position].index();
                let owners = self.copies[owner].versions.get(position);
                if owners != Some(version) {
                    let what = format!("`{}` is", self.path(*position));
                    let expected = owners.map_or("on its owner", |owners| owners.text());
                    let found = version.text().into();
                    return Err(differs(site(), [what, expected.into(), found]));
                }
            }
        }
        Ok(())
    }
}

/// The text of the next addend of a sum.
fn text(micro_batch: Option<usize>) -> String {
    micro_batch.map_or("nothing".into(), |k| format!("micro-batch {k}"))
}
