//! A checkpoint keeps the contract of a source.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::Module;
use burn::nn::{EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::Device;
use tinderbox_checkpoint::tools::{SaveOptions, TensorSplit, save_tensors};
use tinderbox_checkpoint::{CheckpointMeta, LoadOptions, Role, Run, SaveTensor};
use tinderbox_checkpoint_tests::{TIMEOUT, meta};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::testing::check_source;
use tinderbox_deferred::{Deferred, parameter_values};
use tinderbox_fake::Region;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

#[test]
fn a_checkpoint_keeps_the_contract_of_a_source() {
    let device = Device::flex();
    let model = Deferred::new(|device| Net {
        first: LinearConfig::new(5, 7).init(device),
        second: LinearConfig::new(7, 2).init(device),
    });
    let model = model.unwrap();
    let net = model.materialize(&device, &model.initializer(Seed::new(3)));
    let values = parameter_values(&net.unwrap()).into_iter();
    let tensors = values.map(|(path, value)| SaveTensor::whole(path.as_str(), Role::Model, value));
    let tensors: Vec<SaveTensor> = tensors.collect();
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    let attempt = run.begin(meta(1, 1)).unwrap();
    let rank = attempt.handle();
    rank.write_rank(0, &tensors, &BTreeMap::new(), &()).unwrap();
    attempt.publish(TIMEOUT).unwrap();
    let checkpoint = run.open(1).unwrap();
    check_source(&checkpoint, model.parameters(), &device).unwrap();
    let source = checkpoint.source(LoadOptions::default().cast()).unwrap();
    check_source(&source, model.parameters(), &device).unwrap();
}

/// A parameter of 80 MiB is computed in two pieces, on one thread or several.
#[test]
fn a_large_parameter_is_saved_in_pieces() {
    let model = Deferred::new(|device: &Device| EmbeddingConfig::new(1 << 14, 1280).init(device));
    let model = model.unwrap();
    let initializer = Arc::new(model.initializer(Seed::new(3)));
    let made = model.materialize(&Device::flex(), &*initializer).unwrap();
    let tensors = SaveTensor::of_source(model.parameters(), initializer, |_| None);
    // A piece of up to 64 MiB, and not the whole.
    let working = tensors[0].working_bytes();
    assert!((60 << 20..65 << 20).contains(&working), "{working}");
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    for split in [TensorSplit::Whole, TensorSplit::Rows] {
        let options = SaveOptions {
            split,
            ..SaveOptions::default()
        };
        // Blocks of the default size, of which one is in both pieces.
        let mut meta = CheckpointMeta::new(1, 3);
        meta.replace = true;
        save_tensors(&tensors, &run, meta, &options, &()).unwrap();
        let checkpoint = run.open(1).unwrap();
        let tensor = checkpoint.tensor(Role::Model, "weight").unwrap();
        let found = checkpoint.read(tensor, &Region::whole(&tensor.shape).unwrap());
        assert_eq!(found.unwrap(), made.weight.val().into_data());
    }
}
