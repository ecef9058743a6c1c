//! Errors of tracing, with their full text.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, Param};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, GaussianNoise, GaussianNoiseConfig, Linear,
    LinearConfig,
};
use burn::tensor::{Device, Int, Tensor};
use tinderbox_deferred::{Deferred, independent_copy};
use tinderbox_fake::{Mode, RecordOptions};
use tinderbox_pipeline::{Batch, Outputs, Trace, TraceError, Traceable, Whole, split_batch};
use tinderbox_pipeline_tests::{floats, full_text};

use crate::models::{Mlp, forward, mlp};

fn x(samples: usize) -> Tensor<2> {
    floats([samples, 4], 0, &Device::flex())
}

/// The error of a trace, without the line in this file.
fn refused(forward: impl Fn(&Mlp, Tensor<2>) -> Outputs + Send + Sync + 'static) -> String {
    let error = mlp(2, 4).trace(&x(4), 1, forward).unwrap_err();
    without_line(&error)
}

fn without_line(error: &TraceError) -> String {
    let (TraceError::Record { source } | TraceError::BatchNorm { source, .. }) = error else {
        return full_text(error);
    };
    match source.origin().place() {
        Some(place) => {
            assert!(place.starts_with("planning/traces.rs:"), "{place}");
            full_text(error).replace(place, "the line")
        }
        None => full_text(error),
    }
}

fn run(net: &Mlp, x: Tensor<2>) -> Tensor<2> {
    net.layers.iter().fold(x, |x, layer| layer.forward(x))
}

#[test]
fn invalid_losses() {
    assert_eq!(
        refused(|_, _| Outputs::none()),
        "the forward returned no loss: return `Outputs::loss(loss)`, or trace it with `trace_forward` for evaluation only"
    );
    assert_eq!(
        refused(|net, x| Outputs::loss(run(net, x).flatten(0, 1))),
        "the loss has 16 elements: reduce it to one, with `mean`, or with `sum` and `Outputs::sum`"
    );
    assert_eq!(
        refused(|net, x| Outputs::loss(run(net, x).mean().slice(0..0))),
        "the loss has 0 elements: reduce it to one, with `mean`, or with `sum` and `Outputs::sum`"
    );
    let no_gradient =
        "no parameter gets a gradient from the loss: is the model frozen, or the loss detached?";
    assert_eq!(
        refused(|net, x| Outputs::loss(run(net, x).mean().detach())),
        no_gradient
    );
    assert_eq!(refused(|_, x| Outputs::loss(x.mean())), no_gradient);
    let frozen = Deferred::new(|device| Mlp {
        layers: vec![LinearConfig::new(4, 4).init(device).no_grad()],
    });
    let error = frozen.unwrap().trace(&x(4), 1, forward).unwrap_err();
    assert_eq!(full_text(&error), no_gradient);
}

#[derive(Module, Debug)]
struct Dqn {
    online: Linear,
    target: Linear,
}

/// `no_grad` on a clone of parameters without values freezes the original, too.
#[test]
fn a_clone_that_was_frozen_is_named() {
    let traced = |init: fn(&Device) -> Dqn| {
        let trace = Deferred::new(init)
            .unwrap()
            .trace(&x(4), 1, |net: &Dqn, x| {
                let error = net.online.forward(x.clone()) - net.target.forward(x);
                Outputs::loss(error.powi_scalar(2).mean())
            });
        trace.map(drop).map_err(|error| full_text(&error))
    };
    let error = traced(|device| {
        let online = LinearConfig::new(4, 4).init(device);
        let target = online.clone().no_grad();
        Dqn { online, target }
    });
    insta::assert_snapshot!(error.unwrap_err(), @"no parameter gets a gradient from the loss: `target.weight` is a clone of `online.weight`, and `no_grad` on a clone of a parameter that has no value yet freezes both; create a copy with values of its own, such as a target network, with `independent_copy(&module).no_grad()`");
    let error = traced(|device| {
        let online = LinearConfig::new(4, 4).init(device).no_grad();
        let target = LinearConfig::new(4, 4).init(device).no_grad();
        Dqn { online, target }
    });
    insta::assert_snapshot!(error.unwrap_err(), @"no parameter gets a gradient from the loss: is the model frozen, or the loss detached?");
    let traced = traced(|device| {
        let online = LinearConfig::new(4, 4).init(device);
        let target = independent_copy(&online).no_grad();
        Dqn { online, target }
    });
    assert_eq!(traced, Ok(()));
}

