//! Ranks that are lost: those that are left compute what an undisturbed run computes, bit by bit.

use std::ops::Range;
use std::sync::Barrier;
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::Deferred;
use tinderbox_engines::{Delays, Net as Connections};
use tinderbox_pipeline::{
    GradientSum, Machine, Outputs, Pipeline, PipelineBuilder, PipelineError, Plan, Recovery,
    RecoveryError, ScheduleKind, Trace, Traceable,
};
use tinderbox_pipeline_tests::{floats, parameters};
use tinderbox_world::{RankIndex, World, WorldError};

use crate::model::{
    Batch, MICRO_BATCHES, Net, Seen, batch, builder_of, builder_with, on_world, plan_for, run,
    traced,
};

const STEPS: u64 = 12;

/// The model, trace and plan of pipelines with one schedule, number of replicas and number of ranks. Short runs share them,
/// because tracing and planning would take most of the time.
struct Shape {
    model: Deferred<Net>,
    trace: Trace<Batch>,
    plan: Plan,
    kind: ScheduleKind,
}

impl Shape {
    fn new(replicas: usize, ranks: usize, kind: ScheduleKind) -> Self {
        let (model, trace) = traced();
        let plan = plan_for(&trace, (replicas, ranks), kind);
        Self {
            model,
            trace,
            plan,
            kind,
        }
    }

    fn recovering(&self) -> PipelineBuilder<Net, Batch> {
        builder_with((&self.model, &self.trace, &self.plan), self.kind)
            .gradient_sum(GradientSum::Tree(MICRO_BATCHES))
            .recovery(Recovery::default())
    }
}

fn recovering(replicas: usize, ranks: usize, kind: ScheduleKind) -> PipelineBuilder<Net, Batch> {
    Shape::new(replicas, ranks, kind).recovering()
}

fn undisturbed() -> Seen {
    let mut pipeline = recovering(1, 1, ScheduleKind::OneFOneB).start().unwrap();
    run(&mut pipeline, STEPS)
}

/// The losses of some steps, bit by bit.
fn losses(pipeline: &mut Pipeline<Net, Batch>, steps: Range<u64>) -> Vec<u64> {
    let losses = steps.map(|step| pipeline.step(1e-2, batch(step)).unwrap().loss.to_bits());
    losses.collect()
}

/// Cuts a rank off after some time, while all run their program. Returns what the others have seen, and how often they
/// recovered.
fn kill(
    size: usize,
    builder: impl Fn() -> PipelineBuilder<Net, Batch> + Sync,
    killed: usize,
    after: Duration,
) -> Vec<(Seen, usize)> {
    let program = |world: World, net: &Connections| {
        let own = world.rank();
        let builder = builder().world(&world);
        let mut pipeline = builder.start().unwrap();
        // All have started then; a loss before ends all.
        pipeline.all_gather(()).unwrap();
        if own.index() == killed {
            let net = net.clone();
            std::thread::spawn(move || {
                std::thread::sleep(after);
                net.kill(own);
            });
            // It runs on alone, or finds that it is cut off.
            let cut_off = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(&mut pipeline, STEPS)
            }));
            drop(cut_off);
            return None;
        }
        let seen = run(&mut pipeline, STEPS);
        let recovered = pipeline.recovered();
        for one in recovered {
            assert_eq!(one.lost, [RankIndex::new(killed)]);
            assert!(one.repeated <= 1, "{one}");
            assert_eq!(
                (one.ranks, pipeline.plan().world_size()),
                (size - 1, size - 1)
            );
        }
        Some((seen, recovered.len()))
    };
    on_world(size, Delays::default(), program)
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn those_that_are_left_compute_the_same() {
    let expected = undisturbed();
    let mut recovered = 0;
    let mut cases = 0;
    for (replicas, ranks, kind) in [
        (1, 2, ScheduleKind::OneFOneB),
        (1, 3, ScheduleKind::ZbH1),
        (2, 1, ScheduleKind::OneFOneB),
        (2, 2, ScheduleKind::OneFOneB),
        (1, 2, ScheduleKind::Zbv),
        (4, 1, ScheduleKind::GPipe),
    ] {
        let size = replicas * ranks;
        for killed in 0..size {
            // Long before the last call: a process that has returned from that does not take part any more.
            for after in [0, 5, 13, 27] {
                let after = Duration::from_millis(after);
                // Each run records the programs of other batch sizes, so each has its own trace.
                let shape = Shape::new(replicas, ranks, kind);
                let found = kill(size, || shape.recovering(), killed, after);
                assert_eq!(found.len(), size - 1);
                for (seen, count) in found {
                    assert!(
                        seen == expected,
                        "{replicas} x {ranks}, {kind}: {killed} after {after:?}"
                    );
                    recovered += count;
                    cases += 1;
                }
            }
        }
    }
    println!("{recovered} of {cases} survivors went on");
    assert_eq!(recovered, cases);
}

