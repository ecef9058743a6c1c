//! Which stage owns which parameter of a table.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_deferred::{Parameter, ParameterPath, ParameterTable};

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
    /// The stages that may read each parameter of the table; `None` where all may.
    holders: Option<Vec<BTreeSet<usize>>>,
    holdings: Vec<Holding>,
    operations: Option<Operations>,
}

/// The stage of every operation of one forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operations {
    /// [`Chain::structure`] of the forward: programs of the same structure have the same stages.
    pub(crate) structure: String,
    /// The stage at each position.
    pub(crate) stages: Vec<usize>,
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
        let mut holders: BTreeMap<&ParameterPath, BTreeSet<usize>> = BTreeMap::new();
        for (index, holding) in holdings.iter().enumerate() {
            for path in &holding.owned {
                holders.entry(path).or_default().insert(index);
            }
            for path in &holding.replicas {
                if !holders.entry(path).or_default().insert(index) {
                    return Err(PlanError::HeldTwice {
                        path: path.clone(),
                        stage: StageIndex::new(index),
                    });
                }
                // The stages come in order, so the first that is before the owner is the lowest of all.
                if let Some(owner) = owner_of.get(path).filter(|owner| owner.index() > index) {
                    return Err(PlanError::OwnerNotLowest {
                        path: path.clone(),
                        owner: *owner,
                        lowest: StageIndex::new(index),
                    });
                }
            }
        }
        let owners: Vec<StageIndex> = table
            .iter()
            .map(|parameter| {
                let first = parameter.original();
                let owner = owner_of.get(first).copied();
                owner.ok_or_else(|| PlanError::NotOwned {
                    path: first.clone(),
                })
            })
            .collect::<Result<_, _>>()?;
        let holders = match sharing {
            Sharing::Open => None,
            Sharing::Decided => {
                let of = |parameter: &Parameter| {
                    let first = parameter.original();
                    holders.get(first).cloned().unwrap_or_default()
                };
                Some(table.iter().map(of).collect())
            }
        };
        Ok(Self {
            owners,
            holders,
            holdings,
            operations: None,
        })
    }

    /// The same owners, who run these operations.
    pub(crate) fn with_operations(self, operations: Operations) -> Self {
        Self {
            operations: Some(operations),
            ..self
        }
    }

    /// The operations whose stages are known; `None` where only the owners of parameters are.
    pub(crate) const fn operations(&self) -> Option<&Operations> {
        self.operations.as_ref()
    }

    /// Number of stages.
    pub(crate) fn stages(&self) -> usize {
        self.holdings.len()
    }

    /// The owner of the parameter at a position of the table.
    pub(crate) fn owner(&self, index: usize) -> StageIndex {
        self.owners[index]
    }

    /// Whether a stage may read the parameter at a position of the table.
    pub(crate) fn holds(&self, stage: usize, index: usize) -> bool {
        let holders = self.holders.as_ref();
        holders.is_none_or(|holders| holders[index].contains(&stage))
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
