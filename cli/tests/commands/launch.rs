//! Tests of `tinderbox launch` as a process.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::launched::DEFAULT_SIGNALS;
#[cfg(target_os = "linux")]
use crate::launched::{Launched, send, supervisor};
use crate::support::{check_contains, run, text};

/// Runs a shell script as ranks.
fn launch(arguments: &[&str], script: &str) -> crate::support::Ran {
    let program = ["--", "sh", "-c", script];
    run(&[&["launch"], arguments, &program].concat())
}

#[test]
fn ranks_get_their_variables_and_lines_their_rank() {
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR, ${#TINDERBOX_TOKEN}";
    let out = launch(&["-n", "3"], script).ends(0);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "[rank 0] 0 of 3, 0 of 3, 127.0.0.1, 32",
            "[rank 1] 1 of 3, 1 of 3, 127.0.0.1, 32",
            "[rank 2] 2 of 3, 2 of 3, 127.0.0.1, 32",
        ]
    );
    let several = [
        "-n",
        "2",
        "--nodes",
        "3",
        "--node",
        "2",
        "--master",
        "node0:29500",
        "--tls",
        "certs",
    ];
    let out = launch(
        &several,
        "echo $RANK of $WORLD_SIZE, $MASTER_ADDR:$MASTER_PORT, $TINDERBOX_TLS",
    )
    .ends(0);
    check_contains(
        &out,
        &["[rank 4] 4 of 6, node0:29500, certs", "[rank 5] 5 of 6"],
    );
}

/// The program of a rank may be a launcher, whose ranks are a world of their own.
#[test]
fn a_rank_may_be_a_launcher() {
    let own = env!("CARGO_BIN_EXE_tinderbox");
    let script = format!("'{own}' launch -n 2 -- sh -c 'echo $RANK of $WORLD_SIZE'");
    let out = launch(&["-n", "1"], &script).ends(0);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["[rank 0] [rank 0] 0 of 2", "[rank 0] [rank 1] 1 of 2"]
    );
}

#[test]
fn the_first_error_is_repeated_with_its_rank() {
    let script = "if [ $RANK = 1 ]; then echo the disk is full >&2; exit 7; fi; sleep 0.5; exit 9";
    let began = Instant::now();
    let error = launch(&["-n", "3"], script).errors(7);
    assert!(began.elapsed() < Duration::from_secs(4));
    check_contains(&error, &["rank 1 was the first to fail: exit code 7"]);
    let repeated = error.rsplit("was the first to fail").next().unwrap();
    check_contains(repeated, &["[rank 1] the disk is full"]);
    // Ended by a signal, as a shell reports it.
    let error = launch(&["-n", "2"], "kill -9 $$").errors(137);
    check_contains(&error, &["ended by signal 9 (SIGKILL)"]);
}

/// The last lines of the rank that failed have a heading, also with `--quiet`.
#[test]
fn the_last_lines_have_a_heading() {
    let script = "echo loading >&2; echo the disk is full >&2; exit 7";
    let error = launch(&["-n", "1", "-q"], script).errors(7);
    insta::assert_snapshot!(error, @"
    [rank 0] loading
    [rank 0] the disk is full
    error: rank 0 was the first to fail: exit code 7
    note: the last lines of rank 0 on standard error:
    [rank 0] loading
    [rank 0] the disk is full
    ");
    let error = launch(&["-n", "1"], "exit 7").errors(7);
    insta::assert_snapshot!(error, @"
    error: rank 0 was the first to fail: exit code 7
    note: rank 0 wrote nothing to standard error
    ");
}

/// The lines of standard output are the output of the command, which `-o` writes to a file. All starts write to it.
#[test]
fn lines_are_written_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("l.txt");
    let script = "echo start $TINDERBOX_RESTARTS; echo an error >&2; test $TINDERBOX_RESTARTS = 1";
    let to_file = ["-n", "2", "--restarts", "1", "-o", text(&file)];
    let ran = launch(&to_file, script);
    assert_eq!((ran.code, &*ran.out), (Some(0), ""), "{ran:?}");
    check_contains(&ran.err, &["[rank 0] an error", "[rank 1] an error"]);
    let written = fs::read_to_string(&file).unwrap();
    let mut lines: Vec<&str> = written.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "[rank 0] start 0",
            "[rank 0] start 1",
            "[rank 1] start 0",
            "[rank 1] start 1",
        ]
    );
    let out = launch(&["-n", "1", "-o", "-"], "echo hi").ends(0);
    assert_eq!(out, "[rank 0] hi\n");
    let missing = dir.path().join("missing").join("l.txt");
    let error = launch(&["-n", "1", "-o", text(&missing)], "echo hi").fails(3);
    check_contains(&error, &["error: can't write ", "l.txt: No such file"]);
}

