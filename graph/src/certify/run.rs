//! A step of a replica in progress.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tinderbox_deferred::ParameterPath;
use tinderbox_fake::ValueId;

use super::copies::{Copies, Version};
use super::refused::{differs, other_value};
use super::sums::Term;
use super::{CertifiedPrograms, CertifiedStep};
use crate::cut::StagePrograms;
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
    /// The values that later programs use: `certify_programs` has proven how each is computed.
    pub(super) kept: Kept<()>,
    /// Messages that were sent and not yet received.
    pub(super) sent: HashMap<Message, Contents>,
    /// By stage.
    pub(super) copies: Vec<Copies>,
    /// The stages whose norms each rank has.
    norms: Vec<BTreeSet<StageIndex>>,
    /// The new values of carried tensors that stages have: stage, micro-batch, position in the batch.
    pub(super) carried: BTreeSet<(StageIndex, usize, usize)>,
    /// How often each loss (`None`) and named output was reported.
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
            for position in &programs.updates {
                updaters.entry(*position).or_default().push(k);
            }
            for position in &programs.gradients {
                addends[*position].push(k);
            }
        }
        let stages = (0..schedule.stages).map(StageIndex::new);
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
            copies: stages
                .map(|stage| Copies::new(step.layout, stage))
                .collect(),
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
    pub(super) fn put(
        &mut self,
        location: Location,
        value: ValueId,
        uses: usize,
    ) -> Result<(), CertifyError> {
        match self.kept.put(location, value, (), uses) {
            true => Ok(()),
            false => {
                let found = format!("{} again", text(value, location.1));
                Err(self.expected("each value once", found))
            }
        }
    }

    /// Uses a value of a stage.
    pub(super) fn take(&mut self, location: Location, value: ValueId) -> Result<(), CertifyError> {
        match self.kept.take(location, value) {
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

    /// The error of an action that expected something else.
    pub(super) fn expected(&self, expected: &str, found: impl Into<String>) -> CertifyError {
        other_value(self.site(), expected, found.into())
    }

    /// The path of a parameter.
    pub(super) fn path(&self, position: usize) -> &ParameterPath {
        &self.step.table.iter().as_slice()[position].path
    }

    /// The error of a parameter that has another value.
    pub(super) fn parameter(
        &self,
        position: usize,
        expected: Version,
        found: &'static str,
    ) -> CertifyError {
        let what = format!("`{}` is", self.path(position));
        differs(self.site(), what, expected.text().into(), found.into())
    }
}