/// A rank waits without a limit for messages, for the state of others and for their keepers.
#[test]
fn an_endless_timeout_is_no_panic() {
    let expected = undisturbed();
    let builder = || recovering(1, 3, ScheduleKind::OneFOneB).timeout(Duration::MAX);
    let found = kill(3, builder, 1, Duration::from_millis(5));
    assert_eq!(found.len(), 2);
    for (seen, recovered) in found {
        assert!(seen == expected);
        assert_eq!(recovered, 1);
    }
}

/// Those that have returned from the last call wait for the others.
#[test]
fn a_rank_may_be_lost_in_the_last_call() {
    const STEPS: u64 = 4;
    let mut alone = recovering(1, 1, ScheduleKind::OneFOneB).start().unwrap();
    let expected = losses(&mut alone, 0..STEPS);
    let mut recovered = 0;
    for (replicas, ranks) in [(1, 2), (2, 1), (1, 3)] {
        let shape = Shape::new(replicas, ranks, ScheduleKind::OneFOneB);
        let cases = (0..replicas * ranks).flat_map(|killed| (0..12).map(move |ms| (killed, ms)));
        for (killed, ms) in cases {
            let found = on_world(replicas * ranks, Delays::default(), |world, net| {
                let own = world.rank();
                let builder = shape.recovering().world(&world);
                let mut pipeline = builder.start().unwrap();
                let mut seen = losses(&mut pipeline, 0..STEPS - 1);
                pipeline.all_gather(()).unwrap();
                let net = net.clone();
                let killer = (own.index() == killed).then(|| {
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(ms));
                        net.kill(own);
                    })
                });
                let last = std::panic::AssertUnwindSafe(|| {
                    seen.extend(losses(&mut pipeline, STEPS - 1..STEPS));
                    match pipeline.finish() {
                        // The others have returned from it.
                        Err(PipelineError::World(WorldError::TooFewLeft { .. })) => {}
                        finished => finished.unwrap(),
                    }
                });
                let ended = std::panic::catch_unwind(last);
                match killer {
                    Some(killer) => {
                        killer.join().unwrap();
                        None
                    }
                    None => {
                        ended.unwrap();
                        Some((seen, pipeline.recovered().len()))
                    }
                }
            });
            for (seen, count) in found.into_iter().flatten() {
                assert_eq!(
                    seen, expected,
                    "{replicas} x {ranks}: {killed} after {ms} ms"
                );
                recovered += count;
            }
        }
    }
    println!("{recovered} survivors went on");
    assert!(recovered > 0);
}

/// A value of more than 1 MiB is several messages of a snapshot, which its keeper passes on.
#[test]
fn large_values_of_a_lost_rank_are_complete() {
    const WIDTH: usize = 600;
    let device = Device::flex();
    let model = Deferred::new(|device: &Device| -> Vec<Linear> {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        (0..3).map(layer).collect()
    });
    let model = model.unwrap();
    let batch = |step| floats([4, WIDTH], step, &device);
    let forward = |layers: &Vec<Linear>, x: Tensor<2>| {
        let y = layers.iter().fold(x, |x, layer| layer.forward(x));
        Outputs::loss(y.powf_scalar(2.0).mean())
    };
    let trace = model.trace(&batch(0), 2, forward).unwrap();
    let builder = |ranks| {
        let plan = trace.plan(&Machine::local(ranks).unwrap()).unwrap();
        let builder = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
        let builder = builder.seed(7).threads_per_rank(1);
        builder
            .timeout(Duration::from_secs(20))
            .recovery(Recovery::default())
    };
    let train = |pipeline: &mut Pipeline<Vec<Linear>, Tensor<2>>, steps: Range<u64>| {
        let losses = steps.map(|step| pipeline.step(1e-3, batch(step)).unwrap().loss.to_bits());
        losses.collect::<Vec<u64>>()
    };
    let mut alone = builder(1).start().unwrap();
    let losses = train(&mut alone, 0..5);
    let expected = (losses, parameters(&alone.gather(&device).unwrap()));
    for killed in 0..3 {
        let found = on_world(3, Delays::default(), |world, net| {
            let own = world.rank();
            let mut pipeline = builder(3).world(&world).start().unwrap();
            let mut losses = train(&mut pipeline, 0..3);
            pipeline.all_gather(()).unwrap();
            if own.index() == killed {
                net.kill(own);
                return None;
            }
            losses.extend(train(&mut pipeline, 3..5));
            let module = pipeline.gather(&device).unwrap();
            pipeline.finish().unwrap();
            assert_eq!(pipeline.recovered().len(), 1);
            Some((losses, parameters(&module)))
        });
        let found: Vec<_> = found.into_iter().flatten().collect();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|seen| *seen == expected), "{killed}");
    }
}

