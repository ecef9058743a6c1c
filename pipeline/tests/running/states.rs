//! Running states that the forward updates, compared with plain Burn bit for bit: batch norm, and states of a
//! user's own modules.

use std::collections::BTreeMap;

use burn::module::{Module, RunningState};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{DType, Device, Int, Tensor};
use tinderbox_deferred::{Deferred, MaterializeOptions};
use tinderbox_pipeline::schedule::{Schedule, ScheduleKind};
use tinderbox_pipeline::{
    Batch, Cut, LossScale, Machine, MixedPrecision, Outputs, Pipeline, Planner, TraceError,
    Traceable,
};
use tinderbox_pipeline_tests::{
    Case, Computed, LR, Run, SAMPLES, SEED, Split, continue_run, floats, full_text, parameters,
    pipelined, plain, settings, split, squared, tokens,
};

const STEPS: u64 = 3;
const WIDTH: usize = 6;

#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
}

/// A convolutional classifier in the form of Burn's example for MNIST.
#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Block>,
    first: Linear,
    norm: BatchNorm,
    last: Linear,
}

type Images = (Tensor<4>, Tensor<2>);

fn net(device: &Device) -> Net {
    let block = |[from, to]: [usize; 2]| Block {
        conv: Conv2dConfig::new([from, to], [3, 3])
            .with_bias(false)
            .init(device),
        norm: BatchNormConfig::new(to).init(device),
    };
    Net {
        blocks: [[1, 2], [2, 3], [3, 2]].map(block).into(),
        first: LinearConfig::new(2 * 2 * 2, WIDTH).init(device),
        norm: BatchNormConfig::new(WIDTH).init(device),
        last: LinearConfig::new(WIDTH, WIDTH).init(device),
    }
}

fn classify(net: &Net, (x, y): Images) -> Computed {
    let x = net.blocks.iter().fold(x, |x, block| {
        relu(block.norm.forward(block.conv.forward(x)))
    });
    let x = gelu(net.norm.forward(net.first.forward(x.flatten(1, 3))));
    let x = net.last.forward(x);
    (squared(x.clone(), y), Some(x))
}

fn images(number: u64, device: &Device) -> Images {
    (
        floats([SAMPLES, 1, 8, 8], number, device),
        floats([SAMPLES, WIDTH], number + 1000, device),
    )
}

const CONVOLUTIONS: Case<Net, Images> = Case {
    init: net,
    forward: classify,
    batch: images,
};

/// Compares with plain Burn under three schedules.
fn check<M: Module + Sync + 'static, B: Batch + Split>(
    case: Case<M, B>,
    stages: impl IntoIterator<Item = usize>,
    micro_batches: usize,
) {
    let expected = plain(case, AdamWConfig::new().init(), micro_batches, STEPS);
    for setting in settings(stages, micro_batches) {
        let found = pipelined(case, AdamWConfig::new().build(), setting, STEPS);
        found.assert_same(&expected, &format!("{setting:?}"));
    }
}

/// Gradients, statistics and evaluation are the same as in plain Burn over the same micro-batches.
#[test]
fn batch_norm_trains_as_in_plain_burn() {
    for micro_batches in [1, 3, 4] {
        check(CONVOLUTIONS, 1..=4, micro_batches);
    }
}

