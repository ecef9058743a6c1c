//! The layers of Burn that act on tensors of a device with gradients only.

use std::collections::BTreeSet;

use burn::module::Module;

use super::fields::without_effect;
use super::visit::{Visited, collect_all};
use crate::ParameterPath;

/// A layer that a flag lets act in training: dropout, noise, a random slope, batch norm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainingLayer {
    /// Its path.
    pub path: String,
    /// The index of its flag among the flags of the module, in visiting order.
    pub(super) flag: usize,
}

/// The names of their types.
const LAYERS: [&str; 4] = ["Dropout", "GaussianNoise", "RRelu", "BatchNorm"];

/// Returns the layers of a module whose flag is enabled, without layers with a probability or a deviation of 0, which
/// are recognized by their debug text.
pub fn training_layers<M: Module>(module: &M) -> Vec<TrainingLayer> {
    let mut flags = 0;
    let mut enabled = collect_all(module, |place, visited| {
        let Visited::Flag(flag) = visited else {
            return None;
        };
        let path = ParameterPath::new(place.path).module().to_owned();
        let layer = TrainingLayer { path, flag: flags };
        flags += 1;
        let is_enabled = LAYERS.contains(&place.owner()) && flag.is_enabled();
        is_enabled.then(|| (layer, flag.id.to_string()))
    });
    if !enabled.is_empty() {
        let idle: BTreeSet<String> = without_effect(module).into_iter().collect();
        enabled.retain(|(_, id)| !idle.contains(id));
    }
    enabled.into_iter().map(|(layer, _)| layer).collect()
}

#[cfg(test)]
mod tests {
    use burn::module::{Flag, Param};
    use burn::nn::activation::{RRelu, RReluConfig};
    use burn::nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, GaussianNoise, GaussianNoiseConfig,
    };
    use burn::tensor::Device;

    use super::super::map::disable_flags;
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
            net = disable_flags(&net, |index, _| index == layer.flag);
            expected.remove(0);
            assert_eq!(paths(&net), expected);
        }
    }
}