/// Two of four that are no neighbours, one after the other.
#[test]
fn several_ranks_may_be_lost_one_after_the_other() {
    let expected = undisturbed();
    let program = |world: World, net: &Connections| {
        let own = world.rank();
        let builder = recovering(2, 2, ScheduleKind::OneFOneB).world(&world);
        let mut pipeline = builder.start().unwrap();
        pipeline.all_gather(()).unwrap();
        let after = match own.index() {
            1 => 4,
            3 => 40,
            _ => {
                let seen = run(&mut pipeline, STEPS);
                return Some((seen, pipeline.recovered().len()));
            }
        };
        let net = net.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(after));
            net.kill(own);
        });
        let cut_off =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&mut pipeline, STEPS)));
        drop(cut_off);
        None
    };
    let found = on_world(4, Delays::default(), program);
    for (seen, recovered) in found.into_iter().flatten() {
        assert!(seen == expected);
        assert!(recovered > 0);
    }
}

/// New keepers have nothing yet when a second rank is lost: the others go back to what was kept before the first loss.
#[test]
fn a_rank_may_be_lost_before_new_keepers_have_the_state() {
    const STEPS: u64 = 8;
    let mut alone = recovering(1, 1, ScheduleKind::OneFOneB).start().unwrap();
    let expected = losses(&mut alone, 0..STEPS);
    let expected = (expected, alone.digest().unwrap().value());
    let trained = Barrier::new(4);
    let found = on_world(4, Delays::default(), |world, net| {
        let own = world.rank();
        let builder = recovering(2, 2, ScheduleKind::OneFOneB).world(&world);
        let mut pipeline = builder.start().unwrap();
        let mut seen = losses(&mut pipeline, 0..3);
        // Then all keepers have the state after step 1 at least: the state of 1 is with 0, the state of 3 with 2.
        pipeline.all_gather(()).unwrap();
        net.set_busy(true);
        trained.wait();
        if own.index() == 1 {
            net.kill(own);
            return None;
        }
        let mut train = || seen.extend(losses(&mut pipeline, 3..STEPS));
        if own.index() == 3 {
            let net = net.clone();
            std::thread::spawn(move || {
                while world.generation() == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // The others continue, or wait for keepers that get nothing.
                std::thread::sleep(Duration::from_millis(100));
                net.set_busy(false);
                net.kill(own);
            });
            let cut_off = std::panic::catch_unwind(std::panic::AssertUnwindSafe(train));
            assert!(cut_off.is_err());
            return None;
        }
        train();
        let digest = pipeline.digest().unwrap().value();
        Some(((seen, digest), pipeline.recovered().len()))
    });
    let found: Vec<_> = found.into_iter().flatten().collect();
    assert_eq!(found.len(), 2);
    for (seen, recovered) in found {
        assert_eq!(seen, expected);
        assert_eq!(recovered, 2);
    }
}

