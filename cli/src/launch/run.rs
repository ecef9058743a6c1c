//! The supervisor: starts ranks, waits for them, and ends all when one fails.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGHUP, SIGKILL};

use super::control::{Control, ENDING, HARMLESS, code_of};
use super::descendants;
use super::flags::{Flags, World};
use super::output::{LastLines, print_lines};
use crate::outcome::Outcome;
use crate::terminal::say;

/// How often the ranks are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How long ranks are left to report the failure of another one by themselves.
const REPORT: Duration = Duration::from_secs(5);

/// How long the last lines of ranks are waited for.
const PRINT: Duration = Duration::from_secs(2);

/// How long several machines wait before they start again: the ranks of the others end meanwhile.
const PAUSE: Duration = Duration::from_secs(3);

/// A process of a rank.
struct Rank {
    number: u32,
    child: Child,
    status: Option<ExitStatus>,
    /// Since when others of its group, such as the program of a shell, are given time to save: a signal that was passed on has
    /// ended its process, and they got it as well.
    lingers: Option<Instant>,
    last: LastLines,
    printers: Vec<JoinHandle<()>>,
}

/// How the ranks of one start have ended.
enum End {
    Done,
    /// The first rank that failed.
    Failed {
        rank: u32,
        how: String,
        code: u8,
        last: Vec<String>,
    },
    /// By a signal that was passed on.
    Signalled {
        code: u8,
    },
}

/// Starts the program as ranks, and again after failures, for the launcher at standard input. All processes that they have
/// started end with them.
pub(crate) fn supervise(flags: &Flags, json: bool) -> anyhow::Result<Outcome> {
    flags.check()?;
    if json {
        anyhow::bail!("the output is the program's: leave out --json");
    }
    descendants::adopt().context("descendants can't be adopted")?;
    let control = Control::listen()?;
    let outcome = run(flags, &control);
    descendants::end_all_but(&[]);
    outcome
}

fn run(flags: &Flags, control: &Control) -> anyhow::Result<Outcome> {
    let mut here = flags.ranks;
    for restart in 0.. {
        let world = flags.world(here)?;
        let ranks = start(flags, &world, restart)?;
        let (rank, how, code, last) = match wait(ranks, control, flags)? {
            End::Done => return Ok(Outcome::Done),
            End::Signalled { code } => return Ok(Outcome::Program(code)),
            End::Failed {
                rank,
                how,
                code,
                last,
            } => (rank, how, code, last),
        };
        let place = if flags.survives() { "last" } else { "first" };
        say(
            "error",
            &format!("rank {rank} was the {place} to fail: {how}"),
        );
        for line in last {
            writeln!(io::stderr(), "[rank {rank}] {line}")?;
        }
        if restart == flags.restarts {
            return Ok(Outcome::Program(code));
        }
        here = flags.restart_ranks.unwrap_or(here);
        if flags.is_of_several_machines() {
            thread::sleep(PAUSE);
        }
        say(
            "note",
            &format!(
                "starts {here} ranks again ({} of {})",
                restart + 1,
                flags.restarts
            ),
        );
    }
    unreachable!("the last restart returns")
}

fn start(flags: &Flags, world: &World, restart: u32) -> anyhow::Result<Vec<Rank>> {
    let own = std::env::current_exe().context("the path of this program is unknown")?;
    let mut ranks: Vec<Rank> = Vec::new();
    for local in 0..world.here {
        let number = world.rank(local);
        let mut command = Command::new(&own);
        command
            .arg("become-rank")
            .args(["--launcher", &std::process::id().to_string(), "--"])
            .args(&flags.program)
            .envs(flags.variables(world, local, restart))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Signals of the terminal reach it through the launcher.
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
        let out = child
            .stdout
            .take()
            .map(|from| print_lines(from, io::stdout(), prefix.clone(), None));
        let error = child.stderr.take();
        let error = error.map(|from| print_lines(from, io::stderr(), prefix, Some(last.clone())));
        ranks.push(Rank {
            number,
            child,
            status: None,
            lingers: None,
            last,
            printers: out.into_iter().chain(error).collect(),
        });
    }
    Ok(ranks)
}

