//! The supervisor: starts ranks, waits for them, and ends all when one fails.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGHUP, SIGKILL};

use super::control::{ENDING, HARMLESS, SUPERVISOR, code_of, listen};
use super::descendants;
use super::flags::Flags;
use super::output::{LastLines, print_lines};
use crate::outcome::Outcome;
use crate::terminal::say;

/// The time between two looks at the ranks.
const LOOK: Duration = Duration::from_millis(10);

/// The time for ranks to report the failure of another one themselves.
const REPORT: Duration = Duration::from_secs(5);

/// The longest wait for the last lines of ranks.
const PRINT: Duration = Duration::from_secs(2);

/// The pause of several machines before a restart, in which the ranks of the other machines end. A rank that still meets ranks
/// of the failed start is refused, and costs a restart.
const PAUSE: Duration = Duration::from_secs(3);

/// A process of a rank.
struct Rank {
    number: u32,
    child: Child,
    status: Option<ExitStatus>,
    /// The end of its process, if a signal that was passed on has ended it. The others of its group, such as the program of a
    /// shell, got the signal as well, and have time to save.
    lingers: Option<Instant>,
    last: LastLines,
    printers: Vec<JoinHandle<()>>,
}

/// Starts the program as ranks, and restarts it after failures, for the launcher at standard input. All processes that the
/// ranks have started end with them.
pub(super) fn supervise(flags: &Flags, json: bool) -> anyhow::Result<Outcome> {
    flags.check()?;
    ensure!(!json, "the output is the program's: leave out --json");
    descendants::adopt().context("descendants can't be adopted")?;
    let control = listen()?;
    let outcome = run(flags, &control);
    descendants::end_all_but(&[]);
    outcome
}

fn run(flags: &Flags, control: &Receiver<i32>) -> anyhow::Result<Outcome> {
    let mut here = flags.ranks;
    for restart in 0.. {
        let watch = Watch {
            ranks: start(flags, here, restart)?,
            grace: Duration::from_secs(flags.grace),
            survives: flags.survives(),
            ..Watch::default()
        };
        let failed = match watch.wait(control) {
            Ok(outcome) => return Ok(outcome),
            Err(failed) => failed,
        };
        let (rank, (how, code)) = (failed.number, how(failed.status.unwrap_or_default()));
        let place = if flags.survives() { "last" } else { "first" };
        let text = format!("rank {rank} was the {place} to fail: {how}");
        say("error", &text);
        for line in failed.last.take() {
            writeln!(io::stderr(), "[rank {rank}] {line}")?;
        }
        if restart == flags.restarts {
            return Ok(Outcome(code));
        }
        here = flags.restart_ranks.unwrap_or(here);
        if flags.nodes > 1 {
            thread::sleep(PAUSE);
        }
        let (number, all) = (restart + 1, flags.restarts);
        let text = format!("starts {here} ranks again ({number} of {all})");
        say("note", &text);
    }
    unreachable!("the last restart returns")
}

