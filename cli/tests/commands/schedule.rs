//! Tests of `tinderbox schedule` as a process.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{check_contains, run, run_with, text};
use serde_json::{Value, json};
use tinderbox_schedule::{Schedule, ScheduleKind};

#[track_caller]
fn fine(arguments: &[&str]) -> String {
    run(&[&["schedule"], arguments].concat()).ends(0)
}

/// Returns the error of a failed command.
#[track_caller]
fn fails(code: i32, arguments: &[&str]) -> String {
    run(&[&["schedule"], arguments].concat()).fails(code)
}

const SIZE: [&str; 4] = ["--ranks", "4", "--micro-batches", "8"];

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
        // A fill of (p - 1)(F + B) = 108 in 396 ticks.
        assert!(out.contains("396 ticks") && out.contains("27.3 %"), "{out}");
        // Every rank is idle as long.
        assert_eq!(out.matches("│  27.3 %").count(), 4, "{out}");
    }
    let narrow = fails(2, &show("1f1b", &["--width", "39"]));
    check_contains(&narrow, &["'39'", "--width"]);
}

#[test]
fn lists_are_printed_as_rows_and_as_json() {
    let rows = fine(&show("gpipe", &["--actions"]));
    assert!(rows.starts_with("0F0 0F1 0F2"), "{rows}");
    assert_eq!(rows.lines().count(), 4);
    let lowered = fine(&show("gpipe", &["--actions", "--lowered"]));
    assert!(lowered.contains("0F0>1F0"), "{lowered}");
    let json = fine(&show("zb-h1", &["--json"]));
    assert!(
        json.starts_with("{\"schema\":1,\"name\":\"zb-h1\","),
        "{json}"
    );
    let expected = ScheduleKind::ZbH1.generate(4, 1, 8).unwrap();
    assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), expected);
    for name in ["gpipe", "zbv"] {
        let rows = fine(&show(name, &["--actions", "--lowered"]));
        let read = run_with(&rows, &["schedule", "show", "-", "--actions"]).ends(0);
        assert_eq!(read, rows);
    }
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
    let file = text(&rows);
    fs::write(&rows, "0F0 0B0\n1F0 1X0\n").unwrap();
    check_contains(&fails(2, &["show", &file]), &["row 2, column 5"]);
    check_contains(
        &fails(2, &["verify", &file, "--ranks", "2"]),
        &["remove --ranks"],
    );
}

/// A file of another kind is named as what it is.
#[test]
fn other_files_are_no_schedules() {
    let json = fine(&["show", "gpipe", "--json"]);
    let error = run_with(&json, &["schedule", "show", "-"]).fails(2);
    insta::assert_snapshot!(error, @"error: standard input: expected rows of actions, found a schedule as JSON: `tinderbox schedule show --actions` prints the rows that can be read");
    let plan = crate::plan::golden();
    let error = fails(2, &["verify", text(&plan)]);
    check_contains(
        &error,
        &["plan-version-3.json: expected rows of actions, found a plan: "],
    );
}

/// Files that PyTorch wrote, with communication and without.
#[test]
fn the_files_of_pytorch_can_run() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = directory.join("../pipeline/schedule/tests/golden/torch-2.15.0");
    let mut files = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let file = text(&path);
        let name = path.file_stem().unwrap().to_str().unwrap();
        files += 1;
        // PyTorch's own check refuses it, too.
        if name.ends_with(".refused") {
            let refused = run(&["schedule", "verify", file]).ends(1);
            check_contains(&refused, &["rank 0 lacks `0F4`"]);
            continue;
        }
        let verified = run(&["schedule", "verify", file, "--quiet"]).ends(0);
        assert!(
            verified.starts_with(&format!("{name} can run: a step takes ")),
            "{verified}"
        );
        let shown = run(&["schedule", "show", file]);
        // Backwards from the last micro-batch on: the numbers are not the numbers of the file.
        let notes = match name.starts_with("LoopedBFS") {
            true => format!(
                "note: {name} runs forwards and backwards in different orders of micro-batches: they are numbered in \
                 the order of the backwards, in which gradients are added\n"
            ),
            false => String::new(),
        };
        assert_eq!((shown.code, shown.err), (Some(0), notes));
        assert!(shown.out.lines().count() > 2, "{}", shown.out);
    }
    assert_eq!(files, 16);
    let unknown = run_with("0F0,0OFFLOAD0,0B0\n", &["schedule", "verify", "-"]).fails(2);
    check_contains(&unknown, &["row 1, column 5", "OFFLOAD is unknown"]);
}

