//! The batch norms of Burn in a module. Visitors get the name of a module's type without its crate, so they are
//! recognized by their fields too.

use std::collections::BTreeSet;

use burn::module::{Flag, Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};

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

impl BatchNorms {
    /// Finds them.
    pub(super) fn of<M: Module>(module: &M) -> Self {
        let mut find = Find::default();
        module.visit(&mut find);
        find.end_module();
        find.found
    }
}

/// Collects the fields of one module after another.
#[derive(Default)]
struct Find {
    found: BatchNorms,
    /// Name and containing type of each entered field.
    entered: Vec<(String, String)>,
    /// The path of the module that the last visited value is a field of.
    module: Vec<String>,
    /// Its visited values so far.
    fields: Vec<(String, Visited)>,
    position: usize,
}

enum Visited {
    /// A parameter or running state, with its position.
    Tensor(usize),
    Flag(ParamId),
}

impl Find {
    fn visit_value(&mut self, value: Visited) {
        let Some(((name, container), outer)) = self.entered.split_last() else {
            return;
        };
        let is_same = self.module.iter().eq(outer.iter().map(|(name, _)| name));
        let (name, is_batch_norm) = (name.clone(), container == "Struct:BatchNorm");
        let outer = outer.iter().map(|(name, _)| name.clone()).collect();
        if !is_same {
            self.end_module();
            self.module = outer;
        }
        if is_batch_norm {
            self.fields.push((name, value));
        }
    }

    fn visit_tensor(&mut self) {
        self.visit_value(Visited::Tensor(self.position));
        self.position += 1;
    }

    fn end_module(&mut self) {
        let fields = std::mem::take(&mut self.fields);
        if !fields.iter().map(|(name, _)| name.as_str()).eq(FIELDS) {
            return;
        }
        for (_, value) in fields {
            match value {
                Visited::Tensor(position) => self.found.parameters.insert(position),
                Visited::Flag(id) => self.found.flags.insert(id),
            };
        }
    }
}

impl ModuleVisitor for Find {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.entered.push((name.to_owned(), container.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.entered.pop();
    }

    fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
        self.visit_tensor();
    }

    fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
        self.visit_tensor();
    }

    fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, Bool>>) {
        self.visit_tensor();
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.visit_value(Visited::Flag(flag.id));
    }
}

#[cfg(test)]
mod tests {
    use burn::module::RunningState;
    use burn::nn::{self, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::Device;

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
    fn those_of_burn_are_found_by_their_fields() {
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
