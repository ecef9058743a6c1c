//! Networks over patches of images, and two towers of an image and a text.

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Int, Tensor};
use tinderbox::Outputs;

use super::entry::{Entry, SAMPLES, cross_entropy};
use crate::values::{floats, tokens};

const WIDTH: usize = 12;
const CLASSES: usize = 5;
/// The number of patches of 4 x 4 pixels of an image of 8 x 8.
const PATCHES: usize = 4;

type Labeled = (Tensor<4>, Tensor<1, Int>);

fn labeled(number: u64, device: &Device) -> Labeled {
    (
        floats([SAMPLES, 3, 8, 8], number, device),
        tokens([SAMPLES], CLASSES, number + 1000, device),
    )
}

fn patch_embedding(device: &Device) -> Conv2d {
    Conv2dConfig::new([3, WIDTH], [4, 4])
        .with_stride([4, 4])
        .init(device)
}

/// Returns the patches of images, of shape `[batch, patches, width]`.
fn patches(embedding: &Conv2d, images: Tensor<4>) -> Tensor<3> {
    let x = embedding.forward(images);
    x.flatten::<3>(2, 3).swap_dims(1, 2)
}

fn transformer(device: &Device) -> TransformerEncoder {
    TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 3, 2)
        .with_dropout(0.0)
        .with_norm_first(true)
        .init(device)
}

/// A transformer over patches, with a token for the class.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    patch_embedding: Conv2d,
    class_token: Param<Tensor<3>>,
    positions: Param<Tensor<3>>,
    encoder: TransformerEncoder,
    norm: LayerNorm,
    head: Linear,
}

impl VisionTransformer {
    fn new(device: &Device) -> Self {
        let normal = Distribution::Normal(0.0, 0.02);
        let random = |shape| Param::from_tensor(Tensor::random(shape, normal, device));
        Self {
            patch_embedding: patch_embedding(device),
            class_token: random([1, 1, WIDTH]),
            positions: random([1, PATCHES + 1, WIDTH]),
            encoder: transformer(device),
            norm: LayerNormConfig::new(WIDTH).init(device),
            head: LinearConfig::new(WIDTH, CLASSES).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let [batch, ..] = images.dims();
        let x = patches(&self.patch_embedding, images);
        let class = self.class_token.val().repeat_dim(0, batch);
        let x = Tensor::cat(vec![class, x], 1) + self.positions.val();
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        let x = self.norm.forward(x.narrow(1, 0, 1));
        self.head.forward(x.flatten(1, 2))
    }
}

pub const VISION_TRANSFORMER: Entry<VisionTransformer, Labeled> = Entry {
    init: VisionTransformer::new,
    forward: |model, (images, classes)| {
        let logits = model.forward(images);
        Outputs::loss(cross_entropy(logits.clone(), classes)).with("logits", logits)
    },
    batch: labeled,
    count: None,
};

/// Perceptrons across patches and across channels, in turn.
#[derive(Module, Debug)]
pub struct Mixer {
    patch_embedding: Conv2d,
    blocks: Vec<MixerBlock>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
struct MixerBlock {
    norms: [LayerNorm; 2],
    tokens: [Linear; 2],
    channels: [Linear; 2],
}

fn perceptron([first, second]: &[Linear; 2], x: Tensor<3>) -> Tensor<3> {
    second.forward(gelu(first.forward(x)))
}

impl MixerBlock {
    fn new(device: &Device) -> Self {
        let linears = |from: usize, to: usize| {
            [
                LinearConfig::new(from, to).init(device),
                LinearConfig::new(to, from).init(device),
            ]
        };
        let norm = || LayerNormConfig::new(WIDTH).init(device);
        Self {
            norms: [norm(), norm()],
            tokens: linears(PATCHES, 6),
            channels: linears(WIDTH, 2 * WIDTH),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let mixed = self.norms[0].forward(x.clone()).swap_dims(1, 2);
        let x = x + perceptron(&self.tokens, mixed).swap_dims(1, 2);
        x.clone() + perceptron(&self.channels, self.norms[1].forward(x))
    }
}

impl Mixer {
    fn new(device: &Device) -> Self {
        Self {
            patch_embedding: patch_embedding(device),
            blocks: (0..3).map(|_| MixerBlock::new(device)).collect(),
            norm: LayerNormConfig::new(WIDTH).init(device),
            head: LinearConfig::new(WIDTH, CLASSES).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = patches(&self.patch_embedding, images);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.norm.forward(x).mean_dim(1);
        self.head.forward(x.flatten(1, 2))
    }
}

pub const MLP_MIXER: Entry<Mixer, Labeled> = Entry {
    init: Mixer::new,
    forward: |model, (images, classes)| {
        let logits = model.forward(images);
        Outputs::loss(cross_entropy(logits.clone(), classes)).with("logits", logits)
    },
    batch: labeled,
    count: None,
};

const WORDS: usize = 11;
const LENGTH: usize = 5;

/// A tower for images and one for texts, whose outputs are compared pair by pair, as in CLIP.
#[derive(Module, Debug)]
pub struct Clip {
    visual: VisionTransformer,
    words: Embedding,
    positions: Param<Tensor<3>>,
    text: TransformerEncoder,
    text_projection: Linear,
    logit_scale: Param<Tensor<1>>,
}

impl Clip {
    fn new(device: &Device) -> Self {
        let normal = Distribution::Normal(0.0, 0.01);
        let positions = Tensor::random([1, LENGTH, WIDTH], normal, device);
        Self {
            visual: VisionTransformer::new(device),
            words: EmbeddingConfig::new(WORDS, WIDTH).init(device),
            positions: Param::from_tensor(positions),
            text: transformer(device),
            text_projection: LinearConfig::new(WIDTH, CLASSES)
                .with_bias(false)
                .init(device),
            logit_scale: Param::from_tensor(Tensor::from_floats([(1.0f32 / 0.07).ln()], device)),
        }
    }

    /// Returns the scores of each image with each text, of shape `[batch, batch]`.
    fn forward(&self, images: Tensor<4>, texts: Tensor<2, Int>) -> Tensor<2> {
        let image = self.visual.forward(images);
        let x = self.words.forward(texts) + self.positions.val();
        let x = self.text.forward(TransformerEncoderInput::new(x));
        let text = self
            .text_projection
            .forward(x.mean_dim(1).flatten::<2>(1, 2));
        let unit = |x: Tensor<2>| {
            let length = x.clone().powf_scalar(2.0).sum_dim(1).sqrt();
            x / (length + 1e-6)
        };
        let scale = self.logit_scale.val().exp().unsqueeze::<2>();
        unit(image).matmul(unit(text).transpose()) * scale
    }
}

pub const CLIP: Entry<Clip, (Tensor<4>, Tensor<2, Int>)> = Entry {
    init: Clip::new,
    forward: |model, (images, texts)| {
        let scores = model.forward(images, texts);
        let [batch, _] = scores.dims();
        let pairs = Tensor::<1, Int>::arange(0..batch as i64, &scores.device());
        let of_images = cross_entropy(scores.clone(), pairs.clone());
        let of_texts = cross_entropy(scores.clone().transpose(), pairs);
        Outputs::loss((of_images + of_texts) / 2.0)
    },
    batch: |number, device| {
        (
            floats([SAMPLES, 3, 8, 8], number, device),
            tokens([SAMPLES, LENGTH], WORDS, number + 1000, device),
        )
    },
    count: None,
};