/// Starts the processes of this machine: ranks, then spares.
fn start(flags: &Flags, here: u16, restart: u32) -> anyhow::Result<Vec<Rank>> {
    let variables = flags.variables(here, restart)?;
    let own = std::env::current_exe().context("the path of this program is unknown")?;
    let mut ranks: Vec<Rank> = Vec::new();
    for local in 0..flags.processes(here) {
        let number = flags.rank(here, local);
        let mut command = Command::new(&own);
        command
            .arg("become-rank")
            .args(["--launcher", &std::process::id().to_string(), "--"])
            .args(&flags.program)
            .envs(variables.iter().cloned())
            // The program may be a launcher itself.
            .env_remove(SUPERVISOR)
            .env("RANK", number.to_string())
            .env("LOCAL_RANK", local.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In its own group, so that signals of the terminal reach it only through the launcher.
            .process_group(0);
        let mut child = match descendants::start(&mut command) {
            Ok(child) => child,
            Err(error) => {
                ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
                return Err(error).context("a rank can't be started");
            }
        };
        let last = LastLines::default();
        let prefix = format!("[rank {number}] ");
        let (out, error) = (child.stdout.take(), child.stderr.take());
        let kept = Some(last.clone());
        let printers = [
            out.map(|from| print_lines(from, io::stdout(), prefix.clone(), None)),
            error.map(|from| print_lines(from, io::stderr(), prefix.clone(), kept)),
        ];
        ranks.push(Rank {
            number,
            child,
            status: None,
            lingers: None,
            last,
            printers: printers.into_iter().flatten().collect(),
        });
    }
    Ok(ranks)
}

/// The ranks of one start, and their ends.
#[derive(Default)]
struct Watch {
    ranks: Vec<Rank>,
    /// The time from SIGTERM to SIGKILL.
    grace: Duration,
    /// Whether the others continue when a rank is lost.
    survives: bool,
    /// The last signal that requested the end.
    signalled: Option<i32>,
    /// Signals that may have ended ranks.
    passed_on: BTreeSet<i32>,
    /// The first rank that failed. If the others continue after a loss, the last one, which is then the reason for the end.
    failed: Option<usize>,
    /// The times at which the remaining ranks get SIGTERM and SIGKILL.
    term_at: Option<Instant>,
    kill_at: Option<Instant>,
}

impl Watch {
    /// Waits until all ranks have ended. Ends the others after the first one fails, unless they continue without it. Also ends
    /// them after a signal that requests it. Returns the outcome, or the rank whose failure is the reason for the end.
    fn wait(mut self, control: &Receiver<i32>) -> Result<Outcome, Rank> {
        let orphaned = Outcome(code_of(SIGKILL));
        loop {
            // All signals count before the ends that they cause: schedulers send CONT before TERM.
            let launcher = loop {
                match control.try_recv() {
                    Ok(signal) => self.pass_on(signal),
                    Err(state) => break state,
                }
            };
            if launcher == TryRecvError::Disconnected {
                self.signal_all(Signal::KILL);
                return Ok(orphaned);
            }
            self.note_ended();
            let mut running = self.ranks.iter().filter(|rank| rank.is_running());
            if running.clone().next().is_none() {
                break;
            }
            // The others have given up stopped processes, which would never end.
            if self.survives_without_some() && running.all(Rank::is_stopped) {
                self.signal_all(Signal::KILL);
            }
            let now = Instant::now();
            if self.term_at.take_if(|at| *at <= now).is_some() {
                self.signal_all(Signal::TERM);
                self.kill_at = self.kill_at.or(self.after_grace());
            }
            if self.kill_at.is_some_and(|at| at <= now) {
                self.signal_all(Signal::KILL);
                self.kill_at = self.after_grace();
            }
            thread::sleep(LOOK);
        }
        wait_for_lines(&self.ranks);
        descendants::end_all_but(&[]);
        if control.try_recv() == Err(TryRecvError::Disconnected) {
            // The end of the launcher has ended the ranks, so they have not failed.
            return Ok(orphaned);
        }
        if let Some(signal) = self.signalled {
            return Ok(Outcome(code_of(signal)));
        }
        match self.failed {
            Some(index) if !self.survives_without_some() => {
                let rank = self.ranks.swap_remove(index);
                let status = rank.status.unwrap_or_default();
                match self.is_ended_by_signal(status) {
                    true => Ok(Outcome(how(status).1)),
                    false => Err(rank),
                }
            }
            _ => Ok(Outcome::DONE),
        }
    }

    /// Returns whether a rank has succeeded, and the others are not needed.
    fn survives_without_some(&self) -> bool {
        let mut ended = self.ranks.iter().filter_map(|rank| rank.status);
        self.survives && ended.any(|status| status.success())
    }

    /// Returns whether a signal that was passed on has ended a process.
    fn is_ended_by_signal(&self, status: ExitStatus) -> bool {
        // A shell reports a signal as its exit code.
        let reported = || status.code().map(|code| code - 128);
        let signal = status.signal().or_else(reported);
        signal.is_some_and(|signal| self.passed_on.contains(&signal))
    }

    /// Passes a signal of the launcher on to the ranks.
    fn pass_on(&mut self, signal: i32) {
        let is_ending = ENDING.contains(&signal);
        // A closed terminal, or the end of a session, sends HUP more than once, and in addition to TERM.
        let insists = signal != SIGHUP && self.signalled.is_some_and(|first| first != SIGHUP);
        // A second request for the end.
        let is_again = is_ending && insists;
        if is_ending && (self.signalled.is_none() || signal != SIGHUP) {
            self.signalled = Some(signal);
        }
        let named = Signal::from_named_raw(signal).filter(|_| !is_again);
        self.signal_all(named.unwrap_or(Signal::KILL));
        if is_ending {
            self.kill_at = self.kill_at.or(self.after_grace());
        }
        if !HARMLESS.contains(&signal) {
            self.passed_on.insert(signal);
        }
    }

    /// Notes which ranks have ended, and when the others are ended because of them.
    fn note_ended(&mut self) {
        while let Some((child, status)) = descendants::ended() {
            // Other children are processes that ranks have started and left.
            let runs_as_it = |rank: &Rank| rank.status.is_none() && rank.group() == child;
            let Some(index) = self.ranks.iter().position(runs_as_it) else {
                continue;
            };
            let by_signal = self.is_ended_by_signal(status);
            self.ranks[index].end(status, by_signal);
            if status.success() {
                continue;
            }
            if self.survives {
                let (number, (how, _)) = (self.ranks[index].number, how(status));
                say("note", &format!("rank {number} is lost: {how}"));
            } else if self.failed.is_none() && self.signalled.is_none() {
                self.term_at = match by_signal {
                    // The other ranks got the signal as well.
                    true => self.after_grace(),
                    false => Some(Instant::now() + REPORT),
                };
            }
            if self.survives || self.failed.is_none() {
                self.failed = Some(index);
            }
        }
        for rank in &mut self.ranks {
            rank.look_after_group(self.grace);
        }
    }

    /// Returns the end of the time to save; `None` if it is out of the range of the clock.
    fn after_grace(&self) -> Option<Instant> {
        Instant::now().checked_add(self.grace)
    }

    fn signal_all(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
    }
}

/// Waits until the last lines of all ranks are printed, at most for [`PRINT`], because a process that left its group may keep
/// a stream open.
fn wait_for_lines(ranks: &[Rank]) {
    let ended = Instant::now();
    for printer in ranks.iter().flat_map(|rank| &rank.printers) {
        while !printer.is_finished() && ended.elapsed() < PRINT {
            thread::sleep(LOOK);
        }
    }
}

/// Returns the end of a failed process as text, and its exit code.
pub(super) fn how(status: ExitStatus) -> (String, u8) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (format!("exit code {code}"), u8::try_from(code).unwrap_or(1)),
        (None, Some(signal)) => (format!("ended by signal {signal}"), code_of(signal)),
        (None, None) => ("ended".to_owned(), 1),
    }
}

