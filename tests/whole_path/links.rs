//! Runs whose steps were moved to another disk and are symbolic links, and directories whose names are not UTF-8.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::{ffi::OsStrExt, fs::symlink};
use std::path::{Path, PathBuf};

use burn::optim::AdamWConfig;
use tinderbox::checkpoint::{ErrorClass, Retention};
use tinderbox::error::{CheckpointsError, LoadError};
use tinderbox::world::with_causes;
use tinderbox::{Checkpoints, Pipeline, ScheduleKind, Streamed, Traceable};

use crate::models::{Case, Tied, deferred};
use crate::plain::SEED;
use crate::resume::{start, train_to, values};
use crate::streamed_training::{self, FINE, forward, normed, working_dir};

type TiedPipeline = Pipeline<<Tied as Case>::Model, <Tied as Case>::Batch>;

fn start_tied() -> TiedPipeline {
    start(&Tied, &deferred(&Tied), 2, ScheduleKind::OneFOneB, SEED)
}

/// Trains to a step, saves after each, and returns the losses.
fn train(pipeline: &mut TiedPipeline, saves: Option<&Checkpoints>, to: u64) -> Vec<Vec<f64>> {
    let mut losses = Vec::new();
    while pipeline.steps() < to {
        let next = pipeline.steps() + 1;
        losses.extend(train_to(pipeline, next, |step, device| {
            Tied.batch(step, device)
        }));
        if let Some(saves) = saves {
            saves.save(pipeline, next).unwrap();
        }
    }
    losses
}