/// A program that succeeds does not hide that its lines are lost.
#[cfg(target_os = "linux")]
#[test]
fn lines_that_can_not_be_written_are_an_error() {
    let error = launch(&["-n", "1", "-o", "/dev/full"], "echo hi").fails(3);
    let expected = "error: can't write the lines of [rank 0]: No space left on device";
    check_contains(&error, &[expected]);
    // Lines of an earlier start.
    let script = "[ $TINDERBOX_RESTARTS = 1 ] || { echo hi; exit 7; }";
    let error = launch(&["-n", "1", "--restarts", "1", "-o", "/dev/full"], script).errors(3);
    check_contains(&error, &[expected, "starts 1 rank again (1 of 1)"]);
}

/// A reader of standard error that does not read, such as a stopped pager, does not keep the launcher from its work.
#[cfg(target_os = "linux")]
#[test]
fn standard_error_may_be_full() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("full");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    // Nothing reads the pipe, and `dd` writes until a write would wait.
    let fill = "exec 2<>$0; dd if=/dev/zero of=$0 bs=4096 oflag=nonblock 2>/dev/null; exec \"$@\"";
    let before = [DEFAULT_SIGNALS, &["sh", "-c", fill, text(&pipe)]].concat();
    let start =
        |node, script| Launched::start_by(&before, &["-n", "1", "-vv", "--node", node], script);
    let failing = start("0", "echo the disk is full >&2; exit 7");
    let waiting = "trap 'echo saved; exit 0' TERM; echo ready; sleep 1000 & wait";
    let [signalled, killed] = [waiting; 2].map(|script| start("0", script));
    let refused = start("1", "true");
    signalled.wait_for(1, "ready");
    send("TERM", signalled.id().into());
    signalled.wait_for(1, "saved");
    killed.wait_for(1, "ready");
    send("KILL", supervisor(&killed).into());
    for (launched, code) in [(failing, 7), (signalled, 143), (killed, 137), (refused, 2)] {
        assert_eq!(launched.end().0, Some(code));
    }
}

