//! Compares generated models in stages with plain Burn, and with ONNX's own evaluator.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox::checkpoint::LoadOptions;
use tinderbox::deferred::parameter_values;
use tinderbox::fake::Mode;
use tinderbox::{Batch, Deferred, Machine, Outputs, Pipeline, Plan, Pretrained, Traceable};
use tinderbox_models::plain::{gradients, number, parameters, weighted};
use tinderbox_models::split::{Split, split};

use crate::models::{Import, expected, file, floats};
use crate::source::{Load, Noted};

const STEPS: u64 = 3;
const SAMPLES: usize = 8;
const RATE: f64 = 1e-2;

/// The weights, and the loads of ranks.
fn weights<M: Module>(model: &Deferred<M>, name: &str) -> (Noted, Arc<Mutex<Vec<Load>>>) {
    let options = LoadOptions::default().burn(model.parameters());
    let file = Pretrained::open(file(name, "bpk")).unwrap();
    let source = file.source(options).unwrap();
    let loads = Arc::default();
    let noted = Noted {
        source,
        loads: Arc::clone(&loads),
    };
    (noted, loads)
}

/// Checks that every rank has loaded the parameters of its stage, and no others.
fn check_loads(plan: &Plan, loads: &Mutex<Vec<Load>>) {
    let stages = plan.stages.iter();
    let held = stages.map(|stage| stage.parameters.iter().chain(&stage.copies));
    let mut held: Vec<Load> = held.map(|paths| paths.cloned().collect()).collect();
    // The whole module is rebuilt with nothing loaded, and then each rank loads. A stage may have no parameters.
    let mut loads = loads.lock().unwrap().clone();
    for lists in [&mut loads, &mut held] {
        lists.retain(|paths| !paths.is_empty());
    }
    held.sort();
    loads.sort();
    assert_eq!(loads, held);
}

/// Compares outputs with the outputs of ONNX's own evaluator.
pub fn check_close(found: &TensorData, expected: &[f32]) {
    assert_eq!(found.num_elements(), expected.len());
    for (found, expected) in found.iter::<f32>().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
    }
}

/// Evaluates in 1 to 4 stages and 1 and 4 micro-batches.
pub fn evaluates<M, X>(import: Import<M, X>)
where
    M: Module + Sync + 'static,
    X: Batch + Split,
{
    let device = Device::flex();
    let golden = expected(import.name);
    let input = (import.input)(&floats(&golden[import.input_name]), &device);
    let of_onnx = floats(&golden["logits"]);
    let plain = (import.from_file)(file(import.name, "bpk"), &device);
    let model = Deferred::new(import.new).unwrap();
    let mut parameters = parameter_values(model.module()).into_iter();
    assert!(parameters.all(|(_, value)| value.is_fake()));
    for micro_batches in [1, 4] {
        let forward =
            move |model: &M, input| Outputs::none().with("logits", (import.forward)(model, input));
        let trace = model.trace_in(Mode::Inference, &input, micro_batches, forward);
        let trace = trace.unwrap();
        let parts = split(&input, micro_batches).into_iter();
        let logits = parts.map(|(part, _)| (import.forward)(&plain, part));
        let expected = Tensor::cat(logits.collect(), 0).into_data();
        check_close(&expected, &of_onnx);
        for stages in 1..=4 {
            let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
            let (source, loads) = weights(&model, import.name);
            let mut pipeline = Pipeline::builder(&model, &trace, &plan)
                .source(source)
                .start()
                .unwrap();
            check_loads(&plan, &loads);
            let output = pipeline.evaluate(input.clone()).unwrap();
            let found = output.tensor::<2>("logits").unwrap().into_data();
            let setting = format!("{stages} stages, {micro_batches} micro-batches");
            assert_eq!(found, expected, "{setting}");
        }
    }
}

/// Losses, and the bytes of all parameters and states after the last step.
#[derive(Debug, Default, PartialEq)]
struct Run {
    losses: Vec<Vec<f64>>,
    parameters: BTreeMap<String, Vec<u8>>,
}

fn loss<M, X>(import: Import<M, X>, model: &M, (input, classes): (X, Tensor<1, Int>)) -> Tensor<1> {
    let logits = (import.forward)(model, input);
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits, classes)
}

