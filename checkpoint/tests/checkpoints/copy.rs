//! Copies of checkpoints between directories and buckets: complete, or not there.

use std::{fs, path::Path, sync::Arc};

use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, Run,
    store::BucketStore,
    tools::{CopyOptions, ToolError, copy},
};
use tinderbox_checkpoint_tests::faulty::{Fault, Faulty};
use tinderbox_checkpoint_tests::{load, meta, save, small_contents};

const KEEP: CopyOptions = CopyOptions { replace: false };
const REPLACE: CopyOptions = CopyOptions { replace: true };

/// Saves a checkpoint of several files, with a plan.
fn original(dir: &Path, seed: u64) -> Checkpoint {
    let meta = CheckpointMeta {
        plan: Some(serde_json::json!({"stages": [0, 1]})),
        file_bytes: 100,
        ..meta(5, 1)
    };
    Checkpoint::open(save(dir, meta, &small_contents(seed))).unwrap()
}

fn run_in(objects: &Faulty) -> Run {
    let store = BucketStore::new(Arc::new(objects.clone()), "runs/1").unwrap();
    // Small enough that every file has several parts.
    Run::on(Arc::new(store.part_bytes(128)))
}

/// Checks that every file but the manifest has the same bytes.
#[track_caller]
fn check_files(first: &Path, second: &Path) {
    let mut count = 0;
    for entry in fs::read_dir(first).unwrap() {
        let name = entry.unwrap().file_name();
        let same = fs::read(first.join(&name)).unwrap() == fs::read(second.join(&name)).unwrap();
        assert_eq!(same, name != "manifest.json", "{name:?}");
        count += 1;
    }
    assert_eq!(fs::read_dir(second).unwrap().count(), count);
    assert!(count >= 6, "{count}");
}

#[test]
fn a_copy_to_a_bucket_and_back_has_the_same_files() {
    let dir = tempfile::tempdir().unwrap();
    let first = original(&dir.path().join("a"), 1);
    let bucket = run_in(&Faulty::default());
    copy(&first, &bucket, &KEEP, &()).unwrap();
    let there = bucket.open(5).unwrap();
    there.verify().unwrap();
    assert!(there.saved_at().unwrap().elapsed().unwrap().as_secs() < 600);
    let back = Run::local(dir.path().join("b"));
    let place = copy(&there, &back, &KEEP, &()).unwrap();
    assert_eq!(place, dir.path().join("b/step-00000005"));
    check_files(first.dir(), &place);
    let back = back.open(5).unwrap();
    assert_eq!(load(&back).unwrap(), small_contents(1));
    assert_eq!(back.plan().unwrap(), first.plan().unwrap());
    // Each copy has an id of its own; everything else is equal.
    let mut manifest = back.manifest().clone();
    assert_ne!(manifest.attempt, first.manifest().attempt);
    manifest.attempt = first.manifest().attempt;
    assert_eq!(&manifest, first.manifest());
}

#[test]
fn an_existing_step_is_replaced_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = [1, 2].map(|seed| original(&dir.path().join(seed.to_string()), seed));
    for to in [
        run_in(&Faulty::default()),
        Run::local(dir.path().join("to")),
    ] {
        copy(&old, &to, &KEEP, &()).unwrap();
        let error = copy(&new, &to, &KEEP, &()).unwrap_err();
        assert!(matches!(error, ToolError::Save(_)), "{error}");
        assert_eq!(load(&to.open(5).unwrap()).unwrap(), small_contents(1));
        copy(&new, &to, &REPLACE, &()).unwrap();
        let copied = to.open(5).unwrap();
        assert_eq!(load(&copied).unwrap(), small_contents(2));
        // A checkpoint can be replaced by a copy of itself.
        copy(&copied, &to, &REPLACE, &()).unwrap();
        assert_eq!(load(&to.open(5).unwrap()).unwrap(), small_contents(2));
        let leftovers = to.leftovers().unwrap();
        assert!(
            leftovers.removed.is_empty() && leftovers.kept.is_empty(),
            "{leftovers:?}"
        );
    }
}

/// Every request fails in turn: the step is not there, or complete, and a second copy succeeds.
#[test]
fn an_interrupted_copy_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let first = original(dir.path(), 1);
    let all = Faulty::default();
    copy(&first, &run_in(&all), &KEEP, &()).unwrap();
    let (mut absent, mut there) = (0, 0);
    for at in 1..=all.requests() {
        for fault in [Fault::Once(at), Fault::From(at), Fault::Cut(at)] {
            let objects = Faulty::default();
            objects.set_fault(Some(fault));
            let copied = copy(&first, &run_in(&objects), &KEEP, &());
            objects.set_fault(None);
            let run = run_in(&objects);
            match run.steps().unwrap()[..] {
                [] => {
                    assert!(copied.is_err(), "{fault:?}");
                    copy(&first, &run, &KEEP, &()).unwrap();
                    absent += 1;
                }
                _ => there += 1,
            }
            run.open(5).unwrap().verify().unwrap();
        }
    }
    assert!(absent > 20 && there > 0, "{absent} {there}");
}

#[test]
fn damage_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let first = original(&dir.path().join("a"), 1);
    for entry in fs::read_dir(first.dir()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            let to = Run::local(dir.path().join("b"));
            let copied = match Checkpoint::open(first.dir()) {
                Ok(checkpoint) => copy(&checkpoint, &to, &KEEP, &()).map_err(drop),
                Err(_) => Err(()),
            };
            assert!(copied.is_err(), "byte {at} of {}", path.display());
            assert!(to.steps().unwrap().is_empty());
            assert!(to.leftovers().unwrap().removed.is_empty());
        }
        fs::write(&path, bytes).unwrap();
    }
}
