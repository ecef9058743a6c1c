//! Tests of `tinderbox launch` as a process.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::launched::DEFAULT_SIGNALS;
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
    check_contains(&error, &["ended by signal 9"]);
}

/// The others get some seconds to report the failure themselves, then SIGTERM, then SIGKILL.
#[test]
fn ranks_that_continue_are_ended() {
    let script = "[ $RANK = 0 ] && exit 4; trap '' TERM; while true; do sleep 0.1; done";
    let began = Instant::now();
    launch(&["-n", "2", "--grace", "1"], script).errors(4);
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(5) && took < Duration::from_secs(20),
        "{took:?}"
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
    check_contains(&error, &["starts 1 ranks again (1 of 1)"]);
}

/// The remaining ranks continue without lost ones, and the launcher does not wait for stopped ones.
#[test]
fn ranks_survive_the_loss_of_others() {
    let script = "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 0.3; echo done";
    let ran = launch(&["-n", "3", "--survive"], script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    check_contains(&ran.err, &["rank 1 is lost: ended by signal 9"]);
    check_contains(&ran.out, &["[rank 0] done", "[rank 2] done"]);
    let began = Instant::now();
    let stopped = "if [ $RANK = 0 ]; then kill -STOP $$; fi; sleep 0.3; echo done";
    let ran = launch(&["-n", "2", "--survive"], stopped);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
    check_contains(&ran.out, &["[rank 1] done"]);
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
        &["--node 1: the 1 machines count from 0"],
    );
    refused(&["-n", "1", "--master", "node0"], &["such as node0:29500"]);
    let several = ["-n", "1", "--nodes", "2", "--master", "a:1"];
    refused(&several, &["--tls DIR", "TINDERBOX_TOKEN"]);
    refused(&["-n", "1", "--restart-ranks", "2"], &["--restarts"]);
    let missing = run(&["launch", "-n", "1", "--", "/no/such/program"]).errors(3);
    check_contains(&missing, &["/no/such/program can't be started"]);
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
