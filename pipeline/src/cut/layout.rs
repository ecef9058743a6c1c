//! Which stage owns which parameter of a table.

use std::collections::BTreeMap;

use tinderbox_deferred::{ParameterPath, ParameterTable};

use crate::PlanError;
use crate::schedule::StageIndex;

/// What one stage holds, by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) owned: Vec<ParameterPath>,
    pub(crate) replicas: Vec<ParameterPath>,
}

/// The owner of every parameter of a table, proven to be exactly one.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    owners: Vec<StageIndex>,
    holdings: Vec<Holding>,
}

impl Layout {
    /// Checks the holdings against the table.
    pub(crate) fn new(table: &ParameterTable, holdings: Vec<Holding>) -> Result<Self, PlanError> {
        let mut owner_of: BTreeMap<&ParameterPath, StageIndex> = BTreeMap::new();
        for (index, holding) in holdings.iter().enumerate() {
            for path in holding.owned.iter().chain(&holding.replicas) {
                if table.get(path).is_none_or(|p| p.clone_of.is_some()) {
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
        let owners = table
            .iter()
            .map(|parameter| {
                let first = parameter.clone_of.as_ref().unwrap_or(&parameter.path);
                let owner = owner_of.get(first).copied();
                owner.ok_or_else(|| PlanError::NotOwned {
                    path: first.clone(),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { owners, holdings })
    }

    /// Number of stages.
    pub(crate) fn stages(&self) -> usize {
        self.holdings.len()
    }

    /// The owner of the parameter at a position of the table.
    pub(crate) fn owner(&self, index: usize) -> StageIndex {
        self.owners[index]
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
