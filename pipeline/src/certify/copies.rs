//! The parameters that a stage holds, and the sums of its gradients.

use std::collections::{BTreeMap, HashMap};

use tinderbox_deferred::{ParameterPath, ParameterTable};

use super::lists::CertifiedMicroBatch;
use crate::cut::Layout;
use crate::schedule::StageIndex;

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

/// The parameters of one stage, by position in the table.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) versions: BTreeMap<usize, Version>,
    /// The parameters that it owns, with the number of [`Ownership::addends`] that were added to the
    /// gradient of each.
    pub(super) added: BTreeMap<usize, usize>,
    pub(super) is_reduced: bool,
    pub(super) is_updated: bool,
}

/// The stages that hold each parameter, and the addends of each gradient.
pub(super) struct Ownership<'a> {
    table: &'a ParameterTable,
    layout: &'a Layout,
    positions: HashMap<&'a ParameterPath, usize>,
    /// The micro-batches that add to the gradient of each parameter, in the order in which they are added.
    addends: Vec<Vec<usize>>,
}

impl<'a> Ownership<'a> {
    pub(super) fn new(
        table: &'a ParameterTable,
        layout: &'a Layout,
        micro_batches: &[CertifiedMicroBatch<'_>],
    ) -> Self {
        let paths = table.iter().enumerate();
        let positions: HashMap<_, _> = paths.map(|(index, p)| (&p.path, index)).collect();
        let mut addends = vec![Vec::new(); table.len()];
        for (k, micro_batch) in micro_batches.iter().enumerate() {
            for position in &micro_batch.certificate.gradients {
                addends[*position].push(k);
            }
        }
        Self {
            table,
            layout,
            positions,
            addends,
        }
    }

    /// The parameters of a stage at the beginning of a step.
    pub(super) fn copies(&self, stage: StageIndex) -> Copies {
        let owned = self.positions_of(self.layout.owned(stage));
        let added: BTreeMap<_, _> = owned.map(|position| (position, 0)).collect();
        let replicas = self.positions_of(self.layout.replicas(stage));
        let held = added.keys().copied().chain(replicas);
        Copies {
            versions: held.map(|position| (position, Version::Before)).collect(),
            added,
            is_reduced: false,
            is_updated: false,
        }
    }

    /// The parameters of an owner of which another stage holds copies, in the order of a message.
    pub(super) fn shared(
        &self,
        owner: StageIndex,
        replica: StageIndex,
    ) -> impl Iterator<Item = usize> {
        let positions = self.positions_of(self.layout.replicas(replica));
        positions.filter(move |position| self.layout.owner(*position) == owner)
    }

    /// The stage that owns a parameter.
    pub(super) fn owner(&self, position: usize) -> StageIndex {
        self.layout.owner(position)
    }

    /// The micro-batches that add to a gradient, in order.
    pub(super) fn addends(&self, position: usize) -> &[usize] {
        &self.addends[position]
    }

    /// The path of a parameter.
    pub(super) fn path(&self, position: usize) -> ParameterPath {
        let parameter = self.table.iter().nth(position);
        parameter.map_or_else(
            || ParameterPath::new(""),
            |parameter| parameter.path.clone(),
        )
    }

    /// The position of the parameter of which one is a clone; its own position otherwise.
    pub(super) fn first(&self, position: usize) -> usize {
        super::reference::first_of(self.table, position)
    }

    fn positions_of(&self, paths: &[ParameterPath]) -> impl Iterator<Item = usize> {
        paths
            .iter()
            .filter_map(|path| self.positions.get(path).copied())
    }
}
