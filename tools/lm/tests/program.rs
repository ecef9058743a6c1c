//! Tests of the program's flags, signals, errors and output.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

/// The working directory of the programs. Its file `text.txt` has the first characters of the text, because a complete training
/// ends with an evaluation of a tenth of the text.
static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    const CHARACTERS: usize = 40_000;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("examples/data/shakespeare.txt")).unwrap();
    let short: String = text.chars().take(CHARACTERS).collect();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("short-text");
    fs::create_dir_all(&dir).unwrap();
    // Programs that another process of tests has started may read it now.
    let own = dir.join(format!("{}.txt", std::process::id()));
    fs::write(&own, short).unwrap();
    fs::rename(&own, dir.join("text.txt")).unwrap();
    dir
});

fn lm(arguments: &[&str]) -> Output {
    command(&program("lm"), arguments)
        .output()
        .expect("the program starts")
}

/// The path of a program of the workspace. `cargo test --workspace` builds all programs with the tests.
fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_lm")).with_file_name(name)
}

fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).args(["--text", "text.txt"]);
    command.current_dir(&*DIR);
    command
}

#[cfg(unix)]
fn not_built(program: &Path, error: &std::io::Error) -> ! {
    panic!(
        "{}: {error}; build it: cargo build --workspace --bins",
        program.display()
    )
}

/// Starts a training of many steps, sends a signal after the first, and returns its exit code, output and
/// errors.
#[cfg(unix)]
fn interrupted(signal: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    interrupted_by(signal, "lm", arguments)
}

/// The same as [`interrupted`], for a program whose arguments end with the arguments of the training.
#[cfg(unix)]
fn interrupted_by(
    signal: &str,
    started: &str,
    arguments: &[&str],
) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.json");
    let mut all = arguments.to_vec();
    all.extend([
        "--steps",
        "100000",
        "--stages",
        "2",
        "--print-losses",
        "--plan",
        plan.to_str().unwrap(),
    ]);
    let program = program(started);
    let child = command(&program, &all)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| not_built(&program, &error));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_step = |line: &std::io::Result<String>| line.as_ref().unwrap().contains(" loss ");
    assert!(lines.any(|line| is_step(&line)), "it trains");
    let sent = Command::new("kill")
        .args(["-s", signal, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), rest.join("\n"), errors)
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_training_after_its_step() {
    let named = ["--save-on-signal", "USR2,SIGUSR1"];
    for (signal, code, more) in [
        ("INT", 130, &[][..]),
        ("TERM", 143, &named),
        ("USR1", 138, &named),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let saves = dir.path().join("saves");
        let saves = saves.to_str().unwrap();
        let (found, printed, errors) = interrupted(signal, &[&["--save", saves], more].concat());
        assert_eq!(found, Some(code), "{printed}{errors}");
        assert_eq!(errors, "");
        let lines: Vec<&str> = printed.lines().rev().take(3).collect();
        let [last, saved, ended] = lines[..] else {
            panic!("{printed}");
        };
        assert_eq!(
            last,
            format!("resume with the same arguments and --resume {saves}")
        );
        let checkpoint = saved.strip_prefix("saved ").unwrap();
        let step = ended.strip_prefix("interrupted after step ").unwrap();
        let step = step.strip_suffix(" of 100000").unwrap();
        // The saved checkpoint is intact, and the training resumes from it.
        let next = (step.parse::<u64>().unwrap() + 1).to_string();
        let plan = dir.path().join("plan.json");
        let plan = plan.to_str().unwrap();
        let mut arguments = vec![
            "--steps", &next, "--stages", "2", "--resume", saves, "--plan", plan,
        ];
        // The learning rates depend on the number of steps.
        let refused = String::from_utf8_lossy(&lm(&arguments).stderr).into_owned();
        assert!(refused.contains("`learning_rates` was"), "{refused}");
        arguments.extend(["--allow-changes", "learning_rates"]);
        let output = lm(&arguments);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{printed}");
        let resumed = format!("resumed at step {step} from {checkpoint}");
        assert!(printed.contains(&resumed), "{resumed} in: {printed}");
    }
}

/// The launcher passes the signal on, and all ranks save the same step together.
#[cfg(unix)]
#[test]
fn a_signal_ends_the_ranks_of_a_launcher_after_their_step() {
    let dir = tempfile::tempdir().unwrap();
    let saves = dir.path().join("saves");
    let example = program("lm");
    let launch = ["launch", "-n", "2", "--restarts", "1", "--"];
    let training = [
        example.to_str().unwrap(),
        "--save",
        saves.to_str().unwrap(),
        "--save-on-signal",
        "USR1",
    ];
    let (code, printed, errors) =
        interrupted_by("USR1", "tinderbox", &[&launch[..], &training].concat());
    assert_eq!(code, Some(138), "{printed}{errors}");
    assert_eq!(errors, "");
    let ended = "[rank 0] interrupted after step ";
    let step = printed.lines().find_map(|line| line.strip_prefix(ended));
    let step = step.and_then(|rest| rest.strip_suffix(" of 100000"));
    let step: u64 = step.unwrap_or_else(|| panic!("{printed}")).parse().unwrap();
    let saves = tinderbox::Checkpoints::open(saves).unwrap();
    assert_eq!(saves.latest().unwrap().unwrap().step(), step);
}

#[cfg(unix)]
#[test]
fn a_signal_without_save_is_reported() {
    let (code, printed, errors) = interrupted("INT", &[]);
    assert_eq!(code, Some(130), "{printed}{errors}");
    let expected = "nothing was saved: use --save DIR to make an interrupted training resumable";
    assert_eq!(printed.lines().last(), Some(expected));
    // A signal that was not named ends the program, as is the default of the system.
    assert_eq!(interrupted("USR1", &[]).0, None);
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
            "error: invalid value 'fast' for '--schedule <SCHEDULE>': `fast` is not a schedule: write \
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
            "error: --stages: 9999 stages were requested, but the model can be cut into at most 219 (see --help)",
        ),
        (
            vec!["--compare", "--resume", empty],
            "error: --compare starts from initial values: it can't be used with --resume (see --help)",
        ),
    ] {
        let output = lm(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(errors.trim_end(), expected);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let output = lm(&["--steps", "1", "--resume", empty]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("the directory contains no checkpoint"),
        "{errors}"
    );
    assert_eq!(output.status.code(), Some(2));
}

/// The program creates the directory of the plan, because Cargo's target directory may be elsewhere.
#[test]
fn the_plan_and_every_figure_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("not/there/yet/plan.json");
    let output = lm(&[
        "--steps",
        "0",
        "--stages",
        "3",
        "--plan",
        plan.to_str().unwrap(),
    ]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(tinderbox::Plan::load(&plan).unwrap().stages.len(), 3);
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
    let output = lm(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for flag in [
        "--stages",
        "--micro-batches",
        "--schedule",
        "--steps",
        "--text",
        "--seed",
        "--dropout",
        "--save",
        "--save-every",
        "--save-on-signal",
        "--resume",
        "--allow-changes",
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
