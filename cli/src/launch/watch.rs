//! The wait for the ranks of one start, and what ends them.

use std::collections::BTreeSet;
use std::mem;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGKILL};
use signal_hook::low_level::signal_name;
use tinderbox_ids::text::count_text;

use super::control::{ENDING, HARMLESS, PASSED_ON, code_of};
use super::descendants;
use super::flags::Flags;
use super::rank::{Rank, how, signal_of};
use crate::outcome::Outcome;
use crate::terminal::Output;

/// The time between two looks at the ranks.
const LOOK: Duration = Duration::from_millis(10);

/// The time for ranks to report the failure of another one themselves.
const REPORT: Duration = Duration::from_secs(5);

/// The longest wait for the last lines of ranks.
const PRINT: Duration = Duration::from_secs(2);

/// The longest wait for a signal that has ended ranks before the launcher has passed it on.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The ranks of one start, and their ends.
pub(super) struct Watch<'a> {
    flags: &'a Flags,
    out: &'a Output,
    ranks: Vec<Rank>,
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

impl<'a> Watch<'a> {
    pub(super) fn new(ranks: Vec<Rank>, flags: &'a Flags, out: &'a Output) -> Self {
        Self {
            flags,
            out,
            ranks,
            signalled: None,
            passed_on: BTreeSet::new(),
            failed: None,
            term_at: None,
            kill_at: None,
        }
    }

    /// Waits until all ranks have ended. Ends the others after the first one fails, unless they continue without it. Also ends
    /// them after a signal that requests it. Returns the outcome, or the rank whose failure is the reason for the end.
    pub(super) fn wait(mut self, control: &Receiver<i32>) -> Result<Outcome, Rank> {
        let orphaned = Outcome(code_of(SIGKILL));
        loop {
            // All signals count before the ends that they cause: schedulers send CONT before TERM.
            if !self.pass_on_arrived(control) {
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
                self.kill_all("stopped while the others have ended");
            }
            self.end_late();
            thread::sleep(LOOK);
        }
        let are_lines_written = wait_for_lines(&mut self.ranks);
        let left = descendants::end_all_but(&[]);
        if !left.is_empty() {
            let processes: Vec<i32> = left.into_iter().map(Pid::as_raw_pid).collect();
            tracing::info!(?processes, "processes that ranks had left were killed");
        }
        let failed = self.failed.filter(|_| !self.survives_without_some());
        let launcher_runs = match failed {
            Some(index) => self.wait_for_its_signal(index, control),
            // A signal comes too late for ranks that have succeeded.
            None => control.try_recv() != Err(TryRecvError::Disconnected),
        };
        if !launcher_runs {
            // The end of the launcher has ended the ranks, so they have not failed.
            return Ok(orphaned);
        }
        if let Some(signal) = self.signalled {
            return Ok(Outcome(code_of(signal)));
        }
        let Some(index) = failed else {
            return Ok(match are_lines_written {
                true => Outcome::DONE,
                false => Outcome::MACHINE,
            });
        };
        let rank = self.ranks.swap_remove(index);
        let status = rank.status.unwrap_or_default();
        match self.is_ended_by_signal(status) {
            true => Ok(Outcome(how(status).1)),
            false => Err(rank),
        }
    }

    /// Returns whether a rank has succeeded, and the others are not needed.
    fn survives_without_some(&self) -> bool {
        let mut ended = self.ranks.iter().filter_map(|rank| rank.status);
        self.flags.survives() && ended.any(|status| status.success())
    }

    /// Returns whether a signal that was passed on has ended a process.
    fn is_ended_by_signal(&self, status: ExitStatus) -> bool {
        signal_of(status).is_some_and(|signal| self.passed_on.contains(&signal))
    }

    /// Passes on the signals that have arrived. Returns whether the launcher runs.
    fn pass_on_arrived(&mut self, control: &Receiver<i32>) -> bool {
        loop {
            match control.try_recv() {
                Ok(signal) => self.pass_on(signal),
                Err(state) => return state == TryRecvError::Empty,
            }
        }
    }

    /// Waits for the signal that has ended a rank, if the launcher may still pass it on: a scheduler may send it to all
    /// processes at once, and the ranks end first. Returns whether the launcher runs.
    fn wait_for_its_signal(&mut self, index: usize, control: &Receiver<i32>) -> bool {
        let status = self.ranks[index].status.unwrap_or_default();
        let may_arrive = |signal| PASSED_ON.contains(&signal) && !HARMLESS.contains(&signal);
        let is_awaited = signal_of(status).is_some_and(may_arrive);
        while is_awaited && !self.is_ended_by_signal(status) {
            match control.recv_timeout(ARRIVAL) {
                Ok(signal) => self.pass_on(signal),
                Err(_) => break,
            }
        }
        self.pass_on_arrived(control)
    }

