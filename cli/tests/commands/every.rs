//! Every command in every form, and the exit code of every cause, in one directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use tinderbox_checkpoint::{Regex, StoredDType};

use crate::support::{Sample, check_contains, flip, run_in};
use crate::{model, plan, run};

/// The width of the narrowest terminal.
const COLUMNS: usize = 80;

/// Commands, each with its exit code. `@` is the form of the output: each form saves to its own place.
const COMMANDS: [(i32, &str); 33] = [
    (0, "ckpt ls run"),
    (0, "ckpt inspect run"),
    (0, "ckpt inspect run --all"),
    (0, "ckpt verify run"),
    (0, "ckpt diff run/step-00000005 run"),
    (1, "ckpt diff run other"),
    (0, "ckpt cp run --to copied-@"),
    (0, "ckpt reshard run --ranks 3 --to resharded-@"),
    (0, "ckpt export run --to exported-@"),
    (0, "ckpt plan run"),
    (0, "ckpt gc run --keep-last 1"),
    (0, "ckpt rm run/step-00000005"),
    (0, "model init net.model --to initial-@"),
    (0, "model convert run --dtype bf16 --to converted-@"),
    (0, "model estimate run"),
    (0, "model estimate run --ranks 2 --optimizer adamw --mixed"),
    (0, "model estimate run --micro-batches 16 --stream 1TiB"),
    (0, "schedule list"),
    (0, "schedule show zbv"),
    (0, "schedule verify 1f1b"),
    (1, "schedule verify stuck.txt"),
    (0, "schedule auto --micro-batches 4"),
    (0, "plan show plan.json"),
    (0, "plan show run"),
    (0, "plan diff plan.json plan.json"),
    (1, "plan diff plan.json moved.json"),
    (0, "run diff a.jsonl a.jsonl"),
    (1, "run diff a.jsonl b.jsonl"),
    (0, "run numerics"),
    (0, "calibrate --threads 1"),
    (0, "launch -n 1 -- echo hi"),
    (0, "completions bash"),
    (0, "completions fish"),
];
/// Commands whose output is the output of a program or a script, and has no JSON form.
const WITHOUT_JSON: [&str; 2] = ["launch", "completions"];
/// Commands whose output is a file for programs, in lines of any length.
const FILES: [&str; 2] = ["completions", "ckpt plan"];
/// Commands whose output depends on the machine.
const OF_MACHINE: [&str; 2] = ["calibrate", "run numerics"];

/// Creates a run of two steps, and a file or a directory of each other kind.
fn made() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let write = |name: &str, contents: &[u8]| fs::write(at(name), contents).unwrap();

    let text = fs::read_to_string(plan::golden()).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    let mut sample = Sample::new();
    sample.plan = Some(json.clone());
    sample.save(&at("run"), 5);
    sample.save(&at("run"), 10);
    let mut bare = Sample::parameters();
    bare.plan = None;
    bare.save(&at("other"), 10);
    let damaged = sample.save(&at("damaged"), 5);
    let shard = damaged.join("model-rank-00000.safetensors");
    let last = fs::metadata(&shard).unwrap().len() - 1;
    flip(&shard, last);
    let unfinished = sample.save(&at("unfinished"), 5);
    fs::remove_file(unfinished.join("manifest.json")).unwrap();
    fs::create_dir(at("empty")).unwrap();

    write("plan.json", text.as_bytes());
    let parameters = |json: &mut Value, stage: usize| {
        let listed = &mut json["stages"][stage]["parameters"];
        std::mem::take(listed.as_array_mut().unwrap())
    };
    let (mut first, second) = (parameters(&mut json, 0), parameters(&mut json, 1));
    let moved = first.pop().into_iter().chain(second).collect();
    json["stages"][0]["parameters"] = Value::Array(first);
    json["stages"][1]["parameters"] = Value::Array(moved);
    write("moved.json", json.to_string().as_bytes());
    let digests = |last: u64| run::digests(&[(1, [1, 2, 3]), (2, [4, 5, last])]);
    write("a.jsonl", digests(6).as_bytes());
    write("b.jsonl", digests(7).as_bytes());
    write("stuck.txt", b"0F0 0B0\n1B0 1F0\n");

    model::record(&at("net.model"));
    let whole = fs::read(at("net.model")).unwrap();
    write("damaged.model", &whole);
    flip(&at("damaged.model"), whole.len() as u64 / 2);
    let weights = model::plain("w", StoredDType::F32, &[0; 8]);
    write("cut.safetensors", &weights[..weights.len() - 1]);
    write("model.bin", b"PK\x03\x04\0\0\x08\x08data.pkl");
    write("config.json", b"{\"model_type\": \"gpt2\"}");
    dir
}