/// Waits until all ranks have ended. After the first that fails, and after a signal that asks for it, the others are ended,
/// unless they continue without it.
fn wait(mut ranks: Vec<Rank>, control: &Control, flags: &Flags) -> anyhow::Result<End> {
    // Without an end if it is longer than the clock counts.
    let after_grace = || Instant::now().checked_add(flags.grace());
    let (mut first, mut last): (Option<usize>, Option<usize>) = (None, None);
    let mut signalled: Option<i32> = None;
    // Signals that may have ended ranks.
    let mut passed_on = BTreeSet::new();
    // When the ranks that are left get SIGTERM, and then SIGKILL.
    let (mut term_at, mut kill_at): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        while let Some(signal) = control.signal() {
            let is_ending = ENDING.contains(&signal);
            // A terminal that is closed, or the end of a session, sends HUP more than once, and beside TERM.
            let insists = signal != SIGHUP && signalled.is_some_and(|first| first != SIGHUP);
            let is_first = !is_ending || !insists;
            if is_ending && (signalled.is_none() || signal != SIGHUP) {
                signalled = Some(signal);
            }
            match (is_first, Signal::from_named_raw(signal)) {
                (true, Some(signal)) => ranks.iter().for_each(|rank| rank.signal(signal)),
                // Asked for a second time.
                _ => ranks.iter().for_each(|rank| rank.signal(Signal::KILL)),
            }
            if is_ending {
                kill_at = kill_at.or_else(after_grace);
            }
            if !HARMLESS.contains(&signal) {
                passed_on.insert(signal);
            }
        }
        if control.has_ended() {
            ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
            return Ok(orphaned());
        }
        while let Some((child, status)) = descendants::ended() {
            // The others are what ranks have started and left.
            let Some(index) = ranks.iter().position(|rank| rank.runs_as(child)) else {
                continue;
            };
            let by_signal = ended_by(status).is_some_and(|signal| passed_on.contains(&signal));
            ranks[index].end(status, by_signal);
            if status.success() {
                continue;
            }
            if flags.survives() {
                let (number, (how, _)) = (ranks[index].number, how(status));
                say("note", &format!("rank {number} is lost: {how}"));
            } else if first.is_none() && signalled.is_none() {
                term_at = match by_signal {
                    // The others got it as well.
                    true => after_grace(),
                    false => Some(Instant::now() + REPORT),
                };
            }
            first = first.or(Some(index));
            last = Some(index);
        }
        let groups = ranks.iter_mut();
        groups.for_each(|rank| rank.look_after_group(flags.grace()));
        let mut running = ranks.iter().filter(|rank| rank.is_running()).peekable();
        if running.peek().is_none() {
            break;
        }
        // Processes that are stopped, and that the others have given up, would never end.
        if flags.survives() && ranks.iter().any(is_done) && running.all(Rank::is_stopped) {
            ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
        }
        let now = Instant::now();
        if term_at.is_some_and(|at| at <= now) {
            term_at = None;
            ranks.iter().for_each(|rank| rank.signal(Signal::TERM));
            kill_at = kill_at.or_else(after_grace);
        }
        if kill_at.is_some_and(|at| at <= now) {
            ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
            kill_at = after_grace();
        }
        thread::sleep(LOOK);
    }
    wait_for_lines(&mut ranks);
    descendants::end_all_but(&[]);
    if control.has_ended() {
        // What has ended them is no failure of theirs.
        return Ok(orphaned());
    }
    if let Some(signal) = signalled {
        return Ok(End::Signalled {
            code: code_of(signal),
        });
    }
    if flags.survives() && ranks.iter().any(is_done) {
        return Ok(End::Done);
    }
    // Those that were lost before others are no reason.
    let reason = if flags.survives() { last } else { first };
    let reason = reason.and_then(|reason| ranks.get(reason));
    Ok(reason.map_or(End::Done, |rank| end_by(rank, &passed_on)))
}

