//! A step whose directory is a symbolic link is a step, nothing is deleted through it, and entries that are not understood are
//! listed.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use tinderbox_checkpoint::{
    Attempt, Checkpoint, CheckpointMeta, Cleaned, ErrorClass, LoadError, Retention, Run, SaveError,
    store::{FoundKind, LocalStore, Store},
    tools::{CopyOptions, ReshardOptions, copy, diff, reshard},
};
use tinderbox_checkpoint_tests::{TIMEOUT, chain, load, meta, names, save, small_contents};

const STEP_2: &str = "step-00000002";

/// A run with steps 1 and 2. Step 2 was moved to another directory and is a link to it.
struct Moved {
    dir: TempDir,
    before: BTreeMap<PathBuf, Vec<u8>>,
}

impl Moved {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (run, big) = (dir.path().join("run"), dir.path().join("big"));
        for step in [1, 2] {
            save(&run, meta(step, 1), &small_contents(step));
        }
        fs::create_dir(&big).unwrap();
        fs::rename(run.join(STEP_2), big.join(STEP_2)).unwrap();
        symlink(big.join(STEP_2), run.join(STEP_2)).unwrap();
        let before = files(&big);
        assert!(before.len() > 3);
        Self { dir, before }
    }

    fn dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn run(&self) -> Run {
        Run::local(self.dir())
    }

    fn big(&self) -> PathBuf {
        self.dir.path().join("big")
    }

    fn link(&self) -> PathBuf {
        self.dir().join(STEP_2)
    }

    /// Unmounts the disk.
    fn unmount(&self) {
        fs::rename(self.big(), self.dir.path().join("unmounted")).unwrap();
    }

    /// Checks that the target has every byte, and that the run has these entries.
    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert!(files(&self.big()) == self.before, "the target is unchanged");
        assert_eq!(names(&self.dir()), expected);
    }

    /// Replaces the directory in texts.
    fn text(&self, text: &str) -> String {
        text.replace(self.dir.path().to_str().unwrap(), "/dir")
    }
}

/// The contents of all files below a directory.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => drop(all.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    all
}

/// Begins to save step 2, and writes everything.
fn written(run: &Run, replace: bool) -> Attempt {
    let meta = CheckpointMeta {
        replace,
        ..meta(2, 1)
    };
    let attempt = run.begin(meta).unwrap();
    let handle = attempt.handle();
    handle
        .write_rank(0, &[], &small_contents(3).1, &())
        .unwrap();
    attempt
}

#[test]
fn a_link_to_a_step_is_a_step() {
    let moved = Moved::new();
    for target in [
        moved.big().join(STEP_2),
        Path::new("../big").join(STEP_2),
        Path::new("../big/./../big").join(STEP_2),
    ] {
        fs::remove_file(moved.link()).unwrap();
        symlink(&target, moved.link()).unwrap();
        let run = moved.run();
        assert_eq!(run.steps().unwrap(), [1, 2]);
        assert_eq!(
            (run.link_target(1), run.link_target(2)),
            (None, Some(target))
        );
        let latest = run.latest_verified().unwrap().unwrap();
        assert!(latest.skipped.is_empty());
        assert_eq!(load(&latest.checkpoint).unwrap(), small_contents(2));
        assert_eq!(latest.checkpoint.dir(), moved.link());
        // Also with a separator at the end, as shells complete it.
        for dir in [moved.link(), moved.link().join("")] {
            let opened = Checkpoint::open(dir).unwrap();
            assert_eq!(load(&opened).unwrap(), small_contents(2));
        }
        let error = run.begin(meta(2, 1)).unwrap_err();
        assert!(matches!(&error, SaveError::StepExists { path } if *path == moved.link()));
        assert!(run.foreign().unwrap().is_empty());
    }
    moved.check(&["step-00000001", STEP_2]);
}

/// The files of a checkpoint can't be links, whether its directory is one or not.
#[test]
fn links_inside_a_linked_directory_are_refused() {
    for name in ["manifest.json", "model-rank-00000.safetensors"] {
        let moved = Moved::new();
        let file = moved.big().join(STEP_2).join(name);
        let aside = moved.dir.path().join("aside");
        fs::rename(&file, &aside).unwrap();
        symlink(&aside, &file).unwrap();
        let error = moved.run().open(2).unwrap_err();
        let path = moved.link().join(name);
        assert!(
            matches!(&error, LoadError::NotAFile { path: found } if *found == path),
            "{}",
            chain(&error)
        );
    }
}

