//! Models that would be trained or gathered differently from the user's model are refused by name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use tinderbox_deferred::Deferred;
use tinderbox_pipeline::{
    Machine, Outputs, Pipeline, PipelineError, StepError, TraceError, Traceable,
};
use tinderbox_pipeline_tests::{
    Case, Computed, LR, SAMPLES, floats, full_text, pipelined, plain, settings, squared,
};

const WIDTH: usize = 6;

type Batch = (Tensor<2>, Tensor<2>);

fn batch(number: u64, device: &Device) -> Batch {
    let shape = [SAMPLES, WIDTH];
    (
        floats(shape, number, device),
        floats(shape, number + 1000, device),
    )
}

fn linear(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(device)
}

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    table: Tensor<2>,
    last: Linear,
}

fn forward(net: &Net, (x, y): Batch) -> Computed {
    let x = gelu(net.first.forward(x)) + net.table.clone();
    (squared(net.last.forward(x), y), None)
}

fn trace(init: fn(&Device) -> Net) -> Result<(), TraceError> {
    let model = Deferred::new(init).unwrap();
    let example = batch(0, &Device::flex());
    let outputs = |net: &Net, batch| Outputs::loss(forward(net, batch).0);
    model.trace(&example, 1, outputs).map(drop)
}

#[test]
fn a_random_field_that_the_forward_reads() {
    let error = trace(|device| Net {
        first: linear(device),
        table: Tensor::random([1, WIDTH], Distribution::Default, device),
        last: linear(device),
    });
    insta::assert_snapshot!(error.unwrap_err(), @"the forward reads a random tensor of the constructor (`Float.Random(Default) -> f32[1, 6]`) that is not a parameter, in field `table`: no checkpoint contains it, and every construction draws another; store it as a frozen parameter, `Param::from_tensor(tensor).set_require_grad(false)`");
    // Computed from a parameter that is random.
    let error = trace(|device| {
        let first = linear(device);
        let table = first.weight.val().detach().narrow(0, 0, 1) * 2.0;
        Net {
            first,
            table,
            last: linear(device),
        }
    });
    insta::assert_snapshot!(error.unwrap_err(), @"the forward reads a random tensor of the constructor (`Float.Random(Uniform(-0.4082482904638631, 0.4082482904638631)) -> f32[6, 6]`) that is not a parameter, in field `table`: no checkpoint contains it, and every construction draws another; store it as a frozen parameter, `Param::from_tensor(tensor).set_require_grad(false)`");
}

#[test]
fn a_field_with_a_gradient_for_a_parameter() {
    let error = trace(|device| {
        let mut first = linear(device);
        first.weight = Param::from_tensor(Tensor::ones([WIDTH, WIDTH], device));
        let table = first.weight.val().narrow(0, 0, 1) * 2.0;
        Net {
            first,
            table,
            last: linear(device),
        }
    });
    insta::assert_snapshot!(error.unwrap_err(), @"the forward reads a tensor field that the constructor computed from parameter `first.weight`, and passes a gradient through it: compute it from the parameter in the forward, or `detach` it in the constructor");
}

/// Fields of data are the same in every construction: the pipeline trains with them, and a gathered
/// model has them.
#[test]
fn fields_of_data_train_and_gather_as_in_plain_burn() {
    let inits: [fn(&Device) -> Net; 2] = [
        |device| Net {
            first: linear(device),
            table: floats([1, WIDTH], 9, device).exp(),
            last: linear(device),
        },
        // The initial value of a parameter is not changed.
        |device| {
            let mut first = linear(device);
            first.weight = Param::from_tensor(floats([WIDTH, WIDTH], 3, device));
            let table = (first.weight.val().narrow(0, 0, 1) * 2.0).detach();
            Net {
                first,
                table,
                last: linear(device),
            }
        },
    ];
    for init in inits {
        let case = Case {
            init,
            forward,
            batch,
        };
        let expected = plain(case, AdamWConfig::new().init(), 2, 3);
        for setting in settings(1..=3, 2) {
            let found = pipelined(case, AdamWConfig::new().build(), setting, 3);
            found.assert_same(&expected, &format!("{setting:?}"));
        }
        let mut pipeline = case.start(settings([2], 2)[0], AdamWConfig::new().build());
        for step in 0..3 {
            pipeline.step(LR, batch(step, &Device::flex())).unwrap();
        }
        let gathered = pipeline.gather(&Device::flex()).unwrap();
        let found = forward(&gathered, batch(7, &Device::flex()))
            .0
            .into_scalar::<f32>();
        let evaluated = pipeline.evaluate(batch(7, &Device::flex())).unwrap();
        let whole = (evaluated.micro_batch_losses[0] + evaluated.micro_batch_losses[1]) / 2.0;
        assert!((f64::from(found) - whole).abs() < 1e-6 * whole.abs());
    }
}

