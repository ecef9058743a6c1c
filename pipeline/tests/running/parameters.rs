//! Every way to create a `Param` in Burn, trained as in plain Burn.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use tinderbox_deferred::Deferred;
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::{Machine, Outputs, Pipeline, PipelineError, StartError, Traceable};
use tinderbox_pipeline_tests::{
    Case, Computed, LR, SAMPLES, data_run, floats, noise, pipelined, plain, settings, squared,
};

const WIDTH: usize = 6;
const STEPS: u64 = 5;
const SHAPE: [usize; 2] = [WIDTH, WIDTH];

type Batch = (Tensor<2>, Tensor<2>);

fn batch(number: u64, device: &Device) -> Batch {
    let shape = [SAMPLES, WIDTH];
    (
        floats(shape, number, device),
        floats(shape, number + 1000, device),
    )
}

fn values(number: u64) -> TensorData {
    TensorData::new(noise(WIDTH * WIDTH, number), SHAPE)
}

fn linear(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(device)
}

/// The tested parameter, between two layers.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    made: Param<Tensor<2>>,
    last: Linear,
}

impl Net {
    fn with(device: &Device, made: Param<Tensor<2>>) -> Self {
        Self {
            first: linear(device),
            made,
            last: linear(device),
        }
    }
}

fn forward(net: &Net, (x, y): Batch) -> Computed {
    let x = gelu(net.first.forward(x)).matmul(net.made.val());
    (squared(net.last.forward(gelu(x)), y), None)
}

fn case<M>(init: fn(&Device) -> M, forward: fn(&M, Batch) -> Computed) -> Case<M, Batch> {
    Case {
        init,
        forward,
        batch,
    }
}

fn compare<M: Module + Sync + 'static>(case: Case<M, Batch>) {
    let expected = plain(case, AdamWConfig::new().init(), 2, STEPS);
    assert_ne!(expected.losses[0], expected.losses[1], "it trains");
    for setting in settings(1..=3, 2) {
        let found = pipelined(case, AdamWConfig::new().build(), setting, STEPS);
        found.assert_same(&expected, &format!("{setting:?}"));
    }
}

/// Each constructor of `Param`.
const WAYS: [fn(&Device) -> Param<Tensor<2>>; 12] = [
    |device| Param::from_data(values(1), device),
    |device| Param::from_tensor(Tensor::from_data(values(1), device)),
    |device| {
        let tensor = Tensor::from_data(values(1), device);
        Param::initialized(ParamId::new(), tensor).set_require_grad(true)
    },
    |device| Param::from_tensor(Tensor::random(SHAPE, Distribution::Default, device)),
    |device| Param::from_tensor(Tensor::ones(SHAPE, device)),
    |device| {
        let init = |device: &Device, grad: bool| {
            let tensor = Tensor::from_data(values(1), device);
            tensor.set_require_grad(grad)
        };
        Param::uninitialized(ParamId::new(), init, device.clone(), true, SHAPE.into())
    },
    |device| {
        let init = |device: &Device, grad: bool| {
            let tensor = Tensor::random(SHAPE, Distribution::Default, device);
            tensor.set_require_grad(grad)
        };
        Param::uninitialized(ParamId::new(), init, device.clone(), true, SHAPE.into())
    },
    |device| {
        let param = Param::from_data(values(1), device);
        param
            .map(|tensor| (tensor * 2.0).detach())
            .set_require_grad(true)
    },
    |device| linear(device).weight.init_mapper(|tensor| tensor * 0.5),
    |device| {
        let (id, value, mapper) = Param::from_data(values(1), device).consume();
        Param::from_mapped_value(id, value, mapper)
    },
    |device| {
        let other = Tensor::from_data(values(2), device);
        Param::from_data(values(1), device).transform_for_load(other, ParamId::new())
    },
    |device| Param::from_data(values(1), device).set_require_grad(false),
];

fn made_by<const WAY: usize>(device: &Device) -> Net {
    Net::with(device, WAYS[WAY](device))
}

