//! Values that change in memory, or differ between replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Float, Tensor};
use tinderbox_deferred::{Deferred, ParameterPath};
use tinderbox_engines::{Delays, Net, Threads};
use tinderbox_fake::DynTensor;
use tinderbox_world::{World, WorldOptions};

use crate::schedule::{Placement, ScheduleKind};
use crate::{
    ActionError, GradientSum, Machine, Outputs, Pipeline, PipelineBuilder, PipelineError, Planner,
    Recovery, Traceable,
};

type Layers = Pipeline<Vec<Linear>, Tensor<2>>;

type Builder = PipelineBuilder<Vec<Linear>, Tensor<2>>;

fn start(replicas: usize) -> Layers {
    builder(replicas).start().unwrap()
}

fn builder(replicas: usize) -> Builder {
    let machine = Machine::local(2 * replicas).unwrap();
    builder_on(&machine, ScheduleKind::OneFOneB, replicas)
}

/// A builder of replicas on a machine, whose first layer is also the last one.
fn builder_on(machine: &Machine, kind: ScheduleKind, replicas: usize) -> Builder {
    let model = Deferred::new(|device: &Device| -> Vec<Linear> {
        let layer = |_| LinearConfig::new(6, 6).init(device);
        (0..4).map(layer).collect()
    });
    let model = model.unwrap();
    let trace = model.trace(&batch(), 4, |layers: &Vec<Linear>, x| {
        let all = layers.iter().chain(layers.first());
        let y = all.fold(x, |x, layer| layer.forward(x).tanh());
        Outputs::loss(y.powf_scalar(2.0).mean())
    });
    let trace = trace.unwrap();
    let planner = Planner::new(&trace, machine).schedule(kind);
    let plan = planner.replicas(replicas).plan().unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .gradient_sum(GradientSum::Tree(4))
        .detect_damage(1)
}

fn batch() -> Tensor<2> {
    Tensor::ones([4, 6], &Device::flex())
}

/// Flips the lowest bit of the first element of a parameter on a rank, without the knowledge of its stage. Returns whether the
/// rank is in this process.
fn flip(pipeline: &mut Layers, rank: usize, path: &'static str) -> bool {
    flip_recorded(pipeline, rank, path, false)
}

/// Does the same as [`flip`]; the stage may record the wrong value.
fn flip_recorded(pipeline: &mut Layers, rank: usize, path: &'static str, records: bool) -> bool {
    let table = pipeline.model().parameters();
    let position = table.position(&ParameterPath::new(path)).unwrap();
    let flipped = pipeline.on_ranks(move |own, stages| {
        let mut is_held = false;
        for stage in stages.iter_mut().filter(|_| own.index() == rank) {
            let held = stage.held.values().find(|(held, _)| *held == position);
            let Some((_, value)) = held else {
                continue;
            };
            let mut data = value.to_data()?;
            let values = data.as_mut_slice::<f32>().unwrap();
            values[0] = f32::from_bits(values[0].to_bits() ^ 1);
            let recorded = stage.recorded.take();
            stage.set(position, DynTensor::from_data(data, &Device::flex()))?;
            stage.recorded = recorded;
            if records {
                stage.record().unwrap();
            }
            is_held = true;
        }
        Ok::<bool, ActionError>(is_held)
    });
    flipped.unwrap().into_iter().any(Result::unwrap)
}

fn values(pipeline: &mut Layers) -> Vec<u64> {
    let digests = pipeline.digest().unwrap().parameters.into_iter();
    digests.map(|(_, digest)| digest).collect()
}

#[test]
fn a_flipped_bit_is_named_and_repaired_from_the_other_replica() {
    let mut undisturbed = start(2);
    let mut flipped = start(2);
    for step in 0..4 {
        // Rank 1 is the second stage of the first replica, rank 2 the first of the second.
        match step {
            1 => assert!(flip(&mut flipped, 1, "3.weight")),
            3 => assert!(flip(&mut flipped, 2, "0.bias")),
            _ => {}
        }
        undisturbed.step(1e-2, batch()).unwrap();
        flipped.step(1e-2, batch()).unwrap();
        assert_eq!(values(&mut flipped), values(&mut undisturbed));
    }
    assert!(undisturbed.repaired().is_empty());
    let repaired = flipped.repaired().iter();
    let repaired = repaired.map(|one| (one.step, one.rank.index(), one.path.as_str()));
    let repaired: Vec<(u64, usize, &str)> = repaired.collect();
    assert_eq!(repaired, [(1, 1, "3.weight"), (3, 2, "0.bias")]);
}

/// The value comes from another process.
#[test]
fn a_flipped_bit_is_repaired_from_another_process() {
    let mut undisturbed = start(2);
    for _ in 0..2 {
        undisturbed.step(1e-2, batch()).unwrap();
    }
    let expected = values(&mut undisturbed);
    let options = WorldOptions::default();
    let program = |world: World, _: &Net| {
        let mut pipeline = builder(2).world(&world).start().unwrap();
        pipeline.step(1e-2, batch()).unwrap();
        let own = world.rank().index();
        assert_eq!(flip(&mut pipeline, 3, "3.weight"), own == 3);
        pipeline.step(1e-2, batch()).unwrap();
        let repaired = pipeline.repaired().iter();
        let repaired = repaired.map(|one| (one.rank.index(), one.path.to_string()));
        let repaired: Vec<(usize, String)> = repaired.collect();
        (values(&mut pipeline), repaired)
    };
    let found = Threads::run(4, Delays::default(), &options, program).unwrap();
    for (values, repaired) in found {
        assert_eq!(repaired, [(3, "3.weight".to_owned())]);
        assert_eq!(values, expected);
    }
}

