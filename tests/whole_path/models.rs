//! The models that the tests cut, as a Burn author would write them.

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig, LayerNorm,
    LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Int, Tensor};
use tinderbox::{Batch, Deferred, Outputs, Trace, Traceable};
use tinderbox_models::language_model::{Gpt, GptConfig};
use tinderbox_models::split::Split;
pub use tinderbox_models::values::{floats, noise, tokens};

/// Returns the case's model, deferred.
pub fn deferred<C: Case>(case: &C) -> Deferred<C::Model> {
    let case = case.clone();
    Deferred::new(move |device| case.init(device)).expect("the model is recorded")
}

/// Returns the case's forward, traced for its batches with a number of micro-batches.
pub fn trace<C: Case>(
    case: &C,
    model: &Deferred<C::Model>,
    micro_batches: usize,
) -> Trace<C::Batch> {
    let batch = case.batch(0, &Device::flex());
    let case = case.clone();
    let forward = move |model: &C::Model, batch| case.forward(model, batch);
    model
        .trace(&batch, micro_batches, forward)
        .expect("the forward is traced")
}

/// Number of samples in every test batch.
pub const SAMPLES: usize = 8;

/// A model with a batch to train it on.
pub trait Case: Clone + Send + Sync + 'static {
    type Model: Module + Sync + 'static;
    type Batch: Batch + Split;

    fn init(&self, device: &Device) -> Self::Model;
    fn forward(&self, model: &Self::Model, batch: Self::Batch) -> Outputs;
    fn batch(&self, number: u64, device: &Device) -> Self::Batch;
}

/// A multilayer perceptron with dropout of probability `PERCENT / 100`.
#[derive(Clone)]
pub struct Mlp<const PERCENT: usize>;

#[derive(Module, Debug)]
pub struct MlpModel {
    layers: Vec<Linear>,
    norm: LayerNorm,
    dropout: Dropout,
    head: Linear,
}

impl<const PERCENT: usize> Case for Mlp<PERCENT> {
    type Model = MlpModel;
    type Batch = (Tensor<2>, Tensor<2>);

    fn init(&self, device: &Device) -> MlpModel {
        MlpModel {
            layers: (0..6)
                .map(|_| LinearConfig::new(16, 16).init(device))
                .collect(),
            norm: LayerNormConfig::new(16).init(device),
            dropout: DropoutConfig::new(PERCENT as f64 / 100.0).init(),
            head: LinearConfig::new(16, 4).init(device),
        }
    }

    fn forward(&self, model: &MlpModel, (x, y): Self::Batch) -> Outputs {
        let mut x = x;
        for layer in &model.layers {
            x = model.dropout.forward(gelu(layer.forward(x)));
        }
        let x = model.head.forward(model.norm.forward(x));
        Outputs::loss((x.clone() - y).powf_scalar(2.0).mean()).with("prediction", x)
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        (
            floats([SAMPLES, 16], number, device),
            floats([SAMPLES, 4], number + 1000, device),
        )
    }
}

/// The language model of the example, in a small size.
#[derive(Clone)]
pub struct LanguageModel<const PERCENT: usize>;

const VOCABULARY: usize = 13;

impl<const PERCENT: usize> Case for LanguageModel<PERCENT> {
    type Model = Gpt;
    type Batch = (Tensor<2, Int>, Tensor<2, Int>);

    fn init(&self, device: &Device) -> Gpt {
        GptConfig::new(VOCABULARY)
            .with_context(6)
            .with_width(16)
            .with_layers(3)
            .with_heads(2)
            .with_dropout(PERCENT as f64 / 100.0)
            .init(device)
    }

    fn forward(&self, model: &Gpt, (x, y): Self::Batch) -> Outputs {
        let (loss, logits) = model.loss(x, y);
        Outputs::loss(loss).with("logits", logits)
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        let shape = [SAMPLES, 6];
        let x = tokens(shape, VOCABULARY, number, device);
        (x, tokens(shape, VOCABULARY, number + 1000, device))
    }
}

/// A U-shaped network: the results of the downward path are read on the upward path, across several stages.
#[derive(Clone)]
pub struct UNet;

#[derive(Module, Debug)]
pub struct UNetModel {
    down: Vec<Conv2d>,
    norms: Vec<GroupNorm>,
    up: Vec<Conv2d>,
    head: Conv2d,
}

