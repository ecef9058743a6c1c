//! Linear layers, and their weights as a checkpoint and in PyTorch's layout.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use tinderbox::checkpoint::tools::{ExportOptions, export_tensors};
use tinderbox::checkpoint::{CheckpointMeta, Run, SaveTensor};
use tinderbox::deferred::random::Seed;
use tinderbox::{Deferred, Outputs};

/// The directory of the weights for PyTorch.
pub const PYTORCH: &str = "pytorch";
/// The directory of the checkpoint.
pub const RUN: &str = "run";
/// Layers of 16 MiB.
pub const LAYERS: usize = 128;
pub const WIDTH: usize = 2048;
pub const SAMPLES: usize = 32;

pub fn deferred() -> Deferred<Vec<Linear>> {
    let linear = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    let init = move |device: &Device| -> Vec<Linear> {
        (0..LAYERS).map(|_| linear.clone().init(device)).collect()
    };
    Deferred::new(init).expect("the model is recorded")
}

#[expect(clippy::ptr_arg, reason = "the type of the model")]
pub fn forward(layers: &Vec<Linear>, x: Tensor<2>) -> Outputs {
    // Without the sum, values would become subnormal, which are slow.
    let y = layers
        .iter()
        .fold(x, |x, layer| x.clone() + relu(layer.forward(x)));
    Outputs::none().with("y", y)
}

pub fn batch() -> Tensor<2> {
    Tensor::ones([SAMPLES, WIDTH], &Device::flex())
}

/// Writes the weights for PyTorch, and as a checkpoint, with the memory of a few of them.
pub fn write(dir: &Path) {
    let model = deferred();
    let table = model.parameters();
    let source = Arc::new(model.initializer(Seed::new(1)));
    let tensors = SaveTensor::of_source(table, source, |_| None);
    let options = ExportOptions::default().pytorch(table);
    export_tensors(&tensors, &dir.join(PYTORCH), &options, &()).expect("the weights are written");
    let attempt = Run::local(dir.join(RUN)).begin(CheckpointMeta::new(0, 1));
    let attempt = attempt.expect("there is no checkpoint yet");
    let written = attempt
        .handle()
        .write_rank(0, &tensors, &BTreeMap::new(), &());
    written.expect("the weights are written");
    attempt
        .publish(Duration::from_secs(60))
        .expect("they are complete");
}
