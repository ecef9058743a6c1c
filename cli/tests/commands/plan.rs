//! Tests of `tinderbox plan` as a process.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Sample, check_contains, run, run_with, text};

#[track_caller]
fn ends(code: i32, arguments: &[&str]) -> String {
    run(&[&["plan"], arguments].concat()).ends(code)
}

#[track_caller]
fn fails(code: i32, arguments: &[&str]) -> String {
    run(&[&["plan"], arguments].concat()).fails(code)
}

/// Returns the path of a plan with four stages.
pub fn golden() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    root.join("pipeline/planner/tests/golden/plan-version-3.json")
}

#[test]
fn a_plan_is_shown_in_every_form() {
    let golden = golden();
    let file = text(&golden);
    let table = ends(0, &["show", file]);
    for expected in [
        "bottleneck   stage 1",
        "Memory of each rank at its peak",
        "recomputes",
    ] {
        assert!(table.contains(expected), "{expected}\n{table}");
    }
    let widest = table.lines().map(|line| line.chars().count()).max();
    assert!(widest.unwrap() <= 80, "{table}");
    assert_eq!(
        ends(0, &["show", file, "--json"]),
        fs::read_to_string(&golden).unwrap()
    );
    let programs = ends(0, &["show", file, "--program"]);
    assert_eq!(programs.matches("--- forward of stage").count(), 4);
    for arguments in [
        &["show", file, "--stage", "3", "--stage", "1"][..],
        &["show", file, "--program", "--stage", "1", "--stage", "3"],
    ] {
        let some = ends(0, arguments);
        let stages: Vec<&str> = some
            .lines()
            .filter(|line| line.starts_with("==="))
            .collect();
        assert_eq!(stages.len(), 2, "{some}");
        assert!(stages[0].starts_with("=== stage 1") && stages[1].starts_with("=== stage 3"));
    }
}

#[test]
fn a_view_can_be_written_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (golden, programs) = (golden(), dir.path().join("programs.txt"));
    let show = ["show", text(&golden), "--program"];
    assert_eq!(ends(0, &[&show[..], &["-o", text(&programs)]].concat()), "");
    assert_eq!(fs::read_to_string(&programs).unwrap(), ends(0, &show));
    let nowhere = dir.path().join("none/programs.txt");
    let error = fails(3, &["show", text(&golden), "-o", text(&nowhere)]);
    assert!(
        error.contains("can't write") && error.contains("none/programs.txt"),
        "{error}"
    );
    let error = fails(2, &["show", text(&golden), "-o", text(dir.path())]);
    assert!(error.contains("Is a directory"), "{error}");
    let printed = ends(0, &["show", text(&golden), "-o", "-"]);
    assert_eq!(printed, ends(0, &["show", text(&golden)]));
}

#[test]
fn plans_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let (golden, other) = (golden(), dir.path().join("other.json"));
    let (first, second) = (text(&golden), text(&other));
    let json = fs::read_to_string(&golden).unwrap();
    let mut value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(ends(0, &["diff", first, first]), "the plans are the same\n");
    let none = ends(0, &["diff", first, first, "--json"]);
    assert_eq!(none, "{\"schema\":1,\"changes\":[]}\n");

    let moved = value["stages"][0]["parameters"]
        .as_array_mut()
        .unwrap()
        .pop()
        .unwrap();
    value["stages"][1]["parameters"]
        .as_array_mut()
        .unwrap()
        .insert(0, moved);
    fs::write(&other, value.to_string()).unwrap();
    let out = ends(1, &["diff", first, second]);
    let line = "  blocks.1.attention.bias: stage 0 -> 1\n";
    assert!(out.contains(line), "{out}");
    let out = ends(1, &["diff", second, first, "--json"]);
    let out: Value = serde_json::from_str(&out).unwrap();
    let path = "parameters[blocks.1.attention.bias].stage";
    let change = serde_json::json!({"path": path, "before": 1, "after": 0});
    assert_eq!(out["changes"][0], change);
}

