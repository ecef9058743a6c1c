//! Starts ranks, waits for them, and ends all when one fails.

use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

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
    /// The launcher was told to end.
    Signalled {
        code: u8,
    },
}

/// Starts the program as ranks, and again after failures.
pub(crate) fn run(flags: &Flags, json: bool) -> anyhow::Result<Outcome> {
    flags.check()?;
    if json {
        anyhow::bail!("the output is that of the program: leave out --json");
    }
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals can't be received")?;
    let mut here = flags.ranks;
    for restart in 0.. {
        let world = flags.world(here)?;
        let ranks = start(flags, &world, restart)?;
        let (rank, how, code, last) = match wait(ranks, &mut signals, flags)? {
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
        let started = Command::new(&own)
            .arg("become-rank")
            .args(["--launcher", &std::process::id().to_string(), "--"])
            .args(&flags.program)
            .envs(flags.variables(world, local, restart))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Signals of the terminal reach it through the launcher.
            .process_group(0)
            .spawn();
        let mut child = match started {
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
            last,
            printers: out.into_iter().chain(error).collect(),
        });
    }
    Ok(ranks)
}

/// Waits until all ranks have ended. After the first that fails, and after a signal, the others are ended, unless they go on
/// without it.
fn wait(mut ranks: Vec<Rank>, signals: &mut Signals, flags: &Flags) -> anyhow::Result<End> {
    let grace = flags.grace();
    let (mut first, mut last): (Option<usize>, Option<usize>) = (None, None);
    let mut signalled: Option<i32> = None;
    // When the ranks that are left get SIGTERM, and then SIGKILL.
    let (mut term_at, mut kill_at): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        for signal in signals.pending() {
            match (signalled.replace(signal), Signal::from_named_raw(signal)) {
                (None, Some(signal)) => ranks.iter().for_each(|rank| rank.signal(signal)),
                // Asked for a second time.
                _ => ranks.iter().for_each(|rank| rank.signal(Signal::KILL)),
            }
            kill_at = kill_at.or(Some(Instant::now() + grace));
        }
        for (index, rank) in ranks.iter_mut().enumerate() {
            if rank.status.is_none() {
                rank.status = rank
                    .child
                    .try_wait()
                    .context("a rank can't be waited for")?;
                if rank.status.is_some() {
                    // What the rank has started may live on and hold its streams.
                    rank.signal_group(Signal::KILL);
                }
                let Some(status) = rank.status.filter(|status| !status.success()) else {
                    continue;
                };
                if flags.survives() {
                    let (number, (how, _)) = (rank.number, how(status));
                    say("note", &format!("rank {number} is lost: {how}"));
                } else if first.is_none() {
                    term_at = Some(Instant::now() + REPORT);
                }
                first = first.or(Some(index));
                last = Some(index);
            }
        }
        let mut running = ranks.iter().filter(|rank| rank.status.is_none()).peekable();
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
            kill_at = kill_at.or(Some(now + grace));
        }
        if kill_at.is_some_and(|at| at <= now) {
            ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
            kill_at = Some(now + grace);
        }
        thread::sleep(LOOK);
    }
    let ended = Instant::now();
    for rank in &mut ranks {
        // A process that left the group may hold a stream.
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
    Ok(match reason.and_then(|reason| ranks.get(reason)) {
        None => End::Done,
        Some(rank) => {
            let (how, code) = how(rank.status.unwrap_or_default());
            End::Failed {
                rank: rank.number,
                how,
                code,
                last: rank.last.take(),
            }
        }
    })
}

/// How a process that failed has ended, and its exit code.
fn how(status: ExitStatus) -> (String, u8) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (format!("exit code {code}"), u8::try_from(code).unwrap_or(1)),
        (None, Some(signal)) => (format!("ended by signal {signal}"), code_of(signal)),
        (None, None) => ("ended".to_owned(), 1),
    }
}

fn is_done(rank: &Rank) -> bool {
    rank.status.is_some_and(|status| status.success())
}

/// The exit code of shells for a signal.
fn code_of(signal: i32) -> u8 {
    u8::try_from(signal)
        .ok()
        .and_then(|signal| signal.checked_add(128))
        .unwrap_or(1)
}

impl Rank {
    /// Whether a signal has stopped it, where the system tells (Linux).
    fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|state| state.starts_with(['T', 't']))
    }

    /// Sends a signal if the rank runs.
    fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            self.signal_group(signal);
        }
    }

    fn signal_group(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(id) = id {
            // It may have ended by now.
            let _ = kill_process_group(id, signal);
        }
    }
}
