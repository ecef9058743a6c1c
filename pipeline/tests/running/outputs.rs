//! Named outputs may be anything that is available in the forward.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox_deferred::{Deferred, random::Seed};
use tinderbox_pipeline::{
    Evaluation, Machine, Outputs, Pipeline, PipelineError, StartError, Traceable,
};
use tinderbox_pipeline_tests::{LR, SAMPLES, SEED, floats};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

fn net() -> Deferred<Net> {
    Deferred::new(|device| Net {
        layers: (0..4)
            .map(|_| LinearConfig::new(3, 3).init(device))
            .collect(),
    })
    .unwrap()
}

fn outputs(net: &Net, x: Tensor<2>) -> Outputs {
    let device = x.device();
    let hidden = net.layers[0].forward(x.clone());
    let y = net.layers[1..]
        .iter()
        .fold(hidden.clone(), |x, l| l.forward(x));
    let ones = Tensor::<1>::ones([2], &device);
    let loss = (y.clone() * Tensor::<1>::ones([1], &device).reshape([1, 1])).mean();
    Outputs::loss(loss.clone())
        .with("input", x.clone())
        .with("changed input", x * 2.0)
        .with(
            "from the host",
            Tensor::<1>::from_floats([1.0, 2.0], &device),
        )
        .with("made of constants", ones.clone() * 3.0)
        .with("read too", ones)
        .with("parameter", net.layers[0].weight.val())
        .with("hidden", hidden)
        .with("loss", loss)
        .with("y", y.clone())
        .with("y again", y)
}

fn single(output: &Evaluation, name: &str, micro_batch: usize) -> TensorData {
    output.output(name).expect(name)[micro_batch]
        .to_data()
        .unwrap()
}

#[test]
fn each_is_returned_per_micro_batch_in_training_and_evaluation() {
    let model = net();
    let device = Device::flex();
    let x = floats([SAMPLES, 3], 1, &device);
    let trace = model.trace(&x, 3, outputs).unwrap();
    for stages in 1..=4 {
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .seed(SEED)
            .start()
            .unwrap();
        let net = model
            .materialize(&device, &model.initializer(Seed::new(SEED)))
            .unwrap();
        let evaluated = pipeline.evaluate(x.clone()).unwrap();
        let trained = pipeline.step(LR, x.clone()).unwrap();
        for output in [evaluated, trained.into()] {
            let names: Vec<&str> = output.outputs().map(|(name, _)| name).collect();
            assert_eq!(
                names,
                [
                    "changed input",
                    "from the host",
                    "hidden",
                    "input",
                    "loss",
                    "made of constants",
                    "parameter",
                    "read too",
                    "y",
                    "y again"
                ],
                "in order of name"
            );
            for (k, rows) in [0..3, 3..6, 6..8].into_iter().enumerate() {
                let part = x.clone().slice([rows]);
                let hidden = net.layers[0].forward(part.clone());
                let y = net.layers[1..]
                    .iter()
                    .fold(hidden.clone(), |x, l| l.forward(x));
                for (name, expected) in [
                    ("input", part.clone().into_data()),
                    ("changed input", (part * 2.0).into_data()),
                    ("from the host", TensorData::from([1.0f32, 2.0])),
                    ("made of constants", TensorData::from([3.0f32, 3.0])),
                    ("read too", TensorData::from([1.0f32, 1.0])),
                    ("parameter", net.layers[0].weight.val().into_data()),
                    ("hidden", hidden.into_data()),
                    ("loss", y.clone().mean().into_data()),
                    ("y", y.clone().into_data()),
                    ("y again", y.into_data()),
                ] {
                    assert_eq!(
                        single(&output, name, k),
                        expected,
                        "{name}, {stages} stages"
                    );
                }
                let loss = single(&output, "loss", k).iter::<f64>().next().unwrap();
                assert_eq!(output.micro_batch_losses[k], loss);
            }
        }
    }
}

#[test]
fn a_forward_without_a_loss_is_evaluated_and_does_not_train() {
    let model = net();
    let device = Device::flex();
    let x = floats([SAMPLES, 3], 1, &device);
    let forward = |net: &Net, x| net.layers.iter().fold(x, |x, layer| layer.forward(x));
    let trace = model
        .trace_forward(&x, move |net: &Net, x| {
            Outputs::none().with("y", forward(net, x))
        })
        .unwrap();
    let initializer = model.initializer(Seed::new(SEED));
    let expected = forward(
        &model.materialize(&device, &initializer).unwrap(),
        x.clone(),
    );
    for stages in 1..=4 {
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .seed(SEED)
            .start()
            .unwrap();
        let found = pipeline.evaluate(x.clone()).unwrap();
        assert_eq!(found.loss, None);
        assert_eq!(
            single(&found, "y", 0),
            expected.to_data(),
            "{stages} stages"
        );
        let trains = Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new());
        let error = trains.start().unwrap_err();
        assert!(
            matches!(error, PipelineError::Start(StartError::ForwardTrace)),
            "{error}"
        );
    }
}

/// Outputs of the whole batch, joined over its micro-batches.
#[test]
fn joined_over_micro_batches() {
    let model = net();
    let device = Device::flex();
    let x = floats([SAMPLES, 3], 1, &device);
    let forward = |net: &Net, x: Tensor<2>| {
        let classes = x.clone().argmax(1);
        let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
        let [samples, _] = y.dims();
        Outputs::loss(y.clone().mean())
            .with("y", y.clone())
            .with("mean", y.clone().mean())
            .with("classes", classes)
            .with(
                "pairs",
                y.clone().matmul(y.transpose()).reshape([samples, samples]),
            )
    };
    let trace = model.trace(&x, 1, forward).unwrap();
    let initializer = model.initializer(Seed::new(SEED));
    let plain = model.materialize(&device, &initializer).unwrap();
    let expected = plain
        .layers
        .iter()
        .fold(x.clone(), |x, layer| layer.forward(x));
    for micro_batches in [1, 3] {
        let trace = trace.with_micro_batches(micro_batches).unwrap();
        let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .seed(SEED)
            .start()
            .unwrap();
        let output = pipeline.evaluate(x.clone()).unwrap();
        let y = output.tensor::<2>("y").unwrap();
        assert_eq!(y.into_data(), expected.clone().into_data());
        assert_eq!(output.tensor::<1>("mean").unwrap().dims(), [micro_batches]);
        let classes = output.tensor_of::<2, Int>("classes").unwrap();
        assert_eq!(classes.into_data(), x.clone().argmax(1).into_data());
        let text =
            |error: tinderbox_pipeline::OutputError| tinderbox_pipeline_tests::full_text(&error);
        if micro_batches == 3 {
            insta::assert_snapshot!(text(output.tensor::<2>("pairs").unwrap_err()), @"the output `pairs` has shape [3, 3] in micro-batch 0 and [2, 2] in micro-batch 2, which can't be joined along the first dimension: read them one by one (`output`)");
            insta::assert_snapshot!(text(output.tensor::<2>("logits").unwrap_err()), @"the forward has no output `logits`; it has `classes`, `mean`, `pairs`, `y`");
            insta::assert_snapshot!(text(output.tensor::<3>("y").unwrap_err()), @r#"
            the output `y` can't be read
            tensor(..., size=[3, 3], dtype=f32, device=flex, fake=false) is not a tensor of rank 3 and kind Float
            "#);
            insta::assert_snapshot!(text(output.tensor::<2>("classes").unwrap_err()), @r#"
            the output `classes` can't be read
            tensor(..., size=[3, 1], dtype=i32, device=flex, fake=false) is not a tensor of rank 2 and kind Float
            "#);
        }
    }
}