/// The batch of a step.
fn batch<M, X>(import: Import<M, X>, step: u64, device: &Device) -> (X, Tensor<1, Int>) {
    let count = floats(&expected(import.name)[import.input_name]).len() / 4 * SAMPLES;
    let values = (0..count as u64).map(|at| (at * at * 7 + at * 13 + step * 101) % 1009);
    let values: Vec<f32> = values.map(|x| x as f32 % import.input_below).collect();
    let classes: Vec<i32> = (0..SAMPLES as i32)
        .map(|at| (at * 7 + step as i32) % 10)
        .collect();
    let input = (import.input)(&values, device);
    (input, Tensor::from_ints(&*classes, device))
}

/// Plain Burn, which accumulates the gradients of the micro-batches.
fn plain<M: Module, X: Split>(import: Import<M, X>, micro_batches: usize) -> Run {
    let device = Device::flex().autodiff();
    let mut model = (import.from_file)(file(import.name, "bpk"), &device);
    let mut optimizer = AdamWConfig::new().init();
    let mut run = Run::default();
    for step in 0..STEPS {
        let parts = split(&batch(import, step, &device), micro_batches);
        let mut losses = Vec::new();
        let summed = gradients(&model, weighted(parts, SAMPLES), |part| {
            let loss = loss(import, &model, part);
            losses.push(number(&loss));
            loss
        });
        run.losses.push(losses);
        model = optimizer.step(RATE, model, summed);
    }
    // `valid` leaves the field `device` of a generated model as it is, and so would evaluate it with gradients, in other
    // kernels.
    let record = model.valid().into_record();
    let trained = (import.new)(&Device::flex()).load_record(record);
    run.parameters = parameters(&trained);
    let parts = split(&batch(import, STEPS, &Device::flex()), micro_batches).into_iter();
    let losses = parts.map(|(part, _)| loss(import, &trained, part));
    run.losses.push(losses.map(|loss| number(&loss)).collect());
    run
}

/// Trains in 1 to 4 stages and 1 and 4 micro-batches, and returns the parameters that this leaves as they were.
pub fn trains<M, X>(import: Import<M, X>) -> Vec<String>
where
    M: Module + Sync + 'static,
    X: Batch + Split,
{
    let device = Device::flex();
    let model = Deferred::new(import.new).unwrap();
    let initial = parameters(&(import.from_file)(file(import.name, "bpk"), &device));
    let mut kept = None;
    for micro_batches in [1, 4] {
        let expected = plain(import, micro_batches);
        let forward = move |model: &M, batch| Outputs::loss(loss(import, model, batch));
        let trace = model.trace(&batch(import, 0, &device), micro_batches, forward);
        let trace = trace.unwrap();
        for stages in 1..=4 {
            let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
            let (source, loads) = weights(&model, import.name);
            let mut pipeline = Pipeline::builder(&model, &trace, &plan)
                .optimizer(AdamWConfig::new())
                .source(source)
                .start()
                .unwrap();
            check_loads(&plan, &loads);
            let mut found = Run::default();
            for step in 0..STEPS {
                let output = pipeline.step(RATE, batch(import, step, &device)).unwrap();
                found.losses.push(output.micro_batch_losses);
            }
            found.parameters = parameters(&pipeline.gather(&device).unwrap());
            let output = pipeline.evaluate(batch(import, STEPS, &device)).unwrap();
            found.losses.push(output.micro_batch_losses);
            let setting = format!("{stages} stages, {micro_batches} micro-batches");
            assert_eq!(found.losses, expected.losses, "{setting}");
            let mut expected = expected.parameters.iter();
            let other = expected.find(|(path, value)| found.parameters[*path] != **value);
            assert_eq!(other.map(|(path, _)| path), None, "{setting}");
            let unchanged = initial
                .iter()
                .filter(|(path, value)| found.parameters[*path] == **value);
            let unchanged: Vec<String> = unchanged.map(|(path, _)| path.clone()).collect();
            assert_eq!(*kept.get_or_insert_with(|| unchanged.clone()), unchanged);
        }
    }
    kept.unwrap()
}
