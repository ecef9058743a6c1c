//! Handling of damaged checkpoints and failed saves.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use serde_json::{Value, json};
use tinderbox::checkpoint::{Retention, RunProgress};
use tinderbox::error::CheckpointsError;
use tinderbox::{Checkpoint, Checkpoints, Deferred, Pipeline, ScheduleKind, load_module};
use tinderbox_checkpoint::Digest;

use crate::models::{Case, Tied, deferred};
use crate::plain::{SEED, data};
use crate::resume::{start, train_to, values};

type TiedPipeline = Pipeline<<Tied as Case>::Model, <Tied as Case>::Batch>;

fn start_tied(model: &Deferred<<Tied as Case>::Model>, stages: usize) -> TiedPipeline {
    start(&Tied, model, stages, ScheduleKind::OneFOneB, SEED)
}

fn train(pipeline: &mut TiedPipeline, steps: u64) -> Vec<Vec<f64>> {
    train_to(pipeline, steps, |step, device| Tied.batch(step, device))
}

/// Trains and saves after each step that is due.
fn train_and_save(pipeline: &mut TiedPipeline, saves: &Checkpoints, steps: u64) {
    for step in pipeline.steps() + 1..=steps {
        train(pipeline, step);
        saves.after_step(pipeline, step).unwrap();
    }
}

fn flip_last_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, &bytes).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_run_steps_over_damaged_checkpoints_and_trains_on_through_their_steps() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let saves = Checkpoints::open(dir.path()).unwrap().every(1);
    let mut whole = start_tied(&model, 2);
    train_and_save(&mut whole, &saves, 3);
    let dirs: Vec<_> = (1..=3).map(|step| saves.run().step_place(step)).collect();
    // The newest has no manifest, the one before it a flipped byte.
    fs::remove_file(dirs[2].join("manifest.json")).unwrap();
    flip_last_byte(&dirs[1].join("model-rank-00001.safetensors"));

    let mut again = start_tied(&model, 1);
    let resumed = saves.resume(&mut again).unwrap().unwrap();
    assert_eq!((resumed.step, &resumed.dir), (1, &dirs[0]));
    let [newest, flipped] = &resumed.skipped[..] else {
        panic!("{:?}", resumed.skipped);
    };
    assert_eq!((newest.step, flipped.step), (3, 2));
    assert!(newest.reason.contains("step-00000003"), "{newest:?}");
    let file = "model-rank-00001.safetensors";
    assert!(flipped.reason.contains(file), "{flipped:?}");
    let aside = flipped.set_aside.as_ref().unwrap();
    assert_eq!(aside, &dir.path().join("damaged-00000002"));
    assert!(aside.join(file).exists(), "nothing of it is lost");

    let first = Checkpoint::open(&dirs[0]).unwrap();
    let module = load_module(&model, &first, &Device::flex()).unwrap();
    let mut found = values(&mut again);
    found.sort();
    let plain = tinderbox::deferred::parameter_values(&module).into_iter();
    let mut plain: Vec<_> = plain
        .map(|(path, value)| (path.to_string(), data(value).as_bytes().to_vec()))
        .collect();
    plain.sort();
    assert!(found == plain);

    // The steps are trained and saved again, with the values of an undisturbed run.
    train_and_save(&mut again, &saves, 4);
    train(&mut whole, 4);
    assert!(values(&mut again) == values(&mut whole));
    assert_eq!(saves.run().steps().unwrap(), [1, 2, 3, 4]);
    // A second process cleans up, and keeps checkpoints that were set aside.
    let saves = Checkpoints::open(dir.path()).unwrap();
    let aside = ["damaged-00000002", "damaged-00000003"];
    assert_eq!(saves.run().set_aside_dirs().unwrap(), aside);
    // The same step again.
    flip_last_byte(&saves.run().step_place(4).join(file.replace('1', "0")));
    let resumed = saves.resume(&mut again).unwrap().unwrap();
    assert_eq!((resumed.step, resumed.skipped.len()), (3, 1));
    assert_eq!(
        names(dir.path())[..3],
        [aside[0], aside[1], "damaged-00000004"]
    );
}

#[test]
fn retention_never_removes_the_last_good_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let saves = Checkpoints::open(dir.path())
        .unwrap()
        .every(2)
        .keep(Retention::newest(1));
    let mut pipeline = start_tied(&model, 2);
    train_and_save(&mut pipeline, &saves, 2);
    let keep_all = Checkpoints::open(dir.path()).unwrap().every(2);
    train_and_save(&mut pipeline, &keep_all, 4);
    assert_eq!(saves.run().steps().unwrap(), [2, 4]);
    flip_last_byte(
        &saves
            .run()
            .step_place(4)
            .join("model-rank-00000.safetensors"),
    );

    // Continues from step 2 without a resume, which would set the damaged one aside.
    let good = saves.run().open(2).unwrap();
    drop(good);
    let mut behind = start_tied(&model, 1);
    train(&mut behind, 3);
    saves.save(&mut behind, 0).unwrap();
    let latest = saves.run().latest_verified().unwrap().unwrap();
    assert_eq!(latest.checkpoint.step(), 3, "what was just saved is kept");

    // With a resume, the damaged one does not count.
    let mut again = start_tied(&model, 1);
    assert_eq!(saves.resume(&mut again).unwrap().unwrap().step, 3);
    train_and_save(&mut again, &saves, 4);
    assert_eq!(saves.run().steps().unwrap(), [4]);
    saves.run().open(4).unwrap().verify().unwrap();
}

