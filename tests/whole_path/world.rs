//! Checkpoints of the processes of a world: what they save is one checkpoint, and any number of processes resumes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use tinderbox::checkpoint::tools::ExportOptions;
use tinderbox::checkpoint::{Resumed, Retention, Run};
use tinderbox::error::CheckpointsError;
use tinderbox::pipeline::PipelineBuilder;
use tinderbox::world::{WorldOptions, with_causes};
use tinderbox::{Checkpoints, Clipping, Machine, Pipeline, Recovery, World, export_pipeline};
use tinderbox_engines::{Delays, Net, Threads};

use crate::models::{Case, Tied, deferred, trace};
use crate::plain::{LR, SEED};

const CASE: Tied = Tied;

type Trained = Pipeline<<Tied as Case>::Model, <Tied as Case>::Batch>;

fn start(ranks: usize, world: &World, seed: u64) -> Trained {
    builder(ranks, seed).world(world).start().unwrap()
}

fn builder(
    ranks: usize,
    seed: u64,
) -> PipelineBuilder<<Tied as Case>::Model, <Tied as Case>::Batch> {
    let model = deferred(&CASE);
    let trace = trace(&CASE, &model, 4);
    let plan = trace.plan(&Machine::local(ranks).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .clip(Clipping::GlobalNorm(0.1))
        .seed(seed)
}

/// Trains to a step, and returns the losses of all micro-batches.
fn train(pipeline: &mut Trained, to: u64) -> Vec<f64> {
    let mut losses = Vec::new();
    while pipeline.steps() < to {
        let batch = CASE.batch(pipeline.steps(), &Device::flex());
        losses.extend(pipeline.step(LR, batch).unwrap().micro_batch_losses);
    }
    losses
}

/// Runs a program as every process of a world of threads.
fn on_world<R: Send>(size: usize, program: impl Fn(World, &Net) -> R + Sync) -> Vec<R> {
    let mut options = WorldOptions::default();
    options.heartbeat = Duration::from_millis(50);
    options.call_timeout = Duration::from_secs(20);
    Threads::run(size, Delays::default(), &options, program).unwrap()
}

/// Resumes with some number of processes and trains on; returns what the first sees.
pub(crate) fn resumed(dir: &Path, ranks: usize, to: u64) -> (Option<Resumed>, Vec<f64>) {
    let run = |world: World| {
        let mut pipeline = start(ranks, &world, SEED);
        let saves = Checkpoints::in_world(Run::local(dir), &world).unwrap();
        let resumed = saves.resume(&mut pipeline).unwrap();
        (resumed, train(&mut pipeline, to))
    };
    match ranks {
        1 => run(World::alone()),
        _ => {
            let mut all = on_world(ranks, |world, _| run(world));
            assert!(
                all.iter().all(|one| *one == all[0]),
                "all processes see the same"
            );
            all.remove(0)
        }
    }
}

#[test]
fn any_number_of_processes_resumes_what_others_saved() {
    let mut alone = start(1, &World::alone(), SEED);
    let expected = train(&mut alone, 6);
    let dir = tempfile::tempdir().unwrap();
    let dirs = on_world(3, |world, _| {
        let mut pipeline = start(3, &world, SEED);
        let saves = Checkpoints::in_world(Run::local(dir.path()), &world).unwrap();
        let saves = saves.every(2).keep(Retention::newest(1));
        let mut last = None;
        while pipeline.steps() < 4 {
            let to = pipeline.steps() + 1;
            train(&mut pipeline, to);
            last = saves.after_step(&mut pipeline, to * 10).unwrap().or(last);
        }
        last.unwrap()
    });
    assert!(dirs.iter().all(|saved| *saved == dirs[0]));
    assert_eq!(
        Run::local(dir.path()).steps().unwrap(),
        [4],
        "the older one was removed"
    );
    let per_step = expected.len() / 6;
    for ranks in [1, 2, 3] {
        let (found, losses) = resumed(dir.path(), ranks, 6);
        let found = found.unwrap();
        assert_eq!((found.step, found.data_position), (4, 40));
        assert_eq!(losses, expected[4 * per_step..], "{ranks} processes");
    }
}

#[test]
fn a_run_without_checkpoints_begins_anew_on_all() {
    let dir = tempfile::tempdir().unwrap();
    let (found, losses) = resumed(dir.path(), 2, 1);
    assert!(found.is_none() && !losses.is_empty());
}

/// A checkpoint that does not fit is refused by all before anything changes.
#[test]
fn what_does_not_fit_is_refused_by_all() {
    let dir = tempfile::tempdir().unwrap();
    on_world(2, |world, _| {
        let mut pipeline = start(2, &world, SEED);
        train(&mut pipeline, 1);
        let saves = Checkpoints::in_world(Run::local(dir.path()), &world).unwrap();
        saves.save(&mut pipeline, 0).unwrap();
        // The same step again.
        let again = saves.save(&mut pipeline, 0).unwrap_err();
        assert!(with_causes(&again).contains("step"), "{again}");
        // The world and the pipeline continue.
        train(&mut pipeline, 2);
        saves.save(&mut pipeline, 0).unwrap();
        let mut other = start(2, &world, SEED + 1);
        let error = saves.resume(&mut other).unwrap_err();
        assert!(matches!(error, CheckpointsError::Seed { .. }), "{error}");
        let untouched = train(&mut other, 1);
        assert_eq!(untouched, train(&mut start(2, &world, SEED + 1), 1));
        let error = saves.in_background().save(&mut pipeline, 0).unwrap_err();
        assert!(
            matches!(error, CheckpointsError::BackgroundInWorld),
            "{error}"
        );
    });
    assert_eq!(Run::local(dir.path()).steps().unwrap(), [1, 2]);
}

/// No process of several has all parameters, so an export would not be complete.
#[test]
fn an_export_from_one_of_several_processes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let exported = dir.path().join("exported");
    let errors = on_world(2, |world, _| {
        let mut pipeline = start(2, &world, SEED);
        let error = export_pipeline(&mut pipeline, &exported, &ExportOptions::default());
        let text = error.unwrap_err().to_string();
        // The pipeline continues.
        train(&mut pipeline, 1);
        text
    });
    let expected = "this process has the parameters of 1 of 2 ranks: save a checkpoint, and export it with `tinderbox ckpt export`";
    assert_eq!(errors, [expected, expected]);
    assert!(!exported.exists());
}

