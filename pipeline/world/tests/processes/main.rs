//! Ranks that are processes of this machine, over gRPC: their calls, and the end of a run when one of them is killed, stopped,
//! panics or exits.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tinderbox_world::{Buffer, Failure, Handler, Meeting, RankIndex, World};

/// The variable that makes this program a rank.
const PROGRAM: &str = "TINDERBOX_TEST_PROGRAM";

/// The rank with the fault.
const FAULTY: &str = "TINDERBOX_TEST_FAULTY";

/// The program of a rank, which the tests start as a process. In the test program itself, it does nothing.
#[test]
fn rank() {
    let Ok(program) = std::env::var(PROGRAM) else {
        return;
    };
    let world = World::from_env().unwrap();
    let faulty = std::env::var(FAULTY).unwrap();
    let is_faulty = world.rank().to_string() == faulty;
    let channel = world.open(Arc::new(Ignore));
    let own = world.rank();
    channel.report(move || Some(format!("`{own}F0` of round 1")));
    for round in 0.. {
        if round == 5 {
            // The parent acts on this line.
            eprintln!("rank {own} is ready");
        }
        if program == "orderly" && round == 100 {
            break;
        }
        // A heartbeat sends the report of this rank to the others.
        std::thread::sleep(Duration::from_millis(5));
        if is_faulty && round == 40 {
            match program.as_str() {
                "panic" => panic!("injected"),
                "exit" => std::process::exit(3),
                _ => {}
            }
        }
        match world.all_gather((round, own)) {
            Ok(all) => assert!(all.iter().all(|(other, _)| *other == round)),
            Err(error) => {
                eprintln!("error: {error}");
                drop(channel);
                drop(world);
                std::process::exit(1);
            }
        }
    }
}

struct Ignore;

impl Handler for Ignore {
    fn received(&self, _: RankIndex, _: &[u8], _: Vec<Buffer>) {}
    fn failed(&self, _: &Failure) {}
}

/// The processes of a run. Dropping it kills the remaining ones.
struct Run {
    ranks: Vec<(Child, BufReader<ChildStderr>)>,
    port: u16,
}

impl Run {
    fn start(program: &str, size: usize, faulty: usize) -> Self {
        let port = Meeting::on_this_machine().unwrap().port;
        let rank = |rank: usize| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "rank", "--nocapture"])
                .env(PROGRAM, program)
                .env(FAULTY, faulty.to_string())
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", size.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env("TINDERBOX_HEARTBEAT_MS", "50")
                .env("TINDERBOX_TOKEN", "secret")
                .env("RUST_BACKTRACE", "0")
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stderr.take().unwrap());
            (child, lines)
        };
        Self {
            ranks: (0..size).map(rank).collect(),
            port,
        }
    }

    /// Waits until all ranks have exchanged values.
    fn wait_until_ready(&mut self) {
        for (rank, (_, lines)) in self.ranks.iter_mut().enumerate() {
            let mut line = String::new();
            while !line.contains("is ready") {
                line.clear();
                assert!(
                    lines.read_line(&mut line).unwrap() > 0,
                    "rank {rank} ended early"
                );
            }
        }
    }

    fn signal(&self, rank: usize, signal: &str) {
        let id = self.ranks[rank].0.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the end of the other ranks, and returns their errors.
    fn errors(&mut self, faulty: usize, since: Instant, within: Duration) -> Vec<String> {
        let mut errors = Vec::new();
        for (rank, (child, lines)) in self.ranks.iter_mut().enumerate() {
            if rank == faulty {
                continue;
            }
            while child.try_wait().unwrap().is_none() {
                assert!(
                    since.elapsed() < within,
                    "rank {rank} runs after {:?}",
                    since.elapsed()
                );
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut text = String::new();
            lines.read_to_string(&mut text).unwrap();
            let error = text.lines().find_map(|line| line.strip_prefix("error: "));
            let error = error.unwrap_or_else(|| panic!("rank {rank}: {text}"));
            assert_eq!(child.wait().unwrap().code(), Some(1), "{text}");
            errors.push(error.to_owned());
        }
        errors
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for (child, _) in &mut self.ranks {
            // It fails for processes that have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        // Nothing listens any more.
        if !std::thread::panicking() {
            TcpListener::bind(("127.0.0.1", self.port)).unwrap();
        }
    }
}

/// Injects a fault in each of three ranks, and checks the reports of the others and their time.
fn check(program: &str, inject: impl Fn(&Run, usize), expected: &str) {
    for faulty in 0..3 {
        let mut run = Run::start(program, 3, faulty);
        run.wait_until_ready();
        std::thread::sleep(Duration::from_millis(150));
        let since = Instant::now();
        inject(&run, faulty);
        // If the rank injects the fault itself, the time includes the time before the fault.
        let own = Duration::from_millis(if program == "loop" { 0 } else { 2000 });
        let errors = run.errors(faulty, since, Duration::from_secs(1) + own);
        let start = format!("rank {faulty} {expected}");
        let doing = format!("; it was last in `{faulty}F0` of round 1");
        for error in &errors {
            assert!(
                error.starts_with(&start) && error.ends_with(&doing),
                "{errors:?}"
            );
        }
        assert_eq!(errors.len(), 2);
    }
}

#[test]
fn processes_exchange_values_and_end() {
    for size in [2, 4] {
        let mut run = Run::start("orderly", size, size);
        for (rank, (child, lines)) in run.ranks.iter_mut().enumerate() {
            let mut text = String::new();
            lines.read_to_string(&mut text).unwrap();
            assert!(child.wait().unwrap().success(), "rank {rank}: {text}");
        }
    }
}

#[test]
fn a_killed_process_is_named_by_the_others() {
    check(
        "loop",
        |run, rank| run.signal(rank, "-KILL"),
        "is lost: its connection ",
    );
}

#[test]
fn a_stopped_process_is_named_by_the_others() {
    check(
        "loop",
        |run, rank| run.signal(rank, "-STOP"),
        "is lost: it has shown no sign of life for ",
    );
}

#[test]
fn a_panic_is_named_by_the_others() {
    check("panic", |_, _| {}, "failed: its program panicked");
}

#[test]
fn an_exit_is_named_by_the_others() {
    check("exit", |_, _| {}, "is lost: its connection ");
}