#[test]
fn every_constructor() {
    let inits: [fn(&Device) -> Net; WAYS.len()] = [
        made_by::<0>,
        made_by::<1>,
        made_by::<2>,
        made_by::<3>,
        made_by::<4>,
        made_by::<5>,
        made_by::<6>,
        made_by::<7>,
        made_by::<8>,
        made_by::<9>,
        made_by::<10>,
        made_by::<11>,
    ];
    for init in inits {
        compare(case(init, forward));
    }
}

const INITIALIZERS: [Initializer; 10] = [
    Initializer::Constant { value: 0.3 },
    Initializer::Ones,
    Initializer::Zeros,
    Initializer::Uniform {
        min: -0.5,
        max: 0.5,
    },
    Initializer::Normal {
        mean: 0.1,
        std: 0.5,
    },
    Initializer::KaimingUniform {
        gain: 1.0,
        fan_out_only: false,
    },
    Initializer::KaimingNormal {
        gain: 1.0,
        fan_out_only: true,
    },
    Initializer::XavierUniform { gain: 1.0 },
    Initializer::XavierNormal { gain: 1.0 },
    Initializer::Orthogonal { gain: 1.0 },
];

fn initialized_by<const INITIALIZER: usize>(device: &Device) -> Net {
    let initializer = &INITIALIZERS[INITIALIZER];
    let made = initializer.init_with(SHAPE, Some(WIDTH), Some(WIDTH), device);
    Net::with(device, made)
}

#[test]
fn every_initializer() {
    let inits: [fn(&Device) -> Net; INITIALIZERS.len()] = [
        initialized_by::<0>,
        initialized_by::<1>,
        initialized_by::<2>,
        initialized_by::<3>,
        initialized_by::<4>,
        initialized_by::<5>,
        initialized_by::<6>,
        initialized_by::<7>,
        initialized_by::<8>,
        initialized_by::<9>,
    ];
    for init in inits {
        compare(case(init, forward));
    }
}

/// Burn's usual way to load pretrained weights. The reference is plain Burn only: it neither
/// materializes nor splits with this crate.
#[test]
fn a_record_that_is_loaded_by_the_constructor() {
    fn pretrained() -> Net {
        let device = Device::flex();
        let linear = |number: u64| Linear {
            weight: Param::from_data(values(number), &device),
            bias: Some(Param::from_data(
                TensorData::new(noise(WIDTH, number + 7), [WIDTH]),
                &device,
            )),
        };
        Net {
            first: linear(1),
            made: Param::from_data(values(2), &device),
            last: linear(3),
        }
    }
    let init = |device: &Device| {
        let made = Param::from_data(values(9), device);
        Net::with(device, made).load_record(pretrained().into_record())
    };
    let case = case(init, forward);
    let expected = data_run(case, AdamWConfig::new().init(), 2, STEPS);
    assert_ne!(expected.losses[0], expected.losses[1], "it trains");
    for setting in settings(1..=3, 2) {
        let found = pipelined(case, AdamWConfig::new().build(), setting, STEPS);
        found.assert_same(&expected, &format!("{setting:?}"));
    }
}

#[derive(Module, Debug)]
struct Pair {
    online: Linear,
    middle: Linear,
    target: Param<Tensor<2>>,
}

/// A target network: its parameter starts with the value of another.
#[test]
fn two_parameters_of_one_tensor() {
    fn forward(net: &Pair, (x, y): Batch) -> Computed {
        let online = net.online.forward(x.clone());
        let target = x.matmul(net.target.val());
        let loss = squared(online.clone(), target) + squared(net.middle.forward(online), y);
        (loss, None)
    }
    let inits: [fn(&Device) -> Pair; 3] = [
        |device| {
            let online = linear(device);
            let target = Param::from_tensor(online.weight.val().detach());
            let middle = linear(device);
            Pair {
                online,
                middle,
                target,
            }
        },
        // A frozen one.
        |device| {
            let online = linear(device);
            let target = Param::from_tensor(online.weight.val().detach()).set_require_grad(false);
            let middle = linear(device);
            Pair {
                online,
                middle,
                target,
            }
        },
        |device| {
            let tensor = Tensor::<2>::from_data(values(4), device);
            let mut online = linear(device);
            online.weight = Param::from_tensor(tensor.clone());
            let target = Param::from_tensor(tensor);
            let middle = linear(device);
            Pair {
                online,
                middle,
                target,
            }
        },
    ];
    for init in inits {
        compare(case(init, forward));
    }
}