/// Under every schedule, with stages that recompute their forward and stages that do not: a micro-batch advances
/// the statistics once.
#[test]
fn batch_norm_trains_under_every_schedule() {
    const MICRO_BATCHES: usize = 4;
    let expected = plain(
        CONVOLUTIONS,
        AdamWConfig::new().init(),
        MICRO_BATCHES,
        STEPS,
    );
    let model = CONVOLUTIONS.model();
    let trace = CONVOLUTIONS.trace(&model, MICRO_BATCHES);
    for kind in ScheduleKind::ALL {
        let chunks = usize::from(kind.chunks().contains(2)) + 1;
        let machine = Machine::local(2).unwrap();
        let machine = machine.with_chunks(chunks, kind.placement()).unwrap();
        for recompute in [false, true] {
            let plan = Planner::new(&trace, &machine)
                .schedule(kind)
                .recompute(|stage| recompute && stage % 2 == 0)
                .plan()
                .unwrap();
            let mut pipeline = Pipeline::builder(&model, &trace, &plan)
                .optimizer(AdamWConfig::new())
                .schedule(kind)
                .seed(SEED)
                .start()
                .unwrap();
            let mut found = Run::default();
            continue_run(&mut pipeline, CONVOLUTIONS, 0..STEPS, &mut found);
            let parameters = parameters(&pipeline.gather(&Device::flex()).unwrap());
            assert!(parameters == expected.parameters, "{kind}, {recompute}");
            assert_eq!(found.losses, expected.losses[..STEPS as usize], "{kind}");
        }
    }
}

#[derive(Module, Debug)]
struct Own {
    layers: Vec<Linear>,
    state: RunningState<Tensor<2>>,
}

type Pair = (Tensor<2>, Tensor<2>);

fn own(device: &Device) -> Own {
    let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
    Own {
        layers: (0..4).map(layer).collect(),
        state: RunningState::new(floats([1, WIDTH], 5, device)),
    }
}

fn pair(number: u64, device: &Device) -> Pair {
    let shape = [SAMPLES, WIDTH];
    (
        floats(shape, number, device),
        floats(shape, number + 1000, device),
    )
}

/// A forward with something in its middle that uses the state.
macro_rules! around {
    ($use_state:expr) => {
        |net: &Own, (x, y): Pair| {
            let use_state: fn(&Own, Tensor<2>) -> Tensor<2> = $use_state;
            let layers = |x, range: std::ops::Range<usize>| {
                let layers = net.layers[range].iter();
                layers.fold(x, |x, layer| gelu(layer.forward(x)))
            };
            let x = layers(use_state(net, layers(x, 0..2)), 2..4);
            (squared(x.clone(), y), Some(x))
        }
    };
}

/// The mean of a batch, or nothing in evaluation.
fn trains(x: &Tensor<2>) -> Option<Tensor<2>> {
    x.device()
        .is_autodiff()
        .then(|| x.clone().mean_dim(0).detach())
}

/// States that the output depends on, before or after the update; that the backward reads, so that it needs the
/// value of its own micro-batch; that no operation reads; and that become what the batch alone gives.
#[test]
fn states_of_own_modules_train_as_in_plain_burn() {
    let forwards: [fn(&Own, Pair) -> Computed; 8] = [
        around!(|net, x| {
            let state = net.state.value_sync();
            if let Some(mean) = trains(&x) {
                net.state.update(state.clone() * 0.9 + mean * 0.1);
            }
            x - state
        }),
        around!(|net, x| {
            let mut state = net.state.value_sync();
            if let Some(mean) = trains(&x) {
                state = state * 0.9 + mean * 0.1;
                net.state.update(state.clone());
            }
            x * state
        }),
        around!(|net, x| {
            let state = net.state.value_sync();
            if let Some(mean) = trains(&x) {
                net.state
                    .update(state.clone() * 0.5 + mean.powf_scalar(2.0));
            }
            x * state
        }),
        around!(|net, x| {
            if let Some(mean) = trains(&x) {
                net.state.update(mean);
            }
            x
        }),
        around!(|net, x| {
            let state = net.state.value_sync();
            if x.device().is_autodiff() {
                net.state.update(state + 1.0);
            }
            x
        }),
        // Applied before the end of the forward.
        around!(|net, x| {
            let state = net.state.value_sync();
            if let Some(mean) = trains(&x) {
                net.state.update(state * 0.9 + mean * 0.1);
            }
            x * net.state.value_sync()
        }),
        // Twice.
        around!(|net, x| {
            let mut x = x;
            for _ in 0..2 {
                let state = net.state.value_sync();
                if let Some(mean) = trains(&x) {
                    net.state.update(state.clone() * 0.9 + mean * 0.1);
                }
                x = x * state;
            }
            x
        }),
        // Guarded by the device of the state itself.
        around!(|net, x| {
            let state = net.state.value_sync();
            if state.device().is_autodiff() {
                net.state.update(state.clone() * 0.9 + 0.1);
            }
            x * state
        }),
    ];
    for forward in forwards {
        let case = Case {
            init: own,
            forward,
            batch: pair,
        };
        for micro_batches in [1, 4] {
            check(case, 1..=3, micro_batches);
        }
    }
}