impl Case for UNet {
    type Model = UNetModel;
    type Batch = (Tensor<4>, Tensor<4>);

    fn init(&self, device: &Device) -> UNetModel {
        let conv = |from, to| {
            Conv2dConfig::new([from, to], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        UNetModel {
            down: vec![conv(1, 4), conv(4, 4), conv(4, 4)],
            norms: (0..3)
                .map(|_| GroupNormConfig::new(2, 4).init(device))
                .collect(),
            up: vec![conv(4, 4), conv(8, 4), conv(8, 4)],
            head: conv(4, 1),
        }
    }

    fn forward(&self, model: &UNetModel, (x, y): Self::Batch) -> Outputs {
        let mut skips = Vec::new();
        let mut x = x;
        for (conv, norm) in model.down.iter().zip(&model.norms) {
            x = relu(norm.forward(conv.forward(x)));
            skips.push(x.clone());
        }
        skips.pop();
        for (index, conv) in model.up.iter().enumerate() {
            if index > 0 {
                let skip = skips.pop().expect("as many skips as levels");
                x = Tensor::cat(vec![x, skip], 1);
            }
            x = relu(conv.forward(x));
        }
        let x = model.head.forward(x);
        Outputs::loss((x - y).powf_scalar(2.0).mean())
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        let shape = [SAMPLES, 1, 6, 6];
        (
            floats(shape, number, device),
            floats(shape, number + 1000, device),
        )
    }
}

/// The output head reads the embedding's weight.
#[derive(Clone)]
pub struct Tied;

#[derive(Module, Debug)]
pub struct TiedModel {
    tokens: Embedding,
    layers: Vec<Linear>,
    norm: LayerNorm,
    bias: Param<Tensor<1>>,
}

impl Case for Tied {
    type Model = TiedModel;
    type Batch = (Tensor<2, Int>, Tensor<2, Int>);

    fn init(&self, device: &Device) -> TiedModel {
        TiedModel {
            tokens: EmbeddingConfig::new(VOCABULARY, 12).init(device),
            layers: (0..5)
                .map(|_| LinearConfig::new(12, 12).init(device))
                .collect(),
            norm: LayerNormConfig::new(12).init(device),
            bias: Param::from_tensor(Tensor::zeros([VOCABULARY], device)),
        }
    }

    fn forward(&self, model: &TiedModel, (x, y): Self::Batch) -> Outputs {
        let [batch, length] = x.dims();
        let mut x = model.tokens.forward(x);
        for layer in &model.layers {
            x = x.clone() + gelu(layer.forward(x));
        }
        let x = model.norm.forward(x).reshape([batch * length, 12]);
        let logits =
            x.matmul(model.tokens.weight.val().transpose()) + model.bias.val().unsqueeze::<2>();
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        Outputs::loss(loss.forward(logits, y.reshape([batch * length])))
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        let x = tokens([SAMPLES, 5], VOCABULARY, number, device);
        (x, tokens([SAMPLES, 5], VOCABULARY, number + 1000, device))
    }
}

/// Activations rounded in the forward, with the gradient of the identity: `detach` in the forward.
#[derive(Clone)]
pub struct StraightThrough;

#[derive(Module, Debug)]
pub struct StraightThroughModel {
    layers: Vec<Linear>,
}

impl Case for StraightThrough {
    type Model = StraightThroughModel;
    type Batch = (Tensor<2>, Tensor<2>);

    fn init(&self, device: &Device) -> StraightThroughModel {
        StraightThroughModel {
            layers: (0..8)
                .map(|_| LinearConfig::new(8, 8).init(device))
                .collect(),
        }
    }

    fn forward(&self, model: &StraightThroughModel, (x, y): Self::Batch) -> Outputs {
        let mut x = x;
        for layer in &model.layers {
            let exact = layer.forward(x) * 3.0;
            let rounded = exact.clone().round();
            x = exact.clone() + (rounded - exact).detach();
        }
        Outputs::loss((x - y).abs().mean())
    }

    fn batch(&self, number: u64, device: &Device) -> Self::Batch {
        (
            floats([SAMPLES, 8], number, device),
            floats([SAMPLES, 8], number + 1000, device),
        )
    }
}