#[derive(Module, Debug)]
struct Shared {
    layers: Vec<Linear>,
    shared: Param<Tensor<2>>,
}

/// One parameter of plain data that all stages read.
#[test]
fn a_shared_parameter_of_plain_data() {
    let init = |device: &Device| Shared {
        layers: (0..3).map(|_| linear(device)).collect(),
        shared: Param::from_data(values(5), device),
    };
    let forward = |net: &Shared, (x, y): Batch| {
        let step = |x: Tensor<2>, layer: &Linear| gelu(layer.forward(x.matmul(net.shared.val())));
        (squared(net.layers.iter().fold(x, step), y), None)
    };
    compare(case(init, forward));
}

/// Burn's optimizers identify a parameter by its id, which clones share, also after one was changed.
#[test]
fn clones_are_refused_also_when_they_were_changed() {
    let inits: [fn(&Device) -> Plain; 2] = [
        |device| {
            let layer = linear(device);
            Plain {
                layers: vec![layer.clone(), layer],
            }
        },
        |device| {
            let layer = linear(device);
            let mut changed = layer.clone();
            changed.weight = changed.weight.init_mapper(|weight| weight * 0.5);
            Plain {
                layers: vec![layer, changed],
            }
        },
    ];
    for init in inits {
        let model = Deferred::new(init).unwrap();
        let example = batch(0, &Device::flex());
        let trace = model.trace(&example, 2, |net: &Plain, (x, y): Batch| {
            let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
            Outputs::loss(squared(x, y))
        });
        let trace = trace.unwrap();
        let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
        let start = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
        let error = start.start().unwrap_err();
        let PipelineError::Start(StartError::Clones { first, second }) = error else {
            panic!("{error}");
        };
        let paths = ["layers.0.weight", "layers.1.weight"];
        assert_eq!([first.as_str(), second.as_str()], paths);
        // Evaluation needs no optimizer, and no ids.
        let mut evaluation = Pipeline::builder(&model, &trace, &plan).start().unwrap();
        evaluation.evaluate(example).unwrap();
    }
}

#[derive(Module, Debug)]
struct Plain {
    layers: Vec<Linear>,
}

