//! Paths that are not UTF-8, for every command with paths: no command fails after its work is done, as text or as JSON.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use serde_json::Value;
use tempfile::TempDir;
use tinderbox_deferred::Deferred;

use crate::support::{Ran, Sample, check_contains, flip, run_os};

/// Bytes that are not UTF-8, and their form in answers.
const LATIN: &[u8] = b"caf\xe9";
const SHOWN: &str = "caf\u{fffd}";

/// A directory whose name is not UTF-8.
struct Latin {
    _parent: TempDir,
    dir: PathBuf,
}

impl Latin {
    fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join(OsStr::from_bytes(LATIN));
        fs::create_dir(&dir).unwrap();
        Self {
            _parent: parent,
            dir,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn shown(&self, name: &str) -> String {
        let shown = self.at(name).to_string_lossy().into_owned();
        assert!(shown.contains(SHOWN));
        shown
    }
}

/// Runs a command: words, with `{}` for each of the paths.
fn ran(command: &str, paths: &[&Path], flags: &[&str]) -> Ran {
    let mut paths = paths.iter();
    let words = command.split(' ').map(|word| match word {
        "{}" => paths.next().unwrap().as_os_str(),
        word => OsStr::new(word),
    });
    let mut arguments: Vec<&OsStr> = words.collect();
    assert!(paths.next().is_none());
    arguments.extend(flags.iter().map(OsStr::new));
    run_os("", &arguments)
}

/// Commands that save, whose answer is the directory.
#[test]
fn saved_directories_are_shown() {
    let latin = Latin::new();
    let step = Sample::new().save(&latin.at("from"), 5);
    let recorded = latin.at("net.model");
    let net = Deferred::new(|device: &Device| -> Linear { LinearConfig::new(2, 2).init(device) });
    net.unwrap().recorded_model().save(&recorded).unwrap();
    for (name, command, from, made) in [
        ("cp", "ckpt cp {} --to {}", &step, 5),
        ("reshard", "ckpt reshard {} --ranks 3 --to {}", &step, 5),
        ("convert", "model convert {} --to {}", &step, 5),
        ("init", "model init {} --to {}", &recorded, 0),
    ] {
        let expected = latin.shown(&format!("{name}/step-{made:08}"));
        let to = latin.at(name);
        let out = ran(command, &[from, &to], &[]).ends(0);
        // The commands of `model` add what they wrote.
        let after = if command.starts_with("model") {
            ": "
        } else {
            "\n"
        };
        assert!(out.starts_with(&format!("{expected}{after}")), "{out}");
        let out = ran(command, &[from, &to], &["--replace", "--json"]).json(0);
        assert_eq!(out["dir"], expected, "{name}");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
        let verified = ran("ckpt verify {}", &[&to], &[]).ends(0);
        check_contains(&verified, &[&expected, ": intact"]);
    }
    let export = "ckpt export {} --to {}";
    let to = latin.at("export");
    let out = ran(export, &[&step, &to], &["--json"]).json(0);
    assert_eq!(out["dir"], latin.shown("export"));
    fs::remove_dir_all(&to).unwrap();
    let out = ran(export, &[&step, &to], &[]).ends(0);
    check_contains(&out, &[&latin.shown("export"), "3 tensors"]);
    // The last name of an export must be UTF-8: it is refused before anything is written.
    let last = latin.dir.join(OsStr::from_bytes(LATIN));
    let error = ran(export, &[&step, &last], &["--json"]).fails(2);
    check_contains(&error, &[SHOWN]);
    assert!(!last.exists());
    // A URL is not a local directory.
    let url = Path::new(OsStr::from_bytes(b"s3://bucket/caf\xe9"));
    let error = ran("ckpt cp {} --to {}", &[&step, url], &[]).fails(2);
    check_contains(
        &error,
        &["s3://bucket/caf\u{fffd} is a URL that is not UTF-8"],
    );
}

/// Commands that show or remove.
#[test]
fn answers_have_their_directory() {
    let latin = Latin::new();
    let run = latin.at("run");
    let steps = [1, 2, 3].map(|step| Sample::new().save(&run, step));
    flip(&steps[0].join("manifest.json"), 100);
    fs::create_dir(run.join(OsStr::from_bytes(b"step-\xe9"))).unwrap();
    fs::create_dir(run.join(format!(".attempt-6-{}", "0123456789abcdef".repeat(2)))).unwrap();
    let shown = latin.shown("run");

    let quiet = |command: &str, path: &Path, flags: &[&str], code: i32| -> (String, Value) {
        let text = ran(command, &[path], &[flags, &["-q"]].concat()).ends(code);
        let json = ran(command, &[path], &[flags, &["-q", "--json"]].concat()).json(code);
        (text, json)
    };
    let (text, json) = quiet("ckpt ls {}", &run, &[], 0);
    assert_eq!(json["dir"], shown);
    assert_eq!(json["foreign"][0]["name"], "step-\u{fffd}");
    check_contains(
        &text,
        &["step-\u{fffd}: it does not have the name of a step"],
    );
    check_contains(json["steps"][0]["error"].as_str().unwrap(), &[&shown]);

    let (text, json) = quiet("ckpt inspect {}", &run, &[], 0);
    let third = latin.shown("run/step-00000003");
    assert_eq!(json["dir"], third);
    check_contains(&text, &[&third]);

    let (text, json) = quiet("ckpt verify {}", &run, &[], 1);
    assert_eq!(json["checkpoints"][2]["dir"], third);
    check_contains(&text, &[&third, ": damaged, 1 error\n"]);
    let missing = latin.at("missing");
    let ran_missing = ran("ckpt verify {}", &[&missing], &["--json"]);
    assert_eq!(ran_missing.code, Some(3));
    let json: Value = serde_json::from_str(&ran_missing.out).unwrap();
    assert_eq!(json["checkpoints"][0]["dir"], latin.shown("missing"));

    let (_, json) = quiet("ckpt gc {}", &run, &[], 0);
    let removed = json["remove"][0]["dir"].as_str().unwrap();
    check_contains(removed, &[&shown, ".attempt-6-"]);
    let (text, json) = quiet("ckpt rm {}", &steps[0], &[], 0);
    let first = latin.shown("run/step-00000001");
    assert_eq!(json["dir"], first);
    check_contains(&text, &["nothing was removed"]);
    let text = ran("ckpt rm {}", &[&steps[0]], &["--yes"]).ends(0);
    check_contains(&text, &[&format!("removed {first}")]);

    ran("ckpt diff {} {}", &[&steps[1], &steps[2]], &["--json"]).json(0);
    ran("model estimate {}", &[&steps[2]], &["--json"]).json(0);
    let plan = latin.at("plan.json");
    ran("ckpt plan {} -o {}", &[&steps[2], &plan], &[]).ends(0);
    assert!(plan.exists());
    let broken = ran("plan show {}", &[&plan], &["--json"]).fails(2);
    check_contains(&broken, &[SHOWN]);
}

/// The name of a schedule is the name of its file.
#[test]
fn a_schedule_in_a_file() {
    let latin = Latin::new();
    let name = OsString::from_vec([LATIN, b".txt"].concat());
    let file = latin.dir.join(name);
    fs::write(&file, "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n").unwrap();
    let out = ran("schedule verify {}", &[&file], &["--json"]).json(0);
    assert_eq!((&out["name"], &out["runs"]), (&SHOWN.into(), &true.into()));
    let out = ran("schedule verify {}", &[&file], &[]).ends(0);
    check_contains(&out, &["caf\u{fffd} can run"]);
    ran("schedule show {}", &[&file], &[]).ends(0);
    let missing = latin.at("missing");
    let error = ran("schedule verify {}", &[&missing], &[]).fails(2);
    check_contains(&error, &["no file has this name"]);
}