/// Runs a command line, which must end with this code and print no error; returns its output.
fn output(dir: &Path, line: &str, columns: Option<usize>, code: i32) -> String {
    let ran = run_in(dir, line, columns);
    assert_eq!((ran.code, &*ran.err), (Some(code), ""), "{line}: {ran:?}");
    ran.out
}

#[track_caller]
fn check_width(text: &str, line: &str) {
    let wide = text.lines().find(|line| line.chars().count() > COLUMNS);
    assert_eq!(wide, None, "{line}\n{text}");
}

fn is_one_of(line: &str, commands: &[&str]) -> bool {
    commands.iter().any(|command| line.starts_with(command))
}

/// Runs all commands on a terminal of 80 columns; returns what they print.
fn narrow(dir: &Path) -> String {
    let mut shown = String::new();
    for (code, line) in COMMANDS {
        let out = output(dir, &line.replace('@', "narrow"), Some(COLUMNS), code);
        if !is_one_of(line, &FILES) {
            check_width(&out, line);
        }
        if !is_one_of(line, &FILES) && !is_one_of(line, &OF_MACHINE) {
            shown += &format!("$ tinderbox {line}\n{out}\n");
        }
    }
    let date = Regex::new(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z").unwrap();
    date.replace_all(&shown, "2001-02-03T04:05:06Z")
        .into_owned()
}

/// Runs all commands in a pipe.
fn piped(dir: &Path) {
    for (code, line) in COMMANDS {
        let out = output(dir, &line.replace('@', "piped"), None, code);
        assert!(
            out.ends_with('\n') && !out.contains('\x1b'),
            "{line}\n{out}"
        );
    }
}

/// Runs all commands with `--json`.
fn as_json(dir: &Path) {
    for (code, line) in COMMANDS {
        if is_one_of(line, &WITHOUT_JSON) {
            continue;
        }
        let line = format!("{} --json", line.replace('@', "json"));
        let out = output(dir, &line, None, code);
        let json: Result<Value, _> = serde_json::from_str(&out);
        assert!(json.is_ok_and(|json| json.is_object()), "{line}\n{out}");
    }
}

#[test]
fn every_command_has_every_form() {
    let dir = made();
    let dir = dir.path();
    let shown = thread::scope(|scope| {
        scope.spawn(|| piped(dir));
        scope.spawn(|| as_json(dir));
        narrow(dir)
    });
    insta::assert_snapshot!("every_command", shown);
}

/// Returns the commands in the help of a command; none if it has no subcommands.
fn subcommands(dir: &Path, command: &str) -> Vec<String> {
    let line = format!("{command} --help");
    let help = output(dir, line.trim_start(), Some(COLUMNS), 0);
    check_width(&help, &line);
    let codes = "\nExit codes: 0 done, 1 the answer is no, 2 wrong use, 3 something is missing\n";
    check_contains(&help, &[codes]);
    let lines = help.lines().skip_while(|line| *line != "Commands:");
    let lines = lines.skip(1).take_while(|line| !line.is_empty());
    // Further lines of a description have a larger indent.
    let lines = lines.filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter_map(|line| line.split(' ').next());
    let names = names.filter(|name| !["", "help"].contains(name));
    let names = names.map(|name| format!("{command} {name}").trim_start().to_owned());
    names.collect()
}

#[test]
fn every_help_fits_and_every_command_is_tested() {
    let dir = tempfile::tempdir().unwrap();
    let mut groups = vec![String::new()];
    let mut untested = Vec::new();
    while let Some(group) = groups.pop() {
        let inner = subcommands(dir.path(), &group);
        // Every line starts with the empty name, which is the name of the whole command.
        let is_tested = !group.is_empty() && is_one_of_lines(&group);
        if inner.is_empty() && !is_tested {
            untested.push(group);
        }
        groups.extend(inner);
    }
    assert_eq!(untested, [""; 0]);
}

fn is_one_of_lines(command: &str) -> bool {
    let mut lines = COMMANDS.iter().map(|(_, line)| *line);
    lines.any(|line| line.starts_with(command))
}

/// Returns the causes in the chapter "Operating a run", each with its exit code.
fn documented() -> BTreeMap<String, i32> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let chapter = fs::read_to_string(root.join("docs/src/operating.md")).unwrap();
    let rows = chapter
        .lines()
        .skip_while(|line| *line != "| cause | code |");
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let rows = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].to_owned(), cells[1].parse().unwrap())
    });
    rows.collect()
}

