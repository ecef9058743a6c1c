//! What processes compute is what threads compute, bit by bit, and every process gets all of it.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use tinderbox_engines::Delays;
use tinderbox_fake::mark;
use tinderbox_pipeline::{Cut, Machine, OutputsOn, Pipeline, Plan, ScheduleKind, Trace};
use tinderbox_pipeline_tests::{
    Case, Computed, Run, Setting, continue_run, note, parameters, pipelined, plain, squared,
};
use tinderbox_world::World;

use crate::model::{MICRO_BATCHES, Net, batch, builder, on_world, run};

/// The size of the square matrices of [`views`].
const SIDE: usize = 9;

const NONE: Delays = Delays {
    seed: 0,
    most: Duration::ZERO,
};

/// Three steps of a case and an evaluation, as [`plain`] makes them.
fn trained<M: Module + Sync + 'static>(
    case: Case<M, crate::model::Batch>,
    plan: impl Fn(&Trace<crate::model::Batch>) -> Plan,
    world: &World,
) -> Run {
    let model = case.model();
    let trace = case.trace(&model, MICRO_BATCHES);
    let mut pipeline = Pipeline::builder(&model, &trace, &plan(&trace))
        .custom_optimizer(AdamWConfig::new().build())
        .schedule(ScheduleKind::ZbH1)
        .seed(tinderbox_pipeline_tests::SEED)
        .world(world)
        .start()
        .unwrap();
    let mut run = Run::default();
    continue_run(&mut pipeline, case, 0..3, &mut run);
    run.parameters = parameters(&pipeline.gather(&Device::flex()).unwrap());
    let batch = (case.batch)(3, &Device::flex());
    note(pipeline.evaluate(batch).unwrap(), &mut run);
    run
}

#[test]
fn every_process_sees_what_threads_see() {
    for (ranks, kind) in [
        (2, ScheduleKind::OneFOneB),
        (3, ScheduleKind::ZbH1),
        (4, ScheduleKind::GPipe),
        (2, ScheduleKind::Zbv),
        (2, ScheduleKind::DualPipeV),
        (2, ScheduleKind::Interleaved1F1B),
    ] {
        let expected = run(&mut builder(ranks, kind).start().unwrap(), 4);
        let found = on_world(ranks, NONE, |world, _| {
            run(&mut builder(ranks, kind).world(&world).start().unwrap(), 4)
        });
        for (rank, found) in found.iter().enumerate() {
            assert!(*found == expected, "rank {rank} of {ranks}, {kind}");
        }
    }
}

#[test]
fn delays_change_no_bit() {
    let kind = ScheduleKind::OneFOneB;
    let expected = run(&mut builder(3, kind).start().unwrap(), 6);
    for seed in 0..4 {
        let delays = Delays {
            seed,
            most: Duration::from_millis(4),
        };
        let found = on_world(3, delays, |world, _| {
            run(&mut builder(3, kind).world(&world).start().unwrap(), 6)
        });
        assert!(found.iter().all(|found| *found == expected), "seed {seed}");
    }
}

/// A model without dropout, so that plain Burn is the reference.
#[test]
fn processes_compute_what_plain_burn_computes() {
    let case: Case<Vec<Linear>, crate::model::Batch> = Case {
        init: |device| Net::init(device).layers,
        forward: |layers, (x, y)| {
            let x = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
            (squared(x.clone(), y), Some(x))
        },
        batch: |number, device| {
            let shape = [tinderbox_pipeline_tests::SAMPLES, crate::model::WIDTH];
            let floats = |number| tinderbox_pipeline_tests::floats(shape, number, device);
            (floats(number), floats(number + 1000))
        },
    };
    let optimizer = || AdamWConfig::new().init();
    let expected = plain(case, optimizer(), MICRO_BATCHES, 3);
    let setting = Setting {
        stages: 3,
        schedule: ScheduleKind::ZbH1,
        micro_batches: MICRO_BATCHES,
    };
    let threads = pipelined(case, AdamWConfig::new().build(), setting, 3);
    threads.assert_same(&expected, "threads");
    let found = on_world(3, NONE, |world, _| {
        let auto =
            |trace: &Trace<crate::model::Batch>| trace.plan(&Machine::local(3).unwrap()).unwrap();
        trained(case, auto, &world)
    });
    found
        .iter()
        .for_each(|found| found.assert_same(&expected, "processes"));
}