/// A value was wrong when it was recorded, and most of four replicas have another; a second one has changed since.
#[test]
fn replicas_that_differ_are_repaired_from_most_of_them() {
    let (mut undisturbed, mut flipped) = (start(4), start(4));
    for step in 0..3 {
        if step > 0 {
            assert!(flip_recorded(&mut flipped, 5, "3.weight", true));
            assert!(flip_recorded(&mut flipped, 2, "0.bias", step == 2));
        }
        undisturbed.step(1e-2, batch()).unwrap();
        flipped.step(1e-2, batch()).unwrap();
        assert_eq!(values(&mut flipped), values(&mut undisturbed));
    }
    let repaired = flipped.repaired().iter();
    let repaired: Vec<(u64, usize)> = repaired.map(|one| (one.step, one.rank.index())).collect();
    assert_eq!(repaired, [(1, 2), (1, 5), (2, 2), (2, 5)]);
}

#[test]
fn two_replicas_that_differ_stop_the_pipeline() {
    let mut pipeline = start(2);
    pipeline.step(1e-2, batch()).unwrap();
    assert!(flip_recorded(&mut pipeline, 2, "1.weight", true));
    let error = pipeline.step(1e-2, batch()).unwrap_err();
    insta::assert_snapshot!(error, @"since step 1, ranks 0, 2 hold different values of `1.weight`, and no value is the same on most of them: test the memory and the links of their machines, and resume from a checkpoint");
    let stopped = pipeline.step(1e-2, batch());
    assert!(matches!(stopped, Err(PipelineError::Stopped)));
}

/// A rank has the first layer in its first stage and in its last.
#[test]
fn a_tied_parameter_counts_once_for_each_replica() {
    let machine = Machine::local(4).unwrap();
    let machine = machine.with_chunks(2, Placement::V).unwrap();
    let mut pipeline = builder_on(&machine, ScheduleKind::Zbv, 2).start().unwrap();
    pipeline.step(1e-2, batch()).unwrap();
    assert!(flip_recorded(&mut pipeline, 2, "0.weight", true));
    let error = pipeline.step(1e-2, batch()).unwrap_err();
    insta::assert_snapshot!(error, @"since step 1, ranks 0, 2 hold different values of `0.weight`, and no value is the same on most of them: test the memory and the links of their machines, and resume from a checkpoint");
}

/// A process is lost in the step before which a value was repaired: the remaining process returns to the repaired value.
#[test]
fn a_repaired_value_is_kept_for_a_recovery() {
    const STEPS: usize = 3;
    let of = |replicas| {
        let machine = Machine::local(replicas).unwrap();
        builder_on(&machine, ScheduleKind::OneFOneB, replicas)
    };
    let mut undisturbed = of(1).start().unwrap();
    for _ in 0..STEPS {
        undisturbed.step(1e-2, batch()).unwrap();
    }
    let expected = values(&mut undisturbed);
    let mut options = WorldOptions::default();
    options.heartbeat = Duration::from_millis(50);
    let found = Threads::run(2, Delays::default(), &options, |world: World, net: &Net| {
        let own = world.rank();
        let (is_due, to_kill) = (Arc::new(AtomicBool::new(false)), net.clone());
        let due = is_due.clone();
        let builder = of(2).world(&world).recovery(Recovery::default());
        let builder = builder.on_gradients(move |_, gradient| {
            if due.swap(false, SeqCst) {
                to_kill.kill(own);
            }
            gradient
        });
        let mut pipeline = builder.start().unwrap();
        pipeline.step(1e-2, batch()).unwrap();
        // A parameter of its own stage; the other process has no state for it.
        assert_eq!(flip(&mut pipeline, 1, "3.weight"), own.index() == 1);
        // The snapshot has the same memory.
        pipeline.renew_snapshot().unwrap();
        is_due.store(own.index() == 0, SeqCst);
        for _ in 1..STEPS {
            if pipeline.step(1e-2, batch()).is_err() {
                assert_eq!(own.index(), 0);
                return None;
            }
        }
        assert_eq!(pipeline.recovered().len(), 1);
        assert_eq!(pipeline.repaired().len(), 1);
        Some(values(&mut pipeline))
    });
    assert_eq!(found.unwrap()[1], Some(expected));
}

/// With one replica no other rank has the value.
#[test]
fn a_flipped_bit_without_replicas_stops_the_pipeline() {
    let mut pipeline = start(1);
    pipeline.step(1e-2, batch()).unwrap();
    assert!(flip(&mut pipeline, 0, "0.weight"));
    let error = pipeline.step(1e-2, batch()).unwrap_err();
    insta::assert_snapshot!(error, @"rank 0: `0.weight` has changed in memory since step 1 ended, and no other replica has its value: test the machine's memory, and resume from a checkpoint");
    let stopped = pipeline.step(1e-2, batch());
    assert!(matches!(stopped, Err(PipelineError::Stopped)));
}

/// A change by the program between steps is not damage.
#[test]
fn values_that_were_set_are_not_repaired() {
    let mut pipeline = start(2);
    pipeline.step(1e-2, batch()).unwrap();
    let value = pipeline.parameter("1.weight").unwrap();
    let value = value.typed::<2, Float>().unwrap().mul_scalar(0.5);
    let set = pipeline.set_parameters([("1.weight", DynTensor::from(value))]);
    set.unwrap();
    pipeline.step(1e-2, batch()).unwrap();
    assert!(pipeline.repaired().is_empty());
}
