//! Tests of `tinderbox schedule` as a process.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs `tinderbox schedule` with these arguments; returns its exit code, output and error.
fn schedule(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tinderbox"));
    command
        .arg("schedule")
        .args(arguments)
        .env_remove("NO_COLOR");
    let ran = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        ran.status.code().unwrap(),
        text(ran.stdout),
        text(ran.stderr),
    )
}

#[track_caller]
fn fine(arguments: &[&str]) -> String {
    let (code, out, err) = schedule(arguments);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    out
}

/// Returns the error of a failed command: one line, exit code 2.
#[track_caller]
fn refused(arguments: &[&str]) -> String {
    let (code, out, err) = schedule(arguments);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    err
}

const SIZE: [&str; 4] = ["--stages", "4", "--micro-batches", "8"];

fn show<'a>(name: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["show", name][..], &SIZE, rest].concat()
}

#[test]
fn a_named_schedule_is_drawn_as_wide_as_asked_for() {
    for width in ["40", "80", "132"] {
        let out = fine(&show("1f1b", &["--width", width]));
        let widest = out.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= width.parse().unwrap(), "{widest}\n{out}");
        assert!(!out.contains('\u{1b}'), "no colour without a terminal");
        // A fill of (p - 1)(F + B) = 9 in 33 ticks.
        assert!(out.contains("33 ticks") && out.contains("27.3 %"), "{out}");
    }
}

#[test]
fn lists_are_printed_as_rows_and_as_json() {
    let rows = fine(&show("gpipe", &["--actions"]));
    assert!(rows.starts_with("0F0 0F1 0F2"), "{rows}");
    assert_eq!(rows.lines().count(), 4);
    let lowered = fine(&show("gpipe", &["--actions", "--lowered"]));
    assert!(lowered.contains("0F0>1F0"), "{lowered}");
    let json = fine(&show("zb-h1", &["--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["name"], &json["micro_batches"]),
        (&"zb-h1".into(), &8.into())
    );
}

#[test]
fn a_file_is_a_schedule_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (rows, csv) = (path("mine.txt"), path("torch.csv"));
    fs::write(&rows, "# mine\n0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n").unwrap();
    fs::write(&csv, "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n").unwrap();
    for file in [&rows, &csv] {
        let out = fine(&["show", &text(file), "--actions"]);
        assert_eq!(out, "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n");
    }
    // An invalid schedule is not an error of the command, but a finding.
    fs::write(&rows, "0F0 0B0\n1B0 1F0\n").unwrap();
    let (code, out, _) = schedule(&["show", &text(&rows)]);
    assert_eq!(code, 1);
    assert!(
        out.starts_with("mine can't run: `1B0` (rank 1, position 0) is before"),
        "{out}"
    );

    // Large claims of a file cost nothing, and control characters in its name are escaped.
    let claim = r#"{"name":"\u001b[2J","mode":"training","form":"compute_only",
        "stages":1000000000000,"micro_batches":1,"stage_to_rank":[0],"ranks":[["0F0","0B0"]]}"#;
    fs::write(&rows, claim).unwrap();
    let (code, out, _) = schedule(&["show", &text(&rows)]);
    assert_eq!(code, 1);
    assert!(
        out.starts_with(r"\u{1b}[2J can't run: the stage-to-rank map has 1"),
        "{out}"
    );

    fs::write(&rows, "0F0 0B0\n1F0 1X0\n").unwrap();
    let error = refused(&["show", &text(&rows)]);
    assert!(error.contains("row 2, column 5"), "{error}");
}

#[test]
fn pictures_are_written_to_files() {
    let dir = tempfile::tempdir().unwrap();
    let (svg, trace) = (dir.path().join("a.svg"), dir.path().join("a.json"));
    let files = [
        "--svg",
        svg.to_str().unwrap(),
        "--trace",
        trace.to_str().unwrap(),
    ];
    fine(&show("dualpipev", &files));
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("prefers-color-scheme:dark"));
    let trace: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
}

/// The committed drawings are those of this build.
#[test]
fn the_pictures_of_the_documentation_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let copied = dir.path().join("scripts");
    fs::create_dir_all(&copied).unwrap();
    fs::create_dir_all(dir.path().join("docs/src/schedules")).unwrap();
    fs::copy(
        root.join("scripts/draw-schedules"),
        copied.join("draw-schedules"),
    )
    .unwrap();
    let drawn = Command::new("bash")
        .arg(copied.join("draw-schedules"))
        .arg(env!("CARGO_BIN_EXE_tinderbox"))
        .status()
        .unwrap();
    assert!(drawn.success());
    let mut files = 0;
    for entry in fs::read_dir(dir.path().join("docs/src/schedules")).unwrap() {
        let entry = entry.unwrap();
        let committed = root.join("docs/src/schedules").join(entry.file_name());
        let same = fs::read(entry.path()).unwrap() == fs::read(&committed).unwrap();
        assert!(same, "{}: run scripts/draw-schedules", committed.display());
        files += 1;
    }
    assert_eq!(files, 12, "a page and a picture of each");
}

#[test]
fn the_table_has_every_schedule() {
    let json = fine(&["list", "--json", "--stages", "4", "--micro-batches", "8"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.len(), 11);
    let one = rows.iter().find(|row| row["name"] == "1f1b").unwrap();
    // (p - 1)(F + B), with 12 ticks for each of F, I and W.
    assert_eq!(one["bubble_ticks"], 108);
    assert_eq!(one["peak_micro_batches"], 4.0);
    let table = fine(&["list"]);
    assert!(table.contains("interleaved-1f1b"), "{table}");
}

#[test]
fn wrong_arguments_say_what_is_wanted() {
    for (arguments, expected) in [
        (
            &["show", "1f1b"][..],
            "a named schedule requires --stages and --micro-batches",
        ),
        (
            &["show", "zigzag", "--stages", "2"],
            "and no file has this name",
        ),
        (&show("zbv", &["--chunks", "3"]), "2 chunks"),
        (&show("1f1b", &["--times", "1,2"]), "three whole numbers"),
        (&["show", "1f1b", "--stages", "0"], "0 is not in 1..=4096"),
        (
            &["list", "--times", "1,1,1"],
            "1 ticks are not divisible by the 2 chunks of looped-bfs",
        ),
        (
            &[
                "show",
                "gpipe",
                "--stages",
                "4096",
                "--micro-batches",
                "4096",
            ],
            "the maximum for drawing",
        ),
    ] {
        let error = refused(arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