/// Replicas would have to wait for each other.
#[test]
fn replicas_do_not_train_states() {
    let case = Case {
        init: own,
        forward: around!(|net, x| {
            if let Some(mean) = trains(&x) {
                net.state.update(mean);
            }
            x
        }),
        batch: pair,
    };
    let model = case.model();
    let trace = case.trace(&model, 4);
    let planner = Planner::new(&trace, &Machine::local(4).unwrap()).replicas(2);
    let plan = planner.plan().unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
    insta::assert_snapshot!(full_text(&builder.start().unwrap_err()), @"`state` is updated by the forward of one micro-batch after the other, so replicas would wait for each other: train it with one replica, or use a norm without running statistics");
}

/// A recomputed forward reads the state of its own micro-batch too.
#[test]
fn a_stage_that_recomputes_reads_the_state_of_its_micro_batch() {
    let case = Case {
        init: own,
        forward: around!(|net, x| {
            let state = net.state.value_sync();
            if let Some(mean) = trains(&x) {
                net.state.update(state.clone() * 0.5 + mean);
            }
            gelu(x * state)
        }),
        batch: pair,
    };
    let expected = plain(case, AdamWConfig::new().init(), 4, STEPS);
    let model = case.model();
    let trace = case.trace(&model, 4);
    for kind in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        let plan = Planner::new(&trace, &Machine::local(2).unwrap())
            .recompute(|_| true)
            .plan()
            .unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(AdamWConfig::new())
            .schedule(kind)
            .seed(SEED)
            .start()
            .unwrap();
        let mut found = Run::default();
        continue_run(&mut pipeline, case, 0..STEPS, &mut found);
        let parameters = parameters(&pipeline.gather(&Device::flex()).unwrap());
        assert!(parameters == expected.parameters, "{kind}");
    }
}

fn refused(forward: fn(&Own, Pair) -> Computed) -> TraceError {
    let model = Deferred::new(own).unwrap();
    let outputs = move |net: &Own, batch| Outputs::loss(forward(net, batch).0);
    let traced = model.trace(&pair(0, &Device::flex()), 1, outputs);
    traced.unwrap_err()
}

