//! Failures of disks and directories: one clear error, an unchanged earlier checkpoint, and no files of the failed save.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use tinderbox_checkpoint::{Attempt, Run, SaveError, SaveTensor};
use tinderbox_checkpoint_tests::volatile::{Fault, Volatile};
use tinderbox_checkpoint_tests::{Contents, TIMEOUT, load, meta, small_contents};

/// Writes a whole checkpoint of one rank.
fn write(attempt: &Attempt, contents: &Contents) -> Result<(), SaveError> {
    let tensors = contents.0.iter();
    let tensors: Vec<SaveTensor> = tensors
        .map(|((role, name), data)| SaveTensor::whole(name.clone(), *role, data.clone()))
        .collect();
    let handle = attempt.handle().threads(1);
    handle.write_rank(0, &tensors, &contents.1, &()).map(drop)
}

fn save(run: &Run, step: u64, contents: &Contents) -> Result<PathBuf, SaveError> {
    let attempt = run.begin(meta(step, 1))?;
    write(&attempt, contents)?;
    attempt.publish(TIMEOUT)
}

/// Returns the message that a user reads.
fn message(error: &SaveError) -> String {
    let error: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(error), |error| error.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    causes.join(": ")
}

/// Lets the store fail at every operation of a save; each error has the location and the cause.
#[track_caller]
fn check_kind(kind: ErrorKind, reason: &str) {
    for at in 1.. {
        let store = Volatile::default();
        let run = Run::on(Arc::new(store.clone()));
        save(&run, 1, &small_contents(1)).unwrap();
        store.set_kind(kind);
        store.set_fault(Some(Fault::From(at)));
        let saved = save(&run, 2, &small_contents(2));
        let reached = store.operations() >= at;
        store.set_fault(None);
        if let Err(error) = &saved {
            let text = message(error);
            assert!(text.ends_with(reason), "{text}");
            assert!(
                text.starts_with("can't ") || text.contains("step-"),
                "{text}"
            );
        }
        let latest = run.latest().unwrap().unwrap().checkpoint;
        latest.verify().unwrap();
        let expected = if latest.step() == 2 { 2 } else { 1 };
        assert!(load(&latest).unwrap() == small_contents(expected));
        assert!(saved.is_err() || latest.step() == 2);
        run.clean().unwrap();
        let left = run.leftovers().unwrap();
        assert!(left.removed.is_empty() && left.kept.is_empty(), "{left:?}");
        if !reached {
            assert!(at > 20, "a save has more than {at} operations");
            return;
        }
    }
}

#[test]
fn a_full_disk() {
    check_kind(ErrorKind::StorageFull, "no storage space");
}

#[test]
fn a_used_up_quota() {
    check_kind(ErrorKind::QuotaExceeded, "quota exceeded");
}

#[test]
fn a_file_system_that_became_read_only() {
    check_kind(
        ErrorKind::ReadOnlyFilesystem,
        "read-only filesystem or storage medium",
    );
}

#[test]
fn a_permission_that_is_missing() {
    check_kind(ErrorKind::PermissionDenied, "permission denied");
}

/// The same in a real directory without write permission.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_can_not_be_written_to() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o500)).unwrap();
    // Permissions do not apply to root; the kernel's own directory rejects every user.
    let place = match fs::create_dir(dir.path().join("trial")) {
        Ok(()) => Path::new("/sys"),
        Err(_) => dir.path(),
    };
    let error = save(&Run::local(place.join("run")), 1, &small_contents(1)).unwrap_err();
    let text = message(&error);
    let expected = format!("can't create {}/run: ", place.display());
    assert!(text.starts_with(&expected), "{text}");
    let text = text.to_lowercase();
    let causes = ["permission denied", "not permitted", "read-only"];
    assert!(causes.iter().any(|cause| text.contains(cause)), "{text}");
}

/// A file in place of the run directory.
#[test]
fn a_file_in_the_place_of_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("run");
    fs::write(&place, "something else").unwrap();
    let error = save(&Run::local(&place), 1, &small_contents(1)).unwrap_err();
    let text = message(&error);
    assert!(text.contains(&place.display().to_string()), "{text}");
    assert_eq!(fs::read(&place).unwrap(), b"something else");
}

/// The attempt's directory, or the whole run, is removed while a rank writes or before the coordinator
/// publishes.
#[test]
fn a_directory_that_vanishes() {
    for whole_run in [false, true] {
        for before_the_rank in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let place = dir.path().join("run");
            let run = Run::local(&place);
            save(&run, 1, &small_contents(1)).unwrap();
            let attempt = run.begin(meta(2, 1)).unwrap();
            let gone = match whole_run {
                true => place.clone(),
                false => attempt_dir(&place),
            };
            if !before_the_rank {
                write(&attempt, &small_contents(2)).unwrap();
            }
            fs::remove_dir_all(&gone).unwrap();
            let error = match before_the_rank {
                true => write(&attempt, &small_contents(2)).unwrap_err(),
                // The parts do not exist any more, so the coordinator waits for them.
                false => attempt
                    .publish(std::time::Duration::from_millis(50))
                    .unwrap_err(),
            };
            let text = message(&error);
            let named = text.contains(&place.display().to_string()) || text.contains("rank");
            assert!(named, "{text}");
            let latest = run.latest().unwrap();
            match whole_run {
                true => assert!(latest.is_none()),
                false => assert!(load(&latest.unwrap().checkpoint).unwrap() == small_contents(1)),
            }
        }
    }
}

/// Returns the directory of the only attempt.
fn attempt_dir(run: &Path) -> PathBuf {
    let entries = fs::read_dir(run)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_attempt = |path: &PathBuf| {
        !path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("step-")
    };
    let mut attempts: Vec<PathBuf> = entries.filter(is_attempt).collect();
    assert_eq!(attempts.len(), 1);
    attempts.remove(0)
}
