//! A step of a replica in progress.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tinderbox_deferred::ParameterPath;
use tinderbox_fake::ValueId;

use super::refused::{Result, differs, other_value};
use super::sums::Term;
use super::{CertifiedPrograms, CertifiedStep};
use crate::cut::{Layout, StagePrograms};
use crate::kept::{Kept, Location};
use crate::lists::StepLists;
use crate::schedule::{Action, Message, MicroBatchIndex, RankIndex, Schedule, StageIndex};
use crate::sum::TreeSum;
use crate::{CertifyError, CertifySite};

/// The text of a value of a micro-batch.
pub(super) fn text(value: ValueId, micro_batch: MicroBatchIndex) -> String {
    format!("{value} of micro-batch {micro_batch}")
}

/// The contents of a message.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// Values of the message's micro-batch.
    Values(Vec<ValueId>),
    /// Values of parameters, by position in the table.
    Parameters(Vec<(usize, Version)>),
    /// The norms of the complete gradients of a stage.
    Norms,
}

/// The lists of a replica.
pub(super) struct Replica<'a> {
    pub(super) lists: &'a StepLists,
    /// Its first micro-batch among the micro-batches of all replicas.
    pub(super) first: usize,
    /// The programs of its micro-batches.
    pub(super) micro_batches: &'a [&'a CertifiedPrograms],
}

/// The micro-batches that change parameters, by position in the table.
pub(super) struct Changes<'a> {
    /// The parameters to whose gradient any micro-batch of any replica adds.
    pub(super) added: &'a BTreeSet<usize>,
    /// The micro-batches that add to the gradient of each parameter, in the order in which they are added.
    pub(super) addends: Vec<Vec<usize>>,
    /// The micro-batches that update each running state, in their order.
    pub(super) updaters: BTreeMap<usize, Vec<usize>>,
}

/// A step of a replica in progress. Its micro-batches count from 0.
pub(super) struct ListRun<'a> {
    pub(super) step: &'a CertifiedStep<'a>,
    pub(super) replica: Replica<'a>,
    pub(super) changes: Changes<'a>,
    /// The sums of the gradients of each parameter.
    pub(super) sums: Vec<TreeSum<Term>>,
    /// The current action and its rank.
    pub(super) at: Option<(RankIndex, Action)>,
    /// The values that later programs use. `certify_programs` has proven how each is computed.
    pub(super) kept: Kept<()>,
    /// Messages that were sent and not yet received.
    pub(super) sent: HashMap<Message, Contents>,
    /// By stage.
    pub(super) copies: Vec<Copies>,
    /// The stages whose norms each rank has.
    norms: Vec<BTreeSet<StageIndex>>,
    /// The carried tensors that stages have replaced: stage, micro-batch, position in the batch.
    pub(super) carried: BTreeSet<(StageIndex, usize, usize)>,
    /// The number of reports of each loss (`None`) and named output.
    pub(super) reported: BTreeMap<(usize, Option<&'a str>), usize>,
}

impl<'a> ListRun<'a> {
    pub(super) fn new(
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
            for position in programs.joint.updates().keys() {
                updaters.entry(*position).or_default().push(k);
            }
            for position in &programs.gradients {
                addends[*position].push(k);
            }
        }
        let stages = (0..schedule.stages).map(StageIndex::new);
        let copies = stages.map(|stage| Copies::new(step.layout, stage));
        Self {
            step,
            replica: Replica {
                lists,
                first,
                micro_batches,
            },
            changes: Changes {
                added,
                addends,
                updaters,
            },
            sums: vec![TreeSum::default(); step.table.len()],
            at: None,
            kept: Kept::default(),
            sent: HashMap::new(),
            copies: copies.collect(),
            norms: vec![BTreeSet::new(); schedule.ranks.len()],
            carried: BTreeSet::new(),
            reported: BTreeMap::new(),
        }
    }

    pub(super) fn schedule(&self) -> &'a Schedule {
        &self.replica.lists.schedule
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

    pub(super) fn copies(&mut self, stage: StageIndex) -> &mut Copies {
        &mut self.copies[stage.index()]
    }

    pub(super) fn programs(&self, stage: StageIndex, k: MicroBatchIndex) -> &'a StagePrograms {
        &self.replica.micro_batches[k.index()].stages[stage.index()]
    }

    /// Keeps a value for all its uses at a stage.
    pub(super) fn put(&mut self, location: Location, value: ValueId, uses: usize) -> Result<()> {
        if self.kept.put(location, value, (), uses) {
            return Ok(());
        }
        let found = format!("{} again", text(value, location.1));
        Err(self.expected("each value once", found))
    }

    /// Consumes a value of a stage.
    pub(super) fn consume(&mut self, location: Location, value: ValueId) -> Result<()> {
        match self.kept.consume(location, value) {
            Some(_) => Ok(()),
            None => Err(self.expected(&text(value, location.1), "nothing")),
        }
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

    pub(super) fn end_of(&self, stage: StageIndex, k: Option<MicroBatchIndex>) -> Box<CertifySite> {
        let rank = self.schedule().rank_of(stage);
        Box::new(CertifySite {
            rank: rank.unwrap_or(RankIndex::new(0)),
            stage,
            micro_batch: k,
            at: "end of the step".into(),
        })
    }

    /// The error of an action that found something else.
    pub(super) fn expected(&self, expected: &str, found: impl Into<String>) -> CertifyError {
        other_value(self.site(), expected, found.into())
    }

    /// The path of a parameter.
    pub(super) fn path(&self, position: usize) -> &ParameterPath {
        &self.step.table.iter().as_slice()[position].path
    }

    /// The error of a parameter that has another value.
    pub(super) fn parameter(&self, at: usize, expected: Version, found: &str) -> CertifyError {
        let what = format!("`{}` is", self.path(at));
        differs(self.site(), [what, expected.text().into(), found.into()])
    }
}

/// A value of a parameter within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// The value at the beginning of the step.
    Before,
    /// The value after the update.
    After,
}

impl Version {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Before => "its value before the update",
            Self::After => "its value after the update",
        }
    }
}

/// The last part of its update that a stage has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// Gradients are added.
    Adding,
    /// The gradients of this replica are complete.
    Reduced,
    /// The gradients of all replicas are summed.
    Summed,
    /// The parameters are updated. With several replicas, each has updated its part.
    Updated,
    /// The parameters that the other replicas have updated are received.
    Gathered,
}

/// The parameters of one stage, by position in the table.
#[derive(Debug)]
pub(super) struct Copies {
    pub(super) versions: BTreeMap<usize, Version>,
    /// The parameters that it owns, with the number of micro-batches in the gradient of each.
    pub(super) added: BTreeMap<usize, usize>,
    /// The number of micro-batches that have updated each running state that it owns.
    pub(super) advanced: BTreeMap<usize, usize>,
    pub(super) progress: Progress,
}

impl Copies {
    /// The parameters of a stage at the beginning of a step.
    pub(super) fn new(layout: &Layout, stage: StageIndex) -> Self {
        let (owned, copies) = (layout.owned(stage), layout.copies(stage));
        let held = owned.iter().chain(copies);
        Self {
            versions: held.map(|position| (*position, Version::Before)).collect(),
            added: owned.iter().map(|position| (*position, 0)).collect(),
            advanced: BTreeMap::new(),
            progress: Progress::Adding,
        }
    }

    /// The number of micro-batches that have updated a running state.
    pub(super) fn advanced(&self, position: usize) -> usize {
        self.advanced.get(&position).copied().unwrap_or(0)
    }
}