#[test]
fn nothing_is_deleted_through_a_link() {
    #[track_caller]
    fn check(change: impl Fn(&Moved), expected: &[&str]) {
        let moved = Moved::new();
        change(&moved);
        moved.check(expected);
    }
    let one = &["step-00000001"][..];
    check(|moved| moved.run().remove(2).unwrap(), one);
    check(|moved| moved.run().discard(STEP_2).unwrap(), one);
    let aside = |moved: &Moved| moved.run().set_aside(2).unwrap().unwrap();
    let damaged = ["damaged-00000002", "step-00000001"];
    check(|moved| assert!(aside(moved).is_symlink()), &damaged);
    check(
        |moved| {
            aside(moved);
            moved.run().discard("damaged-00000002").unwrap();
        },
        one,
    );
    let retention = Retention {
        last: 1,
        every: None,
    };
    check(
        |moved| {
            save(&moved.dir(), meta(3, 1), &small_contents(3));
            assert_eq!(moved.run().prune(retention).unwrap(), [1, 2]);
        },
        &["step-00000003"],
    );
    check(
        |moved| {
            save(&moved.dir(), meta(3, 1), &small_contents(3));
            let removed = moved.run().prune_after_save(3, retention).unwrap();
            assert_eq!(removed, [1, 2]);
        },
        &["step-00000003"],
    );
    let both = ["step-00000001", STEP_2];
    let none = |moved: &Moved| {
        let cleaned = moved.run().clean_when_idle().unwrap();
        assert_eq!(cleaned, Cleaned::default());
    };
    check(none, &both);
    // Without a valid manifest it is not removed as a checkpoint.
    let moved = Moved::new();
    fs::write(moved.link().join("manifest.json"), "{").unwrap();
    let before = files(&moved.big());
    let error = moved.run().remove(2).unwrap_err();
    assert!(matches!(error, SaveError::NoStep { .. }));
    moved.run().discard(STEP_2).unwrap();
    assert!(files(&moved.big()) == before);
    assert_eq!(names(&moved.dir()), one);
}

#[test]
fn a_replacement_leaves_the_target() {
    let moved = Moved::new();
    let place = written(&moved.run(), true).publish(TIMEOUT).unwrap();
    assert_eq!(place, moved.link());
    assert!(!place.is_symlink() && place.is_dir());
    let run = moved.run();
    assert_eq!(
        run.open(2).unwrap().scalars(),
        &small_contents(3).1,
        "the new one"
    );
    moved.check(&["step-00000001", STEP_2]);
}

/// A kill between the exchange and the removal leaves the link under the attempt's name.
#[test]
fn a_replaced_link_that_a_kill_has_left_is_cleaned_up() {
    let moved = Moved::new();
    written(&moved.run(), true).publish(TIMEOUT).unwrap();
    let run = moved.run();
    let attempt = run.open(2).unwrap().manifest().attempt;
    let left = moved.dir().join(format!(".attempt-2-{attempt}"));
    symlink(moved.big().join(STEP_2), &left).unwrap();
    let cleaned = run.leftovers().unwrap();
    let expected = Cleaned {
        removed: vec![left],
        ..Cleaned::default()
    };
    assert_eq!(cleaned, expected);
    assert_eq!(run.clean().unwrap(), expected);
    moved.check(&["step-00000001", STEP_2]);

    // A link that no attempt has replaced.
    let other = format!(".attempt-1-{attempt}");
    let removed = format!(".removed-2-{attempt}");
    for name in [&other, &removed] {
        symlink(moved.big().join(STEP_2), moved.dir().join(name)).unwrap();
    }
    let kept = run.clean_when_idle().unwrap().kept;
    let reasons: Vec<&str> = kept.iter().map(|(_, reason)| *reason).collect();
    assert_eq!(reasons, ["it is a symbolic link", "it is a symbolic link"]);
    moved.check(&[&*other, &*removed, "step-00000001", STEP_2]);
}

