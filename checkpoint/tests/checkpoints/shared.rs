//! A directory on several machines, whose locks may be visible to one of them: an attempt without a visible
//! lock is not considered dead.

use std::{fs, path::Path, sync::Arc};

use tinderbox_checkpoint::{
    Run,
    store::{LocalStore, Store},
    testing::check_store,
};
use tinderbox_checkpoint_tests::{TIMEOUT, load, meta, names, save, small_contents};

/// Returns the run as seen by a machine that does not see the locks of others.
fn elsewhere(dir: &Path) -> Run {
    Run::on(Arc::new(LocalStore::new(dir).shared()))
}

#[test]
fn it_is_a_store_without_locks() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(LocalStore::new(dir.path()).shared());
    assert!(!store.has_locks());
    check_store(&store).unwrap();
}

/// Copies an attempt's directory: its lock is not visible, like the lock of a live attempt on another machine.
#[test]
fn an_attempt_is_kept_until_no_process_saves() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let attempt = Run::local(other.path()).begin(meta(7, 1)).unwrap();
    let id = attempt.handle().attempt();
    let [name] = &names(other.path())[..] else {
        panic!("one attempt has one directory");
    };
    fs::create_dir(dir.path().join(name)).unwrap();
    for file in names(&other.path().join(name)) {
        let from = other.path().join(name).join(&file);
        fs::copy(from, dir.path().join(name).join(file)).unwrap();
    }
    drop(attempt);
    // With reliable locks, it is dead.
    assert_eq!(Run::local(dir.path()).leftovers().unwrap().kept, []);
    let here = elsewhere(dir.path());
    let cleaned = here.clean().unwrap();
    assert_eq!(cleaned.removed.len(), 0);
    let reason = "the store has no locks, so it may be alive";
    assert_eq!(cleaned.kept, [(dir.path().join(name), reason)]);
    // A rank joins it, while a save of the step runs.
    here.join(7, id, TIMEOUT, || true).unwrap();
    save(dir.path(), meta(7, 1), &small_contents(7));
    assert_eq!(here.clean().unwrap().kept.len(), 1);
    assert_eq!(here.clean_when_idle().unwrap().removed.len(), 1);
    let latest = here.latest().unwrap().unwrap();
    assert_eq!(load(&latest.checkpoint).unwrap(), small_contents(7));
    assert_eq!(names(dir.path()), ["step-00000007"]);
}

/// An attempt with a visible lock is alive, also if the caller asserts that no process is saving.
#[test]
fn an_attempt_of_this_machine_stays() {
    let dir = tempfile::tempdir().unwrap();
    let here = elsewhere(dir.path());
    let attempt = here.begin(meta(7, 1)).unwrap();
    let cleaned = here.clean_when_idle().unwrap();
    assert_eq!(cleaned.removed.len(), 0);
    assert_eq!(cleaned.kept[0].1, "it is alive: its marker is locked");
    here.join(7, attempt.handle().attempt(), TIMEOUT, || true)
        .unwrap();
    drop(attempt);
    assert_eq!(names(dir.path()), [""; 0]);
}

/// Another machine has just created it.
#[test]
fn an_empty_directory_of_an_attempt_stays() {
    let dir = tempfile::tempdir().unwrap();
    let empty = format!(".attempt-3-{}", "0".repeat(32));
    fs::create_dir(dir.path().join(&empty)).unwrap();
    let here = elsewhere(dir.path());
    assert_eq!(here.clean().unwrap().removed.len(), 0);
    assert_eq!(names(dir.path()), [empty]);
    assert_eq!(here.clean_when_idle().unwrap().removed.len(), 1);
    assert_eq!(names(dir.path()), [""; 0]);
}

/// A former checkpoint is identified by its manifest, without a lock.
#[test]
fn a_removed_checkpoint_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let here = elsewhere(dir.path());
    for step in [1, 2, 3] {
        save(dir.path(), meta(step, 1), &small_contents(step));
    }
    here.remove(2).unwrap();
    assert_eq!(here.steps().unwrap(), [1, 3]);
    assert_eq!(names(dir.path()), ["step-00000001", "step-00000003"]);
}