/// A rank is lost together with the one that keeps its state, and then another one: those that are left do not train initial
/// values, and continue after a restore.
#[test]
fn without_a_state_nothing_is_trained() {
    let (trained, cut_off) = (Barrier::new(4), Barrier::new(2));
    let found = on_world(4, Delays::default(), |world, net| {
        let own = world.rank();
        let builder = recovering(1, 4, ScheduleKind::OneFOneB).world(&world);
        let mut pipeline = builder.start().unwrap();
        for step in 0..3 {
            pipeline.step(1e-2, batch(step)).unwrap();
        }
        // Then all keepers have the state of step 2.
        pipeline.all_gather(()).unwrap();
        let saved = pipeline.gather(&burn::tensor::Device::flex()).unwrap();
        // All others have what they wait for then.
        trained.wait();
        if [1, 2].contains(&own.index()) {
            net.kill(own);
            return String::new();
        }
        let error = (3..9).find_map(|step| pipeline.step(1e-2, batch(step)).err());
        assert!(
            matches!(
                error,
                Some(PipelineError::Recovery(RecoveryError::StateLost { .. }))
            ),
            "{error:?}"
        );
        assert!(pipeline.awaits_restore());
        let refused = pipeline.step(1e-2, batch(3)).unwrap_err();
        assert!(
            matches!(
                refused,
                PipelineError::Recovery(RecoveryError::AwaitsRestore)
            ),
            "{refused}"
        );
        cut_off.wait();
        if own.index() == 3 {
            net.kill(own);
            cut_off.wait();
            return String::new();
        }
        cut_off.wait();
        // Until the loss is noticed.
        let error = loop {
            match pipeline.step(1e-2, batch(3)).unwrap_err() {
                PipelineError::Recovery(RecoveryError::AwaitsRestore) => std::thread::yield_now(),
                error => break error,
            }
        };
        assert!(
            matches!(
                error,
                PipelineError::Recovery(RecoveryError::StateLost { .. })
            ),
            "{error}"
        );
        assert!(pipeline.awaits_restore());
        assert!(matches!(
            pipeline.step(1e-2, batch(3)),
            Err(PipelineError::Recovery(RecoveryError::AwaitsRestore))
        ));
        let source: tinderbox_deferred::Values = tinderbox_deferred::parameter_values(&saved)
            .into_iter()
            .collect();
        pipeline
            .restore(source, tinderbox_pipeline::SavedState::default())
            .unwrap();
        pipeline.resume_at(3);
        assert!(!pipeline.awaits_restore());
        pipeline.step(1e-2, batch(3)).unwrap();
        error.to_string()
    });
    insta::assert_snapshot!(found[0], @"the state of rank 1 is lost, because the process that keeps it is lost too, or had not received it yet: restore the last checkpoint, for example with `Checkpoints::resume`, and continue from its step");
}

/// The error of a process that found it itself: others may be notified first.
fn own(found: &[String]) -> &str {
    let own = found.iter().find(|text| !text.starts_with("rank "));
    own.expect("one process finds it")
}

/// One pipeline of a world continues without others, and timeouts are longer than heartbeats.
#[test]
fn a_second_recovery_is_refused() {
    let found = on_world(2, Delays::default(), |world, _| {
        let builder = || recovering(1, 2, ScheduleKind::OneFOneB).world(&world);
        let short = builder()
            .timeout(Duration::from_millis(400))
            .start()
            .unwrap_err();
        short.to_string()
    });
    insta::assert_snapshot!(own(&found), @"the timeout of 400ms is not longer than 550ms, after which a silent process is lost: set a longer `timeout`, or fewer or shorter heartbeats");
    let found = on_world(2, Delays::default(), |world, _| {
        let builder = || recovering(1, 2, ScheduleKind::OneFOneB).world(&world);
        let first = builder().start().unwrap();
        let second = builder().start().unwrap_err().to_string();
        drop(first);
        second
    });
    insta::assert_snapshot!(own(&found), @"another pipeline of this world has a recovery: one pipeline of a world can have it, and a world can have no other pipelines beside it");
}

/// Without recovery, a lost rank ends all.
#[test]
fn without_recovery_a_lost_rank_ends_all() {
    let all = Barrier::new(2);
    let found = on_world(2, Delays::default(), |world, net| {
        let builder = builder_of(1, 2, ScheduleKind::OneFOneB).world(&world);
        let mut pipeline = builder.start().unwrap();
        pipeline.step(1e-2, batch(0)).unwrap();
        all.wait();
        if world.is_first() {
            net.kill(world.rank());
        }
        let error = (1..100).find_map(|step| pipeline.step(1e-2, batch(step)).err());
        assert!(!pipeline.recover().unwrap());
        error.map(|error| matches!(error, PipelineError::World(_)))
    });
    assert_eq!(found[1], Some(true));
}