/// Trains with some number of processes and saves every step; returns the last directory that each sees, and the losses of the last
/// step.
pub(crate) fn saved(dir: &Path, ranks: usize, to: u64) -> (Vec<PathBuf>, Vec<f64>) {
    let all = on_world(ranks, |world, _| {
        let mut pipeline = start(ranks, &world, SEED);
        let saves = Checkpoints::in_world(Run::local(dir), &world).unwrap();
        let (mut last, mut losses) = (PathBuf::new(), Vec::new());
        for step in 1..=to {
            losses = train(&mut pipeline, step);
            last = saves.save(&mut pipeline, step).unwrap();
        }
        (last, losses)
    });
    let (dirs, mut losses): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    (dirs, losses.remove(0))
}

/// A shard that one process finds damaged, and a newer checkpoint that is damaged for all.
#[test]
fn damaged_checkpoints_are_skipped_on_all() {
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), 2, 2);
    std::fs::write(dir.path().join("step-00000002/manifest.json"), "{").unwrap();
    let (found, _) = resumed(dir.path(), 3, 2);
    let found = found.unwrap();
    assert_eq!(
        (found.step, found.skipped.len(), found.skipped[0].step),
        (1, 1, 2)
    );
    assert!(found.skipped[0].set_aside.is_some());
}

/// As on machines without a shared file system: found at the start, and not at the first save.
#[test]
fn directories_that_are_not_shared_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let texts = on_world(2, |world, _| {
        let own = dir.path().join(world.rank().to_string());
        with_causes(&Checkpoints::in_world(Run::local(own), &world).unwrap_err())
    });
    for text in &texts {
        assert!(text.contains("1 is not where rank 0 saves"), "{texts:#?}");
    }
    assert!(
        texts[0].starts_with("rank 1 can't continue: "),
        "{texts:#?}"
    );
    let left = std::fs::read_dir(dir.path().join("0")).unwrap();
    assert_eq!(left.count(), 0, "nothing is left");
}

