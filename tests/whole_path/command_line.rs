//! The flags of the example: a wrong value gets one clear line and exit code 2.

use std::path::PathBuf;
use std::process::{Command, Output};

fn train_lm(arguments: &[&str]) -> Output {
    example("train_lm", arguments)
}

/// Runs an example's program, which `cargo test --workspace` builds beside the tests.
pub fn example(name: &str, arguments: &[&str]) -> Output {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(|deps| deps.parent()).unwrap();
    let program: PathBuf = profile.join("examples").join(name);
    Command::new(&program)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap_or_else(|error| {
            panic!(
                "{}: {error}; build it: cargo build --workspace --examples",
                program.display()
            )
        })
}

#[test]
fn wrong_values_get_one_line_and_exit_code_2() {
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    for (arguments, expected) in [
        (
            vec!["--stages", "0"],
            "error: invalid value '0' for '--stages <STAGES>': it must be at least 1 (see --help)",
        ),
        (
            vec!["--stages", "many"],
            "error: invalid value 'many' for '--stages <STAGES>': it must be a whole number (see \
             --help)",
        ),
        (
            vec!["--schedule", "fast"],
            "error: invalid value 'fast' for '--schedule <SCHEDULE>': `fast` is no schedule: write \
             one of gpipe, 1f1b, looped-bfs, interleaved-1f1b, zb-h1, zb-h2, interleaved-zb, zbv, \
             v-half, v-min, dualpipev (see --help)",
        ),
        (
            vec!["--dropout", "1"],
            "error: invalid value '1' for '--dropout <DROPOUT>': it must be a number from 0 to \
             below 1 (see --help)",
        ),
        (
            vec!["--micro-batches", "33"],
            "error: --micro-batches 33: a batch has 32 samples (see --help)",
        ),
        (
            vec!["--stages", "9999"],
            "error: --stages: 9999 stages were asked for, and the model can be cut into 219 at the \
             most (see --help)",
        ),
        (
            vec!["--compare", "--resume", empty],
            "error: --compare starts from fresh values: it can't be used with --resume (see --help)",
        ),
    ] {
        let output = train_lm(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(errors.trim_end(), expected);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let output = train_lm(&["--steps", "1", "--resume", empty]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("there is no checkpoint"), "{errors}");
    assert_eq!(output.status.code(), Some(2));
}

/// The directory of the plan need not be there: Cargo's own may lie elsewhere.
#[test]
fn the_plan_and_every_figure_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("not/there/yet/plan.json");
    let output = train_lm(&[
        "--steps",
        "0",
        "--stages",
        "3",
        "--plan",
        plan.to_str().unwrap(),
    ]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(tinderbox::Plan::load(&plan).unwrap().stages().len(), 3);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in [
        "val_loss",
        "tokens_per_s",
        "record_ms",
        "largest_stage_share",
    ] {
        let figure = printed
            .lines()
            .find_map(|l| l.strip_prefix(&format!("figure train_lm.{name} ")));
        let value = figure.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        assert!(value.is_some_and(f64::is_finite), "{name} in: {printed}");
    }
}

#[test]
fn help_explains_each_flag() {
    let output = train_lm(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for flag in [
        "--stages",
        "--micro-batches",
        "--schedule",
        "--steps",
        "--seed",
        "--dropout",
        "--save",
        "--save-every",
        "--resume",
        "--compare",
        "--plan",
    ] {
        let line = help
            .lines()
            .find(|line| line.trim_start().starts_with(flag));
        let line = line.unwrap_or_else(|| panic!("{flag} in: {help}"));
        assert!(line.split_whitespace().count() > 3, "{line}");
    }
}
