//! What a step does with messages, sums of gradients and updates.

use super::copies::Version;
use super::lists::{Run, expected};
use super::store::Made;
use crate::CertifyError;
use crate::schedule::{Action, Message, MicroBatchIndex, RankIndex, StageIndex, Task};

/// What a message carries.
#[derive(Clone, Debug)]
pub(super) enum Parcel {
    /// Values of a micro-batch.
    Values(Vec<Made>),
    /// Values of parameters, by position in the table.
    Parameters(Vec<(usize, Version)>),
    /// The norms of the complete gradients of a stage.
    Norms,
}

impl Run<'_> {
    pub(super) fn send(
        &mut self,
        rank: RankIndex,
        action: &Action,
        message: Message,
    ) -> Result<(), CertifyError> {
        let parcel = match message {
            Message::Values { edge, micro_batch } => {
                let sends = &self.programs(edge.from.stage, micro_batch).sends;
                let values = sends.get(&edge).map_or(&[][..], Vec::as_slice);
                let home = (edge.from.stage, micro_batch);
                let made = values
                    .iter()
                    .map(|value| self.take((rank, action), home, *value));
                Parcel::Values(made.collect::<Result<_, _>>()?)
            }
            Message::Tie(tie) => {
                let versions = &self.copies[tie.owner.index()].versions;
                let shared = self.ownership.shared(tie.owner, tie.replica);
                let shared =
                    shared.filter_map(|position| Some((position, *versions.get(&position)?)));
                Parcel::Parameters(shared.collect())
            }
            Message::Norm { from, .. } => {
                self.measure(rank, action, from)?;
                Parcel::Norms
            }
        };
        match self.sent.insert(message, parcel) {
            None => Ok(()),
            Some(_) => {
                let site = self.site(rank, action);
                Err(expected(site, "each message once", "it again".into()))
            }
        }
    }

    pub(super) fn receive(
        &mut self,
        rank: RankIndex,
        action: &Action,
        message: Message,
    ) -> Result<(), CertifyError> {
        let parcel = self.sent.remove(&message);
        match (message, parcel) {
            (Message::Values { edge, micro_batch }, Some(Parcel::Values(values))) => {
                let to = edge.to.stage;
                let programs = self.programs(to, micro_batch);
                let needed = programs.receives.get(&edge).map_or(&[][..], Vec::as_slice);
                self.same_length(rank, action, needed.len(), values.len())?;
                let is_split = (self.lists.is_split)(to, micro_batch.index());
                for (needed, made) in needed.iter().zip(values) {
                    let uses = programs.received.get(needed);
                    let uses = uses.map_or(0, |takes| takes.of(is_split));
                    self.put((rank, action), (to, micro_batch), made, *needed, uses)?;
                }
                Ok(())
            }
            (Message::Tie(tie), Some(Parcel::Parameters(values))) => {
                let needed: Vec<usize> = self.ownership.shared(tie.owner, tie.replica).collect();
                self.same_length(rank, action, needed.len(), values.len())?;
                for (position, (sent, version)) in needed.into_iter().zip(values) {
                    if position != sent {
                        return Err(self.parameter(
                            rank,
                            action,
                            position,
                            Version::After,
                            "the value of another parameter",
                        ));
                    }
                    self.copies[tie.replica.index()]
                        .versions
                        .insert(position, version);
                }
                Ok(())
            }
            (Message::Norm { from, .. }, Some(Parcel::Norms)) => {
                self.norms[rank.index()].insert(from);
                Ok(())
            }
            _ => Err(expected(
                self.site(rank, action),
                "a message of its kind",
                "another".into(),
            )),
        }
    }

    fn same_length(
        &self,
        rank: RankIndex,
        action: &Action,
        needed: usize,
        found: usize,
    ) -> Result<(), CertifyError> {
        match needed == found {
            true => Ok(()),
            false => Err(expected(
                self.site(rank, action),
                &format!("a message of {needed} values"),
                format!("one of {found}"),
            )),
        }
    }

    /// Adds a gradient of a micro-batch to its sum.
    pub(super) fn add(
        &mut self,
        rank: RankIndex,
        action: &Action,
        task: Task,
        position: usize,
    ) -> Result<(), CertifyError> {
        let k = task.micro_batch.index();
        let addends = self.ownership.addends(position);
        let copies = &mut self.copies[task.stage.index()];
        let Some(added) = copies.added.get_mut(&position) else {
            let owner = self.ownership.owner(position);
            let needed = format!("its parts at its owner, stage {owner}, alone");
            return Err(self.sum(rank, action, position, &needed, Some(k)));
        };
        match addends.get(*added) {
            Some(next) if *next == k => {
                *added += 1;
                Ok(())
            }
            next => {
                let next = words(next.copied());
                Err(self.sum(rank, action, position, &next, Some(k)))
            }
        }
    }

    fn sum(
        &self,
        rank: RankIndex,
        action: &Action,
        position: usize,
        expected: &str,
        found: Option<usize>,
    ) -> CertifyError {
        CertifyError::Gradient {
            site: self.site(rank, action),
            path: self.ownership.path(position),
            expected: expected.to_owned(),
            found: words(found),
        }
    }

    /// Refuses gradients that lack a micro-batch.
    pub(super) fn complete(
        &self,
        rank: RankIndex,
        action: &Action,
        stage: StageIndex,
    ) -> Result<(), CertifyError> {
        for (position, added) in &self.copies[stage.index()].added {
            if let Some(next) = self.ownership.addends(*position).get(*added) {
                let next = words(Some(*next));
                return Err(self.sum(rank, action, *position, &next, None));
            }
        }
        Ok(())
    }

    /// Works out the norms of the gradients of a stage.
    fn measure(
        &mut self,
        rank: RankIndex,
        action: &Action,
        stage: StageIndex,
    ) -> Result<(), CertifyError> {
        self.complete(rank, action, stage)?;
        let copies = &self.copies[stage.index()];
        if !copies.is_reduced || copies.is_updated {
            let site = self.site(rank, action);
            let found = format!("those of stage {stage} at another time");
            return Err(expected(
                site,
                "norms after the reduce and before the update",
                found,
            ));
        }
        self.norms[rank.index()].insert(stage);
        Ok(())
    }

    /// Updates the parameters of a stage, and the copies that stages of the same rank hold.
    pub(super) fn update(
        &mut self,
        rank: RankIndex,
        action: &Action,
        stage: StageIndex,
    ) -> Result<(), CertifyError> {
        self.complete(rank, action, stage)?;
        let copies = &self.copies[stage.index()];
        if !copies.is_reduced || copies.is_updated {
            let found = match copies.is_updated {
                true => "a second one",
                false => "one before the reduce",
            };
            return Err(expected(
                self.site(rank, action),
                "one update",
                found.into(),
            ));
        }
        let stages: Vec<StageIndex> = self.lists.schedule.stages_of(rank).collect();
        if self.lists.global_norm {
            for own in &stages {
                if !self.norms[rank.index()].contains(own) {
                    self.measure(rank, action, *own)?;
                }
            }
            self.all_norms(rank, action)?;
        }
        let owned: Vec<usize> = self.copies[stage.index()].added.keys().copied().collect();
        for position in owned {
            let gets_gradient = !self.ownership.addends(position).is_empty();
            let version = match gets_gradient {
                true => Version::After,
                false => Version::Before,
            };
            self.copies[stage.index()]
                .versions
                .insert(position, version);
        }
        self.copies[stage.index()].is_updated = true;
        for other in stages.into_iter().filter(|other| *other != stage) {
            let shared: Vec<usize> = self.ownership.shared(stage, other).collect();
            for position in shared {
                let version = self.copies[stage.index()].versions[&position];
                self.copies[other.index()]
                    .versions
                    .insert(position, version);
            }
        }
        Ok(())
    }

    /// Refuses an update without the norms of every stage that owns parameters.
    fn all_norms(&self, rank: RankIndex, action: &Action) -> Result<(), CertifyError> {
        for (index, copies) in self.copies.iter().enumerate() {
            let stage = StageIndex::new(index);
            if !copies.added.is_empty() && !self.norms[rank.index()].contains(&stage) {
                let needed = format!("the norms of stage {stage}");
                return Err(expected(self.site(rank, action), &needed, "none".into()));
            }
        }
        Ok(())
    }

    /// Every stage was updated, and every copy has the value of its owner.
    pub(super) fn end_copies(&self) -> Result<(), CertifyError> {
        for (index, copies) in self.copies.iter().enumerate() {
            let stage = StageIndex::new(index);
            if !copies.is_updated {
                let site = self.end_of(stage, None);
                return Err(expected(site, "an update of the stage", "none".into()));
            }
            for (position, version) in &copies.versions {
                let owner = self.ownership.owner(*position).index();
                let owners = self.copies[owner].versions.get(position);
                if owners != Some(version) {
                    return Err(CertifyError::Parameter {
                        site: self.end_of(stage, None),
                        path: self.ownership.path(*position),
                        expected: owners.map_or("on its owner", |owners| owners.words()),
                        found: version.words(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The next addend of a sum, in words.
fn words(micro_batch: Option<usize>) -> String {
    micro_batch.map_or_else(
        || "nothing".into(),
        |k| format!("micro-batch {}", MicroBatchIndex::new(k)),
    )
}