/// Waits until the last lines of all ranks are printed, for some time: a process that left the group may hold a stream.
fn wait_for_lines(ranks: &mut [Rank]) {
    let ended = Instant::now();
    for rank in ranks {
        let has_ended = |rank: &Rank| rank.printers.iter().all(JoinHandle::is_finished);
        while !has_ended(rank) && ended.elapsed() < PRINT {
            thread::sleep(LOOK);
        }
        if !has_ended(rank) {
            continue;
        }
        for printer in rank.printers.drain(..) {
            // It does not panic.
            let _ = printer.join();
        }
    }
}

/// The end of all ranks because of one.
fn end_by(rank: &Rank, passed_on: &BTreeSet<i32>) -> End {
    let status = rank.status.unwrap_or_default();
    let (how, code) = how(status);
    match ended_by(status) {
        Some(signal) if passed_on.contains(&signal) => End::Signalled { code },
        _ => End::Failed {
            rank: rank.number,
            how,
            code,
            last: rank.last.take(),
        },
    }
}

/// The end of ranks whose launcher has ended.
fn orphaned() -> End {
    End::Signalled {
        code: code_of(SIGKILL),
    }
}

/// Returns the signal that has ended a process, or that it has reported by its exit code, as shells do.
fn ended_by(status: ExitStatus) -> Option<i32> {
    let reported = || status.code().map(|code| code - 128);
    status.signal().or_else(reported)
}

/// How a process that failed has ended, and its exit code.
pub(super) fn how(status: ExitStatus) -> (String, u8) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (format!("exit code {code}"), u8::try_from(code).unwrap_or(1)),
        (None, Some(signal)) => (format!("ended by signal {signal}"), code_of(signal)),
        (None, None) => ("ended".to_owned(), 1),
    }
}

fn is_done(rank: &Rank) -> bool {
    rank.status.is_some_and(|status| status.success())
}

impl Rank {
    /// The id of its process, which is the id of its group.
    fn group(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Whether its process is this one, and has not ended.
    fn runs_as(&self, child: Pid) -> bool {
        self.status.is_none() && self.group() == Some(child)
    }

    /// Whether its process runs, or others of its group are given time to end.
    fn is_running(&self) -> bool {
        self.status.is_none() || self.lingers.is_some()
    }

    /// Its process has ended.
    fn end(&mut self, status: ExitStatus, by_signal: bool) {
        self.status = Some(status);
        // One that exits by itself has ended what it started before.
        self.lingers = (by_signal && status.signal().is_some()).then(Instant::now);
        if self.lingers.is_none() {
            // What the rank has started may live on and hold its streams.
            self.signal_group(Signal::KILL);
        }
    }

    /// Ends what is left of the group of a process that has ended, and notes when it is empty.
    fn look_after_group(&mut self, grace: Duration) {
        let Some(since) = self.lingers else {
            return;
        };
        if since.elapsed() >= grace {
            self.signal_group(Signal::KILL);
        }
        let has_members = |group| test_kill_process_group(group).is_ok();
        if !self.group().is_some_and(has_members) {
            self.lingers = None;
        }
    }

    /// Whether a signal has stopped it, where the system tells (Linux).
    fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        let state = descendants::after_name(&stat);
        state.is_some_and(|state| state.starts_with(['T', 't']))
    }

    /// Sends a signal if the rank runs.
    fn signal(&self, signal: Signal) {
        if self.is_running() {
            self.signal_group(signal);
        }
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.group() {
            // It may have ended by now.
            let _ = kill_process_group(group, signal);
        }
    }
}