/// Two processes that save a step, while a user moves it and puts a link in its place.
#[test]
fn attempts_at_a_step_that_becomes_a_link() {
    for replace in [false, true] {
        let moved = Moved::new();
        fs::remove_file(moved.link()).unwrap();
        let run = moved.run();
        let attempt = written(&run, replace);
        symlink(moved.big().join(STEP_2), moved.link()).unwrap();
        let published = attempt.publish(TIMEOUT);
        match replace {
            false => assert!(
                matches!(published, Err(SaveError::StepExists { .. })),
                "{published:?}"
            ),
            true => drop(published.unwrap()),
        }
        assert_eq!(moved.link().is_symlink(), !replace);
        moved.check(&["step-00000001", STEP_2]);
    }
    // The last of several replacements stays.
    let moved = Moved::new();
    let run = moved.run();
    let attempts = [written(&run, true), written(&run, true)];
    let last = attempts[1].handle().attempt();
    for attempt in attempts {
        attempt.publish(TIMEOUT).unwrap();
    }
    assert_eq!(run.open(2).unwrap().manifest().attempt, last);
    moved.check(&["step-00000001", STEP_2]);
}

#[test]
fn copies_and_reshards_read_through_a_link_and_replace_it() {
    let moved = Moved::new();
    let run = moved.run();
    let linked = run.open(2).unwrap();
    let other = Run::local(moved.dir.path().join("other"));
    copy(&linked, &other, &CopyOptions::default(), &()).unwrap();
    assert!(
        diff(&linked, &other.open(2).unwrap(), &())
            .unwrap()
            .is_empty()
    );
    let refused = copy(&linked, &run, &CopyOptions::default(), &()).unwrap_err();
    assert!(chain(&refused).contains("already exists"));
    // In place of the link that is read.
    let replace = ReshardOptions {
        replace: true,
        ..ReshardOptions::default()
    };
    reshard(&linked, &run, 3, &replace, &()).unwrap();
    let resharded = run.open(2).unwrap();
    assert_eq!(resharded.manifest().world_size, 3);
    assert_eq!(load(&resharded).unwrap(), small_contents(2));
    moved.check(&["step-00000001", STEP_2]);
}

/// The disk of the target is not mounted: no older step is used in silence.
#[test]
fn a_link_that_leads_nowhere_is_named() {
    let moved = Moved::new();
    moved.unmount();
    // The place to mount it is there.
    let mount_point = moved.big().join(STEP_2);
    fs::create_dir_all(&mount_point).unwrap();
    let error = moved.run().latest().unwrap_err();
    assert!(chain(&error).contains("where there is no checkpoint: mount the disk"));
    fs::remove_dir_all(moved.big()).unwrap();
    let run = moved.run();
    assert_eq!(run.steps().unwrap(), [1, 2]);
    for found in [
        run.open(2),
        Checkpoint::open(moved.link()),
        Checkpoint::open(moved.link().join("")),
    ] {
        let error = found.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Transient);
        insta::allow_duplicates! {
        insta::assert_snapshot!(
            moved.text(&chain(&error)).replace("2/ is", "2 is"),
            @"/dir/run/step-00000002 is a symbolic link to /dir/big/step-00000002, where there is no checkpoint: mount the disk that it leads to, or remove the link"
        );
        }
    }
    let error = run.latest().unwrap_err();
    assert!(
        matches!(&error, LoadError::NotUsable { step: 2, .. }),
        "{}",
        chain(&error)
    );
    let error = run.remove(2).unwrap_err();
    assert!(matches!(error, SaveError::NoStep { .. }));

    // Retention neither counts nor removes it, also if it was known before.
    let mut retention = Retention {
        last: 1,
        every: None,
    };
    assert!(run.prune(retention).unwrap().is_empty());
    retention.last = 2;
    let known = moved.run();
    fs::rename(moved.dir.path().join("unmounted"), moved.big()).unwrap();
    known.open(2).unwrap();
    moved.unmount();
    for step in [3, 4] {
        save(&moved.dir(), meta(step, 1), &small_contents(step));
        let removed = known.prune_after_save(step, retention).unwrap();
        assert_eq!(removed, [1][..(step - 3) as usize]);
    }

    // It can be replaced, set aside and removed.
    assert!(matches!(
        run.begin(meta(2, 1)).unwrap_err(),
        SaveError::StepExists { .. }
    ));
    let aside = run.set_aside(2).unwrap().unwrap();
    run.discard("damaged-00000002").unwrap();
    assert!(!aside.is_symlink());
    symlink(moved.big().join(STEP_2), moved.link()).unwrap();
    written(&run, true).publish(TIMEOUT).unwrap();
    assert_eq!(run.open(2).unwrap().step(), 2);
    fs::remove_dir_all(moved.link()).unwrap();
    symlink(moved.big().join(STEP_2), moved.link()).unwrap();
    run.discard(STEP_2).unwrap();
    assert_eq!(names(&moved.dir()), ["step-00000003", "step-00000004"]);
}