/// Moves a step to another directory and puts a link in its place; returns the directory, with its files.
fn moved(step_dir: &Path, to: &Path) -> (PathBuf, BTreeMap<PathBuf, Vec<u8>>) {
    let to = to.join(step_dir.file_name().unwrap());
    fs::rename(step_dir, &to).unwrap();
    symlink(&to, step_dir).unwrap();
    let files = files(&to);
    assert!(files.len() > 2);
    (to, files)
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    paths
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_run_continues_from_a_step_that_was_moved() {
    let (dir, big) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let saves = Checkpoints::open(dir.path()).unwrap();
    let mut whole = start_tied();
    train(&mut whole, Some(&saves), 3);
    let expected = train(&mut whole, None, 5);
    let link = saves.run().step_place(3);
    let (target, before) = moved(&link, big.path());

    let saves = Checkpoints::open(dir.path())
        .unwrap()
        .keep(Retention::newest(1));
    let mut pipeline = start_tied();
    let resumed = saves.resume(&mut pipeline).unwrap().unwrap();
    assert_eq!((resumed.step, &resumed.dir), (3, &link));
    assert!(resumed.skipped.is_empty());
    assert_eq!(train(&mut pipeline, Some(&saves), 5), expected);
    assert!(values(&mut pipeline) == values(&mut whole));
    // Retention has removed the link, and nothing that it leads to.
    assert_eq!(saves.run().steps().unwrap(), [5]);
    assert!(!link.is_symlink());
    assert!(files(&target) == before);
}

#[test]
fn a_damaged_step_that_was_moved_is_set_aside_as_a_link() {
    let (dir, big) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let saves = Checkpoints::open(dir.path()).unwrap();
    train(&mut start_tied(), Some(&saves), 2);
    let (target, _) = moved(&saves.run().step_place(2), big.path());
    fs::write(target.join("manifest.json"), "{").unwrap();
    let before = files(&target);
    let mut pipeline = start_tied();
    let resumed = saves.resume(&mut pipeline).unwrap().unwrap();
    assert_eq!((resumed.step, resumed.skipped.len()), (1, 1));
    let aside = resumed.skipped[0].set_aside.as_ref().unwrap();
    assert_eq!(fs::read_link(aside).unwrap(), target);
    // The step is saved again.
    train(&mut pipeline, Some(&saves), 2);
    assert_eq!(saves.run().steps().unwrap(), [1, 2]);
    assert!(files(&target) == before);
}

/// The disk of the newest step is not mounted: the run does not begin at an older one.
#[test]
fn a_run_does_not_continue_without_the_disk_of_its_newest_step() {
    let (dir, big) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let saves = Checkpoints::open(dir.path()).unwrap();
    train(&mut start_tied(), Some(&saves), 2);
    moved(&saves.run().step_place(2), big.path());
    drop(big);
    let mut pipeline = start_tied();
    let error = saves.resume(&mut pipeline).unwrap_err();
    assert_eq!(LoadError::class_in(&error), Some(ErrorClass::Transient));
    let text = with_causes(&error);
    assert!(
        text.contains("step-00000002 is a symbolic link to "),
        "{text}"
    );
    assert_eq!(pipeline.steps(), 0);
    let model = normed();
    let source = model.initializer(tinderbox::deferred::random::Seed::new(1));
    let opened = tinderbox::WorkingDir::open(dir.path(), &model, source);
    assert!(
        matches!(opened, Err(CheckpointsError::Load(_))),
        "{opened:?}"
    );
}

/// The last step of a streamed model was moved: training continues from it, and later removes the link.
#[test]
fn a_working_directory_continues_from_a_step_that_was_moved() {
    let model = normed();
    let traced = model
        .trace(&streamed_training::batch(0), 1, forward)
        .unwrap();
    let plan = traced.plan_streamed(FINE).unwrap();
    let start = |dir: &Path| {
        let builder = Streamed::builder(&model, &traced, &plan).seed(streamed_training::SEED);
        let builder = builder.store(working_dir(&model, dir));
        builder.optimizer(AdamWConfig::new()).start().unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let [here, whole, big] = ["here", "whole", "big"].map(|name| dir.path().join(name));
    fs::create_dir(&big).unwrap();
    let losses = |dir: &Path, to: u64| {
        let mut streamed = start(dir);
        let mut losses = Vec::new();
        while streamed.steps() < to {
            let batch = streamed_training::batch(streamed.steps());
            losses.push(streamed.step(0.01, batch).unwrap().loss.to_bits());
        }
        losses
    };
    let expected = losses(&whole, 5);
    assert_eq!(losses(&here, 2), expected[..2]);
    let link = here.join("step-00000002");
    let (target, before) = moved(&link, &big);
    assert_eq!(losses(&here, 3), expected[2..3]);
    assert!(link.is_symlink());
    assert_eq!(losses(&here, 5), expected[3..]);
    assert!(!link.is_symlink());
    assert!(files(&target) == before);
}

/// A damaged step of a working directory is replaced; if it is a link, its target is not changed.
#[test]
fn a_working_directory_replaces_a_damaged_link() {
    let model = normed();
    let traced = model
        .trace(&streamed_training::batch(0), 1, forward)
        .unwrap();
    let plan = traced.plan_streamed(FINE).unwrap();
    let (dir, big) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let train = |to: u64| {
        let builder = Streamed::builder(&model, &traced, &plan).seed(streamed_training::SEED);
        let builder = builder.store(working_dir(&model, dir.path()));
        let mut streamed = builder.optimizer(AdamWConfig::new()).start().unwrap();
        let from = streamed.steps();
        while streamed.steps() < to {
            let batch = streamed_training::batch(streamed.steps());
            streamed.step(0.01, batch).unwrap();
        }
        from
    };
    assert_eq!(train(2), 0);
    let link = dir.path().join("step-00000002");
    let (target, _) = moved(&link, big.path());
    fs::write(target.join("manifest.json"), "{").unwrap();
    let before = files(&target);
    assert_eq!(train(2), 1);
    assert!(link.is_dir() && !link.is_symlink());
    assert!(files(&target) == before);
}

/// A directory whose name is not UTF-8, for processes that save and resume together: the first sends no path to the others.
#[test]
fn processes_save_to_a_directory_that_is_not_utf_8() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join(OsStr::from_bytes(b"caf\xe9"));
    let (saved, expected) = crate::world::saved(&dir, 2, 2);
    assert!(
        saved
            .iter()
            .all(|saved| *saved == dir.join("step-00000002"))
    );
    fs::write(dir.join("step-00000002/manifest.json"), "{").unwrap();
    let (found, losses) = crate::world::resumed(&dir, 3, 2);
    let found = found.unwrap();
    assert_eq!((found.step, found.dir), (1, dir.join("step-00000001")));
    let aside = found.skipped.into_iter().map(|skipped| skipped.set_aside);
    assert_eq!(
        aside.collect::<Vec<_>>(),
        [Some(dir.join("damaged-00000002"))]
    );
    assert_eq!(losses, expected);
}
