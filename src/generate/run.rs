//! The loop that generates a text.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use burn::tensor::TensorData;

use super::decoder::{CarriedDecoder, Decoder, EvaluateCarried, SCORES};
use super::sampler::Sampler;
use crate::error::GenerateError;

/// Continues a text token by token with a language model whose caches are [carried](crate::Carried): the prompt in one
/// evaluation, then one token at a time.
///
/// The chapter on generation of the book has the model, the trace and the batch of one step.
///
/// ```no_run
/// # use burn::tensor::{Int, Tensor};
/// # use tinderbox::{Batch, Carried, Pipeline};
/// use tinderbox::{Generate, Sampler};
///
/// # type Step = (Tensor<1, Int>, Carried<Tensor<3>>);
/// # fn example<M: burn::module::Module + Sync + 'static>(
/// #     pipeline: &mut Pipeline<M, Step>,
/// #     step_of: impl Fn(&[i32], usize) -> Step,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let generated = Generate::new(200)
///     .sampler(Sampler::new(42).temperature(0.8).top_p(0.9))
///     .stop_at([2])
///     .run(
///         pipeline, // or a streamed model
///         &[1, 450, 4996],
///         |tokens, place| step_of(tokens, place), // the batch of these tokens, which begin at a place of the text
///         |token| print!("{token} "),
///     )?;
/// println!("{:?} tokens/s", generated.tokens_per_s());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Generate {
    max_tokens: usize,
    stop: Vec<i32>,
    sampler: Sampler,
    output: String,
}

/// A continued text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generated {
    /// The tokens after the prompt, without a stop token.
    pub tokens: Vec<i32>,
    /// The reason why there are no more tokens.
    pub end: TextEnd,
    /// The time until the first token.
    pub first: Duration,
    /// The time of the other tokens.
    pub rest: Duration,
}

/// The end of a generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnd {
    /// The text has the maximum number of tokens.
    MaxTokens,
    /// The model has generated this stop token.
    StopToken(i32),
}

impl Generated {
    /// Returns the tokens per second after the first token; `None` if there are no other tokens.
    #[must_use]
    pub fn tokens_per_s(&self) -> Option<f64> {
        let others = self.tokens.len().saturating_sub(1);
        let rest = self.rest.as_secs_f64().max(f64::MIN_POSITIVE);
        (others > 0).then(|| others as f64 / rest)
    }
}

impl Generate {
    /// Creates a loop that generates at most this number of tokens. It chooses the tokens with the highest scores unless a
    /// [sampler](Self::sampler) is set.
    pub fn new(max_tokens: usize) -> Self {
        Self {
            max_tokens,
            stop: Vec::new(),
            sampler: Sampler::greedy(),
            output: SCORES.to_owned(),
        }
    }

    /// Sets the choice of the tokens. Every run begins with the current state of the sampler.
    pub fn sampler(mut self, sampler: Sampler) -> Self {
        self.sampler = sampler;
        self
    }

    /// Ends a text at one of these tokens, such as the token for the end of a text. Default: none.
    pub fn stop_at(mut self, tokens: impl IntoIterator<Item = i32>) -> Self {
        self.stop = tokens.into_iter().collect();
        self
    }

    /// Sets the name of the output with the scores, of shape `[1, vocabulary]` or `[1, tokens, vocabulary]`. Default: `scores`.
    pub fn output(mut self, name: impl Into<String>) -> Self {
        self.output = name.into();
        self
    }

    /// Continues a prompt with a pipeline or a streamed model. `step` returns the batch of some tokens and of their place in
    /// the text: the prompt at place 0, then one token at a time. The batch has one text, and carried tensors. `each` gets
    /// every token as soon as it is chosen.
    ///
    /// In a [`World`](crate::World), all processes make this call.
    ///
    /// # Errors
    ///
    /// Returns an error if the prompt is empty, an evaluation fails, the model has no such output, or no token can be chosen.
    pub fn run<B, T: EvaluateCarried<B>>(
        &self,
        model: &mut T,
        prompt: &[i32],
        step: impl FnMut(&[i32], usize) -> B,
        each: impl FnMut(i32),
    ) -> Result<Generated, GenerateError> {
        let mut decoder = CarriedDecoder::new(model, step).output(&self.output);
        self.run_with(&mut decoder, prompt, each)
    }

    /// Continues a prompt with a [`Decoder`] of your own, such as a model in plain Burn.
    ///
    /// # Errors
    ///
    /// See [`run`](Self::run). Returns an error if the decoder fails.
    pub fn run_with<D: Decoder + ?Sized>(
        &self,
        decoder: &mut D,
        prompt: &[i32],
        mut each: impl FnMut(i32),
    ) -> Result<Generated, GenerateError> {
        self.sampler.check()?;
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let mut sampler = self.sampler.clone();
        let (mut text, mut done) = (prompt.to_vec(), 0);
        let (mut began, mut first) = (Instant::now(), Duration::ZERO);
        let mut end = TextEnd::MaxTokens;
        while text.len() - prompt.len() < self.max_tokens {
            let found = decoder.scores(&text, done)?;
            let token = sampler.choose(&last_scores(&found))? as i32;
            if done == 0 {
                first = began.elapsed();
                began = Instant::now();
            }
            if self.stop.contains(&token) {
                end = TextEnd::StopToken(token);
                break;
            }
            done = text.len();
            text.push(token);
            each(token);
        }
        Ok(Generated {
            tokens: text.split_off(prompt.len()),
            end,
            first,
            rest: began.elapsed(),
        })
    }
}

/// Returns the scores of the last row.
fn last_scores(scores: &TensorData) -> Cow<'_, [f32]> {
    let vocabulary = scores.shape().last().copied().unwrap_or(0);
    match scores.as_slice::<f32>() {
        Ok(all) => Cow::Borrowed(&all[all.len().saturating_sub(vocabulary)..]),
        Err(_) => {
            let before = scores.num_elements().saturating_sub(vocabulary);
            Cow::Owned(scores.iter::<f32>().skip(before).collect())
        }
    }
}
