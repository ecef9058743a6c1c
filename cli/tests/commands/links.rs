//! Steps that are symbolic links, and other entries of a run's directory, for every command.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Sample, check_contains, ckpt, names, run, text};

const STEP_2: &str = "step-00000002";

/// A run whose step 2, the newest, was moved to another disk.
struct Moved {
    dir: TempDir,
}

impl Moved {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (run, big) = (dir.path().join("run"), dir.path().join("big"));
        for step in [1, 2] {
            Sample::new().save(&run, step);
        }
        fs::create_dir(&big).unwrap();
        fs::rename(run.join(STEP_2), big.join("moved")).unwrap();
        symlink(big.join("moved"), run.join(STEP_2)).unwrap();
        Self { dir }
    }

    fn at(&self, path: &str) -> String {
        self.dir.path().join(path).to_str().unwrap().to_owned()
    }

    fn run(&self) -> String {
        self.at("run")
    }

    fn link(&self) -> String {
        self.at("run/step-00000002")
    }

    /// The bytes of the target.
    fn target(&self) -> BTreeMap<String, Vec<u8>> {
        let dir = PathBuf::from(self.at("big/moved"));
        let files = names(&dir).into_iter();
        let read = files.map(|name| (name.clone(), fs::read(dir.join(name)).unwrap()));
        read.collect()
    }
}

#[test]
fn every_command_reads_a_step_that_is_a_link() {
    let moved = Moved::new();
    let before = moved.target();
    let (run_dir, link) = (moved.run(), moved.link());
    let slash = format!("{link}/");
    let target = moved.at("big/moved");

    let listed = ckpt(&["ls", &run_dir]).ends(0);
    check_contains(
        &listed,
        &[&format!("step 2: a symbolic link to {target}\n")],
    );
    let listed = ckpt(&["ls", &run_dir, "--json"]).json(0);
    let steps = listed["steps"].as_array().unwrap();
    let of = |name: &str| -> Vec<&Value> { steps.iter().map(|step| &step[name]).collect() };
    assert_eq!(of("step"), [1, 2]);
    assert_eq!(of("complete"), [true, true]);
    assert_eq!(of("link"), [&json!(null), &json!(target)]);

    let verified = ckpt(&["verify", &run_dir]).ends(0);
    check_contains(&verified, &[&format!("{link}: intact, 3 files, ")]);
    for dir in [&run_dir, &link, &slash] {
        let shown = ckpt(&["inspect", dir, "--json"]).json(0);
        assert_eq!(shown["step"], 2, "{dir}");
        ckpt(&["verify", dir]).ends(0);
        ckpt(&["diff", dir, &target]).ends(0);
        ckpt(&["plan", dir]).ends(0);
        run(&["model", "estimate", dir]).ends(0);
        let to = moved.at("to");
        for arguments in [
            &["ckpt", "cp", dir, "--to", &to][..],
            &["ckpt", "reshard", dir, "--ranks", "3", "--to", &to],
            &["model", "convert", dir, "--to", &to],
        ] {
            let out = run(arguments).ends(0);
            assert!(
                out.starts_with(&format!("{to}/{STEP_2}")),
                "{arguments:?}: {out}"
            );
            fs::remove_dir_all(&to).unwrap();
        }
        ckpt(&["export", dir, "--to", &to]).ends(0);
        fs::remove_dir_all(&to).unwrap();
    }

    // A link is replaced on request only.
    let cp = ["cp", &target, "--to", &run_dir];
    check_contains(&ckpt(&cp).fails(2), &["step-00000002 already exists"]);
    ckpt(&[&cp[..], &["--replace"]].concat()).ends(0);
    assert!(!PathBuf::from(&link).is_symlink());
    ckpt(&["diff", &link, &target]).ends(0);
    assert_eq!(names(run_dir.as_ref()), ["step-00000001", STEP_2]);
    assert!(moved.target() == before);
}

