//! Which stage owns which parameter of a table.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_deferred::{ParameterPath, ParameterTable};

use crate::PlanError;
use crate::schedule::StageIndex;

/// What one stage holds, by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) owned: Vec<ParameterPath>,
    pub(crate) replicas: Vec<ParameterPath>,
}

/// Whether it is known which stages hold copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// A plan is being made: the cut finds out who needs a copy.
    Open,
    /// The plan says it, and a stage reads nothing else.
    Decided,
}

/// The owner of every parameter of a table, proven to be exactly one.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    owners: Vec<StageIndex>,
    /// The highest stage that may read each parameter of the table.
    last_holders: Vec<usize>,
    holdings: Vec<Holding>,
}

impl Layout {
    /// Checks the holdings against the table.
    pub(crate) fn new(
        table: &ParameterTable,
        holdings: Vec<Holding>,
        sharing: Sharing,
    ) -> Result<Self, PlanError> {
        let known: BTreeSet<&ParameterPath> = table.distinct().map(|p| &p.path).collect();
        let mut owner_of: BTreeMap<&ParameterPath, StageIndex> = BTreeMap::new();
        for (index, holding) in holdings.iter().enumerate() {
            for path in holding.owned.iter().chain(&holding.replicas) {
                if !known.contains(path) {
                    return Err(PlanError::UnknownParameter {
                        path: path.clone(),
                        near: table.near(path.as_str()),
                    });
                }
            }
            for path in &holding.owned {
                if let Some(first) = owner_of.insert(path, StageIndex::new(index)) {
                    let second = StageIndex::new(index);
                    return Err(PlanError::OwnedTwice {
                        path: path.clone(),
                        first,
                        second,
                    });
                }
            }
        }
        let mut last_holder: BTreeMap<&ParameterPath, usize> = BTreeMap::new();
        for (index, holding) in holdings.iter().enumerate() {
            let mut held: BTreeSet<&ParameterPath> = holding.owned.iter().collect();
            for path in &holding.replicas {
                if !held.insert(path) {
                    return Err(PlanError::HeldTwice {
                        path: path.clone(),
                        stage: StageIndex::new(index),
                    });
                }
            }
            last_holder.extend(held.into_iter().map(|path| (path, index)));
        }
        let owners: Vec<StageIndex> = table
            .iter()
            .map(|parameter| {
                let first = parameter.clone_of.as_ref().unwrap_or(&parameter.path);
                let owner = owner_of.get(first).copied();
                owner.ok_or_else(|| PlanError::NotOwned {
                    path: first.clone(),
                })
            })
            .collect::<Result<_, _>>()?;
        let last_stage = holdings.len().saturating_sub(1);
        let last_holders = table
            .iter()
            .map(|parameter| match sharing {
                Sharing::Open => last_stage,
                Sharing::Decided => {
                    let first = parameter.clone_of.as_ref().unwrap_or(&parameter.path);
                    last_holder.get(first).copied().unwrap_or(last_stage)
                }
            })
            .collect();
        Ok(Self {
            owners,
            last_holders,
            holdings,
        })
    }

    /// Number of stages.
    pub(crate) fn stages(&self) -> usize {
        self.holdings.len()
    }

    /// The owner of the parameter at a position of the table.
    pub(crate) fn owner(&self, index: usize) -> StageIndex {
        self.owners[index]
    }

    /// The highest stage that may read the parameter at a position of the table.
    pub(crate) fn last_holder(&self, index: usize) -> usize {
        self.last_holders[index]
    }

    /// The parameters that a stage owns.
    pub(crate) fn owned(&self, stage: StageIndex) -> &[ParameterPath] {
        &self.holdings[stage.index()].owned
    }

    /// The parameters of other stages that a stage holds copies of.
    pub(crate) fn replicas(&self, stage: StageIndex) -> &[ParameterPath] {
        &self.holdings[stage.index()].replicas
    }
}