#[test]
fn a_schedule_that_cannot_run_is_the_answer_no() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, picture) = (dir.path().join("mine.txt"), dir.path().join("mine.svg"));
    fs::write(&rows, "0F0 0B0\n1B0 1F0\n").unwrap();
    let file = text(&rows);
    let reason = "mine can't run: `1B0` (rank 1, position 0) is before";
    let out = run(&["schedule", "verify", file]).ends(1);
    assert!(out.starts_with(reason), "{out}");
    let found = run(&["schedule", "verify", file, "--json"]).json(1);
    assert_eq!(
        (&found["name"], &found["runs"]),
        (&json!("mine"), &json!(false))
    );
    check_contains(found["reason"].as_str().unwrap(), &["`1B0` (rank 1"]);
    let svg = ["show", file, "--svg", "-o", text(&picture)];
    assert!(fails(1, &svg).starts_with(&format!("error: {reason}")));
    assert!(!picture.exists());

    // Large numbers in a file cost nothing, and control characters in its name are escaped.
    fs::write(&rows, "4000000000F0 4000000000B0\n").unwrap();
    let error = run(&["schedule", "verify", file]).fails(2);
    check_contains(&error, &["stage 4000000000, but no row runs stage 0"]);
    fs::write(&rows, "0F4000000000 0B4000000000\n").unwrap();
    let out = run(&["schedule", "verify", file]).ends(1);
    assert!(
        out.starts_with("mine can't run: rank 0 lacks `0F0`"),
        "{out}"
    );
    let named = dir.path().join("\u{1b}[2J.txt");
    fs::write(&named, "0F0 0B0\n1B0 1F0\n").unwrap();
    let named = text(&named);
    let reason = r"\u{1b}[2J can't run: `1B0` (rank 1, position 0)";
    let out = run(&["schedule", "verify", named]).ends(1);
    assert!(out.starts_with(reason), "{out}");
    assert!(fails(1, &["show", named]).starts_with(&format!("error: {reason}")));

    let out = fine(&["verify", "zbv"]);
    assert_eq!(out, "zbv can run: a step takes 306 ticks\n");
    let found = run_with(
        "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n",
        &["schedule", "verify", "-", "--times", "1,1,1", "--json"],
    );
    let expected = json!({
        "schema": 1, "name": "standard input", "link": "unbounded", "runs": true, "step_ticks": 9,
        "reason": null,
    });
    assert_eq!(found.json(0), expected);
}

#[test]
fn auto_finds_a_schedule_within_a_memory_limit() {
    let one = ["--chunks", "1", "--times", "100,150,70"];
    let auto = |rest: &[&str]| run(&[&["schedule", "auto"], &SIZE[..], &one, rest].concat());
    let file = auto(&["--peak", "3", "--actions"]).ends(0);
    assert_eq!(auto(&["--memory", "3", "--actions"]).ends(0), file);
    let schedule = Schedule::parse("auto", &file).unwrap();
    assert_eq!((schedule.world_size(), schedule.micro_batches), (4, 8));
    let peaks = tinderbox_schedule::peak_activations(&schedule);
    assert!(peaks.iter().all(|peak| *peak <= 3), "{peaks:?}");
    // The times of the answer are the times of `verify`.
    let verify = ["schedule", "verify", "-", "--times", "100,150,70", "--json"];
    let ticks = run_with(&file, &verify).json(0)["step_ticks"].clone();
    let drawn = auto(&["--peak", "3,3,3,3"]).ends(0);
    check_contains(
        &drawn,
        &[
            &format!("auto: {ticks} ticks, at least "),
            "no named schedule fits",
        ],
    );
    check_contains(
        &auto(&[]).ends(0),
        &["the fastest named schedule that fits, takes "],
    );
    // Two stages of a rank: as fast as the best in a loop and in a V.
    let best = run(&["schedule", "auto", "--actions"]).ends(0);
    let ticks = run_with(&best, &["schedule", "verify", "-", "--json"]).json(0);
    let rows = run(&["schedule", "list", "--json"]).json(0);
    let named = rows["schedules"].as_array().unwrap().iter();
    let named = named.map(|row| row["step_ticks"].as_u64().unwrap()).min();
    assert!(ticks["step_ticks"].as_u64() <= named, "{ticks}");

    check_contains(
        &auto(&["--peak", "3,3"]).fails(2),
        &["--peak has 2 limits for 4 ranks"],
    );
    check_contains(&auto(&["--peak", "0"]).fails(2), &["invalid value '0'"]);
    let two = ["--json", "--trace"];
    check_contains(&auto(&two).fails(2), &["cannot be used with"]);
    let lowered = ["--lowered", "--svg"];
    check_contains(&auto(&lowered).fails(2), &["cannot be used with"]);
}