#[test]
fn gc_and_rm_remove_links_only() {
    for rm in [false, true] {
        let moved = Moved::new();
        let before = moved.target();
        let (run_dir, link) = (moved.run(), moved.link());
        let target = moved.at("big/moved");
        let stays = format!("it is a symbolic link to {target}, which is not removed");
        if rm {
            let slash = format!("{link}/");
            let refused = ckpt(&["rm", &link, "--yes"]).fails(2);
            check_contains(&refused, &["has a valid manifest"]);
            for dir in [&link, &slash] {
                let out = ckpt(&["rm", dir]).ends(0);
                let way = "nothing was removed: use --yes --force to remove the link";
                check_contains(&out, &[&stays, way]);
                assert_eq!(out.lines().count(), 3, "no files are listed: {out}");
            }
            let json = ckpt(&["rm", &slash, "--force", "--yes", "--json"]).json(0);
            assert_eq!(
                (&json["link"], &json["files"]),
                (&json!(target), &json!({}))
            );
        } else {
            Sample::new().save(run_dir.as_ref(), 3);
            let gc = ["gc", &run_dir, "--keep-last", "1"];
            let out = ckpt(&gc).ends(0);
            let line = format!("would remove step 2: not kept by the rule; {stays}\n");
            check_contains(&out, &[&line]);
            let out = ckpt(&[&gc[..], &["--yes"]].concat()).ends(0);
            check_contains(&out, &["removed step 1: not kept by the rule\n", &stays]);
        }
        let left = if rm { "step-00000001" } else { "step-00000003" };
        assert_eq!(names(run_dir.as_ref()), [left]);
        assert!(moved.target() == before);
    }
}

/// The disk of the newest step is not mounted.
#[test]
fn every_command_names_a_broken_link() {
    let moved = Moved::new();
    fs::rename(moved.at("big"), moved.at("unmounted")).unwrap();
    let (run_dir, link, to) = (moved.run(), moved.link(), moved.at("to"));
    let expected = format!(
        "step-00000002 is a symbolic link to {}, where there is no checkpoint: mount the disk",
        moved.at("big/moved")
    );
    for dir in [&run_dir, &link] {
        for arguments in [
            &["ckpt", "inspect", dir][..],
            &["ckpt", "diff", dir, dir],
            &["ckpt", "plan", dir],
            &["ckpt", "export", dir, "--to", &to],
            &["ckpt", "cp", dir, "--to", &to],
            &["ckpt", "reshard", dir, "--ranks", "3", "--to", &to],
            &["model", "convert", dir, "--to", &to],
            &["model", "estimate", dir],
        ] {
            check_contains(&run(arguments).fails(3), &[&expected]);
            assert!(!PathBuf::from(&to).exists(), "{arguments:?}");
        }
        let ran = ckpt(&["verify", dir, "--json"]);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        let answer: Value = serde_json::from_str(&ran.out).unwrap();
        let last = answer["checkpoints"].as_array().unwrap().last().unwrap();
        check_contains(last["error"].as_str().unwrap(), &[&expected]);
    }
    let listed = ckpt(&["ls", &run_dir]).ends(0);
    check_contains(&listed, &["step 2: a symbolic link to ", &expected]);
    let kept = ckpt(&["gc", &run_dir, "--keep-last", "1", "--yes"]).ends(0);
    check_contains(&kept, &["keep step 2: it can't be used: ", &expected]);
    assert_eq!(names(run_dir.as_ref()), ["step-00000001", STEP_2]);

    let error = ckpt(&["rm", &link, "--yes"]).fails(3);
    check_contains(&error, &["is not known to be damaged", &expected]);
    ckpt(&["rm", &link, "--yes", "--force"]).ends(0);
    assert_eq!(names(run_dir.as_ref()), ["step-00000001"]);
}

#[test]
fn unknown_entries_are_listed() {
    let moved = Moved::new();
    let run_dir = PathBuf::from(moved.run());
    fs::write(run_dir.join("step-00000040"), "").unwrap();
    fs::write(run_dir.join("notes.txt"), "").unwrap();
    fs::create_dir(run_dir.join("step-abc")).unwrap();
    let ran = ckpt(&["ls", text(&run_dir)]);
    assert_eq!(ran.code, Some(0));
    check_contains(
        &ran.out,
        &["notes.txt: it is not part of the run\n\
           step-00000040: it has the name of a step, and is not a directory\n\
           step-abc: it does not have the name of a step, such as step-00000100\n"],
    );
    let json = ckpt(&["-q", "ls", text(&run_dir), "--json"]).json(0);
    assert_eq!(json["foreign"].as_array().unwrap().len(), 3);
    assert_eq!(
        json["foreign"][0],
        json!({"name": "notes.txt", "reason": "it is not part of the run"})
    );
    // Every command warns of entries that could be mistaken for a step.
    for command in ["ls", "verify", "inspect", "gc"] {
        let ran = ckpt(&[command, text(&run_dir)]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let warnings: Vec<&str> = ran.err.lines().collect();
        assert_eq!(warnings.len(), 2, "{command}: {}", ran.err);
        for name in ["step-00000040", "step-abc"] {
            let is_named = |line: &&&str| line.contains("WARN") && line.contains(name);
            assert_eq!(warnings.iter().filter(is_named).count(), 1, "{}", ran.err);
        }
    }
}
