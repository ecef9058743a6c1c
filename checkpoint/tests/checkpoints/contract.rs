//! A checkpoint keeps the contract of a source.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use tinderbox_checkpoint::{LoadOptions, Role, Run, SaveTensor};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::testing::check_source;
use tinderbox_deferred::{Deferred, parameter_values};

use crate::support::{TIMEOUT, meta};

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
    let net = model.materialize(&device, &model.replay(Seed::new(3)));
    let values = parameter_values(&net.unwrap()).into_iter();
    let tensors = values.map(|(path, value)| SaveTensor::whole(path.as_str(), Role::Model, value));
    let tensors: Vec<SaveTensor> = tensors.collect();
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    let attempt = run.begin(meta(1, 1)).unwrap();
    let rank = attempt.handle();
    rank.write_rank(0, &tensors, &BTreeMap::new()).unwrap();
    attempt.publish(TIMEOUT).unwrap();
    let checkpoint = run.open(1).unwrap();
    check_source(&checkpoint, model.parameters(), &device).unwrap();
    let source = checkpoint.source(LoadOptions::default().cast()).unwrap();
    check_source(&source, model.parameters(), &device).unwrap();
}
