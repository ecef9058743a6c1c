//! Models, data and references in plain Burn that tests, benches and examples share. It is not published.
//!
//! | module | contents |
//! |---|---|
//! | [`language_model`] | the decoder-only transformer of the example `train_lm`: dropout, one causal mask |
//! | [`text`] | the data of the example `train_lm`: a text in batches of characters |
//! | [`llama`] | the parameters of Llama models of up to 405 billion parameters, and their forward without caches |
//! | [`decoder`] | a Llama model with caches of keys and values, its weights in Hugging Face's form, generation by plain Burn |
//! | [`encoder_decoder`] | an encoder, and a decoder that attends to it; they share one embedding |
//! | [`experts`] | layers of experts that all process every sample |
//! | [`resnet`], [`unet`] | convolutions with group norms, and a network whose halves are connected at each size |
//! | [`minilm`] | BERT as a sentence encoder, with the parameters of all-MiniLM-L6-v2 |
//! | `digits` (feature) | a classifier of handwritten digits and its data set, for burn-train |
//! | [`zoo`] | eighteen models as users of Burn write them, a GAN, and their comparison with plain Burn |
//! | [`plain`] | a training step of plain Burn: the reference that pipelines are compared with |
//! | [`split`] | micro-batches by Burn's own `narrow`, for references |
//! | [`values`] | pseudorandom batches that are the same on every machine |

pub mod decoder;
#[cfg(feature = "digits")]
pub mod digits;
pub mod encoder_decoder;
pub mod experts;
pub mod language_model;
pub mod llama;
pub mod minilm;
pub mod plain;
pub mod resnet;
pub mod split;
pub mod text;
pub mod unet;
pub mod values;
pub mod zoo;