/// Changes the version in a manifest and recomputes its digest.
fn make_newer(manifest: &Path) {
    let text = fs::read_to_string(manifest).unwrap();
    let start = text.find("\"body\":").unwrap() + "\"body\":".len();
    let body = text[start..text.len() - 2].replacen("\"version\":1", "\"version\":9", 1);
    let body = body.replacen("\"version\": 1", "\"version\": 9", 1);
    let digest = Digest::of(body.as_bytes());
    let sealed = format!("{{\"xxh3_128\":\"{digest}\",\"body\":{body}}}\n");
    assert_ne!(sealed, text);
    fs::write(manifest, sealed).unwrap();
}

#[test]
fn a_checkpoint_of_a_newer_program_is_an_error_and_no_older_one_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let saves = Checkpoints::open(dir.path()).unwrap().every(1);
    train_and_save(&mut start_tied(&model, 2), &saves, 2);
    make_newer(&saves.run().step_place(2).join("manifest.json"));
    let mut again = start_tied(&model, 1);
    let before = values(&mut again);
    let error = saves.resume(&mut again).unwrap_err();
    let text = format!("{:#}", anyhow::Error::from(error));
    for part in ["step 2", "no older one is used", "version 9", "newer one"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    assert!(values(&mut again) == before);
    assert_eq!(saves.run().steps().unwrap(), [1, 2]);
}

#[test]
fn what_the_caller_saves_with_a_step_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let model = deferred(&Tied);
    let metadata = json!({"epoch": 3, "shuffle": [1, 5, 2], "rng": "00ff"});
    for in_background in [false, true] {
        let saves = Checkpoints::open(dir.path()).unwrap().every(2);
        let saves = if in_background {
            saves.in_background()
        } else {
            saves
        };
        let mut pipeline = start_tied(&model, 2);
        saves.resume(&mut pipeline).unwrap();
        let asked = std::cell::Cell::new(0);
        let first = pipeline.steps() + 1;
        for step in first..first + 2 {
            train(&mut pipeline, step);
            let progress = || {
                asked.set(asked.get() + 1);
                RunProgress::at(7).with(metadata.clone())
            };
            saves.after_step(&mut pipeline, progress).unwrap();
        }
        assert_eq!(asked.get(), 1, "only for the step that is due");
        let mut again = start_tied(&model, 1);
        let resumed = saves.resume(&mut again).unwrap().unwrap();
        assert_eq!((resumed.data_position, &resumed.metadata), (7, &metadata));
        let next = pipeline.steps() + 1;
        train(&mut again, next);
        saves.save(&mut again, 0).unwrap();
        saves.wait().unwrap();
        let resumed = saves.resume(&mut again).unwrap().unwrap();
        assert_eq!(resumed.metadata, Value::Null);
    }
}

#[test]
fn an_interval_of_no_steps_is_an_error_of_every_save() {
    let dir = tempfile::tempdir().unwrap();
    let mut pipeline = start_tied(&deferred(&Tied), 1);
    train(&mut pipeline, 1);
    let saves = Checkpoints::open(dir.path()).unwrap().every(0);
    for error in [
        saves.save(&mut pipeline, 0).unwrap_err(),
        saves.after_step(&mut pipeline, 0).unwrap_err(),
    ] {
        assert!(matches!(error, CheckpointsError::Interval), "{error}");
    }
    assert!(saves.run().steps().unwrap().is_empty());
    // Without an interval, steps are saved by hand.
    let saves = Checkpoints::open(dir.path()).unwrap();
    assert!(saves.after_step(&mut pipeline, 0).unwrap().is_none());
    saves.save(&mut pipeline, 0).unwrap();
    assert_eq!(saves.run().steps().unwrap(), [1]);
}

/// A background save fails if another takes its step before it is published.
fn failing(run: &Path, pipeline: &mut TiedPipeline) -> Checkpoints {
    let saves = Checkpoints::open(run).unwrap().every(1_000);
    let saves = saves.in_background();
    loop {
        let next = pipeline.steps() + 1;
        train(pipeline, next);
        let step = saves.save(pipeline, 0).unwrap();
        if fs::create_dir(&step).is_ok() {
            return saves;
        }
        // The other save was faster.
        saves.wait().unwrap();
    }
}

#[test]
fn a_failed_save_in_the_background_is_the_error_of_the_next_call_of_any_kind() {
    let model = deferred(&Tied);
    type Call = fn(&Checkpoints, &mut TiedPipeline) -> Result<(), CheckpointsError>;
    let calls: [(&str, Call); 5] = [
        ("save", |saves, pipeline| saves.save(pipeline, 0).map(drop)),
        ("wait", |saves, _| saves.wait().map(drop)),
        ("latest", |saves, _| {
            loop {
                // Until the save has ended, the step is not a checkpoint.
                if let Err(error @ CheckpointsError::Save { .. }) = saves.latest() {
                    return Err(error);
                }
            }
        }),
        ("after_step", |saves, pipeline| {
            loop {
                // None of these steps is due.
                let next = pipeline.steps() + 1;
                train(pipeline, next);
                saves.after_step(pipeline, 0)?;
            }
        }),
        ("resume", |saves, pipeline| saves.resume(pipeline).map(drop)),
    ];
    for (name, call) in calls {
        let dir = tempfile::tempdir().unwrap();
        let mut pipeline = start_tied(&model, 2);
        let saves = failing(dir.path(), &mut pipeline);
        let error = call(&saves, &mut pipeline).unwrap_err();
        let text = format!("{:#}", anyhow::Error::from(error));
        assert!(text.contains("already exists"), "{name}: {text}");
        assert!(
            saves.wait().unwrap().is_none(),
            "{name}: it was reported once"
        );
    }
}
