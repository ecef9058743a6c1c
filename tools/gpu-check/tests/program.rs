//! Tests of the program on the CPU: its parts run, its report is complete, and its errors are clear.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let program = Command::new(env!("CARGO_BIN_EXE_gpu-check"))
        .args(arguments)
        .output();
    program.expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_part_passes_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let [markdown, json] = ["report.md", "report.json"].map(|name| dir.path().join(name));
    let arguments = [
        "--runtime",
        "flex",
        "--commit",
        "abc",
        "--report",
        markdown.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ];
    let output = run(&arguments);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}");
    let report = std::fs::read_to_string(markdown).unwrap();
    assert!(printed.starts_with(&report), "{printed}");
    let parts = [
        "Bits",
        "Memory",
        "Speed",
        "Checkpoint",
        "Parity",
        "Streamed",
        "Training",
    ];
    for part in parts {
        assert!(report.contains(&format!("\n## {part} (")), "{report}");
    }
    assert!(report.contains("| commit | abc |"), "{report}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(json["passed"], true);
    let named = json["parts"].as_array().unwrap().iter();
    let named: Vec<_> = named.map(|part| part["name"].as_str().unwrap()).collect();
    assert_eq!(named, parts);
}

#[test]
fn one_part_alone() {
    let output = run(&["--runtime", "flex", "--only", "parity"]);
    let printed = text(&output.stdout);
    assert!(
        printed.contains("## Parity") && !printed.contains("## Bits"),
        "{printed}"
    );
    assert!(
        printed.contains("figure gpu.parity.f32_2_stages 0.000 ratio"),
        "{printed}"
    );
}

/// The error is one line, with an exit code that differs from the exit code of a failed check. No machine has 100
/// GPUs, so this holds in every build.
#[test]
fn a_device_that_is_not_there_is_one_line() {
    let output = run(&["--index", "99"]);
    assert_eq!(output.status.code(), Some(3));
    let error = text(&output.stderr);
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("error: cuda:99 "), "{error}");
    assert!(output.stdout.is_empty());
}

#[test]
fn wrong_arguments_are_refused() {
    for wrong in [
        &["--runtime", "tpu"][..],
        &["--only", "nothing"],
        &["--index", "-1"],
        &["--runtime", "flex", "--index", "1"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
