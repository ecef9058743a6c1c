//! Signals of `tinderbox launch`.

use std::time::{Duration, Instant};

use crate::launched::{Launched, send};
#[cfg(target_os = "linux")]
use crate::launched::{children, send_all, supervisor};
use crate::support::check_contains;

const ALL: [(&str, i32); 8] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("TERM", 15),
    ("USR1", 10),
    ("USR2", 12),
    ("CONT", 18),
    ("WINCH", 28),
];

/// A script that prints each signal that it gets, prints `ready`, and waits until TERM, after which `end` is run.
fn printing(end: &str) -> String {
    let trap = |(name, _): &(&str, i32)| match *name {
        "TERM" => format!("trap 'echo got TERM; {end}' TERM; "),
        name => format!("trap 'echo got {name}' {name}; "),
    };
    let traps: String = ALL.iter().map(trap).collect();
    // A shell that waits runs a trap at once.
    format!("{traps} echo ready; while true; do sleep 1000 & wait; done")
}

/// Returns what a launcher of two ranks prints for its first signal, with the default grace.
fn interrupted(name: &str) -> String {
    let again = match name {
        // The end of a session sends it twice.
        "HUP" => String::new(),
        "INT" | "QUIT" | "TERM" => format!("; a second SIG{name} kills at once"),
        _ => return String::new(),
    };
    format!("note: interrupted by SIG{name}: waits up to 30 s for 2 ranks{again}\n")
}

/// Every rank gets every signal once, also if a terminal sends it to the whole group of the launcher.
#[test]
fn ranks_get_each_signal_once() {
    for (name, _) in ALL.iter().filter(|(name, _)| *name != "TERM") {
        for of_group in [false, true] {
            let launched = Launched::start(&["-n", "2"], &printing("exit 0"));
            launched.wait_for(2, "ready");
            let id = i64::from(launched.id());
            send(name, if of_group { -id } else { id });
            launched.wait_for(2, &format!("got {name}"));
            // A second line of the first would come before.
            send("WINCH", id);
            launched.wait_for(2, "got WINCH");
            send("TERM", id);
            let (code, mut lines, errors) = launched.end();
            lines.sort_unstable();
            let killed = "note: a second signal (SIGTERM): kills ranks 0, 1\n";
            let terminated = ["[rank 0] got TERM", "[rank 1] got TERM"];
            let (expected, messages) = match *name {
                // The second request to end is SIGKILL.
                "INT" | "QUIT" => (&[][..], interrupted(name) + killed),
                // HUP does not count: the end of a session sends it in addition to TERM.
                "HUP" => (&terminated[..], interrupted("HUP")),
                _ => (&terminated[..], interrupted("TERM")),
            };
            assert_eq!(lines, expected, "{name}");
            assert_eq!((code, errors), (Some(143), messages), "{name}");
        }
    }
}

/// A run that `nohup` starts continues when its terminal is closed.
#[cfg(target_os = "linux")]
#[test]
fn hangups_may_be_ignored() {
    let nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "nohup"];
    let launched = Launched::start_by(&nohup, &["-n", "2"], &printing("exit 0"));
    launched.wait_for(2, "ready");
    send("HUP", -i64::from(launched.id()));
    send("USR1", launched.id().into());
    launched.wait_for(2, "got USR1");
    send("TERM", launched.id().into());
    // The first signal that requests their end.
    launched.wait_for(2, "got TERM");
    assert_eq!(launched.end().0, Some(143));
}

/// A program that a signal ends is not started again.
#[test]
fn a_run_that_a_signal_ends_is_not_restarted() {
    for (name, number) in &ALL[..6] {
        // By the default of the system, and by a program that saves and ends as shells report it.
        let by_program = format!("trap 'echo saved; exit {}' {name}; ", 128 + number);
        let by_program = format!("{by_program} echo ready; sleep 1000 & wait");
        let by_default = "echo ready; exec sleep 1000".to_owned();
        let saved = vec!["[rank 0] saved", "[rank 1] saved"];
        for (script, lines) in [(by_default, vec![]), (by_program, saved)] {
            let launched = Launched::start(&["-n", "2", "--restarts", "2"], &script);
            launched.wait_for(2, "ready");
            send(name, launched.id().into());
            let (code, mut found, errors) = launched.end();
            found.sort_unstable();
            assert_eq!(found, lines, "{name}");
            let code_and_errors = (code, errors);
            assert_eq!(code_and_errors, (Some(128 + number), interrupted(name)));
        }
    }
}

