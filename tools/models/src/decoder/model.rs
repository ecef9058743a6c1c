//! A decoder in the form of Llama whose caches have a fixed size, so that one program serves every position.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use tinderbox::Batch;

/// Sizes of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Heads of queries, a multiple of the heads of keys and values.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_size: usize,
    /// Width inside a feed-forward network.
    pub feed_forward: usize,
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Number of places of the caches.
    pub context: usize,
    /// Added to a mean square before its square root.
    pub norm_epsilon: f64,
    /// Base of the wavelengths of the rotary encoding.
    pub rotary_base: f64,
    /// Whether the head is the transposed embedding.
    pub is_tied: bool,
}

/// Grouped-query attention.
#[derive(Module, Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

/// A gated feed-forward network.
#[derive(Module, Debug)]
pub struct FeedForward {
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Attention and a feed-forward network, each after a norm and with a residual connection.
#[derive(Module, Debug)]
pub struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

/// A decoder.
#[derive(Module, Debug)]
pub struct Llama {
    tokens: Embedding,
    /// The rotary encoding of each place, `[context, head size / 2]`.
    cos: Tensor<2>,
    sin: Tensor<2>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// `None` if the head is the transposed embedding.
    head: Option<Linear>,
}

/// Keys and values of a layer, `[texts, heads, context, head size]`.
#[derive(Clone, Debug, Batch)]
pub struct Cache {
    keys: Tensor<4>,
    values: Tensor<4>,
}

/// The next tokens of some texts.
#[derive(Clone, Debug, Batch)]
pub struct Step {
    /// `[texts, tokens]`.
    pub tokens: Tensor<2, Int>,
    /// The places of the tokens, `[tokens]`.
    #[batch(whole)]
    pub places: Tensor<1, Int>,
    /// One for each layer.
    #[batch(carried)]
    pub caches: Vec<Cache>,
}

impl Step {
    /// Creates the step of one text's tokens that begin at a place.
    pub fn new(tokens: &[i32], place: usize, caches: Vec<Cache>, device: &Device) -> Self {
        let count = tokens.len();
        let places = (place..place + count).map(|place| place as i32);
        let places: Vec<i32> = places.collect();
        Self {
            tokens: Tensor::from_data(TensorData::new(tokens.to_vec(), [1, count]), device),
            places: Tensor::from_data(TensorData::new(places, [count]), device),
            caches,
        }
    }
}

impl LlamaConfig {
    /// A small model of bytes.
    pub fn of_bytes(context: usize) -> Self {
        Self {
            hidden: 256,
            layers: 6,
            heads: 8,
            kv_heads: 4,
            head_size: 32,
            feed_forward: 768,
            vocabulary: 256,
            context,
            norm_epsilon: 1e-5,
            rotary_base: 10_000.0,
            is_tied: false,
        }
    }

    /// Initializes the model.
    pub fn init(&self, device: &Device) -> Llama {
        let half = self.head_size / 2;
        let places = Tensor::<1, Int>::arange(0..self.context as i64, device).float();
        // Each wavelength belongs to a pair of elements, one from each half of a head, as in Hugging Face's weights.
        let frequencies = (0..half).map(|pair| {
            let exponent = 2.0 * pair as f64 / self.head_size as f64;
            (1.0 / self.rotary_base.powf(exponent)) as f32
        });
        let frequencies: Vec<f32> = frequencies.collect();
        let frequencies = Tensor::<1>::from_floats(frequencies.as_slice(), device);
        let angles = places.unsqueeze_dim::<2>(1) * frequencies.unsqueeze_dim::<2>(0);
        let head = || linear(self.hidden, self.vocabulary, device);
        Llama {
            tokens: EmbeddingConfig::new(self.vocabulary, self.hidden).init(device),
            cos: angles.clone().cos(),
            sin: angles.sin(),
            layers: (0..self.layers).map(|_| self.init_layer(device)).collect(),
            norm: self.init_norm(device),
            head: (!self.is_tied).then(head),
        }
    }

    fn init_norm(&self, device: &Device) -> RmsNorm {
        let config = RmsNormConfig::new(self.hidden);
        config.with_epsilon(self.norm_epsilon).init(device)
    }

    fn init_layer(&self, device: &Device) -> Layer {
        let (query, key) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        Layer {
            attention_norm: self.init_norm(device),
            attention: Attention {
                query: linear(self.hidden, query, device),
                key: linear(self.hidden, key, device),
                value: linear(self.hidden, key, device),
                output: linear(query, self.hidden, device),
            },
            feed_forward_norm: self.init_norm(device),
            feed_forward: FeedForward {
                gate: linear(self.hidden, self.feed_forward, device),
                up: linear(self.hidden, self.feed_forward, device),
                down: linear(self.feed_forward, self.hidden, device),
            },
        }
    }

    /// Returns a function that creates the step of some tokens of one text that begin at a place. The step is on the CPU, and
    /// has the caches of a text without tokens.
    pub fn steps(&self) -> impl FnMut(&[i32], usize) -> Step + use<> {
        let device = Device::flex();
        let caches = self.caches(1, &device);
        move |tokens, place| Step::new(tokens, place, caches.clone(), &device)
    }

