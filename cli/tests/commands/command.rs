//! Tests of what all commands of `tinderbox` have in common.

use std::process::Command;

use crate::support::{check_contains, run, text};

#[test]
fn every_help_has_the_exit_codes() {
    for command in [
        &[][..],
        &["ckpt"],
        &["ckpt", "cp"],
        &["plan", "show"],
        &["schedule", "auto"],
        &["calibrate"],
        &["completions"],
    ] {
        let help = run(&[command, &["--help"]].concat()).ends(0);
        check_contains(
            &help,
            &[
                "-o, --output <FILE>",
                "--json",
                "-q, --quiet",
                "-v, --verbose...",
                "Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 something is missing\n",
            ],
        );
    }
    // Without a command, the help is printed to standard error.
    let ran = run(&["schedule"]);
    assert_eq!((ran.code, &*ran.out), (Some(2), ""));
    check_contains(&ran.err, &["Usage: tinderbox schedule"]);
}

#[test]
fn shells_complete_the_commands() {
    for (shell, expected) in [
        ("bash", "complete -F _tinderbox"),
        ("zsh", "#compdef tinderbox"),
        ("fish", "complete -c tinderbox"),
        ("powershell", "Register-ArgumentCompleter"),
        ("elvish", "edit:completion:arg-completer[tinderbox]"),
    ] {
        let script = run(&["completions", shell]).ends(0);
        check_contains(&script, &[expected, "micro-batches", "reshard"]);
    }
    // The names of the schedules: in `schedule show`, in `schedule verify`, and in `model estimate --schedule`.
    for shell in ["bash", "zsh"] {
        let script = run(&["completions", shell]).ends(0);
        for names in ["gpipe 1f1b looped-bfs", "v-min dualpipev"] {
            assert!(script.matches(names).count() >= 3, "{shell}: {names}");
        }
    }
    let script = run(&["completions", "bash"]).ends(0);
    let (_, schedule) = script.split_once("--schedule)").unwrap();
    let values = schedule.trim_start().lines().next().unwrap();
    check_contains(values, &["gpipe 1f1b looped-bfs"]);
    check_contains(
        &run(&["completions", "csh"]).fails(2),
        &["invalid value 'csh'"],
    );
}

#[test]
fn a_machine_file_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machine.json");
    let arguments = ["calibrate", "--threads", "1", "--json", "-o", text(&file)];
    assert_eq!(run(&arguments).ends(0), "");
    let json = std::fs::read_to_string(&file).unwrap();
    assert!(json.starts_with("{\"schema\":1,\"ranks\":"), "{json}");
    let machine = tinderbox_planner::Machine::load(&file).unwrap();
    // With the byte order mark that some editors write.
    std::fs::write(&file, format!("\u{feff}{json}")).unwrap();
    assert_eq!(tinderbox_planner::Machine::load(&file).unwrap(), machine);
}

/// The reader, such as `head`, may close the pipe early.
#[test]
fn a_closed_pipe_prints_nothing() {
    for arguments in [
        &["completions", "zsh"][..],
        &[
            "schedule",
            "show",
            "gpipe",
            "--micro-batches",
            "1000",
            "--json",
        ],
        &[
            "schedule",
            "show",
            "gpipe",
            "--micro-batches",
            "1000",
            "--svg",
        ],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinderbox"));
        let output = command.args(arguments).stdout(writer).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        // Not the answer of the command, which is incomplete.
        assert_eq!((output.status.code(), &*error), (Some(3), ""));
    }
}
