//! Generation by a pipeline and by plain Burn.

use std::time::{Duration, Instant};

use anyhow::Result;
use burn::tensor::{DType, Device, Tensor};
use tinderbox::{Carry, Pipeline};

use super::model::{Cache, Llama, LlamaConfig, Step};
use super::sample::Sampler;

/// A model with the caches of one text.
pub trait Decoder {
    /// Returns the scores of the token after `tokens`, which begin at `place` of the text.
    fn scores(&mut self, tokens: &[i32], place: usize) -> Result<Tensor<2>>;
}

/// A pipeline, on whose ranks the caches stay.
pub struct Staged<'a> {
    pipeline: &'a mut Pipeline<Llama, Step>,
    carry: Carry,
    /// The caches of a text without tokens.
    empty: Vec<Cache>,
}

impl<'a> Staged<'a> {
    pub fn new(pipeline: &'a mut Pipeline<Llama, Step>, config: &LlamaConfig) -> Self {
        Self {
            carry: pipeline.carry(),
            empty: config.caches(1, &Device::flex()),
            pipeline,
        }
    }
}

impl Decoder for Staged<'_> {
    fn scores(&mut self, tokens: &[i32], place: usize) -> Result<Tensor<2>> {
        let step = Step::new(tokens, place, self.empty.clone(), &Device::flex());
        let output = self.pipeline.evaluate_with(&mut self.carry, step)?;
        Ok(output.tensor("scores")?)
    }
}

/// The model in plain Burn, which gets the caches of each step from the one before.
pub struct Plain<'a> {
    model: &'a Llama,
    caches: Vec<Cache>,
    device: Device,
}

impl<'a> Plain<'a> {
    pub fn new(model: &'a Llama, config: &LlamaConfig, device: &Device) -> Self {
        Self {
            caches: config.caches(1, device),
            model,
            device: device.clone(),
        }
    }
}

impl Decoder for Plain<'_> {
    fn scores(&mut self, tokens: &[i32], place: usize) -> Result<Tensor<2>> {
        let caches = std::mem::take(&mut self.caches);
        let step = Step::new(tokens, place, caches, &self.device);
        let (scores, caches) = self.model.forward(step);
        self.caches = caches;
        Ok(scores)
    }
}

/// A continued text.
pub struct Generated {
    /// The tokens after the prompt.
    pub tokens: Vec<i32>,
    /// The time until the first token.
    pub first: Duration,
    /// The time of the others.
    pub rest: Duration,
}

impl Generated {
    /// Returns the speed after the first token; `None` if there are no others.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let others = self.tokens.len() - 1;
        (others > 0).then(|| others as f64 / self.rest.as_secs_f64())
    }
}

/// Continues a prompt by `length` tokens, at least 1, and calls `each` with every one.
pub fn generate(
    decoder: &mut dyn Decoder,
    prompt: &[i32],
    length: usize,
    mut sampler: Sampler,
    mut each: impl FnMut(i32),
) -> Result<Generated> {
    let mut tokens = Vec::with_capacity(length);
    let mut started = Instant::now();
    let mut first = Duration::ZERO;
    let mut next = prompt;
    let mut place = 0;
    loop {
        let scores = decoder.scores(next, place)?.cast(DType::F32).into_data();
        place += next.len();
        tokens.push(sampler.choose(&scores.try_to_vec::<f32>()?) as i32);
        if tokens.len() == 1 {
            first = started.elapsed();
            started = Instant::now();
        }
        next = &tokens[tokens.len() - 1..];
        each(next[0]);
        if tokens.len() == length {
            let rest = started.elapsed();
            return Ok(Generated {
                tokens,
                first,
                rest,
            });
        }
    }
}