/// Values that cross as views: a permutation, a part of a larger value, and one element for all. Burn adds the elements of
/// each in another order than the elements of a copy.
fn views(layers: &[Linear], (x, y): crate::model::Batch) -> Computed {
    let [samples, _] = x.dims();
    let mut x = x.reshape([samples, SIDE, SIDE]);
    for (at, layer) in layers.iter().enumerate() {
        let before = layer.forward(x).tanh();
        x = mark(match at {
            0 | 3 => before.swap_dims(1, 2),
            1 => before.narrow(2, 1, SIDE - 1),
            _ => before.mean_dim(1).expand([samples, SIDE, SIDE]),
        });
        let sum = x.clone().sum().reshape([1, 1, 1]);
        if at == 1 {
            x = Tensor::cat(vec![x.clone(), x.narrow(2, 0, 1)], 2);
        }
        x = x + sum.div_scalar(10.0);
    }
    (squared(x.reshape([samples, SIDE * SIDE]), y), None)
}

/// A sum depends on the order of its operands, and Burn adds the elements of a view as they are in memory.
#[test]
fn views_cross_as_they_are() {
    let case: Case<Vec<Linear>, crate::model::Batch> = Case {
        init: |device| {
            let layer = |_| LinearConfig::new(SIDE, SIDE).init(device);
            (0..4).map(layer).collect()
        },
        forward: |layers, batch| views(layers, batch),
        batch: |number, device| {
            let shape = [tinderbox_pipeline_tests::SAMPLES, SIDE * SIDE];
            let floats = |number| tinderbox_pipeline_tests::floats(shape, number, device);
            (floats(number), floats(number + 1000))
        },
    };
    let expected = plain(case, AdamWConfig::new().init(), MICRO_BATCHES, 3);
    let cuts: Vec<Cut> = (0..4).map(Cut::mark).collect();
    let train = |world: &World| {
        let manual = |trace: &Trace<crate::model::Batch>| trace.plan_at(&cuts).unwrap();
        trained(case, manual, world)
    };
    train(&World::alone()).assert_same(&expected, "threads");
    let found = on_world(5, NONE, |world, _| train(&world));
    found
        .iter()
        .for_each(|found| found.assert_same(&expected, "processes"));
}

/// Outputs stay where they are made; losses and norms are everywhere.
#[test]
fn outputs_can_stay_where_they_are_made() {
    let kind = ScheduleKind::OneFOneB;
    let expected = run(&mut builder(2, kind).start().unwrap(), 0);
    let found = on_world(2, NONE, |world, _| {
        let builder = builder(2, kind).outputs_on(OutputsOn::Own).world(&world);
        let mut pipeline = builder.start().unwrap();
        let evaluation = pipeline.evaluate(batch(1)).unwrap();
        let count = evaluation.output("y").map_or(0, <[_]>::len);
        (count, evaluation.loss, run(&mut pipeline, 0).outputs.len())
    });
    assert_eq!(found[0].0, 0);
    assert_eq!(found[1].0, MICRO_BATCHES);
    assert_eq!(found[0].1, found[1].1);
    assert!(found[0].2 < expected.outputs.len() && found[1].2 == expected.outputs.len());
}

/// A world of one is no world.
#[test]
fn one_process_runs_all_ranks() {
    let kind = ScheduleKind::OneFOneB;
    let expected = run(&mut builder(3, kind).start().unwrap(), 2);
    let alone = World::alone();
    assert!(run(&mut builder(3, kind).world(&alone).start().unwrap(), 2) == expected);
}