/// The causes of the chapter, each with commands that it fails.
const CAUSES: [(&str, &[&str]); 12] = [
    (
        "two checkpoints, plans or runs differ",
        &[
            "ckpt diff run other",
            "plan diff plan.json moved.json",
            "run diff a.jsonl b.jsonl",
        ],
    ),
    (
        "a file is damaged, or a step has no manifest",
        &[
            "ckpt verify damaged",
            "ckpt ls damaged --verify",
            "ckpt cp damaged --to new",
            "ckpt reshard damaged --ranks 1 --to new",
            "ckpt export damaged --to exported",
            "ckpt verify unfinished",
            "ckpt ls unfinished --verify",
            "ckpt inspect unfinished/step-00000005",
            "ckpt cp unfinished --to new",
            "model estimate unfinished",
            "model convert damaged --to new",
            "model convert cut.safetensors --to new",
            "model estimate cut.safetensors",
            "model init damaged.model --to new",
            "model estimate damaged.model",
        ],
    ),
    (
        "a schedule can't run",
        &["schedule verify stuck.txt", "schedule show stuck.txt"],
    ),
    (
        "a checkpoint was saved without a plan",
        &[
            "ckpt plan other",
            "plan show other",
            "plan diff other plan.json",
            "model estimate other --micro-batches 2",
        ],
    ),
    (
        "an argument is invalid, or does not fit the others",
        &[
            "ckpt ls",
            "ckpt reshard run --ranks 0 --to new",
            "schedule list --times 1,2",
            "model convert run --dtype i8 --to new",
            "model estimate plan.json --ranks 2",
            "model estimate net.model --stream 1MiB",
            "plan diff - -",
            "launch -n 1",
        ],
    ),
    (
        "a limit of memory is too low",
        &[
            "model convert run --memory 1MiB --to new",
            "model init net.model --memory 1MiB --to new",
            "model estimate plan.json --stream 1B",
        ],
    ),
    (
        "the step or the directory to write exists",
        &[
            "ckpt cp run --to run",
            "ckpt reshard run --ranks 1 --to run",
            "model convert run --to run",
            "ckpt export run --to run",
        ],
    ),
    (
        "a file is of another kind",
        &[
            "model convert model.bin --to new",
            "model estimate model.bin",
            "model init model.bin --to new",
            "model convert config.json --to new",
            "model estimate config.json",
            "model init config.json --to new",
            "plan show config.json",
            "plan show a.jsonl",
            "run diff plan.json a.jsonl",
            "run numerics plan.json",
            "schedule verify config.json",
        ],
    ),
    (
        "a file or a directory does not exist",
        &[
            "ckpt ls none",
            "ckpt inspect none",
            "ckpt verify none",
            "ckpt diff run none",
            "ckpt gc none",
            "model convert none --to new",
            "model estimate none",
            "model init none --to new",
            "plan show none.json",
            "run diff a.jsonl none",
            "run numerics none",
        ],
    ),
    (
        "a run does not have the step",
        &[
            "ckpt inspect run --step 7",
            "ckpt inspect run/step-00000007",
            "ckpt verify run/step-00000007",
            "ckpt rm run/step-00000007",
            "ckpt plan run --step 7",
            "plan show run --step 7",
            "model estimate run --step 7",
            "model convert run/step-00000007 --to new",
        ],
    ),
    (
        "a directory has no step and no model",
        &[
            "ckpt ls empty",
            "ckpt inspect empty",
            "ckpt verify empty",
            "ckpt plan empty",
            "plan show empty",
            "model convert empty --to new",
            "model estimate empty",
        ],
    ),
    (
        "the machine lacks a permission, memory, disk space, the network or a reader of the output",
        &[
            "schedule list -o /dev/full",
            "ckpt inspect run -o /dev/full",
            "model estimate run -o /dev/full",
        ],
    ),
];

#[test]
fn a_cause_has_one_exit_code() {
    let dir = made();
    let documented = documented();
    let tested: BTreeSet<&str> = CAUSES.iter().map(|(cause, _)| *cause).collect();
    let listed: BTreeSet<&str> = documented.keys().map(|cause| &**cause).collect();
    assert_eq!(tested, listed);
    for (cause, lines) in CAUSES {
        for line in lines {
            // The device without space is one of Linux.
            if line.ends_with("/dev/full") && !Path::new("/dev/full").exists() {
                continue;
            }
            let ran = run_in(dir.path(), line, None);
            assert_eq!(
                ran.code,
                Some(documented[cause]),
                "{cause}: {line}: {ran:?}"
            );
        }
    }
}