#[test]
fn links_to_other_things_are_errors() {
    let moved = Moved::new();
    let file = moved.dir.path().join("file");
    fs::write(&file, "").unwrap();
    for (target, expected) in [
        (file, "Not a directory"),
        (PathBuf::from(STEP_2), "symbolic link"),
        (moved.dir().join("step-00000001"), "holds step 1"),
    ] {
        fs::remove_file(moved.link()).unwrap();
        symlink(target, moved.link()).unwrap();
        let error = chain(&moved.run().open(2).unwrap_err());
        assert!(
            error.contains(STEP_2) && error.contains(expected),
            "{error}"
        );
        let latest = moved.run().latest();
        let skipped = latest.map(|latest| latest.unwrap().skipped.len());
        // Only the link to another step is known to be wrong.
        assert_eq!(
            skipped.ok(),
            error.contains("holds").then_some(1),
            "{error}"
        );
    }
}

/// The entries of a run's directory other than its steps, attempts and checkpoints that were set aside are listed with the
/// reason.
#[test]
fn unknown_entries_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    assert!(run.foreign().unwrap().is_empty());
    for step in [1, 2] {
        save(dir.path(), meta(step, 1), &small_contents(step));
    }
    run.set_aside(1).unwrap();
    let _attempt = run.begin(meta(3, 1)).unwrap();
    let id = "0123456789abcdef".repeat(2);
    for name in [
        &*format!(".removed-7-{id}"),
        "step-abc",
        "step-40",
        ".attempt-mine",
    ] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["step-00000040", "notes.txt"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let latin = std::ffi::OsStr::from_bytes(b"caf\xe9");
    fs::write(dir.path().join(latin), "").unwrap();
    symlink(STEP_2, dir.path().join("latest")).unwrap();
    let other = "it is not part of the run";
    let form = "it does not have the name of a step, such as step-00000100";
    let expected = [
        (".attempt-mine", other),
        ("caf\u{fffd}", other),
        ("latest", other),
        ("notes.txt", other),
        (
            "step-00000040",
            "it has the name of a step, and is not a directory",
        ),
        ("step-40", form),
        ("step-abc", form),
    ];
    let expected = expected.map(|(name, reason)| (name.to_owned(), reason));
    assert_eq!(run.foreign().unwrap(), expected);
    assert_eq!(run.steps().unwrap(), [2]);

    // A file in the place of a step is found before anything is written.
    for replace in [false, true] {
        let meta = CheckpointMeta {
            replace,
            ..meta(40, 1)
        };
        let error = run.begin(meta).unwrap_err().to_string();
        insta::allow_duplicates! {
        insta::assert_snapshot!(
            error.replace(dir.path().to_str().unwrap(), "/run"),
            @"/run/step-00000040 has the name of a step and is not a directory: move it, so that the step can be saved"
        );
        }
    }
}

/// The contract of a store with links.
#[test]
fn a_local_store_names_links() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::new(dir.path());
    store.create_dir("dir").unwrap();
    store.put("dir/file", b"bytes").unwrap();
    for (name, target) in [("one", "dir"), ("two", "dir/file"), ("three", "nothing")] {
        symlink(target, dir.path().join(name)).unwrap();
        assert_eq!(store.look(name).unwrap().kind, FoundKind::Link);
        assert_eq!(store.link_target(name).unwrap(), Some(target.into()));
    }
    let listed = store.list("").unwrap();
    let links = listed.iter().filter(|found| found.kind == FoundKind::Link);
    assert_eq!((listed.len(), links.count()), (4, 3));
    assert_eq!(store.link_target("dir").unwrap(), None);
    assert_eq!(store.link_target("dir/file").unwrap(), None);
    assert!(store.link_target("missing").is_err());
    assert_eq!(store.read_small("one/file", 10).unwrap(), b"bytes");
    assert!(store.open("two").is_err());
    // A link replaces nothing.
    store.put("small", b"").unwrap();
    for existing in ["small", "dir", "two", "three"] {
        let error = store.rename("one", existing).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::AlreadyExists,
            "{existing}"
        );
    }
    store.rename("one", "four").unwrap();
    assert_eq!(store.link_target("four").unwrap(), Some("dir".into()));
    store.exchange("four", "dir").unwrap();
    assert_eq!(store.look("dir").unwrap().kind, FoundKind::Link);
    assert_eq!(store.read_small("four/file", 10).unwrap(), b"bytes");
    store.remove_file("dir").unwrap();
    assert_eq!(store.list("four").unwrap().len(), 1);
}
