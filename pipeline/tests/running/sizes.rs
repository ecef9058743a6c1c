//! The step that was traced: batches of other sizes are refused, reported, or run with other programs.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor, activation::gelu};
use tinderbox_pipeline::{Machine, Pipeline, PipelineBuilder, Planner, ScheduleKind};
use tinderbox_pipeline_tests::{
    Case, LR, Run, SAMPLES, SEED, Setting, continue_run, floats, full_text, parameters, pipelined,
    plain, squared,
};

use crate::events;

const WIDTH: usize = 4;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

type Batch = (Tensor<2>, Tensor<2>);

const CASE: Case<Net, Batch> = Case {
    init: |device| Net {
        layers: (0..3)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
    },
    forward: |net, (x, y)| {
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        (squared(x.clone(), y), Some(x))
    },
    batch: |n, device| {
        let shape = [SAMPLES, WIDTH];
        (floats(shape, n, device), floats(shape, n + 1000, device))
    },
};

/// A batch of another size.
fn rows(samples: usize) -> Batch {
    let shape = [samples, WIDTH];
    let values = |number| floats(shape, number, &Device::flex());
    (values(77), values(78))
}

/// Trains steps of eight samples in some micro-batches, on two ranks.
fn builder(micro_batches: usize) -> PipelineBuilder<Net, Batch> {
    let model = CASE.model();
    let trace = CASE.trace(&model, micro_batches);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .seed(SEED)
}

fn bits(pipeline: &mut Pipeline<Net, Batch>) -> std::collections::BTreeMap<String, Vec<u8>> {
    parameters(&pipeline.gather(&Device::flex()).unwrap())
}

/// The lines about programs of other shapes.
fn reported() -> Vec<String> {
    let text = events::take();
    let lines = text.lines().filter(|line| line.contains("another shape"));
    lines.map(str::to_owned).collect()
}

fn report(mode: &str, samples: usize) -> String {
    format!(
        "message: program recorded for another shape than the micro-batches of the traced step have: `fixed_shapes` refuses \
         such batches; program: {mode} 0:F32[{samples}, 4] 1:F32[{samples}, 4]; "
    )
}

#[test]
fn a_larger_batch_than_the_traced_one_is_refused() {
    let mut pipeline = builder(4).start().unwrap();
    let before = bits(&mut pipeline);
    let expected = "a batch of 9 samples is too large for a step, which was planned for 8: trace the model with the largest \
                    batch of a step";
    assert_eq!(
        full_text(&pipeline.step(LR, rows(9)).unwrap_err()),
        expected
    );
    // Each of several batches has at most as many.
    let accumulated = pipeline.step_accumulated(LR, [rows(8), rows(9)]);
    assert_eq!(full_text(&accumulated.unwrap_err()), expected);
    let share = pipeline.step_share(LR, rows(9), 9);
    assert_eq!(full_text(&share.unwrap_err()), expected);
    let replay = builder(4).replay(0, rows(9)).map(drop);
    assert_eq!(full_text(&replay.unwrap_err()), expected);
    assert_eq!(pipeline.steps(), 0);
    assert!(bits(&mut pipeline) == before);
    // An evaluation may have any number.
    let evaluated = pipeline.evaluate(rows(9)).unwrap();
    assert_eq!(evaluated.micro_batch_losses.len(), 4);
    let output = pipeline.step_accumulated(LR, [rows(8), rows(8)]).unwrap();
    assert_eq!(output.micro_batch_losses.len(), 8);
    pipeline.step_share(LR, rows(8), 8).unwrap();
}

/// The batch is the batch of all replicas.
#[test]
fn the_samples_of_all_replicas_are_counted() {
    let model = CASE.model();
    let trace = CASE.trace(&model, 4);
    let planner = Planner::new(&trace, &Machine::local(4).unwrap()).replicas(2);
    let plan = planner.plan().unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new());
    let mut pipeline = builder.start().unwrap();
    assert_eq!(pipeline.micro_batches(), 4);
    let output = pipeline.step(LR, rows(8)).unwrap();
    assert_eq!(output.micro_batch_losses.len(), 4);
    insta::assert_snapshot!(full_text(&pipeline.step(LR, rows(9)).unwrap_err()), @"a batch of 9 samples is too large for a step, which was planned for 8: trace the model with the largest batch of a step");
}

