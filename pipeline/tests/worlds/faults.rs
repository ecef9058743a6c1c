//! Processes that differ, fail or are cut off: every other one reports which, and why.

use std::time::{Duration, Instant};

use burn::optim::SgdConfig;
use tinderbox_engines::Delays;
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::{PipelineError, ScheduleKind, Traceable};
use tinderbox_world::with_causes;

use crate::model::{
    Batch, MICRO_BATCHES, Net, batch, builder, builder_for, on_world, outputs, traced,
};

const KIND: ScheduleKind = ScheduleKind::OneFOneB;

/// Starts three processes, of which the last is built differently, and returns their errors.
fn refused(
    change: impl Fn(
        tinderbox_pipeline::PipelineBuilder<Net, Batch>,
    ) -> tinderbox_pipeline::PipelineBuilder<Net, Batch>
    + Sync,
) -> Vec<String> {
    on_world(3, Delays::default(), |world, _| {
        let builder = builder(3, KIND);
        let builder = match world.rank().index() {
            2 => change(builder),
            _ => builder,
        };
        with_causes(&builder.world(&world).start().unwrap_err())
    })
}

#[test]
fn other_settings_are_named_at_the_start() {
    let texts = [
        refused(|builder| builder.seed(8)),
        refused(|_| {
            let (model, trace) = traced();
            let trace = trace.with_micro_batches(5).unwrap();
            builder_for((&model, &trace), (1, 3), KIND)
        }),
        // The largest of four micro-batches has as many samples.
        refused(|_| {
            let (model, _) = traced();
            let (x, y) = batch(0);
            let batch = (x.narrow(0, 0, 11), y.narrow(0, 0, 11));
            let trace = model.trace(&batch, MICRO_BATCHES, outputs).unwrap();
            builder_for((&model, &trace), (1, 3), KIND)
        }),
        refused(|builder| builder.optimizer(SgdConfig::new())),
        refused(|builder| builder.schedule(ScheduleKind::ZbH1)),
    ];
    for texts in &texts {
        assert!(
            texts
                .iter()
                .all(|text| text.contains("rank 2 has another ")),
            "{texts:#?}"
        );
    }
    insta::assert_snapshot!(texts.map(|texts| own_words(&texts)).join("\n"), @r#"
    rank 2 has another seed than rank 0: Seed(8), expected Seed(7)
    rank 2 has another number of micro-batches than rank 0: 5, expected 4
    rank 2 has another number of samples of a step than rank 0: 11, expected 12
    rank 2 has another optimizer than rank 0: SgdConfig { "weight_decay": null, "momentum": null, "gradient_clipping": null }, expected AdamWConfig { "grad_clipping": null, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 0.00001, "weight_decay": 0.0001, "cautious_weight_decay": false, "amsgrad": false }
    rank 2 has another schedule than rank 0: zb-h1, expected 1f1b
    "#);
}

/// The shortest text: what a process found itself, and not by the word of another one.
fn own_words(texts: &[String]) -> String {
    let own = texts.iter().filter(|text| !text.contains(" failed: "));
    own.min().unwrap_or_else(|| panic!("{texts:#?}")).clone()
}

#[test]
fn a_world_of_another_size_is_refused() {
    let texts = on_world(2, Delays::default(), |world, _| {
        with_causes(&builder(3, KIND).world(&world).start().unwrap_err())
    });
    insta::assert_snapshot!(texts[0], @"the plan has 3 ranks and the world 2 processes: plan for as many ranks as there are processes; with `recovery`, it may be fewer, and the others wait as spares");
}

/// Runs two steps of which the second is another one on the last rank, and returns the errors of all.
fn diverges(
    check_values: bool,
    second: impl Fn(&mut tinderbox_pipeline::Pipeline<Net, Batch>) -> Result<(), PipelineError> + Sync,
) -> Vec<String> {
    on_world(3, Delays::default(), |world, _| {
        let builder = builder(3, KIND).check_batches(check_values).world(&world);
        let mut pipeline = builder.start().unwrap();
        // Others may have found the difference before this process has heard that all are done.
        let first = pipeline.step(1e-2, batch(0));
        let result = first.and_then(|_| match world.rank().index() {
            2 => second(&mut pipeline),
            _ => pipeline.step(1e-2, batch(1)).map(drop),
        });
        let text = with_causes(&result.unwrap_err());
        // It has stopped for good.
        assert!(pipeline.step(1e-2, batch(2)).is_err());
        text
    })
}

#[test]
fn other_calls_and_batches_are_named() {
    let short = || {
        let (x, y) = batch(1);
        (x.narrow(0, 0, 8), y.narrow(0, 0, 8))
    };
    let check = |texts: Vec<String>, parts: &[&str]| {
        let found = |text: &String| parts.iter().all(|part| text.contains(part));
        assert!(texts.iter().any(found), "{texts:#?}");
        let end = "all processes make the same calls with the same batches";
        assert!(texts.iter().all(|text| text.contains(end)), "{texts:#?}");
    };
    let other = diverges(false, |pipeline| pipeline.evaluate(batch(1)).map(drop));
    check(other, &["trains step 1", "evaluates after step 1"]);
    let other = diverges(false, |pipeline| pipeline.step(1e-2, short()).map(drop));
    check(
        other,
        &[
            "of 4 micro-batches, the first of [3, 10] F32, [3, 10] F32",
            "the first of [2, 10] F32",
        ],
    );
    let other = diverges(true, |pipeline| pipeline.step(1e-2, batch(9)).map(drop));
    check(
        other,
        &["has another batch of the same shapes than this one"],
    );
    let other = diverges(false, |pipeline| {
        let (x, y) = batch(1);
        // Refused by this rank alone, which continues with the next batch.
        pipeline.step(1e-2, (x, y.narrow(0, 0, 3))).unwrap_err();
        pipeline.step(1e-2, batch(2)).map(drop)
    });
    check(
        other,
        &["rank 2 has skipped call 2 of the pipeline, perhaps because its batch was refused"],
    );
}

/// What users do on one process only: another learning rate, a frozen layer.
#[test]
fn settings_of_one_process_alone_are_named() {
    let texts = [
        diverges(false, |pipeline| pipeline.step(2e-2, batch(1)).map(drop)),
        diverges(false, |pipeline| {
            pipeline.freeze(&burn::module::ParamGroup::from_predicate("layers.1"))?;
            pipeline.step(1e-2, batch(1)).map(drop)
        }),
    ];
    for texts in texts {
        let part =
            "has other learning rates or another loss scale than this one, or has frozen or set";
        assert!(texts.iter().all(|text| text.contains(part)), "{texts:#?}");
    }
}

/// A process that can't start, and one that ends early without a word: the others do not wait for it.
#[test]
fn a_process_that_gives_up_is_named() {
    let began = Instant::now();
    let texts = on_world(3, Delays::default(), |world, _| {
        let builder = builder(3, KIND).world(&world);
        let builder = match world.rank().index() {
            1 => builder.memory_check(tinderbox_deferred::MemoryCheck::Bytes(10)),
            _ => builder,
        };
        with_causes(&builder.start().unwrap_err())
    });
    assert!(texts[1].contains("available"), "{texts:#?}");
    for text in [&texts[0], &texts[2]] {
        assert!(
            text.starts_with("rank 1 failed: ") && text.contains("available"),
            "{texts:#?}"
        );
    }
    let texts = on_world(3, Delays::default(), |world, _| {
        let mut pipeline = builder(3, KIND).world(&world).start().unwrap();
        pipeline.step(1e-2, batch(0)).unwrap();
        if world.rank().index() == 1 {
            let (x, y) = batch(1);
            // Its data loader fails, and the program returns the error.
            return pipeline
                .step(1e-2, (x, y.narrow(0, 0, 3)))
                .unwrap_err()
                .to_string();
        }
        with_causes(&pipeline.step(1e-2, batch(1)).unwrap_err())
    });
    for text in [&texts[0], &texts[2]] {
        assert!(
            text.contains("rank 1 has ended its pipeline before this call"),
            "{texts:#?}"
        );
    }
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
}

/// An action that fails on one rank is named on all, with its cause.
#[test]
fn a_failing_action_is_named_on_all() {
    for faulty in 0..3 {
        let texts = on_world(3, Delays::default(), |world, _| {
            let own = world.rank().index();
            let fails = move |_: &_, gradient: DynTensor| {
                assert!(own != faulty, "injected");
                gradient
            };
            let mut pipeline = builder(3, KIND)
                .on_gradients(fails)
                .world(&world)
                .start()
                .unwrap();
            let began = Instant::now();
            let error = pipeline.step(1e-2, batch(0)).unwrap_err();
            assert!(
                began.elapsed() < Duration::from_secs(2),
                "{:?}",
                began.elapsed()
            );
            with_causes(&error)
        });
        for (rank, text) in texts.iter().enumerate() {
            assert!(
                text.contains("injected") && text.contains(&format!("{faulty}U")),
                "{texts:#?}"
            );
            let start = format!("rank {faulty} failed: ");
            assert_eq!(rank == faulty, !text.starts_with(&start), "{texts:#?}");
        }
    }
}

/// A process that is stuck in an operation and shows signs of life: those that wait for it, or for one that does, name it.
#[test]
fn a_stuck_process_is_named_on_all() {
    let texts = on_world(3, Delays::default(), |world, _| {
        let is_stuck = world.is_first();
        let stuck = move |_: &_, gradient: DynTensor| {
            if is_stuck {
                std::thread::sleep(Duration::from_millis(600));
            }
            gradient
        };
        let mut pipeline = builder(3, KIND)
            .on_gradients(stuck)
            .timeout(Duration::from_millis(500))
            .world(&world)
            .start()
            .unwrap();
        with_causes(&pipeline.step(1e-2, batch(0)).unwrap_err())
    });
    for text in &texts {
        let parts = [" within 500ms; ", "; rank 0 was last in `0U` of round 0"];
        assert!(parts.iter().all(|part| text.contains(part)), "{texts:#?}");
    }
}

/// A process that is gone, or stopped, in the middle of training.
#[test]
fn a_lost_process_is_named_on_all() {
    for (faulty, stops) in [(0, false), (1, true), (2, false)] {
        let texts = on_world(3, Delays::default(), |world, connections| {
            let mut pipeline = builder(3, KIND).world(&world).start().unwrap();
            let mut began = Instant::now();
            for step in 0.. {
                if step == 3 {
                    // A heartbeat tells what each rank does.
                    std::thread::sleep(Duration::from_millis(120));
                    began = Instant::now();
                    if world.rank().index() == faulty {
                        match stops {
                            true => connections.stop(world.rank()),
                            false => connections.kill(world.rank()),
                        }
                        std::thread::sleep(Duration::from_millis(900));
                        return String::new();
                    }
                }
                if let Err(error) = pipeline.step(1e-2, batch(step)) {
                    assert!(
                        began.elapsed() < Duration::from_secs(1),
                        "{:?}",
                        began.elapsed()
                    );
                    return with_causes(&error);
                }
            }
            unreachable!()
        });
        for (rank, text) in texts.iter().enumerate().filter(|(rank, _)| *rank != faulty) {
            assert!(
                text.starts_with(&format!("rank {faulty} is lost: ")),
                "{rank}: {texts:#?}"
            );
            assert!(text.contains("; it was last in `"), "{rank}: {texts:#?}");
        }
    }
}

/// A program that panics between two steps.
#[test]
fn a_panic_between_steps_is_named_on_all() {
    let texts = on_world(2, Delays::default(), |world, _| {
        let mut pipeline = builder(2, KIND).world(&world).start().unwrap();
        pipeline.step(1e-2, batch(0)).unwrap();
        if world.is_first() {
            let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let (_pipeline, _world) = (pipeline, world);
                panic!("injected");
            }));
            assert!(panics.is_err());
            return String::new();
        }
        with_causes(&pipeline.step(1e-2, batch(1)).unwrap_err())
    });
    assert!(
        texts[1].starts_with("rank 0 failed: its program panicked"),
        "{texts:?}"
    );
}