/// The plan of a checkpoint has no text of its programs.
#[test]
fn programs_are_compared_if_both_plans_have_them() {
    let dir = tempfile::tempdir().unwrap();
    let (golden, other) = (golden(), dir.path().join("other.json"));
    let json = fs::read_to_string(&golden).unwrap();
    let mut value: Value = serde_json::from_str(&json).unwrap();
    for stage in value["stages"].as_array_mut().unwrap() {
        stage["programs"] = Value::Array(Vec::new());
    }
    fs::write(&other, value.to_string()).unwrap();
    let (first, second) = (text(&golden), text(&other));
    for both in [[first, second], [second, first]] {
        let ran = run(&["plan", "diff", both[0], both[1]]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.out, "the plans are the same\n");
        assert_eq!(
            ran.err,
            "note: one of the plans has no text of its programs, so programs were not compared\n"
        );
    }
    assert_eq!(
        ends(0, &["diff", second, second]),
        "the plans are the same\n"
    );
    value["step"]["micro_batches"] = 16.into();
    fs::write(&other, value.to_string()).unwrap();
    let out = ends(1, &["diff", first, second, "-q"]);
    check_contains(&out, &["  micro-batches  8 -> 16\n"]);
    let mut cut: Value = serde_json::from_str(&json).unwrap();
    cut["stages"][0]["programs"] = Value::Array(Vec::new());
    fs::write(&other, cut.to_string()).unwrap();
    check_contains(&ends(1, &["diff", first, second]), &["programs"]);
}

/// The inputs are first, in the words of `plan show`, and no row has +0.0 %.
#[test]
fn the_differences_of_plans_are_in_the_words_of_their_tables() {
    let dir = tempfile::tempdir().unwrap();
    let (golden, other) = (golden(), dir.path().join("other.json"));
    let json = fs::read_to_string(&golden).unwrap();
    let mut value: Value = serde_json::from_str(&json).unwrap();
    let busy = value["prediction"]["ranks"][0]["busy_ns"].as_u64().unwrap();
    value["prediction"]["ranks"][0]["busy_ns"] = (busy + 1).into();
    fs::write(&other, value.to_string()).unwrap();
    let out = ends(1, &["diff", text(&golden), text(&other)]);
    insta::assert_snapshot!(out, @"1 change of less than 0.05 %");
    value["prediction"]["ranks"][0]["busy_ns"] = (2 * busy).into();
    value["prediction"]["idle_permille"] = 100.into();
    value["step"]["micro_batches"] = 16.into();
    value["machine"]["action_ns"] = 6000.into();
    fs::write(&other, value.to_string()).unwrap();
    let out = ends(1, &["diff", text(&golden), text(&other)]);
    insta::assert_snapshot!(out, @"
    inputs
      an action      3.00 µs -> 6.00 µs (+100.0 %)
      micro-batches  8 -> 16

    prediction
      idle  35.8 % -> 10.0 %

    rank 0
      busy  168 ms -> 336 ms (+100.0 %)
    ");
}

/// `plan show` takes a run like the other commands.
#[test]
fn the_plan_of_a_run_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (golden, run_dir) = (golden(), dir.path().join("run"));
    let mut sample = Sample::new();
    let json = fs::read_to_string(&golden).unwrap();
    sample.plan = Some(serde_json::from_str(&json).unwrap());
    let steps = [1, 2].map(|step| sample.save(&run_dir, step));
    let table = ends(0, &["show", text(&golden)]);
    for arguments in [
        &["show", text(&run_dir)][..],
        &["show", text(&steps[0])],
        &["show", text(&run_dir), "--step", "1"],
    ] {
        assert_eq!(ends(0, arguments), table);
    }
    let none = ends(0, &["diff", text(&run_dir), text(&golden)]);
    assert_eq!(none, "the plans are the same\n");
    let error = fails(3, &["show", text(&run_dir), "--step", "7"]);
    check_contains(&error, &["has no step 7: its steps are 1, 2"]);
    for command in [
        &["show", text(&golden)][..],
        &["diff", text(&run_dir), text(&golden)],
    ] {
        let error = fails(2, &[command, &["--step", "1"]].concat());
        check_contains(
            &error,
            &[
                "--step chooses a step of a run",
                "is not the directory of a run: leave it out, or choose a step by its directory",
            ],
        );
    }
    sample.plan = None;
    sample.save(&run_dir, 3);
    let error = fails(1, &["show", text(&run_dir)]);
    check_contains(&error, &["step-00000003 was saved without a plan"]);
}

