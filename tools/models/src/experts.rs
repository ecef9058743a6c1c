//! Layers of parallel experts that process every sample, weighted by a router.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Tensor};

/// Sizes of [`Experts`].
#[derive(Config, Debug)]
pub struct ExpertsConfig {
    /// Input and output features of a sample.
    pub ends: [usize; 2],
    /// Width between the layers.
    pub width: usize,
    /// Number of layers.
    pub layers: usize,
    /// Experts of each layer.
    pub experts: usize,
}

/// Layers of experts between two projections.
#[derive(Module, Debug)]
pub struct Experts {
    input: Linear,
    layers: Vec<ExpertLayer>,
    output: Linear,
}

#[derive(Module, Debug)]
struct ExpertLayer {
    router: Linear,
    experts: Vec<Expert>,
}

#[derive(Module, Debug)]
struct Expert {
    up: Linear,
    down: Linear,
}

impl ExpertsConfig {
    /// Initializes the model.
    pub fn init(&self, device: &Device) -> Experts {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let expert = |_| Expert {
            up: linear(self.width, 2 * self.width),
            down: linear(2 * self.width, self.width),
        };
        let layer = |_| ExpertLayer {
            router: linear(self.width, self.experts),
            experts: (0..self.experts).map(expert).collect(),
        };
        Experts {
            input: linear(self.ends[0], self.width),
            layers: (0..self.layers).map(layer).collect(),
            output: linear(self.width, self.ends[1]),
        }
    }
}

impl ExpertLayer {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let weights = softmax(self.router.forward(x.clone()), 1);
        let experts = self.experts.iter().enumerate();
        let outputs = experts.map(|(index, expert)| {
            let weight = weights.clone().narrow(1, index, 1);
            expert.down.forward(gelu(expert.up.forward(x.clone()))) * weight
        });
        outputs.fold(x.clone(), |sum, output| sum + output)
    }
}

impl Experts {
    /// Returns the features of samples: from `[samples, input]` to `[samples, output]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.input.forward(x);
        let x = self.layers.iter().fold(x, |x, layer| layer.forward(x));
        self.output.forward(x)
    }
}