#[test]
fn pictures_are_written_to_files() {
    let dir = tempfile::tempdir().unwrap();
    let written = |form: &str| {
        let path = dir.path().join("a");
        assert_eq!(fine(&show("dualpipev", &[form, "-o", text(&path)])), "");
        let found = fs::read_to_string(path).unwrap();
        assert_eq!(found, fine(&show("dualpipev", &[form])));
        found
    };
    let svg = written("--svg");
    assert!(svg.starts_with("<svg") && svg.contains("prefers-color-scheme:dark"));
    let trace: Value = serde_json::from_str(&written("--trace")).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
}

/// The committed drawings are the drawings of this build.
#[test]
fn the_pictures_of_the_documentation_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let copied = dir.path().join("tools");
    fs::create_dir_all(&copied).unwrap();
    fs::create_dir_all(dir.path().join("docs/src/schedules")).unwrap();
    fs::copy(
        root.join("tools/draw-schedules"),
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
        assert!(same, "{}: run tools/draw-schedules", committed.display());
        files += 1;
    }
    assert_eq!(files, 12, "a page and a picture of each");
}

#[test]
fn the_table_has_every_schedule() {
    let json = run(&["schedule", "list", "--json"]).json(0);
    let rows = json["schedules"].as_array().unwrap();
    assert_eq!(rows.len(), 11);
    let one = rows.iter().find(|row| row["name"] == "1f1b").unwrap();
    // (p - 1)(F + B), with 12 ticks for each of F, I and W.
    assert_eq!(one["bubble_ticks"], 108);
    assert_eq!(one["peak_micro_batches"], 4.0);
    let table = fine(&["list"]);
    assert!(table.contains("interleaved-1f1b"), "{table}");
    let widest = table.lines().map(|line| line.chars().count()).max();
    assert!(widest.unwrap() <= 80, "{table}");
    check_contains(
        &table,
        &["\nidle: the part of the step", "\nbubble: ", "\npeak: "],
    );
    assert_eq!(fine(&["list", "--stages", "4"]), table);
    // A peak has one unit: two stages of a rank hold a micro-batch together.
    let zbv = rows.iter().find(|row| row["name"] == "zbv").unwrap();
    assert_eq!(zbv["peak_micro_batches"], 4.0);
    let drawn = fine(&show("zbv", &["--width", "80"]));
    assert_eq!(drawn.matches("%   4.0\n").count(), 4, "{drawn}");
    // The same flags are the same size and times in all commands.
    let size = [
        "--ranks",
        "3",
        "--micro-batches",
        "5",
        "--times",
        "6,4,2",
        "--latency",
        "1",
        "--json",
    ];
    let rows = run(&[&["schedule", "list"], &size[..]].concat()).json(0);
    for row in rows["schedules"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let found = run(&[&["schedule", "verify", name], &size[..]].concat()).json(0);
        assert_eq!(found["step_ticks"], row["step_ticks"], "{name}");
    }
}