/// What a pipeline can't compute as plain Burn does is refused by path.
#[test]
fn states_that_are_refused() {
    let late = refused(around!(|net, x| {
        let state = net.state.value();
        if let Some(mean) = trains(&x) {
            net.state.update(state.clone() * 0.9 + mean * 0.1);
        }
        x - state
    }));
    insta::assert_snapshot!(full_text(&late), @r#"
    the forward updates the running state `state` in a way that a pipeline can't repeat
    the forward reads it with `value`, which misses the last update: read it with `value_sync`
    "#);
    let moved = refused(around!(|net, x| {
        let state = net.state.value_sync().to_device(&x.device());
        if let Some(mean) = trains(&x) {
            net.state.update(state.clone() * 0.9 + mean * 0.1);
        }
        x - state
    }));
    let text = full_text(&moved);
    let first_lines: Vec<&str> = text.lines().take(2).collect();
    insta::assert_snapshot!(first_lines.join("\n"), @r#"
    the forward updates the running state `state` in a way that a pipeline can't repeat
    a second forward can't read its new value: leave out `to_device`, the state is on the device of the model
    "#);
    // Burn moves what threads have left to one device.
    let on_threads = refused(around!(|net, x| {
        let state = net.state.value_sync();
        if let Some(mean) = trains(&x) {
            let update = || net.state.update(mean.clone());
            update();
            std::thread::scope(|scope| scope.spawn(update).join()).unwrap();
        }
        x - state
    }));
    assert!(
        matches!(on_threads, TraceError::Record { .. }),
        "{on_threads}"
    );
    let larger = refused(around!(|net, x| {
        let state = net.state.value_sync();
        if trains(&x).is_some() {
            net.state
                .update(Tensor::cat(vec![state.clone(), state.clone()], 0));
        }
        x - state.narrow(0, 0, 1)
    }));
    insta::assert_snapshot!(full_text(&larger), @r#"
    the forward updates the running state `state` in a way that a pipeline can't repeat
    its value was f32[1, 6] and becomes f32[2, 6]: keep shape and dtype
    "#);
}

mod named_as_burns {
    use super::{Linear, LinearConfig, Module, RunningState, Tensor};

    #[derive(Module, Debug)]
    pub(super) struct BatchNorm {
        pub(super) running_mean: RunningState<Tensor<2>>,
    }

    #[derive(Module, Debug)]
    pub(super) struct Net {
        pub(super) layer: Linear,
        pub(super) norm: BatchNorm,
    }

    pub(super) fn net(device: &super::Device) -> Net {
        let state = Tensor::zeros([1, super::WIDTH], device);
        Net {
            layer: LinearConfig::new(super::WIDTH, super::WIDTH).init(device),
            norm: BatchNorm {
                running_mean: RunningState::new(state),
            },
        }
    }
}

/// The name of a type alone does not make it Burn's.
#[test]
fn an_own_module_with_the_name_of_burns_is_not_trusted() {
    use named_as_burns::{Net, net};
    fn forward(net: &Net, (x, y): Pair, mean: Tensor<2>) -> Computed {
        let x = net.layer.forward(x);
        if let Some(new) = trains(&x) {
            let state = &net.norm.running_mean;
            state.update(mean.clone() * 0.9 + new * 0.1);
        }
        (squared(x - mean, y), None)
    }
    let late = |net: &Net, batch: Pair| {
        let mean = net.norm.running_mean.value();
        Outputs::loss(forward(net, batch, mean).0)
    };
    let model = Deferred::new(net).unwrap();
    let error = model.trace(&pair(0, &Device::flex()), 1, late).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @r#"
    the forward updates the running state `norm.running_mean` in a way that a pipeline can't repeat
    the forward reads it with `value`, which misses the last update: read it with `value_sync`
    "#);
    let case = Case {
        init: net,
        forward: |net: &Net, batch: Pair| {
            let mean = net.norm.running_mean.value_sync();
            forward(net, batch, mean)
        },
        batch: pair,
    };
    check(case, 1..=2, 4);
}

/// A state that an evaluation would change, too.
#[test]
fn a_state_that_an_evaluation_updates_is_refused() {
    let case = Case {
        init: own,
        forward: around!(|net, x| {
            let state = net.state.value_sync();
            net.state.update(state.clone() * 0.9);
            x - state
        }),
        batch: pair,
    };
    let setting = settings([1], 1)[0];
    let mut pipeline = case.start(setting, SgdConfig::new().build());
    pipeline.step(LR, pair(0, &Device::flex())).unwrap();
    let error = pipeline.evaluate(pair(0, &Device::flex())).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @r#"
    the model could not be traced for this batch
    the forward updates the running state `state` in a way that a pipeline can't repeat
    it is updated in evaluation too: update it only if the device of the input `is_autodiff()`
    "#);
}

/// Its `Debug` output hides its fields, of which one is not visited.
#[derive(Module)]
struct Hidden {
    layer: Linear,
    norm: BatchNorm,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden")
    }
}

#[test]
fn the_debug_output_may_hide_states() {
    let case = Case {
        init: |device| Hidden {
            layer: LinearConfig::new(WIDTH, WIDTH).init(device),
            norm: BatchNormConfig::new(WIDTH).init(device),
        },
        forward: |net: &Hidden, (x, y): Pair| {
            (squared(net.norm.forward(net.layer.forward(x)), y), None)
        },
        batch: pair,
    };
    check(case, [2], 4);
}

#[derive(Module, Debug)]
struct Skipping {
    layer: Linear,
    #[module(skip)]
    state: RunningState<Tensor<2>>,
}

/// Updates that no forward makes, and states that no visitor sees.
#[test]
fn states_whose_updates_are_not_known_are_refused() {
    let example = pair(0, &Device::flex());
    let skipping = Deferred::new(|device| Skipping {
        layer: LinearConfig::new(WIDTH, WIDTH).init(device),
        state: RunningState::new(Tensor::zeros([1, WIDTH], device)),
    });
    let outputs = |net: &Skipping, (x, y): Pair| {
        if let Some(mean) = trains(&x) {
            net.state.update(mean);
        }
        Outputs::loss(squared(net.layer.forward(x), y))
    };
    let skipped = skipping.unwrap().trace(&example, 1, outputs);
    insta::assert_snapshot!(full_text(&skipped.unwrap_err()), @r#"
    the forward updates the running state `state` in a way that a pipeline can't repeat
    its new value is not known: make it a field of the module without `#[module(skip)]`, and update it in the forward and not in the constructor
    "#);
    let constructed = Deferred::new(|device| {
        let net = own(device);
        net.state.update(Tensor::ones([1, WIDTH], device));
        net
    });
    let outputs = |net: &Own, (x, y): Pair| {
        let x = x * net.state.value_sync();
        Outputs::loss(squared(net.layers[0].forward(x), y))
    };
    let updated = constructed.unwrap().trace(&example, 1, outputs);
    insta::assert_snapshot!(full_text(&updated.unwrap_err()), @r#"
    the forward updates the running state `state` in a way that a pipeline can't repeat
    its new value is not known: make it a field of the module without `#[module(skip)]`, and update it in the forward and not in the constructor
    "#);
}

/// Batches of integers, by whose device the forward decides: it is the device of the model, as in plain Burn.
#[test]
fn integers_are_in_autodiff_unless_they_are_moved() {
    type Words = (Tensor<2, Int>, Tensor<2>);
    let case = Case {
        init: own,
        forward: |net: &Own, (words, y): Words| {
            let state = net.state.value_sync();
            let x = words.clone().float();
            if words.device().is_autodiff() {
                net.state.update(state.clone() * 0.9 + 0.1);
            }
            let x = gelu(net.layers[0].forward(x * state));
            (squared(x.clone(), y), Some(x))
        },
        batch: |number, device| {
            (
                tokens([SAMPLES, WIDTH], 5, number, device),
                floats([SAMPLES, WIDTH], number + 1000, device),
            )
        },
    };
    check(case, [1, 2], 2);
}

/// Micro-batches of three samples update the state, micro-batches of two read it, forward and backward.
#[test]
fn a_state_that_some_micro_batches_update() {
    let case = Case {
        init: own,
        forward: around!(|net, x| {
            let state = net.state.value_sync();
            let [samples, _] = x.dims();
            if let Some(mean) = trains(&x).filter(|_| samples > 2) {
                net.state.update(state.clone() * 0.5 + mean);
            }
            x * state
        }),
        batch: pair,
    };
    // 8 samples in 3 micro-batches: 3, 3 and 2.
    check(case, 1..=3, 3);
}

/// A state as a named output, from the stage that owns it.
#[test]
fn a_state_is_an_output() {
    let case = Case {
        init: own,
        forward: |net: &Own, (x, y): Pair| {
            let state = net.state.value_sync();
            let x = gelu(net.layers[0].forward(x)) - state.clone();
            if let Some(mean) = trains(&x) {
                net.state.update(state.clone() * 0.9 + mean * 0.1);
            }
            let layers = net.layers[1..].iter();
            let x = layers.fold(x, |x, layer| gelu(layer.forward(x)));
            (squared(x, y), Some(state))
        },
        batch: pair,
    };
    check(case, 1..=3, 4);
}

/// A state whose calls are at the beginning and the end keeps all between them on its stage, also where a user cuts.
#[test]
fn calls_of_one_state_stay_on_one_stage() {
    let case = Case {
        init: own,
        forward: |net: &Own, (x, y): Pair| {
            let x = gelu(net.layers[0].forward(x));
            let state = net.state.value_sync();
            let x = gelu(net.layers[1].forward(x - state.clone()));
            let x = gelu(net.layers[2].forward(x));
            if let Some(mean) = trains(&x) {
                net.state.update(state * 0.9 + mean * 0.1);
            }
            let x = net.layers[3].forward(x);
            (squared(x.clone(), y), Some(x))
        },
        batch: pair,
    };
    let expected = plain(case, AdamWConfig::new().init(), 4, STEPS);
    let model = case.model();
    let trace = case.trace(&model, 4);
    let machine = Machine::local(3).unwrap();
    let plans = [
        trace.plan(&machine),
        Planner::new(&trace, &machine)
            .cuts(&[Cut::before("layers.1"), Cut::before("layers.3")])
            .plan(),
    ];
    for plan in plans {
        let plan = plan.unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(AdamWConfig::new())
            .seed(SEED)
            .start()
            .unwrap();
        let mut found = Run::default();
        continue_run(&mut pipeline, case, 0..STEPS, &mut found);
        let parameters = parameters(&pipeline.gather(&Device::flex()).unwrap());
        assert!(parameters == expected.parameters, "{plan}");
    }
    // Two cuts between the calls would leave a stage without operations.
    let between = Planner::new(&trace, &machine)
        .cuts(&[Cut::before("layers.1"), Cut::before("layers.2")])
        .plan();
    insta::assert_snapshot!(between.unwrap_err(), @"the cut before `layers.2` leaves stage 1 without operations: it is at the beginning or the end of the forward, or at the position of another cut");
}

/// Forwards of a stage with a state run in the order of micro-batches; without one they need not.
#[test]
fn forwards_of_a_written_schedule_are_in_order() {
    let rows = "0F1 0F0 0B0 0B1\n1F0 1F1 1B0 1B1";
    let start = |case: Case<Own, Pair>| {
        let model = case.model();
        let trace = case.trace(&model, 2);
        let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .schedule(Schedule::parse("mine", rows).unwrap())
            .start()?;
        pipeline.step(LR, pair(0, &Device::flex())).map(drop)
    };
    let stateless = around!(|_, x| x);
    start(Case {
        init: own,
        forward: stateless,
        batch: pair,
    })
    .unwrap();
    let error = start(Case {
        init: own,
        forward: |net: &Own, (x, y): Pair| {
            let state = net.state.value_sync();
            if let Some(mean) = trains(&x) {
                net.state.update(state.clone() * 0.9 + mean * 0.1);
            }
            let x = net
                .layers
                .iter()
                .fold(x - state, |x, layer| gelu(layer.forward(x)));
            (squared(x, y), None)
        },
        batch: pair,
    })
    .unwrap_err();
    insta::assert_snapshot!(full_text(&error), @r#"
    the schedule can't be run
    `0F1` (rank 0, position 0) is before `0F0` (rank 0, position 1): a stage whose forward updates a running state, as batch norm does, runs its forwards in micro-batch order; move the first after the second, or use a schedule with one order of micro-batches for forwards and backwards, such as `looped-bfs` for PyTorch's LoopedBFS
    "#);
}

/// A step that is skipped, and one that is stopped, leave running states as they were.
#[test]
fn steps_without_an_update_leave_states() {
    let case = CONVOLUTIONS;
    let model = case.model();
    let trace = case.trace(&model, 2);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let builder = || {
        Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .seed(SEED)
    };
    let values = |pipeline: &mut Pipeline<Net, Images>| -> BTreeMap<String, Vec<u8>> {
        parameters(&pipeline.gather(&Device::flex()).unwrap())
    };
    let (x, y) = images(0, &Device::flex());
    let infinite = (x / 0.0, y);
    let mut skips = builder().loss_scale(LossScale::fixed(1.0)).start().unwrap();
    let before = values(&mut skips);
    assert!(skips.step(LR, infinite.clone()).unwrap().skipped);
    assert!(values(&mut skips) == before);

    let mut stops = builder().stop_on_non_finite().start().unwrap();
    stops.step(LR, infinite).unwrap_err();
    let expected = {
        let mut pipeline = builder().start().unwrap();
        values(&mut pipeline)
    };
    assert!(values(&mut stops) == expected);
    // The next step starts from the old statistics.
    stops.step(LR, images(1, &Device::flex())).unwrap();
    let mut fresh = builder().start().unwrap();
    fresh.step(LR, images(1, &Device::flex())).unwrap();
    let changed = values(&mut fresh);
    assert!(values(&mut stops)["norm.running_mean"] == changed["norm.running_mean"]);
    assert!(changed["norm.running_mean"] != expected["norm.running_mean"]);
}

#[derive(Module, Debug)]
struct Low {
    first: Linear,
    norm: BatchNorm,
    last: Linear,
}

fn low(device: &Device) -> Low {
    let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
    Low {
        first: linear(),
        norm: BatchNormConfig::new(WIDTH).init(device),
        last: linear(),
    }
}

fn normed(net: &Low, (x, y): Pair) -> Tensor<1> {
    let x = gelu(net.norm.forward(net.first.forward(x)));
    squared(net.last.forward(x), y)
}

/// In mixed precision the statistics stay f32: plain Burn in bf16 gives the statistics of each batch, of which a mean
/// in f32 is taken here.
#[test]
fn statistics_of_mixed_precision_are_f32() {
    const MICRO_BATCHES: usize = 4;
    let device = Device::flex().autodiff();
    let model = Deferred::new(low).unwrap();
    let forward = |net: &Low, batch| Outputs::loss(normed(net, batch));
    let trace = MixedPrecision::bf16(&model)
        .trace(&pair(0, &Device::flex()), MICRO_BATCHES, forward)
        .unwrap();
    // With a momentum of 1 the running statistics are the statistics of the last batch.
    let [mut mean, mut var] = [
        Tensor::<1>::zeros([WIDTH], &Device::flex()),
        Tensor::<1>::ones([WIDTH], &Device::flex()),
    ];
    let options = MaterializeOptions::on(&device).dtype(|_| Some(DType::BF16));
    let initializer = model.initializer(SEED.into());
    let mut fresh = model.materialize(options, &initializer).unwrap();
    fresh.norm.momentum = 1.0;
    let (x, y) = pair(0, &device);
    let batch = (x.cast(DType::BF16), y.cast(DType::BF16));
    for (part, _) in split(&batch, MICRO_BATCHES) {
        normed(&fresh, part);
        let of_batch = fresh.valid().norm;
        let next = |running: Tensor<1>, of_batch: Tensor<1>| {
            running.mul_scalar(0.9) + of_batch.mul_scalar(0.1).cast(DType::F32)
        };
        mean = next(mean, of_batch.running_mean.value());
        var = next(var, of_batch.running_var.value());
    }
    for stages in 1..=2 {
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .seed(SEED)
            .start()
            .unwrap();
        pipeline.step(LR, pair(0, &Device::flex())).unwrap();
        for (path, expected) in [("norm.running_mean", &mean), ("norm.running_var", &var)] {
            let found = pipeline.parameter(path).unwrap().to_data().unwrap();
            assert_eq!(found, expected.to_data(), "{path}");
        }
        // They are used in evaluation.
        assert!(
            pipeline
                .evaluate(pair(1, &Device::flex()))
                .unwrap()
                .is_finite()
        );
    }
}
