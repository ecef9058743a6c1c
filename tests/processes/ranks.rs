//! This program as the ranks of a world.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tinderbox::world::Meeting;

use crate::program::{PROGRAM, Program, Report, now_ms};

/// Returns the command that starts ranks over MPI, such as `mpirun --with-ft ulfm`, or why there is none.
#[cfg(feature = "mpi")]
pub fn mpirun() -> Result<String, &'static str> {
    std::env::var(MPIRUN).map_err(|_| "TINDERBOX_MPIRUN is not set")
}

/// The variable with that command.
const MPIRUN: &str = "TINDERBOX_MPIRUN";

/// How long any run of these tests may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// The processes of a run. Dropping it kills those that are left, and checks that nothing listens at their port.
pub struct Ranks {
    size: usize,
    /// A process per rank, or the launcher of MPI.
    children: Vec<Child>,
    reports: TempDir,
    port: u16,
}

/// Returns a free port that no other run of this program has got: several start at a time, and each listens only later.
fn unused_port() -> u16 {
    static USED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = Meeting::on_this_machine().unwrap().port;
        // A set is valid after a panic of another thread.
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        if used.insert(port) {
            return port;
        }
    }
}

/// What a rank has reported, with the time of each line.
pub struct Reported(Vec<(u64, String)>);

impl Ranks {
    pub fn start(size: usize, program: &Program) -> Self {
        let reports = tempfile::tempdir().unwrap();
        let port = unused_port();
        let program = Program {
            reports: reports.path().to_owned(),
            ..program.clone()
        };
        let own = std::env::current_exe().unwrap();
        let spawn = |number: usize, command: &mut Command| {
            let printed = File::create(printed(reports.path(), number)).unwrap();
            command
                .args(["--exact", "program::rank", "--nocapture"])
                .env(PROGRAM, serde_json::to_string(&program).unwrap())
                .env("TINDERBOX_HEARTBEAT_MS", "50")
                .env("RUST_BACKTRACE", "0")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(printed)
                .spawn()
                .unwrap()
        };
        let children = match program.over_mpi {
            true => {
                let mpirun = std::env::var(MPIRUN).unwrap();
                let mut words = mpirun.split_whitespace();
                let mut command = Command::new(words.next().unwrap());
                command.args(words).args(["-n", &size.to_string()]).arg(own);
                vec![spawn(0, &mut command)]
            }
            false => {
                let rank = |rank: usize| {
                    let mut command = Command::new(&own);
                    command
                        .env("RANK", rank.to_string())
                        .env("WORLD_SIZE", size.to_string())
                        .env("MASTER_ADDR", "127.0.0.1")
                        .env("MASTER_PORT", port.to_string())
                        .env("TINDERBOX_TOKEN", "secret");
                    spawn(rank, &mut command)
                };
                (0..size).map(rank).collect()
            }
        };
        Self {
            size,
            children,
            reports,
            port,
        }
    }

    /// Returns what a rank has reported so far.
    pub fn reported(&self, rank: usize) -> Reported {
        let text = fs::read_to_string(Report::path(self.reports.path(), rank));
        let text = text.unwrap_or_default();
        // The last line may not be complete.
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let lines = complete.lines().filter_map(|line| {
            let (time, text) = line.split_once(' ')?;
            Some((time.parse().ok()?, text.to_owned()))
        });
        Reported(lines.collect())
    }

    /// Returns what a rank has reported and printed, for a failed assertion.
    pub fn described(&self, rank: usize) -> String {
        let lines = self.reported(rank).0;
        let printed = fs::read_to_string(printed(self.reports.path(), rank));
        format!("rank {rank}: {lines:#?}\n{}", printed.unwrap_or_default())
    }

    /// Waits until something holds.
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(
                began.elapsed() < PATIENCE,
                "no {what}: {:#?}",
                (0..self.size)
                    .map(|rank| self.described(rank))
                    .collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a rank has ended, and returns when: over MPI its last report, else its end by the system.
    pub fn ended_ms(&mut self, rank: usize) -> u64 {
        if self.children.len() < self.size {
            let ended = |ranks: &Self| {
                let reported = ranks.reported(rank);
                reported.time("error: ").or_else(|| reported.time("end"))
            };
            self.wait_until("end", |ranks| ended(ranks).is_some());
            return ended(self).unwrap();
        }
        let began = Instant::now();
        while self.children[rank].try_wait().unwrap().is_none() {
            assert!(
                began.elapsed() < PATIENCE,
                "it runs: {}",
                self.described(rank)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        now_ms()
    }

    /// Sends a signal to a rank.
    pub fn signal(&self, rank: usize, signal: Signal) {
        let reported = self.reported(rank);
        let id: i32 = reported.text("pid ").unwrap().parse().unwrap();
        // It may be gone.
        let _ = kill_process(Pid::from_raw(id).unwrap(), signal);
    }

    /// Waits for the end of all ranks, and asserts that they had no error.
    pub fn succeed(mut self) -> Vec<Reported> {
        let ranks = 0..self.size;
        let wait = |rank| {
            self.ended_ms(rank);
            self.reported(rank)
        };
        let reported: Vec<Reported> = ranks.map(wait).collect();
        for (rank, reported) in reported.iter().enumerate() {
            assert!(
                reported.time("end").is_some(),
                "{}, {:?}",
                self.described(rank),
                fs::read_to_string(self.reports.path().join("join"))
            );
        }
        reported
    }
}

impl Reported {
    /// Returns the rest of the first line that starts so.
    pub fn text(&self, start: &str) -> Option<&str> {
        self.all(start).next()
    }

    /// Returns the rests of all lines that start so.
    pub fn all(&self, start: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter_map(move |(_, text)| text.strip_prefix(start))
    }

    /// Returns the steps of a verbose program, and the digest of each.
    pub fn steps(&self) -> Vec<(usize, u64)> {
        let steps = self.all("step ").map(|line| {
            let (step, digest) = line.split_once(' ').unwrap();
            (step.parse().unwrap(), digest.parse().unwrap())
        });
        steps.collect()
    }

    /// Returns the time of the first line that starts so, in milliseconds.
    pub fn time(&self, start: &str) -> Option<u64> {
        let mut lines = self.0.iter();
        lines
            .find(|(_, text)| text.starts_with(start))
            .map(|(time, _)| *time)
    }
}

/// The file of what a process printed as errors.
fn printed(reports: &Path, number: usize) -> PathBuf {
    reports.join(format!("printed-{number}"))
}

impl Drop for Ranks {
    fn drop(&mut self) {
        let over_mpi = self.children.len() < self.size;
        if over_mpi {
            // The launcher waits for those that are stopped.
            for rank in 0..self.size {
                let reported = self.reported(rank);
                let has_ended = reported.time("end").or_else(|| reported.time("error: "));
                if reported.time("pid ").is_some() && has_ended.is_none() {
                    self.signal(rank, Signal::KILL);
                }
            }
        }
        for child in &mut self.children {
            if !over_mpi {
                // Those that have ended are gone.
                let _ = child.kill();
            }
            let _ = child.wait();
        }
        if !std::thread::panicking() {
            let free: io::Result<TcpListener> = TcpListener::bind(("127.0.0.1", self.port));
            free.unwrap();
        }
    }
}
