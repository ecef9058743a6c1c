//! Ranks with several threads, which compute independent matrix products at the same time.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Device, Tensor};
use tinderbox_pipeline::{Machine, Pipeline, ScheduleKind};
use tinderbox_pipeline_tests::{
    Case, Run, SAMPLES, SEED, continue_run, floats, note, parameters, plain, squared,
};

/// Products of a micro-batch that are small enough for one thread, and large enough to wake another.
const WIDTH: usize = 320;

#[derive(Module, Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
}

const CASE: Case<Vec<Layer>, (Tensor<2>, Tensor<2>)> = Case {
    init: |device| {
        let linear = || {
            LinearConfig::new(WIDTH, WIDTH)
                .with_bias(false)
                .init(device)
        };
        let layer = |_| Layer {
            query: linear(),
            key: linear(),
            value: linear(),
            gate: linear(),
            up: linear(),
            down: linear(),
        };
        (0..2).map(layer).collect()
    },
    forward: |layers, (x, y)| {
        let computed = layers.iter().fold(x, |x, layer| {
            let scores = layer.query.forward(x.clone()) * layer.key.forward(x.clone());
            let x = x.clone() + softmax(scores, 1) * layer.value.forward(x);
            let hidden = silu(layer.gate.forward(x.clone())) * layer.up.forward(x.clone());
            x + layer.down.forward(hidden)
        });
        (squared(computed.clone(), y), Some(computed))
    },
    batch: |number, device| {
        let shape = [SAMPLES, WIDTH];
        (
            floats(shape, number, device),
            floats(shape, number + 1000, device),
        )
    },
};

#[test]
fn products_at_the_same_time_are_those_of_plain_burn() {
    let expected = plain(CASE, AdamConfig::new().init(), 2, 3);
    let model = CASE.model();
    let trace = CASE.trace(&model, 2);
    for (stages, threads) in [(1, 1), (1, 3), (2, 2)] {
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(AdamConfig::new())
            .schedule(ScheduleKind::ZbH1)
            .threads_per_rank(threads)
            .seed(SEED)
            .start()
            .unwrap();
        let mut run = Run::default();
        continue_run(&mut pipeline, CASE, 0..3, &mut run);
        run.parameters = parameters(&pipeline.gather(&Device::flex()).unwrap());
        let batch = (CASE.batch)(3, &Device::flex());
        note(pipeline.evaluate(batch).unwrap(), &mut run);
        run.assert_same(&expected, &format!("{stages} stages, {threads} threads"));
    }
}