/// Three ticks can't be divided among two stages of a rank: the schedules with one stage are listed.
#[test]
fn schedules_that_cannot_have_the_times_are_left_out() {
    let list = ["list", "--times", "1,2,1"];
    let table = fine(&list);
    let left_out: Vec<&str> = table.lines().rev().take(2).collect();
    insta::assert_snapshot!(left_out[1], @"not listed: 1 tick of --times can't be divided among the 2 stages of a rank: use multiples of 2");
    insta::assert_snapshot!(left_out[0].trim(), @"looped-bfs, interleaved-1f1b, interleaved-zb, zbv, v-half, v-min, dualpipev");
    let json = run(&[&["schedule"], &list[..], &["--json"]].concat()).json(0);
    let names = |key: &str| -> Vec<String> {
        let rows = json[key].as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("schedules"), ["gpipe", "1f1b", "zb-h1", "zb-h2"]);
    assert_eq!(names("omitted").len(), 7);
    let reason = json["omitted"][0]["reason"].as_str().unwrap();
    check_contains(reason, &["1 tick of --times can't be divided"]);
    // Nothing can be listed.
    let error = fails(2, &["list", "--ranks", "4096", "--micro-batches", "4096"]);
    check_contains(&error, &["the maximum is 1048576"]);
}

#[test]
fn wrong_arguments_say_what_is_wanted() {
    for (arguments, expected) in [
        (
            &["show", "zigzag", "--ranks", "2"][..],
            "and no file has this name",
        ),
        (&show("1f1b", &["--chunks", "2"]), "1 chunk"),
        (&show("zbv", &["--chunks", "3"]), "2 chunks"),
        (&show("1f1b", &["--times", "1,2"]), "three whole numbers"),
        (
            &["show", "1f1b", "--ranks", "0"],
            "invalid value '0' for '--ranks <P>': 0 is not from 1 to 4096",
        ),
        (
            &["show", "1f1b", "--ranks", "four"],
            "invalid value 'four' for '--ranks <P>': expected a whole number",
        ),
        (
            &["show", "zbv", "--times", "1,1,1"],
            "1 tick of --times can't be divided among the 2 stages of a rank",
        ),
        (
            &[
                "show",
                "gpipe",
                "--ranks",
                "4096",
                "--micro-batches",
                "4096",
            ],
            "the maximum is 1048576",
        ),
    ] {
        let error = fails(2, arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

/// The order of `--lowered` is one that the links can run; a list of one's own is refused with its cycle.
#[test]
fn links_that_wait_are_verified_and_ordered() {
    let rendezvous = ["--link", "rendezvous"];
    let plain = fine(&show("1f1b", &["--lowered"]));
    let verify =
        |text: &str, link: &[&str]| run_with(text, &[&["schedule", "verify", "-"], link].concat());
    verify(&plain, &[]).ends(0);
    let refused = verify(&plain, &rendezvous).ends(1);
    check_contains(
        &refused,
        &[
            "can't run with --link rendezvous: deadlock over links whose sends wait for the receive",
            "`2F1>3F1` (rank 2, position 5) waits for `3F1<2F1` (rank 3, position 4)",
        ],
    );
    let ordered = fine(&show("1f1b", &["--lowered", "--link", "rendezvous"]));
    let found = verify(&ordered, &rendezvous).ends(0);
    assert_eq!(
        found,
        "standard input can run with --link rendezvous: a step takes 396 ticks\n"
    );
    let bytes = ["--link", "bytes:64", "--message-bytes", "65"];
    let refused = verify(&plain, &bytes).ends(1);
    check_contains(&refused, &["over links that store 64 bytes"]);
    verify(&plain, &["--link", "bytes:650", "--message-bytes", "65"]).ends(0);
    let json = verify(&ordered, &[&rendezvous[..], &["--json"]].concat()).ends(0);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["link"], &json["runs"]),
        (&json!("rendezvous"), &json!(true))
    );
    let wrong = fails(2, &["verify", "1f1b", "--link", "messages:0"]);
    check_contains(
        &wrong,
        &["`messages:0` is no link model", "rendezvous or queue"],
    );
}