    /// Passes a signal of the launcher on to the ranks. It is reported after it was sent, because the terminal may accept no
    /// output.
    fn pass_on(&mut self, signal: i32) {
        let name = signal_name(signal).unwrap_or_default();
        let is_ending = ENDING.contains(&signal);
        let is_first = is_ending && self.signalled.is_none();
        // A closed terminal, or the end of a session, sends HUP more than once, and in addition to TERM.
        let insists = signal != SIGHUP && self.signalled.is_some_and(|first| first != SIGHUP);
        if is_first || (is_ending && signal != SIGHUP) {
            self.signalled = Some(signal);
        }
        if is_ending {
            self.kill_at = self.kill_at.or(self.after_grace());
        }
        if !HARMLESS.contains(&signal) {
            self.passed_on.insert(signal);
        }
        match Signal::from_named_raw(signal) {
            Some(named) if !(is_ending && insists) => self.signal_all(named),
            _ => self.kill_all(&format!("a second signal ({name})")),
        }
        tracing::info!(signal = name, "the launcher got a signal");
        if is_first {
            self.out.note(&self.interrupted(signal, name));
        }
    }

    /// Returns the note about a signal that requests the end, with the time that the ranks have.
    fn interrupted(&self, signal: i32, name: &str) -> String {
        let running = self.ranks.iter().filter(|rank| rank.is_running()).count();
        if running == 0 {
            return format!("interrupted by {name}");
        }
        let again = match signal {
            SIGHUP => String::new(),
            _ => format!("; a second {name} kills at once"),
        };
        let (grace, ranks) = (self.flags.grace, count_text(running, "rank"));
        format!("interrupted by {name}: waits up to {grace} s for {ranks}{again}")
    }

    /// Notes which ranks have ended, and when the others are ended because of them.
    fn note_ended(&mut self) {
        let survives = self.flags.survives();
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
            if survives {
                let (number, (how, _)) = (self.ranks[index].number, how(status));
                self.out.note(&format!("rank {number} is lost: {how}"));
            } else if self.failed.is_none() && self.signalled.is_none() {
                self.term_at = match by_signal {
                    // The other ranks got the signal as well.
                    true => self.after_grace(),
                    false => Some(Instant::now() + REPORT),
                };
            }
            if survives || self.failed.is_none() {
                self.failed = Some(index);
            }
        }
        let grace = Duration::from_secs(self.flags.grace);
        for rank in &mut self.ranks {
            rank.look_after_group(grace);
        }
    }

    /// Ends the ranks whose time has passed.
    fn end_late(&mut self) {
        let (now, grace) = (Instant::now(), self.flags.grace);
        let is_term_due = self.term_at.take_if(|at| *at <= now).is_some();
        if let Some(index) = self.failed.filter(|_| is_term_due) {
            self.signal_all(Signal::TERM);
            self.kill_at = self.kill_at.or(self.after_grace());
            let running = self.ranks.iter().filter(|rank| rank.is_running());
            let others = named(running.map(|rank| rank.number));
            let failed = self.ranks[index].number;
            self.out.note(&format!(
                "rank {failed} has failed: sends SIGTERM to {others}, and waits up to {grace} s"
            ));
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = self.after_grace();
            self.kill_all(&format!("not ended within {grace} s"));
        }
    }

    /// Returns the end of the time to save; `None` if it is out of the range of the clock.
    fn after_grace(&self) -> Option<Instant> {
        Instant::now().checked_add(Duration::from_secs(self.flags.grace))
    }

    fn signal_all(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
    }

    /// Kills the ranks that run, and then reports it, once for each.
    fn kill_all(&mut self, reason: &str) {
        self.signal_all(Signal::KILL);
        let killed = self.ranks.iter_mut().filter(|rank| rank.is_running());
        let new = killed.filter_map(|rank| {
            let was_reported = mem::replace(&mut rank.is_reported_killed, true);
            (!was_reported).then_some(rank.number)
        });
        let new: Vec<u32> = new.collect();
        if !new.is_empty() {
            self.out.note(&format!("{reason}: kills {}", named(new)));
        }
    }
}

/// Names ranks: `rank 1`, or `ranks 0, 2`.
fn named(ranks: impl IntoIterator<Item = u32>) -> String {
    let numbers: Vec<String> = ranks.into_iter().map(|rank| rank.to_string()).collect();
    let plural = if numbers.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", numbers.join(", "))
}

/// Waits until the last lines of all ranks are printed, at most for [`PRINT`], because a process that left its group may keep
/// a stream open. Returns `false` if lines could not be written.
fn wait_for_lines(ranks: &mut [Rank]) -> bool {
    let ended = Instant::now();
    let mut are_written = true;
    for printer in ranks.iter_mut().flat_map(|rank| rank.printers.drain(..)) {
        while !printer.is_finished() && ended.elapsed() < PRINT {
            thread::sleep(LOOK);
        }
        if printer.is_finished() {
            are_written &= printer.join().unwrap_or(false);
        }
    }
    are_written
}
