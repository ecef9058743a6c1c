//! A decoder in the form of Llama with caches of keys and values: the model, its weights in Hugging Face's form, and
//! generation by plain Burn.

pub mod decode;
pub mod model;
pub mod weights;
