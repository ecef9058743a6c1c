//! Errors of text generation.

use tinderbox_fake::FakeError;
use tinderbox_pipeline::{OutputError, PipelineError};

use crate::generate::DecoderError;

/// The reason why a text can't be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The prompt has no token.
    #[error("the prompt is empty: the first token needs at least one before it")]
    EmptyPrompt,
    /// A setting of the sampler is out of its range.
    #[error("`{name}` of the sampler is {value}: expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// Its range.
        expected: &'static str,
    },
    /// The model can't be evaluated.
    #[error("the model can't be evaluated")]
    Pipeline(#[from] PipelineError),
    /// The forward has no output with the scores.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The batch has several micro-batches.
    #[error(
        "the output `{name}` has {found} micro-batches: a text is generated alone, so return a batch of one text"
    )]
    MicroBatches {
        /// The name.
        name: String,
        /// Their number.
        found: usize,
    },
    /// The scores have another shape.
    #[error(
        "the scores have shape {shape:?}: expected [1, vocabulary] or [1, tokens, vocabulary], of one text"
    )]
    Shape {
        /// The shape.
        shape: Vec<usize>,
    },
    /// The scores can't be read.
    #[error("the scores can't be read")]
    Read(#[from] FakeError),
    /// A decoder of the caller failed.
    #[error("the decoder failed")]
    Decoder {
        /// The cause.
        source: DecoderError,
    },
    /// A score is NaN.
    #[error(
        "the score of token {token} is NaN: the model or its inputs have a value that is not finite"
    )]
    NotANumber {
        /// The token.
        token: usize,
    },
    /// There is no token with a score, or every score is minus infinity.
    #[error("no token has a score above minus infinity, so none can be chosen")]
    NoToken,
}