/// Some schedulers send CONT and then TERM to all processes of a job. Ranks that end before the launcher passes the signals on
/// have not failed.
#[cfg(target_os = "linux")]
#[test]
fn ranks_may_end_before_their_signal_is_passed_on() {
    for is_late in [false, true] {
        let script = "echo ready; exec sleep 1000";
        let launched = Launched::start(&["-n", "2", "--restarts", "2"], script);
        launched.wait_for(2, "ready");
        let supervisor = supervisor(&launched);
        let mut job: Vec<i64> = children(supervisor).into_iter().map(i64::from).collect();
        assert_eq!(job.len(), 2, "{job:?}");
        let (ranks, launcher) = (job.clone(), i64::from(launched.id()));
        job.push(launcher);
        if is_late {
            // It sees the ends of the ranks and the signals at the same time.
            send("STOP", supervisor.into());
        }
        send_all("CONT", &job);
        send_all("TERM", &job);
        if is_late {
            let began = Instant::now();
            while !ranks.iter().all(|rank| has_ended(*rank)) {
                assert!(began.elapsed() < Duration::from_secs(10));
                std::thread::sleep(Duration::from_millis(5));
            }
            send("CONT", supervisor.into());
        }
        let (code, _, errors) = launched.end();
        assert_eq!(code, Some(143), "{errors}");
        assert!(
            errors.starts_with("note: interrupted by SIGTERM"),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

/// Returns whether a process has ended and was not waited for.
#[cfg(target_os = "linux")]
fn has_ended(process: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| stat.contains(") Z "))
}

/// A failure after a signal that ends nothing is restarted.
#[test]
fn a_failure_after_a_signal_is_restarted() {
    let script = "trap 'echo got it; exit 7' USR1; \
                  [ $TINDERBOX_RESTARTS = 1 ] && exit; echo ready; sleep 1000 & wait";
    let launched = Launched::start(&["-n", "1", "--restarts", "1"], script);
    launched.wait_for(1, "ready");
    send("USR1", launched.id().into());
    launched.wait_for(1, "got it");
    let (code, _, errors) = launched.end();
    assert_eq!(code, Some(0), "{errors}");
    assert!(
        errors.contains("rank 0 was the first to fail: exit code 7"),
        "{errors}"
    );
}

/// Ranks are not started again after a signal in the pause of several machines.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_in_the_pause_ends_the_run() {
    let several = ["--nodes", "2", "--master", "127.0.0.1:1", "--tls", "certs"];
    let arguments = [&["-n", "1", "-v", "--restarts", "1"], &several[..]].concat();
    let launched = Launched::start(&arguments, "echo ready; exit 7");
    launched.wait_for(1, "ready");
    let supervisor = supervisor(&launched);
    let began = Instant::now();
    while !children(supervisor).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    send("TERM", launched.id().into());
    let (code, _, errors) = launched.end();
    assert_eq!(code, Some(143), "{errors}");
    check_contains(&errors, &["restart=0\n", "note: interrupted by SIGTERM\n"]);
    assert!(!errors.contains("restart=1\n"), "{errors}");
}

/// A shell around a program dies of the signal, and the program has the time to save.
#[test]
fn a_program_in_a_shell_may_save() {
    for (name, number) in [("USR1", 10), ("TERM", 15), ("HUP", 1)] {
        let save = "sleep 0.3; echo saved; exit 0";
        let program = format!("trap \"{save}\" {name}; echo ready; sleep 1000 & wait");
        let launched = Launched::start(&["-n", "2"], &format!("sh -c '{program}'; true"));
        launched.wait_for(2, "ready");
        send(name, launched.id().into());
        let (code, mut lines, errors) = launched.end();
        lines.sort_unstable();
        assert_eq!(lines, ["[rank 0] saved", "[rank 1] saved"], "{name}");
        assert_eq!(errors, interrupted(name), "{name}");
        assert_eq!(code, Some(128 + number), "{name}");
    }
}

/// The launcher reports how long it waits, and whom it kills.
#[test]
fn ranks_that_do_not_end_are_named() {
    let script = "[ $RANK = 0 ] || trap '' TERM; echo ready; while true; do sleep 0.1; done";
    let launched = Launched::start(&["-n", "3", "--grace", "1"], script);
    launched.wait_for(3, "ready");
    send("TERM", launched.id().into());
    let (code, _, errors) = launched.end();
    assert_eq!(code, Some(143));
    insta::assert_snapshot!(errors, @"
    note: interrupted by SIGTERM: waits up to 1 s for 3 ranks; a second SIGTERM kills at once
    note: not ended within 1 s: kills ranks 1, 2
    ");
}

/// `-v` reports starts, signals and ends.
#[test]
fn signals_are_events() {
    let script = "trap 'echo got it; exit 0' USR1; echo ready; sleep 1000 & wait";
    let launched = Launched::start(&["-n", "1", "-v"], script);
    launched.wait_for(1, "ready");
    send("USR1", launched.id().into());
    let (code, _, errors) = launched.end();
    assert_eq!(code, Some(0), "{errors}");
    check_contains(
        &errors,
        &[
            " INFO the launcher got a signal signal=\"SIGUSR1\"\n",
            " INFO a rank has ended: exit code 0 rank=0 process=",
        ],
    );
}

/// The second TERM is SIGKILL for ranks that ignore the first one, long before the grace has passed.
#[test]
fn a_second_signal_ends_all() {
    let began = Instant::now();
    // More seconds than the clock counts.
    let forever = ["-n", "2", "--grace", "18446744073709551615"];
    let launched = Launched::start(&forever, &printing("true"));
    launched.wait_for(2, "ready");
    send("TERM", launched.id().into());
    launched.wait_for(2, "got TERM");
    send("TERM", launched.id().into());
    let (code, lines, errors) = launched.end();
    assert_eq!(lines, Vec::<String>::new());
    assert_eq!(code, Some(143));
    insta::assert_snapshot!(errors, @"
    note: interrupted by SIGTERM: waits up to 18446744073709551615 s for 2 ranks; a second SIGTERM kills at once
    note: a second signal (SIGTERM): kills ranks 0, 1
    ");
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// The end of a session sends HUP, perhaps twice and in addition to TERM: ranks that save meanwhile are not killed.
#[test]
fn a_hangup_never_insists() {
    for (first, number) in [("TERM", 15), ("HUP", 1)] {
        let save = "echo saving; sleep 0.5; echo saved; exit 0";
        let script = format!("trap '{save}' TERM HUP; echo ready; sleep 1000 & wait");
        let launched = Launched::start(&["-n", "2"], &script);
        launched.wait_for(2, "ready");
        send(first, launched.id().into());
        launched.wait_for(2, "saving");
        send("HUP", launched.id().into());
        // The shell reports that HUP has ended `sleep`.
        let (code, mut lines, _) = launched.end();
        lines.retain(|line| line.ends_with("saved"));
        lines.sort_unstable();
        assert_eq!(lines, ["[rank 0] saved", "[rank 1] saved"], "{first}");
        assert_eq!(code, Some(128 + number), "{first}");
    }
}

/// A grace beyond the range of the clock has no end, also after a failure.
#[test]
fn an_endless_grace_is_none() {
    let script = "[ $RANK = 0 ] && exit 4; trap 'echo saved; exit' TERM; sleep 1000 & wait";
    let forever = ["-n", "2", "--grace", "18446744073709551615"];
    let (code, lines, errors) = Launched::start(&forever, script).end();
    assert_eq!(code, Some(4), "{errors}");
    assert_eq!(lines, ["[rank 1] saved"]);
}
