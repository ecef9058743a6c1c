//! The layers of Burn that act on tensors of a device with gradients only.

use std::collections::BTreeSet;

use burn::module::Module;

use super::fields::without_effect;
use super::map::disable_flags;
use super::visit::{Visited, collect_all};
use crate::ParameterPath;

/// A layer that a flag lets act in training: dropout, noise, a random slope, batch norm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingLayer {
    /// Its path.
    pub path: String,
    /// The index of its flag among the flags of the module, in visiting order.
    flag: usize,
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
    let mut flags = 0;
    let mut enabled = collect_all(module, |place, visited| {
        let Visited::Flag(flag) = visited else {
            return None;
        };
        flags += 1;
        let layer = TrainingLayer {
            path: ParameterPath::new(place.path).module().to_owned(),
            flag: flags - 1,
        };
        let is_enabled = LAYERS.contains(&place.container()) && flag.is_enabled();
        is_enabled.then(|| (layer, flag.id.to_string()))
    });
    if !enabled.is_empty() {
        let idle: BTreeSet<String> = without_effect(module).into_iter().collect();
        enabled.retain(|(_, id)| !idle.contains(id));
    }
    enabled.into_iter().map(|(layer, _)| layer).collect()
}

/// Returns a copy of a module in which a layer does not act.
pub(super) fn without_layer<M: Module>(module: &M, layer: &TrainingLayer) -> M {
    disable_flags(module, |index, _| index == layer.flag)
}

#[cfg(test)]
mod tests {
    use burn::module::{Flag, Param};
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
            net = without_layer(&net, layer);
            expected.remove(0);
            assert_eq!(paths(&net), expected);
        }
    }
}