#[test]
fn functions_that_need_real_tensors() {
    let error = refused(|net, x| {
        let y = run(net, x);
        let sum = y.clone().sum().into_scalar::<f32>();
        Outputs::loss((y * sum).mean())
    });
    insta::assert_snapshot!(error, @r#"
    the forward could not be recorded
    the recorded code read the data of a fake tensor in `Tensor::into_scalar`, called at the line; a fake tensor has a shape and no data: keep the value as a tensor, and return it as a named output to inspect it
    "#);
    let error = refused(|net, x| {
        let labels = x.clone().argmax(1).squeeze_dim::<1>(1);
        let targets: Tensor<2> = labels.one_hot::<2>(4).float();
        Outputs::loss((run(net, x) * targets).mean())
    });
    insta::assert_snapshot!(error, @r#"
    the forward could not be recorded
    the recorded code read the data of a fake tensor in `Tensor::one_hot`, called at the line; a fake tensor has a shape and no data: write ones into zeros with `scatter`, or compare with `arange` by `equal`
    "#);
    let error = refused(|net, x| {
        let rows = x
            .clone()
            .greater_elem(0.5)
            .any_dim(1)
            .squeeze_dim::<1>(1)
            .argwhere();
        Outputs::loss(run(net, x).select(0, rows.squeeze_dim(1)).mean())
    });
    insta::assert_snapshot!(error, @r#"
    the forward could not be recorded
    the recorded code read the data of a fake tensor in `Tensor::argwhere`, called at the line; a fake tensor has a shape and no data: the shape of its result depends on data; use a mask, as with `mask_where` or a product
    "#);
    let error = refused(|net, x| {
        let y = run(net, x);
        Outputs::loss(y.to_device(&Device::flex()).mean())
    });
    insta::assert_snapshot!(error, @r#"
    the forward could not be recorded
    the recorded code moved a fake tensor between devices or autodiff contexts in `Tensor::to_device`, called at the line (Cannot move this autodiff tensor between the requested backends.); `to_device`, `inner` and `from_inner` of float tensors can't be recorded: leave them out, and create tensors on the device of their input
    "#);
    let error = refused(|net, x| {
        let real = Tensor::<2>::ones([4, 4], &Device::flex());
        Outputs::loss((run(net, x) * real).mean())
    });
    insta::assert_snapshot!(error, @r#"
    the forward could not be recorded
    the recorded code used a tensor that does not belong to this recording in `Tensor::mul`, called at the line (The provided tensors are not on the same device): create it inside, on the device of the closure or of another tensor, or pass its data
    "#);
    let error = refused(|net, x| {
        let real = Tensor::<1>::ones([1], &Device::flex());
        Outputs::loss(run(net, x).mean()).with("scale", real)
    });
    insta::assert_snapshot!(error, @"output `scale` is a tensor that was not created under recording: create it on the device of the batch or of a parameter");
    let error = refused(|net, x| {
        drop(run(net, x));
        Outputs::loss(Tensor::<1>::ones([1], &Device::flex()))
    });
    insta::assert_snapshot!(error, @r#"
    the forward could not be recorded
    the recorded code used a tensor that does not belong to this recording (The provided tensors are not on the same device): create it inside, on the device of the closure or of another tensor, or pass its data
    "#);
}

#[test]
fn a_panic_in_the_forward() {
    let error = refused(|net, x| {
        let rows = x.dims()[0];
        assert!(rows == 3, "this model wants 3 rows, not {rows}");
        Outputs::loss(run(net, x).mean())
    });
    assert_eq!(
        error.lines().next(),
        Some("the forward could not be recorded")
    );
    assert!(error.contains("this model wants 3 rows, not 4"), "{error}");
    // A recording device is used again after a panic.
    mlp(2, 4).trace(&x(4), 1, forward).unwrap();
}

#[derive(Module, Debug)]
struct Normed {
    first: Linear,
    norm: BatchNorm,
}

fn normed() -> Deferred<Normed> {
    Deferred::new(|device| Normed {
        first: LinearConfig::new(4, 4).init(device),
        norm: BatchNormConfig::new(4).init(device),
    })
    .unwrap()
}

/// A second call would move the new statistics of the first.
#[test]
fn a_batch_norm_that_is_called_twice_is_named() {
    let traced = normed().trace(&x(4), 1, |net: &Normed, x| {
        let y: Tensor<2> = net.norm.forward(net.first.forward(x));
        Outputs::loss(net.norm.forward(y).mean())
    });
    let text = without_line(&traced.unwrap_err());
    insta::assert_snapshot!(text, @r#"
    the forward could not be recorded, because it calls a BatchNorm, `norm` or another, more than once: the second call moves the statistics of the first between devices, which can't be recorded; call it once, on the concatenated inputs
    the recorded code moved a fake tensor between devices or autodiff contexts in `BatchNorm::forward`, called at the line (Cannot move a tensor to a capture device with autodiff enabled; remove autodiff with without_autodiff() before the transfer.); `to_device`, `inner` and `from_inner` of float tensors can't be recorded: leave them out, and create tensors on the device of their input
    "#);
}

/// The error says what to do with a float tensor that a forward moves; others may be moved.
#[test]
fn a_moved_float_input_is_refused() {
    let device = Device::flex();
    let traced = normed().trace(&x(4), 1, move |net: &Normed, x| {
        Outputs::loss(net.first.forward(x.to_device(&device)).mean())
    });
    insta::assert_snapshot!(without_line(&traced.unwrap_err()), @r#"
    the forward could not be recorded
    the recorded code moved a fake tensor between devices or autodiff contexts in `Tensor::to_device`, called at the line (Cannot move this autodiff tensor between the requested backends.); `to_device`, `inner` and `from_inner` of float tensors can't be recorded: leave them out, and create tensors on the device of their input
    "#);
    let traced = normed().trace(&x(4), 1, |net: &Normed, x| {
        let device = x.device();
        Outputs::loss(net.first.forward(x.to_device(&device)).mean())
    });
    insta::assert_snapshot!(without_line(&traced.unwrap_err()), @r#"
    the forward could not be recorded
    the recorded code moved a fake tensor between devices or autodiff contexts in `Tensor::to_device`, called at the line (Cannot move a tensor to a capture device with autodiff enabled; remove autodiff with without_autodiff() before the transfer.); `to_device`, `inner` and `from_inner` of float tensors can't be recorded: leave them out, and create tensors on the device of their input
    "#);
}

/// Dropout directly on a float input draws, also in a forward that moves integers.
#[test]
fn dropout_on_an_input_acts() {
    let tokens = Tensor::<1, Int>::from_ints([0, 1, 2, 3], &Device::flex());
    for is_moved in [false, true] {
        let dropout = DropoutConfig::new(0.5).init();
        let trace = mlp(2, 4).trace(&(x(4), tokens.clone()), 1, move |net: &Mlp, (x, tokens)| {
            let device = net.layers[0].weight.device();
            let tokens: Tensor<1, Int> = match is_moved {
                true => tokens.to_device(&device),
                false => tokens,
            };
            let y = run(net, dropout.forward(x)).mean();
            Outputs::loss(y + tokens.float().mean())
        });
        let program = trace.unwrap().example_program().unwrap();
        assert_eq!(program.keys().len(), 1, "moved: {is_moved}");
    }
}

#[derive(Module, Debug)]
struct Noisy {
    dropout: Dropout,
    noise: GaussianNoise,
    norm: BatchNorm,
    /// Without effect.
    idle: Dropout,
    layer: Linear,
}

fn noisy() -> Deferred<Noisy> {
    let init = |device: &Device| Noisy {
        dropout: DropoutConfig::new(0.5).init(),
        noise: GaussianNoiseConfig::new(0.1).init(),
        norm: BatchNormConfig::new(4).init(device),
        idle: DropoutConfig::new(0.0).init(),
        layer: LinearConfig::new(4, 4).init(device),
    };
    Deferred::new(init).unwrap()
}

/// Burn can't record moved integers in autodiff, outside of which dropout, noise and batch norm do nothing: a layer is
/// refused if its input is such a tensor, and not if its input is a float or an activation.
#[test]
fn layers_on_moved_integers_are_refused() {
    type Forward = fn(&Noisy, Tensor<2>, Tensor<2>) -> Tensor<2>;
    let tokens = Tensor::<2, Int>::from_ints([[0, 1, 2, 3], [3, 1, 1, 0]], &Device::flex());
    let traced = |is_moved: bool, forward: Forward| {
        let trace = noisy().trace(
            &(x(2), tokens.clone()),
            1,
            move |net: &Noisy, (x, tokens)| {
                let device = net.layer.weight.device();
                let tokens: Tensor<2, Int> = match is_moved {
                    true => tokens.to_device(&device),
                    false => tokens,
                };
                let x = net.idle.forward(forward(net, x, tokens.float()));
                Outputs::loss(net.layer.forward(x).mean())
            },
        );
        trace.map(drop)
    };
    let act: Forward = |net, x, y| net.noise.forward(net.dropout.forward(net.norm.forward(x))) + y;
    let refused: [(&str, Forward); 3] = [
        ("dropout", |net, x, y| {
            net.noise.forward(net.norm.forward(x)) + net.dropout.forward(y)
        }),
        ("noise", |net, x, y| {
            net.dropout.forward(net.norm.forward(x)) + net.noise.forward(y * 2.0)
        }),
        ("norm", |net, x, y| {
            net.noise.forward(net.dropout.forward(x)) + net.norm.forward(y)
        }),
    ];
    for is_moved in [false, true] {
        traced(is_moved, act).unwrap();
    }
    for (layer, forward) in refused {
        traced(false, forward).unwrap();
        match traced(true, forward) {
            Err(TraceError::IdleLayer { path }) => assert_eq!(path, layer),
            other => panic!("{layer}: {other:?}"),
        }
    }
    let error = traced(true, refused[0].1).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @"`dropout` does not act in this forward: if its input is computed from integers or booleans of the batch that the forward moves with `to_device`, leave `to_device` out, since a recording keeps moved tensors outside of autodiff, where dropout, noise and batch norm do nothing; if the forward does not call the layer, freeze it (`freeze`)");
}

/// A model with batch norm may fail for other reasons.
#[test]
fn batch_norm_is_not_blamed_for_another_panic() {
    let traced = normed().trace(&x(4), 1, |net: &Normed, x| {
        let y = net.first.forward(x);
        Outputs::loss(y.reshape([5, 5]).mean())
    });
    let error = traced.unwrap_err();
    assert!(
        matches!(error, TraceError::Record { .. }),
        "{}",
        full_text(&error)
    );
}

#[derive(Module, Debug)]
struct Growing {
    layers: Vec<Linear>,
    scale: Param<Tensor<1>>,
}

#[test]
fn a_closure_that_constructs_another_model_every_time() {
    for (layers, width, change) in [
        (1, 0, "parameter `layers.2.weight` is new"),
        (
            0,
            1,
            "parameter `layers.0.weight` differs in its shape, which was [4, 4] and is now [5, 5]",
        ),
    ] {
        let calls = AtomicUsize::new(0);
        let model = Deferred::new(move |device| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            let width = 4 + width * call;
            Growing {
                layers: (0..2 + layers * call)
                    .map(|_| LinearConfig::new(width, width).init(device))
                    .collect(),
                scale: Param::from_tensor(Tensor::ones([1], device)),
            }
        })
        .unwrap();
        let traced = model.trace(&x(4), 1, |net: &Growing, _| Outputs::loss(net.scale.val()));
        let error = full_text(&traced.unwrap_err());
        let expected = format!(
            "two constructions of the model differ\nthe closure created another model at its second call: {change}; "
        );
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn a_batch_of_different_sample_counts() {
    let text = |error: tinderbox_pipeline::BatchError| error.to_string();
    assert_eq!(
        text(split_batch(&(x(4), vec![x(4), x(3)]), 2).unwrap_err()),
        "tensor `0` of the batch has 4 samples and `1.1` has 3: wrap a tensor that belongs to all \
         samples in `Whole`, and one whose samples are not the first dimension in `Along`"
    );
    assert_eq!(
        text(split_batch(&x(3), 4).unwrap_err()),
        "a batch of 3 samples can't be split into 4 micro-batches: lower the number of micro-batches"
    );
    assert_eq!(
        text(split_batch(&(Whole(x(3)), None::<Tensor<1>>), 1).unwrap_err()),
        "no tensor of the batch is divided by samples: at least one must not be `Whole`"
    );
}

/// A step has the samples of its batch; its program is the program of the largest micro-batch.
#[test]
fn a_step_is_divided_into_micro_batches() {
    for (samples, count, largest) in [(8, 1, 8), (8, 4, 2), (7, 3, 3), (5, 5, 1)] {
        let trace = mlp(2, 4).trace(&x(samples), count, forward).unwrap();
        let check = |trace: &Trace<Tensor<2>>, count: usize, largest: usize| {
            assert_eq!(trace.micro_batches(), count);
            assert_eq!(trace.samples(), Some(samples));
            assert_eq!(trace.micro_batch_samples(), Some(largest));
            let program = trace.example_program().unwrap();
            assert_eq!(
                program.key().to_string(),
                format!("training :F32[{largest}, 4]")
            );
            let parts = split_batch(&x(samples), count).unwrap();
            let sizes: Vec<usize> = parts.into_iter().map(|(_, size)| size).collect();
            for size in 1..=samples + 1 {
                for mode in [Mode::Training, Mode::Inference] {
                    let (key, _) = Trace::key(mode, &x(size));
                    let is_part = sizes.contains(&size);
                    assert_eq!(trace.is_of_step(&key), is_part, "{size} of {sizes:?}");
                }
            }
        };
        check(&trace, count, largest);
        for other in 1..=samples {
            let divided = trace.with_micro_batches(other).unwrap();
            check(&divided, other, samples.div_ceil(other));
        }
        // Another tensor, or another size beside the samples.
        let wide = floats([largest, 5], 0, &Device::flex());
        assert!(!trace.is_of_step(&Trace::key(Mode::Training, &wide).0));
        assert_eq!(
            full_text(&trace.with_micro_batches(samples + 1).unwrap_err()),
            format!(
                "a step of {samples} samples can't have {} micro-batches: use at most {samples}, or trace the model with the \
                 largest batch of a step",
                samples + 1
            )
        );
    }
    let evaluated = mlp(2, 4).trace_forward(&x(6), forward).unwrap();
    assert_eq!(evaluated.micro_batches(), 1);
    let evaluated = mlp(2, 4).trace_in(Mode::Inference, &x(6), 3, forward);
    let program = evaluated.unwrap().example_program().unwrap();
    assert_eq!(program.key().to_string(), "inference :F32[2, 4]");
    // Only the shapes are read.
    let fake = tinderbox_fake::record(&RecordOptions::default(), |device| {
        Tensor::<2>::zeros([8, 4], device)
    });
    let trace = mlp(2, 4).trace(&fake.unwrap().0, 4, forward).unwrap();
    assert_eq!(trace.micro_batch_samples(), Some(2));
}

#[test]
fn steps_that_can_not_be_divided() {
    fn text<B: Batch + std::fmt::Debug>(
        batch: B,
        count: usize,
        first: fn(B) -> Tensor<2>,
    ) -> String {
        let traced = mlp(2, 4).trace(&batch, count, move |net, batch| forward(net, first(batch)));
        full_text(&traced.unwrap_err())
    }
    assert_eq!(
        text(x(3), 0, |x| x),
        "a step can't have 0 micro-batches: use at least 1"
    );
    assert_eq!(
        text(x(3), 4, |x| x),
        "a step of 3 samples can't have 4 micro-batches: use at most 3, or trace the model with the largest batch of a step"
    );
    assert_eq!(
        text(Whole(x(3)), 2, |x| x.0),
        "a batch without samples can't be split into 2 micro-batches: use 1, or leave out `Whole` where a tensor has samples"
    );
    assert_eq!(
        text(x(0), 1, |x| x),
        "the batch can't be the batch of a step\nthe batch has no samples: its tensors have a first dimension of 0"
    );
    assert_eq!(
        text((x(4), x(3)), 2, |(x, _)| x),
        "the batch can't be the batch of a step\ntensor `0` of the batch has 4 samples and `1` has 3: wrap a tensor that \
         belongs to all samples in `Whole`, and one whose samples are not the first dimension in `Along`"
    );
    // Without samples, or with different numbers of them, a batch is one micro-batch.
    let whole = mlp(2, 4).trace(&Whole(x(3)), 1, |net: &Mlp, Whole(x)| forward(net, x));
    let whole = whole.unwrap();
    assert_eq!((whole.micro_batches(), whole.samples()), (1, None));
    assert_eq!(whole.micro_batch_samples(), None);
    assert!(whole.with_micro_batches(2).is_err());
    let mixed = mlp(2, 4).trace(&(x(4), x(3)), 1, |net: &Mlp, (x, _)| forward(net, x));
    assert_eq!(mixed.unwrap().samples(), None);
}

/// A lone tensor has no name.
#[test]
fn a_lone_tensor() {
    let trace = mlp(2, 4).trace(&x(4), 1, forward).unwrap();
    let joint = trace.example_program().unwrap();
    assert_eq!(joint.inputs().len(), 1);
    assert_eq!(joint.inputs()[0].leaf.name, "");
    assert_eq!(joint.key().to_string(), "training :F32[4, 4]");
}

#[test]
fn shapes_and_modes_are_recorded_twice_and_kept() {
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let trace = mlp(2, 4)
        .trace(&x(4), 1, move |net, x| {
            counted.fetch_add(1, Ordering::Relaxed);
            forward(net, x)
        })
        .unwrap();
    for (mode, samples, expected) in [
        (Mode::Training, 4, 2),
        (Mode::Training, 3, 4),
        (Mode::Training, 3, 4),
        (Mode::Inference, 3, 6),
        (Mode::Training, 4, 6),
        (Mode::Inference, 3, 6),
    ] {
        let joint = trace.program(mode, &x(samples)).unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), expected);
        assert_eq!(joint.parameters().len(), 4);
        assert!(joint.loss().is_some());
        assert_eq!(joint.outputs().len(), 1);
    }
}
