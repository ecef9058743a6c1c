//! Generation by plain Burn.

use burn::tensor::{DType, Device, TensorData};
use tinderbox::error::GenerateError;
use tinderbox::generate::Decoder;

use super::model::{Cache, Llama, LlamaConfig, Step};

/// The model in plain Burn with the caches of one text. Each step reads the caches of the step before.
#[derive(Debug)]
pub struct Plain<'a> {
    model: &'a Llama,
    caches: Vec<Cache>,
    device: Device,
}

impl<'a> Plain<'a> {
    /// Starts a text on a device.
    pub fn new(model: &'a Llama, config: &LlamaConfig, device: &Device) -> Self {
        Self {
            caches: config.caches(1, device),
            model,
            device: device.clone(),
        }
    }
}

impl Decoder for Plain<'_> {
    fn scores(&mut self, text: &[i32], done: usize) -> Result<TensorData, GenerateError> {
        let caches = std::mem::take(&mut self.caches);
        let step = Step::new(&text[done..], done, caches, &self.device);
        let (scores, caches) = self.model.forward(step);
        self.caches = caches;
        Ok(scores.cast(DType::F32).into_data())
    }
}