impl Rank {
    /// Returns the id of its process, which is the id of its group.
    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns whether its process runs, or others of its group have time to save.
    fn is_running(&self) -> bool {
        self.status.is_none() || self.lingers.is_some()
    }

    /// Notes the end of its process.
    fn end(&mut self, status: ExitStatus, by_signal: bool) {
        self.status = Some(status);
        // A process that exits by itself has ended its own processes before.
        self.lingers = (by_signal && status.signal().is_some()).then(Instant::now);
        if self.lingers.is_none() {
            // Processes that the rank has started may continue and keep its streams open.
            self.signal_group(Signal::KILL);
        }
    }

    /// Ends the rest of the group of a process that has ended, and notes when the group is empty.
    fn look_after_group(&mut self, grace: Duration) {
        let Some(since) = self.lingers else {
            return;
        };
        if since.elapsed() >= grace {
            self.signal_group(Signal::KILL);
        }
        if test_kill_process_group(self.group()).is_err() {
            self.lingers = None;
        }
    }

    /// Returns whether a signal has stopped it (Linux).
    fn is_stopped(&self) -> bool {
        let state = descendants::stat(self.child.id());
        state.is_some_and(|state| state.starts_with(['T', 't']))
    }

    /// Sends a signal if the rank runs.
    fn signal(&self, signal: Signal) {
        if self.is_running() {
            self.signal_group(signal);
        }
    }

    fn signal_group(&self, signal: Signal) {
        // It fails if the group is empty.
        let _ = kill_process_group(self.group(), signal);
    }
}