/// Eight samples in three micro-batches are three, three and two: all of them are the traced step's.
#[test]
fn other_shapes_are_reported_once() {
    let mut pipeline = builder(3).keep_programs(1).start().unwrap();
    events::collect();
    for _ in 0..2 {
        pipeline.step(LR, rows(8)).unwrap();
        pipeline.evaluate(rows(8)).unwrap();
    }
    assert_eq!(reported(), [""; 0]);
    // Two micro-batches of two samples are of the step, and one of one is not.
    pipeline.step(LR, rows(5)).unwrap();
    assert_eq!(reported(), [report("training", 1)]);
    // Four, four and three.
    pipeline.evaluate(rows(11)).unwrap();
    assert_eq!(reported(), [report("inference", 4)]);
    // They are not kept, and are recorded again.
    for _ in 0..2 {
        pipeline.step(LR, rows(5)).unwrap();
        pipeline.evaluate(rows(11)).unwrap();
        pipeline.evaluate(rows(8)).unwrap();
    }
    assert_eq!(reported(), [""; 0]);
}

#[test]
fn fixed_shapes_refuse_others() {
    let mut pipeline = builder(3).fixed_shapes().start().unwrap();
    for step in 0..2 {
        pipeline.step(LR, rows(8)).unwrap();
        pipeline.evaluate(rows(8)).unwrap();
        // Micro-batches of two samples alone.
        pipeline.step(LR, rows(6)).unwrap();
        let before = bits(&mut pipeline);
        insta::allow_duplicates! {
            insta::assert_snapshot!(full_text(&pipeline.step(LR, rows(5)).unwrap_err()), @"a micro-batch needs the program `training 0:F32[1, 4] 1:F32[1, 4]`, which differs from the traced one, `training 0:F32[3, 4] 1:F32[3, 4]`: pad the batch to the traced shapes, leave it out, or start without `fixed_shapes`");
            insta::assert_snapshot!(full_text(&pipeline.evaluate(rows(11)).unwrap_err()), @"a micro-batch needs the program `inference 0:F32[4, 4] 1:F32[4, 4]`, which differs from the traced one, `inference 0:F32[3, 4] 1:F32[3, 4]`: pad the batch to the traced shapes, leave it out, or start without `fixed_shapes`");
        }
        let (x, y) = rows(8);
        let wide = (Tensor::cat(vec![x.clone(), x], 1), y);
        assert!(full_text(&pipeline.step(LR, wide).unwrap_err()).contains("0:F32[3, 8]"));
        assert_eq!(pipeline.steps(), 2 * (step + 1));
        assert!(bits(&mut pipeline) == before);
    }
}

/// The plan has another number than the trace, such as a chosen one: its micro-batches are those of the step.
#[test]
fn the_micro_batches_of_a_plan_are_not_reported() {
    let model = CASE.model();
    let trace = CASE.trace(&model, 3);
    let count = 5;
    let planned = trace.with_micro_batches(count).unwrap();
    let plan = planned.plan(&Machine::local(2).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new());
    let mut pipeline = builder.fixed_shapes().start().unwrap();
    assert_eq!(pipeline.micro_batches(), count);
    events::collect();
    let output = pipeline.step(LR, rows(8)).unwrap();
    assert_eq!(output.micro_batch_losses.len(), count);
    assert_eq!(reported(), [""; 0]);
}

/// Micro-batches of two sizes have the bits of plain Burn, with fixed shapes as well.
#[test]
fn uneven_parts_are_those_of_plain_burn() {
    const STEPS: u64 = 3;
    for micro_batches in [3, 5] {
        let expected = plain(CASE, AdamWConfig::new().init(), micro_batches, STEPS);
        let setting = Setting {
            stages: 2,
            schedule: ScheduleKind::OneFOneB,
            micro_batches,
        };
        let found = pipelined(CASE, AdamWConfig::new().build(), setting, STEPS);
        found.assert_same(&expected, "any shapes");
        let fixed = builder(micro_batches).fixed_shapes();
        let mut fixed = fixed.optimizer(AdamWConfig::new()).start().unwrap();
        continue_run(&mut fixed, CASE, 0..STEPS, &mut Run::default());
        assert!(bits(&mut fixed) == expected.parameters, "{micro_batches}");
    }
}

/// A plan of another batch may have more micro-batches than the traced batch has samples.
#[test]
fn a_plan_of_too_many_micro_batches_is_refused() {
    let model = CASE.model();
    let trace = CASE.trace(&model, 4);
    let mut plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut refused = |count| {
        plan.step.micro_batches = count;
        full_text(
            &Pipeline::builder(&model, &trace, &plan)
                .start()
                .unwrap_err(),
        )
    };
    insta::assert_snapshot!(refused(9), @r"
    the plan can't be used
    the model could not be traced
    a step of 8 samples can't have 9 micro-batches: use at most 8, or trace the model with the largest batch of a step
    ");
    insta::assert_snapshot!(refused(0), @r"
    the plan can't be used
    the model could not be traced
    a step can't have 0 micro-batches: use at least 1
    ");
}