/// `plan diff` chooses the steps of its runs like `ckpt diff`.
#[test]
fn the_plans_of_two_steps_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let mut sample = Sample::new();
    let mut json: Value = serde_json::from_slice(&fs::read(golden()).unwrap()).unwrap();
    let steps = [1, 2, 3].map(|step: u64| {
        json["step"]["micro_batches"] = (8 * step).into();
        sample.plan = Some(json.clone());
        sample.save(&run_dir, step)
    });
    let run_dir = text(&run_dir);
    let changed = "  micro-batches  8 -> 16\n";
    for arguments in [
        &["diff", run_dir, run_dir, "--step", "1", "--step", "2"][..],
        &["diff", text(&steps[0]), text(&steps[1])],
    ] {
        check_contains(&ends(1, arguments), &[changed]);
    }
    let newest = ends(1, &["diff", text(&steps[0]), run_dir]);
    check_contains(&newest, &["  micro-batches  8 -> 24\n"]);
    let same = ends(0, &["diff", run_dir, run_dir, "--step", "1"]);
    assert_eq!(same, "the plans are the same\n");
    let thrice = ["--step", "1", "--step", "2", "--step", "3"];
    let error = fails(2, &[&["diff", run_dir, run_dir], &thrice[..]].concat());
    check_contains(&error, &["--step can be given at most twice"]);
}

#[test]
fn invalid_plan_files_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    let digests = "{\"step\":1,\"parameters\":[],\"state\":[]}\n".repeat(2);
    for (content, expected) in [
        ("", "plan.json is empty: expected a plan"),
        ("{\"name\": \"other\"}", "missing field `version`"),
        (
            "{\"version\": 3, \"mod",
            "plan.json ends inside a plan: it was cut off",
        ),
        (
            &*digests,
            "plan.json: expected a plan, found the digests of a run: `tinderbox run diff` compares them",
        ),
        (
            "{\"model_type\": \"gpt2\"}",
            "expected a plan, found the configuration of a model",
        ),
        (
            "\u{0}\u{1}PK",
            "plan.json: expected a plan, found no JSON object",
        ),
        (
            "{\"version\": 1}",
            "version 1 and this build reads versions 2 to 3: create the plan again",
        ),
    ] {
        fs::write(&file, content).unwrap();
        for arguments in [
            &["show", text(&file)][..],
            &["diff", text(&file), text(&file)],
        ] {
            let error = fails(2, arguments);
            assert!(error.contains(expected), "{error}");
        }
    }
    fs::write(&file, [0xff, 0xfe]).unwrap();
    let error = fails(2, &["show", text(&file)]);
    check_contains(&error, &["plan.json is not a text file"]);
    let error = fails(3, &["show", text(dir.path())]);
    check_contains(&error, &["is neither a checkpoint"]);
    let error = fails(3, &["diff", text(&golden()), "no-such-plan.json"]);
    assert!(
        error.contains("no-such-plan.json can't be read: No such file"),
        "{error}"
    );
}

#[test]
fn wrong_arguments_say_what_is_wanted() {
    let golden = golden();
    let file = text(&golden);
    for (arguments, expected) in [
        (
            &["show", file, "--stage", "4"][..],
            "no stage 4: its stages are 0 to 3",
        ),
        (
            &["show", file, "--json", "--program"],
            "cannot be used with",
        ),
        (
            &["show", file, "--json", "--stage", "1"],
            "cannot be used with",
        ),
        (
            &["show", file, "--stage", "one"],
            "invalid value 'one' for '--stage <K>': expected a whole number",
        ),
        (&["diff", file], "not provided: <B>"),
    ] {
        let error = fails(2, arguments);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_plan_is_read_from_standard_input() {
    let golden = golden();
    let json = fs::read_to_string(&golden).unwrap();
    let table = ends(0, &["show", text(&golden)]);
    assert_eq!(run_with(&json, &["plan", "show", "-"]).ends(0), table);
    for both in [["-", text(&golden)], [text(&golden), "-"]] {
        let ran = run_with(&json, &["plan", "diff", both[0], both[1]]);
        assert_eq!(ran.ends(0), "the plans are the same\n");
    }
    let error = run_with(&json, &["plan", "diff", "-", "-"]).fails(2);
    assert!(error.contains("only one of the files"), "{error}");
    let error = run_with("", &["plan", "show", "-"]).fails(2);
    check_contains(&error, &["error: standard input is empty: expected a plan"]);
}
