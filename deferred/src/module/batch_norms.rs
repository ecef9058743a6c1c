//! The batch norms of Burn in a module. Visitors get the name of a module's type without its crate, so they are
//! recognized by their fields too.

use std::collections::BTreeSet;

use burn::module::{Module, ParamId};

use super::visit::{Visited, collect_all};
use crate::ParameterPath;

/// The fields of Burn's batch norm that are visited, in their order.
const FIELDS: [&str; 5] = ["gamma", "beta", "training", "running_mean", "running_var"];

/// The batch norms of Burn in a module.
#[derive(Debug, Default)]
pub(super) struct BatchNorms {
    /// The ids of their training flags.
    pub(super) flags: BTreeSet<ParamId>,
    /// The positions of their parameters and running states, in visiting order.
    pub(super) parameters: BTreeSet<usize>,
}

/// A field of a module that is a parameter, a running state or a flag.
struct Field {
    path: ParameterPath,
    is_of_batch_norm: bool,
    flag: Option<ParamId>,
    /// The number of parameters and running states before it.
    position: usize,
}

impl BatchNorms {
    /// Finds the batch norms of Burn in a module.
    pub(super) fn of<M: Module>(module: &M) -> Self {
        let mut position = 0;
        let fields = collect_all(module, |place, visited| {
            let flag = matches!(visited, Visited::Flag(_)).then_some(place.id);
            let field = Field {
                path: ParameterPath::new(place.path),
                is_of_batch_norm: place.owner() == "BatchNorm",
                flag,
                position,
            };
            position += usize::from(flag.is_none());
            Some(field)
        });
        let mut found = Self::default();
        // The fields of a module are visited one after the other.
        for module in fields.chunk_by(|one, next| one.path.module() == next.path.module()) {
            let is_burns = module.iter().all(|field| field.is_of_batch_norm);
            if !is_burns || !module.iter().map(|field| field.path.leaf()).eq(FIELDS) {
                continue;
            }
            for field in module {
                match field.flag {
                    Some(id) => found.flags.insert(id),
                    None => found.parameters.insert(field.position),
                };
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Param, RunningState};
    use burn::nn::{self, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::{Device, Tensor};

    use super::*;

    /// A user's own, which has the name of Burn's.
    #[derive(Module, Debug)]
    struct BatchNorm {
        gamma: Param<Tensor<1>>,
        beta: Param<Tensor<1>>,
        running_mean: RunningState<Tensor<1>>,
        running_var: RunningState<Tensor<1>>,
    }

    #[derive(Module, Debug)]
    struct Net {
        layer: Linear,
        norms: Vec<nn::BatchNorm>,
        own: BatchNorm,
        last: nn::BatchNorm,
    }

    #[test]
    fn batch_norms_of_burn_are_found_by_their_fields() {
        let device = &Device::flex();
        let norm = BatchNormConfig::new(3).init(device);
        let model = Net {
            layer: LinearConfig::new(3, 3).init(device),
            own: BatchNorm {
                gamma: norm.gamma.clone(),
                beta: norm.beta.clone(),
                running_mean: norm.running_mean.clone(),
                running_var: norm.running_var.clone(),
            },
            norms: vec![norm, BatchNormConfig::new(3).init(device)],
            last: BatchNormConfig::new(3).init(device),
        };
        let found = BatchNorms::of(&model);
        let expected = (2..10).chain(14..18);
        assert_eq!(found.parameters, expected.collect());
        assert_eq!(found.flags.len(), 3);
    }
}