#[derive(Module, Debug)]
struct Unread {
    first: Linear,
    noise: Tensor<1>,
    last: Linear,
}

/// A random field that no traced forward reads depends only on the seed, in every gathered model.
#[test]
fn a_random_field_that_is_not_read_follows_the_seed() {
    let model = Deferred::new(|device| Unread {
        first: linear(device),
        noise: Tensor::random([4], Distribution::Default, device),
        last: linear(device),
    });
    let model = model.unwrap();
    let example = batch(0, &Device::flex());
    let trace = model.trace(&example, 1, |net: &Unread, (x, y): Batch| {
        Outputs::loss(squared(net.last.forward(net.first.forward(x)), y))
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let noise = |seed: u64| {
        let pipeline = Pipeline::builder(&model, &trace, &plan).seed(seed);
        let mut pipeline = pipeline.start().unwrap();
        // Earlier random draws have no influence.
        let _ = Tensor::<1>::random([3], Distribution::Default, &Device::flex());
        let net = pipeline.gather(&Device::flex()).unwrap();
        net.noise.into_data()
    };
    assert_eq!(noise(1), noise(1));
    assert_ne!(noise(1), noise(2));
}

/// The same holds for a field that is computed from a parameter.
#[test]
fn a_field_of_a_parameter_that_is_not_read_follows_the_seed() {
    let model = Deferred::new(|device| {
        let first = linear(device);
        let noise = (first.bias.as_ref().unwrap().val() * 2.0).detach();
        Unread {
            first,
            noise,
            last: linear(device),
        }
    });
    let model = model.unwrap();
    let noise = |seed: u64| {
        let _ = Tensor::<1>::random([3], Distribution::Default, &Device::flex());
        let net = model.materialize(&Device::flex(), &model.initializer(seed.into()));
        net.unwrap().noise.into_data()
    };
    assert_eq!(noise(1), noise(1));
    assert_ne!(noise(1), noise(2));
}

#[derive(Module, Debug)]
struct Normed {
    first: Linear,
    norm: BatchNorm,
    last: Linear,
}

fn normed(net: &Normed, (x, y): Batch) -> Computed {
    let x = net.norm.forward(gelu(net.first.forward(x)));
    (squared(net.last.forward(x), y), None)
}

#[derive(Module, Debug)]
struct Distilled {
    student: Linear,
    #[module(skip)]
    teacher: Linear,
}

/// A field that no visitor sees is initialized at its first use, again in every run of a recorded
/// forward.
#[test]
fn a_parameter_in_a_skipped_field() {
    let outputs = |net: &Distilled, (x, _): Batch| {
        let target = net.teacher.forward(x.clone()).detach();
        Outputs::loss(squared(net.student.forward(x), target))
    };
    let model = Deferred::new(|device| Distilled {
        student: linear(device),
        teacher: linear(device),
    });
    let error = model.unwrap().trace(&batch(0, &Device::flex()), 1, outputs);
    insta::assert_snapshot!(error.unwrap_err(), @"the forward initializes a parameter that no visitor of the module sees, in one of the fields `teacher.weight`, `teacher.bias`, as in a field with `#[module(skip)]`: every run would draw another value; make it a field of the module and freeze it (`no_grad`)");
    // Initialized from data, it is the same in every construction.
    let fixed = |device: &Device| Distilled {
        student: linear(device),
        teacher: Linear {
            weight: Param::from_tensor(floats([WIDTH, WIDTH], 5, device)).no_grad(),
            bias: None,
        },
    };
    let case = Case {
        init: fixed,
        forward: |net: &Distilled, (x, _): Batch| {
            let target = net.teacher.forward(x.clone()).detach();
            (squared(net.student.forward(x), target), None)
        },
        batch,
    };
    let expected = plain(case, AdamWConfig::new().init(), 2, 3);
    for setting in settings([1], 2) {
        let found = pipelined(case, AdamWConfig::new().build(), setting, 3);
        found.assert_same(&expected, &format!("{setting:?}"));
    }
}

/// Branches that the example does not reach are checked with the first batch that does.
#[test]
fn a_parameter_in_a_skipped_field_that_some_batches_read() {
    let model = Deferred::new(|device| Distilled {
        student: linear(device),
        teacher: linear(device),
    });
    let model = model.unwrap();
    let outputs = |net: &Distilled, (x, known): (Tensor<2>, Option<Tensor<2>>)| {
        let target = known.unwrap_or_else(|| net.teacher.forward(x.clone()).detach());
        Outputs::loss(squared(net.student.forward(x), target))
    };
    let (x, y) = batch(0, &Device::flex());
    let example = (x.clone(), Some(y.clone()));
    let trace = model.trace(&example, 1, outputs).unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let pipeline = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
    let mut pipeline = pipeline.start().unwrap();
    for given in [None, Some(y)] {
        let result = pipeline.step(LR, (x.clone(), given.clone()));
        let refused = matches!(
            &result,
            Err(PipelineError::Step(StepError::Trace {
                source: TraceError::SkippedParameter { fields }
            })) if fields.len() == 2
        );
        assert_eq!(refused, given.is_none());
    }
}

/// Dropout draws in each forward, without a parameter.
#[test]
fn dropout_is_no_skipped_parameter() {
    let model = Deferred::new(two).unwrap();
    let dropout = burn::nn::DropoutConfig::new(0.3).init();
    let traced = model.trace(
        &batch(0, &Device::flex()),
        1,
        move |net: &Two, (x, y): Batch| {
            let x = dropout.forward(net.layers[0].forward(x));
            Outputs::loss(squared(net.layers[1].forward(x), y))
        },
    );
    traced.unwrap();
}

/// The fields of a model are in its trace.
#[test]
fn a_trace_of_another_constructor() {
    let model = |scale: f32| {
        Deferred::new(move |device| Net {
            first: linear(device),
            table: Tensor::full([1, WIDTH], scale, device),
            last: linear(device),
        })
        .unwrap()
    };
    let example = batch(0, &Device::flex());
    let outputs = |net: &Net, batch| Outputs::loss(forward(net, batch).0);
    let trace = model(1.0).trace(&example, 1, outputs).unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    Pipeline::builder(&model(1.0), &trace, &plan)
        .start()
        .unwrap();
    let error = Pipeline::builder(&model(2.0), &trace, &plan)
        .start()
        .unwrap_err();
    insta::assert_snapshot!(full_text(&error), @"the trace is of another model: in the constructor, constant 1 was f32[1, 6] with 1 at element 0 and is now f32[1, 6] with 2 at element 0; trace the model that is trained");
}

#[test]
fn a_sum_over_a_count() {
    let model = Deferred::new(two).unwrap();
    let error = model.trace(&batch(0, &Device::flex()), 1, |net: &Two, (x, y): Batch| {
        let x = net.layers[0].forward(x);
        let count = y.clone().greater_elem(0.0).int().sum();
        Outputs::sum(squared(net.layers[1].forward(x), y)).weighted_by(count)
    });
    insta::assert_snapshot!(error.unwrap_err(), @"the loss is declared both as a sum and as a mean over a count: use `Outputs::sum(loss)` alone for a sum, or `Outputs::loss(loss).weighted_by(count)` for a mean");
}

/// A shape that is no longer kept is recorded again, and must equal its first recording.
#[test]
fn a_forward_that_changes_while_it_trains() {
    let scale = Arc::new(AtomicU64::new(1));
    let read = scale.clone();
    let model = Deferred::new(two).unwrap();
    let of = |samples: usize| {
        let values = |n| floats([samples, WIDTH], n, &Device::flex());
        (values(0), values(1))
    };
    let trace = model.trace(&of(8), 1, move |net: &Two, (x, y): Batch| {
        let x = net.layers[0].forward(x) * read.load(Ordering::Relaxed) as f64;
        Outputs::loss(squared(net.layers[1].forward(x), y))
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .keep_programs(1);
    let mut pipeline = pipeline.start().unwrap();
    for samples in [4, 5, 4] {
        pipeline.step(LR, of(samples)).unwrap();
    }
    pipeline.step(LR, of(5)).unwrap();
    scale.store(2, Ordering::Relaxed);
    let error = pipeline.step(LR, of(4)).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @r#"
    the model could not be traced for this batch
    the forward of training 0:F32[4, 6] 1:F32[4, 6] differs from its earlier recording: a forward must depend only on the model and the batch, so pass values that change with the step in the batch
    "#);
}

/// Frozen statistics are constants: bit for bit plain Burn.
#[test]
fn a_frozen_batch_norm_trains_as_in_plain_burn() {
    let case = Case {
        init: |device| Normed {
            first: linear(device),
            norm: BatchNormConfig::new(WIDTH)
                .init(&device.clone().without_autodiff())
                .freeze(),
            last: linear(device),
        },
        forward: normed,
        batch,
    };
    let expected = plain(case, AdamWConfig::new().init(), 2, 3);
    for setting in settings(1..=3, 2) {
        let found = pipelined(case, AdamWConfig::new().build(), setting, 3);
        found.assert_same(&expected, &format!("{setting:?}"));
    }
}

#[derive(Module, Debug)]
struct Two {
    layers: Vec<Linear>,
}

fn two(device: &Device) -> Two {
    Two {
        layers: vec![linear(device), linear(device)],
    }
}

/// A number of the host that differs at each call: a clock, a counter, the host's randomness.
#[test]
fn a_forward_that_differs_from_call_to_call() {
    let calls = AtomicU64::new(0);
    let model = Deferred::new(two).unwrap();
    let error = model.trace(
        &batch(0, &Device::flex()),
        1,
        move |net: &Two, (x, y): Batch| {
            let scale = 1.0 + calls.fetch_add(1, Ordering::Relaxed) as f64;
            let x = net.layers[0].forward(x) * scale;
            Outputs::loss(squared(net.layers[1].forward(x), y))
        },
    );
    insta::assert_snapshot!(error.unwrap_err(), @"two recordings of the same forward differ: in the forward, operation 10 was NumericFloat.MulScalar(Float(1.0)) -> f32[8, 6] and is now NumericFloat.MulScalar(Float(2.0)) -> f32[8, 6]; a forward must depend only on the model and the batch, so draw random values with `Tensor::random`, and pass values that change with the step in the batch");

    let calls = AtomicU64::new(0);
    let model = Deferred::new(two).unwrap();
    let error = model.trace(
        &batch(0, &Device::flex()),
        1,
        move |net: &Two, (x, y): Batch| {
            let x = net.layers[0].forward(x);
            let z = net.layers[1].forward(x.clone());
            let named = match calls.fetch_add(1, Ordering::Relaxed) {
                0 => x,
                _ => z.clone(),
            };
            Outputs::loss(squared(z, y)).with("features", named)
        },
    );
    insta::assert_snapshot!(error.unwrap_err(), @"two recordings of the same forward differ: in output `features`; a forward must depend only on the model and the batch, so draw random values with `Tensor::random`, and pass values that change with the step in the batch");
}

/// The forward was the same twice, and changes before the pipeline starts.
#[test]
fn a_forward_that_changes_after_its_trace() {
    let scale = Arc::new(AtomicU64::new(1));
    let read = scale.clone();
    let model = Deferred::new(two).unwrap();
    let trace = model.trace(
        &batch(0, &Device::flex()),
        1,
        move |net: &Two, (x, y): Batch| {
            let x = net.layers[0].forward(x) * read.load(Ordering::Relaxed) as f64;
            Outputs::loss(squared(net.layers[1].forward(x), y))
        },
    );
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan).start().unwrap();
    scale.store(2, Ordering::Relaxed);
    let error = Pipeline::builder(&model, &trace, &plan)
        .start()
        .unwrap_err();
    assert!(
        matches!(
            &error,
            PipelineError::Step(StepError::Trace {
                source: TraceError::UnstableForward { .. }
            })
        ),
        "{}",
        full_text(&error)
    );
}

/// Detected when it is traced, not when it is gathered after training.
#[test]
fn a_constructor_that_differs_from_call_to_call() {
    let calls = AtomicU64::new(0);
    let model = Deferred::new(move |device| {
        let value = calls.fetch_add(1, Ordering::Relaxed) as f64;
        let config = LinearConfig::new(WIDTH, WIDTH)
            .with_initializer(burn::nn::Initializer::Constant { value });
        Two {
            layers: vec![linear(device), config.init(device)],
        }
    });
    let error = model
        .unwrap()
        .trace(&batch(0, &Device::flex()), 1, |net: &Two, (x, y): Batch| {
            let x = net.layers[0].forward(x);
            Outputs::loss(squared(net.layers[1].forward(x), y))
        });
    insta::assert_snapshot!(full_text(&error.unwrap_err()), @r#"
two constructions of the model differ
the closure created another model at its second call: in the recipe of parameter `layers.1.weight`, constant 1 was f32[6, 6] with 0 at element 0 and is now f32[6, 6] with 1 at element 0; it must create the same model at every call: draw random values through Burn's tensors, not from the host
"#);
}

/// A batch that does not fit the trace causes an error that names the tensor, not a panic of Burn.
#[test]
fn a_batch_of_another_dtype() {
    let case = Case {
        init: two,
        forward: |net: &Two, (x, y): Batch| {
            let x = net.layers[0].forward(x);
            (squared(net.layers[1].forward(x), y), None)
        },
        batch,
    };
    let mut pipeline = case.start(settings([2], 2)[0], AdamWConfig::new().build());
    let (x, y) = batch(0, &Device::flex());
    let wide = (x.cast(burn::tensor::DType::F64), y);
    let error = pipeline.step(LR, wide.clone()).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @r#"
the batch can't be used
tensor `0` of the batch is f64, and the model was traced with f32: cast it, or trace with such a batch
"#);
    let error = pipeline.evaluate(wide).unwrap_err();
    assert!(
        matches!(error, PipelineError::Step(StepError::Batch { .. })),
        "{error}"
    );
    pipeline.step(LR, batch(0, &Device::flex())).unwrap();
}
