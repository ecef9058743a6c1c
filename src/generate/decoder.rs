//! The interface between language models and the loop.

use std::error::Error;

use burn::module::Module;
use burn::tensor::{DType, TensorData};
use tinderbox_fake::{DynTensor, Region};
use tinderbox_pipeline::{
    Batch, Carry, Evaluation, OutputError, Pipeline, PipelineError, Streamed,
};

use crate::error::GenerateError;

/// The default name of the output with the scores.
pub(super) const SCORES: &str = "scores";

/// The error of a [`Decoder`] of your own.
pub type DecoderError = Box<dyn Error + Send + Sync>;

/// A language model with its caches of one text.
///
/// A closure `|text: &[i32], done: usize| ...` that returns a `Result` of the scores is a decoder too, for example for a model
/// in plain Burn, or for a model without caches that reads a window of the text for each token.
pub trait Decoder {
    /// Returns the scores of the token after a text. `text` has the prompt and the tokens so far, at least one token. The
    /// first `done` tokens were in the text of the previous call; `done` is 0 in the first call. The last dimension of the
    /// scores is the vocabulary; with several rows, the last row is used.
    ///
    /// # Errors
    ///
    /// Returns an error if the model fails.
    fn scores(&mut self, text: &[i32], done: usize) -> Result<TensorData, GenerateError>;
}

impl<F, E> Decoder for F
where
    F: FnMut(&[i32], usize) -> Result<TensorData, E>,
    E: Into<DecoderError>,
{
    fn scores(&mut self, text: &[i32], done: usize) -> Result<TensorData, GenerateError> {
        self(text, done).map_err(|error| GenerateError::Decoder {
            source: error.into(),
        })
    }
}

/// Evaluations with carried values, of a [`Pipeline`] or a [`Streamed`] model.
pub trait EvaluateCarried<B> {
    /// Returns a carry without values, for a new text.
    fn new_carry(&mut self) -> Carry;

    /// Evaluates a batch with the values of a carry; see [`Pipeline::evaluate_carried`].
    ///
    /// # Errors
    ///
    /// See [`Pipeline::evaluate_carried`].
    fn evaluate_carried(
        &mut self,
        carry: &mut Carry,
        batch: B,
    ) -> Result<Evaluation, PipelineError>;
}

impl<M: Module + Sync + 'static, B: Batch> EvaluateCarried<B> for Pipeline<M, B> {
    fn new_carry(&mut self) -> Carry {
        self.carry()
    }

    fn evaluate_carried(
        &mut self,
        carry: &mut Carry,
        batch: B,
    ) -> Result<Evaluation, PipelineError> {
        Pipeline::evaluate_carried(self, carry, batch)
    }
}

impl<M: Module + Sync + 'static, B: Batch> EvaluateCarried<B> for Streamed<M, B> {
    fn new_carry(&mut self) -> Carry {
        self.carry()
    }

    fn evaluate_carried(
        &mut self,
        carry: &mut Carry,
        batch: B,
    ) -> Result<Evaluation, PipelineError> {
        Streamed::evaluate_carried(self, carry, batch)
    }
}

/// A text of a [`Pipeline`] or a [`Streamed`] model whose caches are [carried](crate::Carried) from token to token.
///
/// [`Generate::run`](super::Generate::run) uses one for each text. Without the loop, it returns the scores, for example to
/// compare them.
#[derive(Debug)]
pub struct CarriedDecoder<'a, T, S> {
    model: &'a mut T,
    carry: Carry,
    step: S,
    output: String,
}

impl<'a, T, S> CarriedDecoder<'a, T, S> {
    /// Begins a text. `step` returns the batch of some tokens and of their place in the text; the batch has one text.
    pub fn new<B>(model: &'a mut T, step: S) -> Self
    where
        T: EvaluateCarried<B>,
        S: FnMut(&[i32], usize) -> B,
    {
        Self {
            carry: model.new_carry(),
            model,
            step,
            output: SCORES.to_owned(),
        }
    }

    /// Sets the name of the output with the scores, of shape `[1, vocabulary]` or `[1, tokens, vocabulary]`. Default: `scores`.
    #[must_use]
    pub fn output(mut self, name: impl Into<String>) -> Self {
        self.output = name.into();
        self
    }
}

impl<B, T, S> Decoder for CarriedDecoder<'_, T, S>
where
    T: EvaluateCarried<B>,
    S: FnMut(&[i32], usize) -> B,
{
    fn scores(&mut self, text: &[i32], done: usize) -> Result<TensorData, GenerateError> {
        let batch = (self.step)(&text[done..], done);
        let evaluation = self.model.evaluate_carried(&mut self.carry, batch)?;
        last_row(only(&evaluation, &self.output)?)
    }
}

/// Returns an output of a batch of one text.
fn only<'a>(evaluation: &'a Evaluation, name: &str) -> Result<&'a DynTensor, GenerateError> {
    match evaluation.output(name) {
        Some([scores]) => Ok(scores),
        Some(several) => Err(GenerateError::MicroBatches {
            name: name.to_owned(),
            found: several.len(),
        }),
        None => {
            let known = evaluation.outputs().map(|(name, _)| name.to_owned());
            let (name, known) = (name.to_owned(), known.collect());
            Err(OutputError::Unknown { name, known }.into())
        }
    }
}

/// Copies the scores of the last token to the host, in f32.
fn last_row(scores: &DynTensor) -> Result<TensorData, GenerateError> {
    let shape = scores.shape().to_vec();
    let [1, rows @ .., _] = &shape[..] else {
        return Err(GenerateError::Shape { shape });
    };
    if rows.contains(&0) {
        return Err(GenerateError::Shape { shape });
    }
    let mut scores = scores.clone();
    for (axis, count) in (1..).zip(rows).filter(|(_, count)| **count > 1) {
        let count = *count as u64;
        let last = Region::of_shape(&scores.shape()).with_range(axis, count - 1..count);
        scores = scores.slice(&last);
    }
    Ok(scores.cast_float(DType::F32).into_data()?)
}
