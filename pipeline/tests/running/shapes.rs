//! Batches of other shapes share the parameters; a plan is valid for all of them or an error explains
//! why not.

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::activation::{gelu, tanh};
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::Deferred;
use tinderbox_pipeline::{Cut, Outputs, Pipeline, Traceable};
use tinderbox_pipeline_tests::{
    Case, Computed, LR, SAMPLES, floats, full_text, pipelined, plain, settings,
};

use crate::events;

const WIDTH: usize = 5;

#[derive(Module, Debug)]
struct Net {
    shared: Linear,
    layers: Vec<Linear>,
}

fn init(device: &Device) -> Net {
    let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
    Net {
        shared: linear(),
        layers: (0..3).map(|_| linear()).collect(),
    }
}

fn of(x: Tensor<3>) -> Computed {
    let pooled: Tensor<2> = x.mean_dim(1).squeeze_dim(1);
    (pooled.clone().powf_scalar(2.0).mean(), Some(pooled))
}

fn check(lengths: fn(u64) -> usize, forward: fn(&Net, Tensor<3>) -> Computed) {
    // A function pointer can't capture the lengths, so both are named here.
    let batch: fn(u64, &Device) -> Tensor<3> = match lengths(0) {
        LONG => |n, device| floats([SAMPLES, long_first(n), WIDTH], n, device),
        _ => |n, device| floats([SAMPLES, short_first(n), WIDTH], n, device),
    };
    let case = Case {
        init,
        forward,
        batch,
    };
    for count in [1, 3] {
        let expected = plain(case, AdamWConfig::new().init(), count, 4);
        for setting in settings(1..=4, count) {
            let found = pipelined(case, AdamWConfig::new().build(), setting, 4);
            found.assert_same(&expected, &format!("{setting:?}"));
        }
    }
}

const LONG: usize = 9;
const SHORT: usize = 2;

fn long_first(step: u64) -> usize {
    if step.is_multiple_of(2) { LONG } else { SHORT }
}

fn short_first(step: u64) -> usize {
    long_first(step + 1)
}

#[test]
fn every_step_may_have_another_shape() {
    for lengths in [long_first as fn(u64) -> usize, short_first] {
        check(lengths, |net, x| {
            let x = tanh(net.shared.forward(x));
            let layers = net.layers.iter();
            of(layers.fold(x, |x, layer| gelu(layer.forward(x))))
        });
    }
}

/// Where the fewest bytes cross depends on the length: the second read of `shared` must not move to a
/// stage without a copy.
#[test]
fn a_cut_of_another_shape_keeps_the_owners_of_the_plan() {
    for lengths in [long_first as fn(u64) -> usize, short_first] {
        check(lengths, |net, x| {
            let x = net.shared.forward(x);
            let x = net.shared.forward(x.clone().swap_dims(1, 2).matmul(x));
            let layers = net.layers.iter();
            of(layers.fold(x, |x, layer| gelu(layer.forward(x))))
        });
    }
}

#[test]
fn a_shape_that_reads_other_parameters_is_refused_and_the_pipeline_continues() {
    let model = Deferred::new(init).unwrap();
    let device = Device::flex();
    let batch = |length| floats::<3>([SAMPLES, length, WIDTH], 1, &device);
    let trace = model
        .trace(&batch(LONG), 2, |net: &Net, x| {
            let short = x.dims()[1] == SHORT;
            let x = net.shared.forward(x);
            let x = net.layers.iter().fold(x, |x, layer| layer.forward(x));
            let x = if short { net.shared.forward(x) } else { x };
            Outputs::loss(of(x).0)
        })
        .unwrap();
    let plan = trace.plan_at(&[Cut::before("layers.1")]).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .start()
        .unwrap();
    for _ in 0..2 {
        let error = pipeline.step(LR, batch(SHORT)).unwrap_err();
        assert_eq!(
            full_text(&error),
            "the plan can't be used\nstage 1 reads `shared.weight` for a batch of this shape, but the plan assigns it no copy: create the plan from a trace of such a batch"
        );
        pipeline.step(LR, batch(LONG)).unwrap();
    }
}

