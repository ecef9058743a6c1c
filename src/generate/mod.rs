//! Text from a language model, token by token: the loop, and the choice of the tokens.
//!
//! In order: a module uses only modules before it.
//!
//! ```text
//! sampler decoder run
//! ```

mod decoder;
mod run;
mod sampler;

pub use decoder::{CarriedDecoder, Decoder, DecoderError, EvaluateCarried};
pub use run::{Generate, Generated, TextEnd};
pub use sampler::Sampler;