/// A reader such as `less` may read long after the ranks have ended.
#[test]
fn a_slow_reader_gets_all_lines() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tinderbox"))
        .args(["launch", "-n", "1", "--", "seq", "15000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // More than twice the wait for a process that has left its group and keeps a stream open.
    std::thread::sleep(Duration::from_secs(5));
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(out.lines().count(), 15_000);
    assert!(out.ends_with("[rank 0] 15000\n"));
}

/// A process that a rank has left is no slow reader, although its lines do not end.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_a_rank_has_left_may_print_without_end() {
    let began = Instant::now();
    let script = "setsid timeout 20 sh -c 'while :; do echo more; done' & sleep 0.5";
    launch(&["-n", "1"], script).ends(0);
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// `-v` reports starts and ends, and `-vv` also the variables, without the secret.
#[test]
fn starts_and_ends_are_events() {
    let script = "echo $TINDERBOX_TOKEN";
    let ran = launch(&["-n", "2", "-v"], script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    check_contains(
        &ran.err,
        &[
            " INFO the program is started program=[\"sh\", \"-c\", \"echo $TINDERBOX_TOKEN\"] processes=2 restart=0\n",
            " INFO a rank is started rank=0 process=",
            " INFO a rank is started rank=1 process=",
            " INFO a rank has ended: exit code 0 rank=1 process=",
        ],
    );
    assert!(!ran.err.contains("DEBUG"), "{}", ran.err);
    let ran = launch(&["-n", "2", "-vv"], script);
    check_contains(
        &ran.err,
        &[
            "DEBUG the supervisor of the ranks is started process=",
            "DEBUG variables of all ranks: WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=",
            " TINDERBOX_RESTARTS=0 TINDERBOX_TOKEN=(secret)\n",
            "DEBUG variables of a rank: RANK=1 LOCAL_RANK=1\n",
        ],
    );
    let line = ran.out.lines().next().unwrap();
    let token = line.split_once("] ").unwrap().1;
    assert!(token.len() == 32 && !ran.err.contains(token), "{ran:?}");
}

/// Processes that ranks have left are named.
#[cfg(target_os = "linux")]
#[test]
fn processes_that_ranks_left_are_named() {
    let script = "setsid sh -c 'sleep 1000 >/dev/null 2>&1 & echo $!'; true";
    let ran = launch(&["-n", "1", "-v"], script);
    let id = ran.out.strip_prefix("[rank 0] ").unwrap().trim_end();
    let expected = format!(" INFO processes that ranks had left were killed processes=[{id}]\n");
    check_contains(&ran.err, &[&expected]);
}

/// The others get some seconds to report the failure themselves, then SIGTERM, then SIGKILL.
#[test]
fn ranks_that_continue_are_ended() {
    let script = "[ $RANK = 0 ] && exit 4; trap '' TERM; while true; do sleep 0.1; done";
    let began = Instant::now();
    let error = launch(&["-n", "2", "--grace", "1"], script).errors(4);
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(5) && took < Duration::from_secs(20),
        "{took:?}"
    );
    check_contains(
        &error,
        &[
            "note: rank 0 has failed: sends SIGTERM to rank 1, and waits up to 1 s\n",
            "note: not ended within 1 s: kills rank 1\n",
        ],
    );
}

#[test]
fn failures_are_restarted_as_often_as_asked_for() {
    let script = "echo start $TINDERBOX_RESTARTS with $WORLD_SIZE; test $TINDERBOX_RESTARTS = 2";
    let all = ["-n", "3", "--restarts", "2", "--restart-ranks", "2"];
    let ran = launch(&all, script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    check_contains(
        &ran.err,
        &[
            "was the first to fail: exit code 1",
            "starts 2 ranks again (2 of 2)",
        ],
    );
    let out = ran.out;
    check_contains(
        &out,
        &[
            "[rank 2] start 0 with 3",
            "[rank 1] start 1 with 2",
            "[rank 1] start 2 with 2",
        ],
    );
    let error = launch(&["-n", "1", "--restarts", "1"], "exit 5").errors(5);
    check_contains(&error, &["note: starts 1 rank again (1 of 1)\n"]);
    let error = launch(&["-q", "-n", "1", "--restarts", "1"], "exit 5").errors(5);
    assert!(!error.contains("again"), "{error}");
}

/// The remaining ranks continue without lost ones, and the launcher does not wait for stopped ones.
#[test]
fn ranks_survive_the_loss_of_others() {
    let script = "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 0.3; echo done";
    let ran = launch(&["-n", "3", "--survive"], script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    check_contains(&ran.err, &["rank 1 is lost: ended by signal 9 (SIGKILL)"]);
    check_contains(&ran.out, &["[rank 0] done", "[rank 2] done"]);
    let began = Instant::now();
    let stopped = "if [ $RANK = 0 ]; then kill -STOP $$; fi; sleep 0.3; echo done";
    let ran = launch(&["-n", "2", "--survive"], stopped);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
    check_contains(&ran.out, &["[rank 1] done"]);
    let killed = "note: stopped while the others have ended: kills rank 0\n";
    check_contains(&ran.err, &[killed]);
    // When no rank is left, the last failure is the reason.
    let script = "sleep 0.$RANK; exit 1$RANK";
    let error = launch(&["-n", "2", "--survive"], script).errors(11);
    check_contains(
        &error,
        &[
            "rank 0 is lost: exit code 10",
            "rank 1 was the last to fail: exit code 11",
        ],
    );
}

#[test]
fn spares_are_the_last_ranks() {
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE";
    let out = launch(&["-n", "2", "--spares", "1"], script).ends(0);
    check_contains(
        &out,
        &["[rank 0] 0 of 3, 0 of 3", "[rank 2] 2 of 3, 2 of 3"],
    );
    let second = [
        "-n", "2", "--spares", "1", "--nodes", "2", "--node", "1", "--master", "a:1", "--tls",
        "certs",
    ];
    let out = launch(&second, script).ends(0);
    check_contains(
        &out,
        &[
            "[rank 2] 2 of 6",
            "[rank 3] 3 of 6",
            "[rank 5] 5 of 6, 2 of 3",
        ],
    );
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let refused = |arguments: &[&str], parts: &[&str]| {
        check_contains(&launch(arguments, "true").fails(2), parts);
    };
    refused(&[], &["--ranks <N>"]);
    refused(&["-n", "0"], &["'0'"]);
    refused(&["-n", "1", "--nodes", "2"], &["--nodes 2 needs --master"]);
    refused(
        &["-n", "1", "--node", "1"],
        &["--node 1 of --nodes 1: machines are numbered from 0, so the last one is 0"],
    );
    refused(&["-n", "1", "--master", "node0"], &["such as node0:29500"]);
    let several = ["-n", "1", "--nodes", "2", "--master", "a:1"];
    refused(&several, &["--tls DIR", "TINDERBOX_TOKEN"]);
    refused(&["-n", "1", "--restart-ranks", "2"], &["--restarts"]);
    let missing = run(&["launch", "-n", "1", "--", "/no/such/program"]).errors(3);
    check_contains(
        &missing,
        &["/no/such/program can't be started: No such file"],
    );
    let before = ["launch", "train", "-n", "2"];
    insta::assert_snapshot!(run(&before).fails(2), @"error: `train` is not an argument of launch: write the program and its arguments after `--`, as in `tinderbox launch -n 2 -- train` (see --help)");
}

/// A program of the working directory needs `./`, as in a shell.
#[test]
fn a_program_of_the_working_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("train.sh"), "").unwrap();
    let own = env!("CARGO_BIN_EXE_tinderbox");
    let script = format!(
        "cd '{}' && exec '{own}' launch -n 1 -- train.sh",
        text(dir.path())
    );
    let error = launch(&["-n", "1"], &script).errors(3);
    let expected = "error: train.sh can't be started, because PATH has no train.sh (use ./train.sh for the file of this \
                    directory): No such file";
    check_contains(&error, &[expected]);
}

#[test]
fn the_help_has_the_exit_codes_of_the_program() {
    let help = run(&["launch", "--help"]).ends(0);
    check_contains(
        &help,
        &[
            "exit code of the first rank that failed",
            "130 after SIGINT",
            "Exit codes: 0 done",
        ],
    );
}

/// Starts ranks that write their process ids to a directory and sleep.
fn sleeping(dir: &Path) -> (Child, Vec<String>) {
    let script = format!(
        "echo $$ >{}/$RANK.new; mv {0}/$RANK.new {0}/$RANK; sleep 100; true",
        text(dir)
    );
    let command = [env!("CARGO_BIN_EXE_tinderbox"), "launch", "-n", "2"];
    let all = [DEFAULT_SIGNALS, &command, &["--", "sh", "-c", &script]].concat();
    let launcher = Command::new(all[0])
        .args(&all[1..])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let ids = [0, 1].map(|rank| {
        loop {
            if let Ok(id) = fs::read_to_string(dir.join(rank.to_string())) {
                return id.trim().to_owned();
            }
            assert!(began.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    (launcher, ids.to_vec())
}

fn is_running(id: &str) -> bool {
    // A zombie has ended.
    let stat = fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn check_ended(ids: &[String]) {
    let began = Instant::now();
    while ids.iter().any(|id| is_running(id)) {
        assert!(began.elapsed() < Duration::from_secs(5), "ranks run on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_end_with_their_launcher_however_it_ends() {
    for (signal, code) in [("-TERM", Some(143)), ("-INT", Some(130)), ("-KILL", None)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut launcher, ids) = sleeping(dir.path());
        assert!(ids.iter().all(|id| is_running(id)));
        let id = launcher.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &id])
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(launcher.wait().unwrap().code(), code);
        check_ended(&ids);
    }
}

/// The first process writes the machine of all, and the others leave the file as it is.
#[test]
fn processes_write_one_machine_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machine.json");
    let program = env!("CARGO_BIN_EXE_tinderbox");
    let calibrate = ["calibrate", "--threads", "1", "--json", "-o", text(&file)];
    run(&[&["launch", "-n", "2", "--", program], &calibrate[..]].concat()).ends(0);
    let machine = tinderbox_planner::Machine::load(&file).unwrap();
    assert_eq!(machine.ranks(), 2);
}