#[test]
fn a_trace_or_plan_of_another_model_is_refused() {
    let device = Device::flex();
    let batch = || floats::<3>([SAMPLES, LONG, WIDTH], 1, &device);
    let small = Deferred::new(init).unwrap();
    let large = Deferred::new(|device| Net {
        layers: (0..4)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
        ..init(device)
    })
    .unwrap();
    let traces = [&small, &large].map(|model| {
        let forward = |net: &Net, x| {
            let x = net.shared.forward(x);
            Outputs::loss(of(net.layers.iter().fold(x, |x, layer| layer.forward(x))).0)
        };
        model.trace(&batch(), 2, forward).unwrap()
    });
    let plans = [0, 1].map(|k| traces[k].plan_at(&[Cut::before("layers.1")]).unwrap());
    for (trace, plan, start) in [
        (
            0,
            1,
            "the plan can't be used\nthe plan is for another model: 2 parameters are ",
        ),
        (1, 0, "the trace is of another model: in the constructor, "),
        (1, 1, "the trace is of another model: in the constructor, "),
    ] {
        let pipeline = Pipeline::builder(&small, &traces[trace], &plans[plan]);
        let text = full_text(&pipeline.start().unwrap_err());
        assert!(text.starts_with(start), "{text}");
    }
    Pipeline::builder(&small, &traces[0], &plans[0])
        .start()
        .unwrap();
}

/// Logged once, when a pipeline drops its first program.
const FIRST_DROP: &str = "message: batches have more shapes than programs are kept: a shape that recurs after others is recorded, cut and loaded again; keep more (`keep_programs`), or pad batches to fewer \
                          shapes; \n";

#[test]
fn the_least_recently_used_programs_are_dropped() {
    let device = Device::flex();
    let model = Deferred::new(init).unwrap();
    let batch = |length| floats::<3>([SAMPLES, length, WIDTH], 1, &device);
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let lengths = recorded.clone();
    let trace = model.trace(&batch(LONG), 1, move |net: &Net, x| {
        lengths.lock().unwrap().push(x.dims()[1]);
        let x = net.shared.forward(x);
        Outputs::loss(of(net.layers.iter().fold(x, |x, layer| layer.forward(x))).0)
    });
    let trace = trace.unwrap();
    let start = |kept, micro_batches| {
        let trace = trace.with_micro_batches(micro_batches).unwrap();
        let plan = trace.plan_at(&[Cut::before("layers.1")]).unwrap();
        Pipeline::builder(&model, &trace, &plan)
            .optimizer(SgdConfig::new())
            .keep_programs(kept)
            .start()
            .unwrap()
    };
    // Once for each shape, also if it is recorded again.
    let recorded_first = |length| {
        format!(
            "message: program recorded for another shape than the micro-batches of the traced step have: `fixed_shapes` \
             refuses such batches; program: training :F32[8, {length}, 5]; \n"
        )
    };
    let made = |length, made| {
        format!(
            "message: program created; program: training :F32[8, {length}, 5]; made: {made}; \n"
        )
    };
    let dropped = |length, count| {
        format!(
            "message: program dropped; program: training :F32[8, {length}, 5]; dropped: {count}; \n"
        )
    };
    events::collect();
    let mut pipeline = start(2, 1);
    recorded.lock().unwrap().clear();
    for (length, expected) in [
        (3, recorded_first(3) + &made(3, 1)),
        (4, recorded_first(4) + &made(4, 2)),
        (3, String::new()),
        (
            5,
            recorded_first(5) + &made(5, 3) + FIRST_DROP + &dropped(4, 1),
        ),
        (3, String::new()),
        // The program of the example is cut again, but not recorded again.
        (LONG, made(LONG, 4) + &dropped(5, 2)),
        // Recordings are kept in the order of their own last use.
        (4, made(4, 5) + &dropped(3, 3)),
        (3, made(3, 6) + &dropped(LONG, 4)),
    ] {
        pipeline.step(LR, batch(length)).unwrap();
        assert_eq!(events::take(), expected, "length {length}");
    }
    // The first recording of a shape is repeated and compared; a later one is compared with its digest.
    assert_eq!(*recorded.lock().unwrap(), [3, 3, 4, 4, 5, 5, 3]);
    // Eight samples are micro-batches of three, three and two: the programs of one step are kept for
    // the next.
    let mut pipeline = start(0, 3);
    pipeline.step(LR, batch(4)).unwrap();
    assert_eq!(events::take().lines().count(), 4);
    pipeline.step(LR, batch(4)).unwrap();
    assert_eq!(events::take(), "");
}
