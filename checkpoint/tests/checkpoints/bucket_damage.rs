//! Damaged checkpoints in a bucket are set aside, keep their files, and free their step.

use std::{collections::BTreeMap, io::ErrorKind, sync::Arc};

use object_store::memory::InMemory;
use tinderbox_checkpoint::{
    CheckpointMeta, Run, SaveTensor,
    store::{BucketStore, Store},
};
use tinderbox_checkpoint_tests::{TIMEOUT, load, meta, small_contents};

fn save(run: &Run, step: u64, replace: bool) -> String {
    let attempt = run
        .begin(CheckpointMeta {
            replace,
            ..meta(step, 1)
        })
        .unwrap();
    let id = attempt.handle().attempt();
    let contents = small_contents(step);
    let tensors = contents.0.into_iter();
    let tensors: Vec<SaveTensor> = tensors
        .map(|((role, name), data)| SaveTensor::whole(name, role, data))
        .collect();
    attempt
        .handle()
        .write_rank(0, &tensors, &contents.1, &())
        .unwrap();
    attempt.publish(TIMEOUT).unwrap();
    format!(".attempt-{step}-{id}")
}

fn bytes_of(store: &dyn Store, path: &str) -> Vec<u8> {
    let file = store.open(path).unwrap();
    let mut bytes = vec![0; file.bytes() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn flip_last(store: &dyn Store, path: &str) -> Vec<u8> {
    let mut bytes = bytes_of(store, path);
    *bytes.last_mut().unwrap() ^= 1;
    store.put(path, &bytes).unwrap();
    bytes
}

fn exists(store: &dyn Store, path: &str) -> bool {
    match store.look(path) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            false
        }
    }
}

#[test]
fn a_damaged_checkpoint_is_set_aside_with_its_files() {
    let store = BucketStore::new(Arc::new(InMemory::new()), "runs/1").unwrap();
    let run = Run::on(Arc::new(store.clone()));
    save(&run, 1, false);
    let mut expected = BTreeMap::new();
    // A damaged manifest, and a damaged file of another attempt to save the same step.
    for (number, path) in [(1, "step-00000002/manifest.json"), (2, "")] {
        let files = save(&run, 2, false);
        let shard = format!("{files}/model-rank-00000.safetensors");
        let path = if path.is_empty() { &shard } else { path };
        flip_last(&store, path);
        expected.insert(shard.clone(), bytes_of(&store, &shard));

        let latest = run.latest_verified().unwrap().unwrap();
        assert_eq!(latest.checkpoint.step(), 1);
        let [skipped] = &latest.skipped[..] else {
            panic!("{:?}", latest.skipped);
        };
        let place = run.set_aside(skipped.step).unwrap().unwrap();
        let name = ["", "damaged-00000002", "damaged-00000002-2"][number];
        assert_eq!(place, store.place(name));
        assert!(run.set_aside(2).unwrap().is_none(), "it is there no more");
        assert_eq!(run.steps().unwrap(), [1]);
    }
    // The step is saved and cleaned up again, and nothing of the damaged checkpoints is removed
    // automatically.
    save(&run, 2, false);
    let cleaned = run.clean().unwrap();
    assert_eq!(cleaned.removed, [] as [std::path::PathBuf; 0]);
    let again = Run::on(Arc::new(store.clone()));
    again.clean_when_idle().unwrap();
    for (path, bytes) in &expected {
        assert_eq!(&bytes_of(&store, path), bytes, "{path}");
    }
    let latest = run.latest_verified().unwrap().unwrap();
    assert_eq!(latest.skipped.len(), 0);
    assert_eq!(load(&latest.checkpoint).unwrap(), small_contents(2));

    // Until an explicit request.
    for name in run.set_aside_dirs().unwrap() {
        run.discard(&name).unwrap();
    }
    run.clean().unwrap();
    for path in expected.keys() {
        assert!(!exists(&store, path), "{path}");
    }
    assert_eq!(load(&run.open(2).unwrap()).unwrap(), small_contents(2));
    run.open(1).unwrap().verify().unwrap();
}

#[test]
fn a_step_without_a_sound_manifest_is_discarded() {
    let store = BucketStore::new(Arc::new(InMemory::new()), "runs/1").unwrap();
    let run = Run::on(Arc::new(store.clone()));
    let files = save(&run, 1, false);
    flip_last(&store, "step-00000001/manifest.json");
    store.put("step-00000001/notes.txt", b"by hand").unwrap();
    run.remove(1).unwrap_err();
    run.discard("step-00000001").unwrap();
    assert!(!exists(&store, "step-00000001"));
    run.clean().unwrap();
    assert!(!exists(&store, &files));
    run.discard("step-00000001").unwrap_err();
    run.discard("notes").unwrap_err();
}