    /// Returns the caches of texts without tokens. They need no memory until they are written.
    pub fn caches(&self, texts: usize, device: &Device) -> Vec<Cache> {
        let shape = [texts, self.kv_heads, self.context, self.head_size];
        let zeros = || Tensor::<4>::zeros([1, 1, 1, 1], device).expand(shape);
        let cache = |_| Cache {
            keys: zeros(),
            values: zeros(),
        };
        (0..self.layers).map(cache).collect()
    }
}

fn linear(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).with_bias(false).init(device)
}

impl Llama {
    /// Returns the scores of the next token of each text, `[texts, vocabulary]`, and the caches with the new tokens.
    pub fn forward(&self, step: Step) -> (Tensor<2>, Vec<Cache>) {
        let [texts, count] = step.tokens.dims();
        let places = step.places;
        let rotary = (
            self.cos.clone().select(0, places.clone()).unsqueeze(),
            self.sin.clone().select(0, places.clone()).unsqueeze(),
        );
        let later = later(&places, self.cos.dims()[0]);
        let mut x = self.tokens.forward(step.tokens);
        let mut caches = Vec::with_capacity(step.caches.len());
        for (layer, cache) in self.layers.iter().zip(step.caches) {
            let normed = layer.attention_norm.forward(x.clone());
            let attention = &layer.attention;
            let (mixed, cache) = attention.forward(normed, &places, &later, &rotary, cache);
            x = x + mixed;
            caches.push(cache);
            let normed = layer.feed_forward_norm.forward(x.clone());
            x = x + layer.feed_forward.forward(normed);
        }
        let hidden = x.dims()[2];
        let last = x.slice([0..texts, count - 1..count]);
        let last = self.norm.forward(last.reshape([texts, hidden]));
        let scores = match &self.head {
            Some(head) => head.forward(last),
            None => last.matmul(self.tokens.weight.val().transpose()),
        };
        (scores, caches)
    }
}

impl Attention {
    fn forward(
        &self,
        x: Tensor<3>,
        places: &Tensor<1, Int>,
        later: &Tensor<4, Bool>,
        rotary: &(Tensor<4>, Tensor<4>),
        cache: Cache,
    ) -> (Tensor<3>, Cache) {
        let [texts, kv_heads, _, size] = cache.keys.dims();
        let [_, count, _] = x.dims();
        let heads = |projected: Tensor<3>| -> Tensor<4> {
            let [_, _, width] = projected.dims();
            let heads = projected.reshape([texts, count, width / size, size]);
            heads.swap_dims(1, 2)
        };
        let write = |cache: Tensor<4>, new| {
            cache.select_assign(2, places.clone(), new, IndexingUpdateOp::Assign)
        };
        let queries = rotate(heads(self.query.forward(x.clone())), rotary);
        let keys = rotate(heads(self.key.forward(x.clone())), rotary);
        let keys = write(cache.keys, keys);
        let values = write(cache.values, heads(self.value.forward(x)));

        // The queries of a group have the same keys.
        let group = queries.dims()[1] / kv_heads;
        let queries = queries.reshape([texts, kv_heads, group * count, size]);
        let scores = queries.matmul(keys.clone().swap_dims(2, 3)) / (size as f64).sqrt();
        let later = later.clone().repeat_dim(2, group).expand(scores.dims());
        let weights = softmax(scores.mask_fill(later, f32::NEG_INFINITY), 3);
        let mixed = weights.matmul(values.clone());
        let mixed = mixed.reshape([texts, kv_heads * group, count, size]);
        let width = kv_heads * group * size;
        let mixed = mixed.swap_dims(1, 2).reshape([texts, count, width]);
        (self.output.forward(mixed), Cache { keys, values })
    }
}

/// Returns a mask of the places of a cache that are after the place of each token, `[1, 1, tokens, context]`.
fn later(places: &Tensor<1, Int>, context: usize) -> Tensor<4, Bool> {
    let [count] = places.dims();
    let all = Tensor::<1, Int>::arange(0..context as i64, &places.device());
    let shape = [1, 1, count, context];
    let own = places.clone().reshape([1, 1, count, 1]).expand(shape);
    all.reshape([1, 1, 1, context]).expand(shape).greater(own)
}

/// Rotates each pair of elements by the angle of its place.
fn rotate(x: Tensor<4>, (cos, sin): &(Tensor<4>, Tensor<4>)) -> Tensor<4> {
    let size = x.dims()[3];
    let [first, second] = [0..size / 2, size / 2..size].map(|half| x.clone().slice_dim(3, half));
    let left = first.clone() * cos.clone() - second.clone() * sin.clone();
    let right = second * cos.clone() + first * sin.clone();
    Tensor::cat(vec![left, right], 3)
}

impl FeedForward {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = silu(self.gate.forward(x.clone()));
        self.down.forward(gate * self.up.forward(x))
    }
}
