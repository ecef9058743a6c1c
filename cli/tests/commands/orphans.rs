//! Processes that ranks start end with the launcher, however it ends.

use std::time::{Duration, Instant};

use crate::launched::{Held, Launched, children, send, supervisor};

/// A script that starts three processes which hold a pipe: in the shell of the rank, in a session of its own, and in one whose
/// parents have ended. Each writes a line when it runs. Then `end` is run.
fn starting(held: &Held, end: &str) -> String {
    let run = "echo up >&9; sleep 1000; true";
    format!(
        "exec 9>{}; setsid sh -c '{run}' & (sh -c 'setsid sh -c \"{run}\" & true'); sh -c '{run}' >/dev/null & {end}",
        held.path()
    )
}

/// The number of processes of [`starting`].
const STARTED: usize = 3;

#[test]
fn descendants_end_with_a_launcher_that_is_killed() {
    // The shell of the rank runs, it waits for a program, or it has been replaced by one.
    for (end, by_group) in [
        ("wait; true", false),
        ("sleep 1000; true", false),
        ("exec sleep 1000", false),
        // As a shell does with a job, and `timeout`.
        ("sleep 1000; true", true),
    ] {
        let held = Held::new();
        let launched = Launched::start(&["-n", "2"], &starting(&held, end));
        held.wait_for(2 * STARTED);
        let id = i64::from(launched.id());
        send("KILL", if by_group { -id } else { id });
        held.wait_until_free();
        let (code, lines, errors) = launched.end();
        assert_eq!((code, lines.len(), errors.as_str()), (None, 0, ""), "{end}");
    }
}

#[test]
fn descendants_end_with_a_supervisor_that_is_killed() {
    let held = Held::new();
    let restarts = ["-n", "2", "--restarts", "3"];
    let launched = Launched::start(&restarts, &starting(&held, "wait; true"));
    held.wait_for(2 * STARTED);
    send("KILL", supervisor(&launched).into());
    held.wait_until_free();
    let (code, _, errors) = launched.end();
    assert_eq!(code, Some(137));
    insta::assert_snapshot!(errors, @"error: the supervisor of the ranks was ended by signal 9 (SIGKILL): all ranks are ended");
}

/// Descendants end after a signal, a failure and a success too, also outside of the group of their rank.
#[test]
fn descendants_end_with_an_end_of_all_kinds() {
    for (exit, signal, code) in [
        ("exit 0", "USR1", 0),
        ("exit 3", "USR1", 3),
        ("", "TERM", 143),
    ] {
        let held = Held::new();
        let script = format!("trap '{exit}' USR1; {}", starting(&held, "wait"));
        let launched = Launched::start(&["-n", "2"], &script);
        // The ranks end when all of their processes run.
        held.wait_for(2 * STARTED);
        send(signal, launched.id().into());
        assert_eq!(launched.end().0, Some(code), "{exit}");
        held.wait_until_free();
    }
}

/// Descendants also end between two starts: a process of the first would hold ports and memory that the second needs.
#[test]
fn descendants_end_before_a_restart() {
    let held = Held::new();
    let script = format!(
        "if [ $TINDERBOX_RESTARTS = 1 ]; then echo again; exec sleep 1000; fi; trap 'exit 5' USR1; {}",
        starting(&held, "wait")
    );
    let launched = Launched::start(&["-n", "1", "--restarts", "1"], &script);
    held.wait_for(STARTED);
    send("USR1", launched.id().into());
    launched.wait_for(1, "again");
    held.wait_until_free();
    send("TERM", launched.id().into());
    assert_eq!(launched.end().0, Some(143));
}

/// The supervisor waits for orphans when they end, so that they do not fill the table of processes.
#[test]
fn orphans_leave_no_zombies() {
    let held = Held::new();
    let orphan = format!("sh -c 'exec 9>{}; echo up >&9; exit 1'", held.path());
    let script = format!("({orphan} & true); exec sleep 1000");
    let launched = Launched::start(&["-n", "1"], &script);
    held.wait_for(1);
    held.wait_until_free();
    let supervisor = supervisor(&launched);
    let began = Instant::now();
    // Its only child is the rank.
    while children(supervisor).len() != 1 {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "a zombie is left"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // The orphan's exit code is not the exit code of a rank.
    send("TERM", launched.id().into());
    assert_eq!(launched.end().0, Some(143));
}
