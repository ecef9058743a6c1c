//! Models that `burn-onnx` generated from ONNX files: constructed deferred, cut into stages that read their own weights of
//! the burnpack file, evaluated and trained, with the results of plain Burn bit for bit.

mod check;
mod models;
mod script;
mod source;

use burn::tensor::{DType, Device, Int, Tensor};
use tinderbox::{Deferred, Outputs, Traceable};

use crate::models::{Import, encoder, expected, file, floats, masked, residual};

/// A ResNet.
const RESIDUAL: Import<residual::Model, Tensor<4>> = Import {
    name: "residual",
    input_name: "images",
    new: residual::Model::new,
    from_file: |path, device| residual::Model::from_file(path, device),
    forward: residual::Model::forward,
    input: |values, device| Tensor::<1>::from_floats(values, device).reshape([-1, 3, 16, 16]),
    input_below: 17.0,
};

/// A layer of BERT.
const ENCODER: Import<encoder::Model, Tensor<2, Int>> = Import {
    name: "encoder",
    input_name: "tokens",
    new: encoder::Model::new,
    from_file: |path, device| encoder::Model::from_file(path, device),
    forward: encoder::Model::forward,
    input: |values, device| integers(values, device).reshape([-1, 8]),
    input_below: 50.0,
};

/// Integers of 64 bits, as the ONNX files declare.
fn integers(values: &[f32], device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
    Tensor::from_data(&*values, (device, DType::I64))
}

#[test]
fn stages_evaluate_a_residual_network() {
    check::evaluates(RESIDUAL);
}

#[test]
fn stages_evaluate_an_encoder() {
    check::evaluates(ENCODER);
}

/// Its running states, too.
#[test]
fn stages_train_a_residual_network() {
    assert_eq!(check::trains(RESIDUAL), Vec::<String>::new());
}

/// The tables that `Gather` reads, and scalars, are constants of the generated model.
#[test]
fn stages_train_an_encoder() {
    let constants = [
        "constant11",
        "constant26",
        "constant3",
        "constant36",
        "constant37",
        "constant38",
        "constant5",
        "constant8",
    ];
    assert_eq!(check::trains(ENCODER), constants);
}

/// A `Range` whose limit is a value of the batch, which plain Burn computes.
#[test]
fn an_operation_that_reads_the_batch_is_refused_with_its_line() {
    let device = Device::flex();
    let golden = expected("masked");
    let sequences = Tensor::<1>::from_floats(&*floats(&golden["sequences"]), &device);
    let lengths = integers(&floats(&golden["lengths"]), &device);
    let batch = (sequences.reshape([4, 8, 16]), lengths);
    let plain = masked::Model::from_file(file("masked", "bpk"), &device);
    let logits = plain.forward(batch.0.clone(), batch.1.clone());
    check::check_close(&logits.into_data(), &floats(&golden["logits"]));

    let model = Deferred::new(masked::Model::new).unwrap();
    let trace = model.trace_forward(&batch, |model: &masked::Model, (sequences, lengths)| {
        Outputs::none().with("logits", model.forward(sequences, lengths))
    });
    let text = format!("{:#}", anyhow::Error::new(trace.map(drop).unwrap_err()));
    let mut generated = include_str!("models/masked.rs").lines();
    let line = generated.position(|line| line.contains("into_scalar"));
    let place = format!("onnx/models/masked.rs:{}:", line.unwrap() + 1);
    assert!(text.contains("`Tensor::into_scalar`"), "{text}");
    assert!(text.contains(&place), "{text}");
}