/// Processes that wait for what the first has begun, and do not see it: when one is lost, the others report it at once.
#[test]
#[cfg(unix)]
fn a_process_lost_while_others_wait_for_its_save_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let texts = on_world(3, |world, net| {
        let mut pipeline = start(3, &world, SEED);
        let own = dir.path().join(world.rank().to_string());
        let point = |to: &str| {
            let to = dir.path().join(to);
            std::fs::create_dir_all(&to).unwrap();
            std::os::unix::fs::symlink(to, &own).unwrap();
        };
        point("shared");
        let saves = Checkpoints::in_world(Run::local(&own), &world).unwrap();
        train(&mut pipeline, 1);
        if !world.is_first() {
            std::fs::remove_file(&own).unwrap();
            point("other");
        }
        world.barrier().unwrap();
        let began = std::time::Instant::now();
        std::thread::scope(|scope| {
            if world.rank().index() == 2 {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(400));
                    net.kill(world.rank());
                });
            }
            let error = with_causes(&saves.save(&mut pipeline, 0).unwrap_err());
            assert!(began.elapsed() < Duration::from_secs(2), "{error}");
            error
        })
    });
    for text in &texts[..2] {
        assert!(text.contains("rank 2 is lost"), "{texts:#?}");
    }
}

/// A process that ends in the middle of a save: the others report it, nothing is published, and the run resumes from the
/// checkpoint before.
#[test]
fn a_process_lost_while_saving_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for faulty in 0..3 {
        let dir = dir.path().join(faulty.to_string());
        let texts = on_world(3, |world, net| {
            let mut pipeline = start(3, &world, SEED);
            let saves = Checkpoints::in_world(Run::local(&dir), &world).unwrap();
            train(&mut pipeline, 1);
            saves.save(&mut pipeline, 0).unwrap();
            train(&mut pipeline, 2);
            world.barrier().unwrap();
            if world.rank().index() == faulty {
                // All have passed the barrier by then.
                std::thread::sleep(Duration::from_millis(100));
                net.kill(world.rank());
                return String::new();
            }
            with_causes(&saves.save(&mut pipeline, 0).unwrap_err())
        });
        for text in texts.iter().filter(|text| !text.is_empty()) {
            assert!(
                text.contains(&format!("rank {faulty} is lost")),
                "{texts:#?}"
            );
        }
        let (found, _) = resumed(&dir, 2, 2);
        assert_eq!(found.unwrap().step, 1);
        assert_eq!(Run::local(&dir).steps().unwrap(), [1]);
    }
}

/// Those that continue after a loss do not take the checkpoint of an earlier run in the same directory for their own.
#[test]
fn a_step_of_an_earlier_run_is_no_save_of_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut earlier = start(1, &World::alone(), SEED);
    train(&mut earlier, 3);
    let saves = Checkpoints::open(dir.path()).unwrap();
    saves.save(&mut earlier, 0).unwrap();
    let texts = on_world(3, |world, net| {
        let builder = builder(3, SEED).world(&world);
        let mut pipeline = builder.recovery(Recovery::default()).start().unwrap();
        let saves = Checkpoints::in_world(Run::local(dir.path()), &world).unwrap();
        train(&mut pipeline, 2);
        pipeline.all_gather(()).unwrap();
        if world.rank().index() == 2 {
            net.kill(world.rank());
            return None;
        }
        train(&mut pipeline, 3);
        assert_eq!(pipeline.recovered().len(), 1);
        let refused = saves.save(&mut pipeline, 0).unwrap_err();
        train(&mut pipeline, 4);
        saves.save(&mut pipeline, 0).unwrap();
        Some(with_causes(&refused))
    });
    for text in texts.iter().flatten() {
        assert!(text.contains("exists"), "{text}");
    }
    assert_eq!(Run::local(dir.path()).steps().unwrap(), [3, 4]);
}
