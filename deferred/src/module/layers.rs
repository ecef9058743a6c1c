//! The layers of Burn that act on tensors of a device with gradients only.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::fields::without_effect;

/// A layer that a flag lets act in training: dropout, noise, a random slope, batch norm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingLayer {
    /// Its path.
    pub path: String,
    /// The index of its flag among the flags of the module, in visiting order.
    pub(super) flag: usize,
}

/// The names of their types, as visitors get them.
const LAYERS: [&str; 4] = [
    "Struct:Dropout",
    "Struct:GaussianNoise",
    "Struct:RRelu",
    "Struct:BatchNorm",
];

/// Returns the layers of a module whose flag is enabled, without those with a probability or a deviation of 0, which
/// are known by their debug text.
pub fn training_layers<M: Module>(module: &M) -> Vec<TrainingLayer> {
    let mut find = Find::default();
    module.visit(&mut find);
    if find.enabled.is_empty() {
        return Vec::new();
    }
    let idle: BTreeSet<String> = without_effect(module).into_iter().collect();
    let enabled = find.enabled.into_iter();
    let acting = enabled.filter(|(_, (_, id))| !idle.contains(id));
    acting
        .map(|(flag, (path, _))| TrainingLayer { path, flag })
        .collect()
}

#[derive(Default)]
struct Find {
    /// Name and containing type of each entered field.
    entered: Vec<(String, String)>,
    /// The number of flags so far.
    flags: usize,
    /// The path of the layer and the id of its flag, by the index of the flag.
    enabled: BTreeMap<usize, (String, String)>,
}

impl ModuleVisitor for Find {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.entered.push((name.to_owned(), container.to_owned()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.entered.pop();
    }

    fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {}

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.flags += 1;
        if let Some(((_, container), outer)) = self.entered.split_last()
            && LAYERS.contains(&container.as_str())
            && flag.is_enabled()
        {
            let names: Vec<&str> = outer.iter().map(|(name, _)| name.as_str()).collect();
            let of = (names.join("."), flag.id.to_string());
            self.enabled.insert(self.flags - 1, of);
        }
    }
}

/// Disables the flag of a layer.
pub(super) struct Disable<'a> {
    pub(super) layer: &'a TrainingLayer,
    /// The number of flags so far.
    pub(super) flags: usize,
}

impl ModuleMapper for Disable<'_> {
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.flags += 1;
        match self.flags - 1 == self.layer.flag {
            true => flag.with_value(false),
            false => flag,
        }
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::activation::{RRelu, RReluConfig};
    use burn::nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, GaussianNoise, GaussianNoiseConfig,
    };
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct Inner {
        slope: RRelu,
        dropout: Dropout,
    }

    #[derive(Module, Debug)]
    struct Net {
        dropouts: Vec<Dropout>,
        frozen: Dropout,
        own: Param<Flag>,
        noise: Option<GaussianNoise>,
        silent: GaussianNoise,
        norm: BatchNorm,
        inner: Inner,
    }

    #[test]
    fn layers_that_act_in_training_are_listed() {
        let dropout = |rate| DropoutConfig::new(rate).init();
        let mut net = Net {
            dropouts: vec![dropout(0.5), dropout(0.0), dropout(0.1)],
            frozen: dropout(0.5).freeze(),
            own: Param::from_bool(true),
            noise: Some(GaussianNoiseConfig::new(0.1).init()),
            silent: GaussianNoiseConfig::new(0.0).init(),
            norm: BatchNormConfig::new(2).init(&Device::flex()),
            inner: Inner {
                slope: RReluConfig::new().init(),
                dropout: dropout(0.5),
            },
        };
        let paths = |net: &Net| {
            let layers = training_layers(net).into_iter();
            layers.map(|layer| layer.path).collect::<Vec<_>>()
        };
        let mut expected = vec![
            "dropouts.0",
            "dropouts.2",
            "noise",
            "norm",
            "inner.slope",
            "inner.dropout",
        ];
        assert_eq!(paths(&net), expected);
        // Each is disabled alone.
        while let Some(layer) = training_layers(&net).first() {
            let mut disable = Disable { layer, flags: 0 };
            net = net.map(&mut disable);
            expected.remove(0);
            assert_eq!(paths(&net), expected);
        }
    }
}