/// The values of a source are trained, whatever the constructor computed.
#[test]
fn a_parameter_of_plain_data_gets_the_value_of_a_source() {
    let init = |device: &Device| Net::with(device, Param::from_data(values(1), device));
    let model = Deferred::new(init).unwrap();
    let example = batch(0, &Device::flex());
    let trace = model.trace(&example, 1, |net: &Net, batch| {
        Outputs::loss(forward(net, batch).0)
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let other = Net::with(
        &Device::flex(),
        Param::from_data(values(2), &Device::flex()),
    );
    let source: tinderbox_deferred::Values = tinderbox_deferred::parameter_values(&other)
        .into_iter()
        .collect();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .source(source)
        .start()
        .unwrap();
    let expected = forward(&other, example.clone()).0.into_scalar::<f32>();
    let found = pipeline.step(LR, example).unwrap().loss;
    assert_eq!(found, f64::from(expected));
}

/// A parameter that is set between steps, on its owner and on a stage with a copy, as in plain Burn.
#[test]
fn set_between_steps() {
    // The first layer is read again at the end, so that a second stage has a copy.
    let forward = |net: &Net, (x, y): Batch| {
        let x = gelu(net.first.forward(x)).matmul(net.made.val());
        let x = net.last.forward(gelu(x)).matmul(net.first.weight.val());
        (squared(x, y), None)
    };
    let init = |device: &Device| Net::with(device, Param::from_tensor(floats(SHAPE, 3, device)));
    let case = case(init, forward);
    let clamped = |value: Tensor<2>| value.clamp(-0.1, 0.1);
    // Plain Burn, whose weight is clamped before the second step.
    let device = Device::flex().autodiff();
    let model = case.model();
    let initializer = model.initializer(tinderbox_pipeline_tests::SEED.into());
    let mut net = model.materialize(&device, &initializer).unwrap();
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..2 {
        if step == 1 {
            let clamp = |weight: Tensor<2>| {
                let data = clamped(weight).into_data();
                Tensor::from_data(data, &device).require_grad()
            };
            let weight = net.first.weight.map(clamp);
            net.first.weight = weight;
        }
        let loss = forward(&net, batch(step, &device)).0;
        let gradients = burn::optim::GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(LR, net, gradients);
    }
    let expected = tinderbox_pipeline_tests::parameters(&net);
    for stages in 1..=3 {
        let setting = settings([stages], 1)[0];
        let mut pipeline = case.start(setting, AdamWConfig::new().build());
        pipeline.step(LR, batch(0, &Device::flex())).unwrap();
        let weight = pipeline.parameter("first.weight").unwrap();
        let weight = clamped(weight.typed().unwrap());
        pipeline
            .set_parameters([("first.weight", weight.into())])
            .unwrap();
        pipeline.step(LR, batch(1, &Device::flex())).unwrap();
        let found = pipeline.gather(&Device::flex()).unwrap();
        assert!(
            tinderbox_pipeline_tests::parameters(&found) == expected,
            "{stages} stages"
        );

        // What does not fit changes nothing.
        let ones = || DynTensor::from(Tensor::<2>::ones(SHAPE, &Device::flex()));
        let text = |error| tinderbox_pipeline_tests::full_text(&error);
        let unknown = pipeline.set_parameters([("last.weight", ones()), ("first.wieght", ones())]);
        insta::allow_duplicates! {
            insta::assert_snapshot!(text(unknown.unwrap_err()), @"the model has no parameter `first.wieght`; the nearest are `first.weight`, `first.bias`, `last.weight`");
        }
        let larger = Tensor::<2>::ones([2, 2], &Device::flex());
        let ints = Tensor::<2, burn::tensor::Int>::ones(SHAPE, &Device::flex());
        let wrong = [
            ("last.weight", ones()),
            ("made", larger.into()),
            ("first.weight", ints.into()),
        ];
        insta::allow_duplicates! {
            insta::assert_snapshot!(text(pipeline.set_parameters(wrong).unwrap_err()), @r#"
            the parameters could not be replaced; nothing was changed
            a set of 3 values in memory does not fit the model, nothing was loaded:
              shape of made: the model has [6, 6], the source [2, 2]
              dtype of first.weight: the model has f32, the source i32
            "#);
        }
        let found = pipeline.gather(&Device::flex()).unwrap();
        assert!(
            tinderbox_pipeline_tests::parameters(&found) == expected,
            "{stages} stages"
        );
    }
}

/// A clone stands for its original: two values of one parameter must be equal.
#[test]
fn values_of_clones_are_compared() {
    let model = Deferred::new(|device: &Device| -> (Linear, Linear) {
        let first = linear(device);
        (first.clone(), first)
    });
    let model = model.unwrap();
    let device = Device::flex();
    let example = Tensor::<2>::ones([SAMPLES, WIDTH], &device);
    let trace = model.trace(&example, 1, |(first, second): &(Linear, Linear), x| {
        Outputs::loss(second.forward(gelu(first.forward(x))).mean())
    });
    let trace = trace.unwrap();
    for stages in 1..=2 {
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan).start();
        let pipeline = pipeline.as_mut().unwrap();
        let value = |number| DynTensor::from_data(values(number), &device);
        let mut set = |second| {
            let values = [("0.weight", value(1)), ("1.weight", value(second))];
            pipeline.set_parameters(values)
        };
        set(1).unwrap();
        let error = tinderbox_pipeline_tests::full_text(&set(2).unwrap_err());
        insta::allow_duplicates! {
            insta::assert_snapshot!(error, @"
            the parameters could not be replaced; nothing was changed
            a set of 2 values in memory does not fit the model, nothing was loaded:
              values of 0.weight and 1.weight: they are one parameter of the model, and differ in the source; construct the model with a parameter for each, or leave one out of the source: rename it, with `allow_extra`
            ");
        }
        let found = pipeline.parameter("1.weight").unwrap().to_data().unwrap();
        assert_eq!(found, values(1), "{stages} stages");
        // One of the names is enough.
        pipeline.set_parameters([("1.weight", value(3))]).unwrap();
        let found = pipeline.parameter("0.weight").unwrap().to_data().unwrap();
        assert_eq!(found, values(3), "{stages} stages");
    }
}
