//! The wait for the ranks of one start, and what ends them.

use std::collections::BTreeSet;
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
use super::output::{Notes, PRINT};
use super::rank::{Rank, how, signal_of};
use crate::outcome::Outcome;

/// The time between two looks at the ranks.
const LOOK: Duration = Duration::from_millis(10);

/// The time for ranks to report the failure of another one themselves.
const REPORT: Duration = Duration::from_secs(5);

/// The longest wait for a signal that has ended ranks before the launcher has passed it on.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The ranks of one start, and their ends.
pub(super) struct Watch<'a> {
    flags: &'a Flags,
    notes: &'a Notes,
    control: &'a Receiver<i32>,
    /// All ranks, after they have been started.
    pub(super) ranks: Vec<Rank>,
    /// The last signal that requested the end.
    signalled: Option<i32>,
    /// Signals that may have ended ranks.
    passed_on: BTreeSet<i32>,
    /// The first rank that failed. If the others continue after a loss, the last one, which is then the reason for the end.
    failed: Option<usize>,
    /// The ranks that were reported as killed.
    killed: BTreeSet<u32>,
    /// The times at which the remaining ranks get SIGTERM and SIGKILL.
    term_at: Option<Instant>,
    kill_at: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(flags: &'a Flags, notes: &'a Notes, control: &'a Receiver<i32>) -> Self {
        Self {
            flags,
            notes,
            control,
            ranks: Vec::new(),
            signalled: None,
            passed_on: BTreeSet::new(),
            failed: None,
            killed: BTreeSet::new(),
            term_at: None,
            kill_at: None,
        }
    }

    /// Returns whether ranks may be started: the launcher runs, and no signal has requested the end, also in the pause before a
    /// restart.
    pub(super) fn may_start(&mut self) -> bool {
        self.pass_on_arrived() && self.signalled.is_none()
    }

    /// Waits until all ranks have ended. Ends the others after the first one fails, unless they continue without it. Also ends
    /// them after a signal that requests it. Returns the outcome, or the rank whose failure is the reason for the end.
    pub(super) fn wait(mut self) -> Result<Outcome, Rank> {
        let orphaned = Outcome(code_of(SIGKILL));
        loop {
            // All signals count before the ends that they cause: schedulers send CONT before TERM.
            if !self.pass_on_arrived() {
                self.signal_all(Signal::KILL);
                return Ok(orphaned);
            }
            self.note_ended();
            if self.running().next().is_none() {
                break;
            }
            // The others have given up stopped processes, which would never end.
            if self.survives_without_some() && self.running().all(Rank::is_stopped) {
                self.kill_all("stopped while the others have ended");
            }
            self.end_late();
            thread::sleep(LOOK);
        }
        self.notes.wait();
        let left = descendants::end_all_but(&[], self.notes);
        if !left.is_empty() {
            let processes: Vec<i32> = left.into_iter().map(Pid::as_raw_pid).collect();
            tracing::info!(?processes, "processes that ranks had left were killed");
        }
        self.wait_for_lines();
        let failed = self.failed.filter(|_| !self.survives_without_some());
        let launcher_runs = match failed {
            Some(index) => self.wait_for_its_signal(index),
            // A signal comes too late for ranks that have succeeded.
            None => self.control.try_recv() != Err(TryRecvError::Disconnected),
        };
        if !launcher_runs {
            // The end of the launcher has ended the ranks, so they have not failed.
            return Ok(orphaned);
        }
        if let Some(signal) = self.signalled {
            return Ok(Outcome(code_of(signal)));
        }
        let Some(index) = failed else {
            return Ok(self.notes.outcome());
        };
        let rank = self.ranks.swap_remove(index);
        let status = rank.status.unwrap_or_default();
        match self.is_ended_by_signal(status) {
            true => Ok(Outcome(how(status).1)),
            false => Err(rank),
        }
    }

    /// Waits until the lines of the ranks are printed. A slow reader gets all lines of ranks that have succeeded, unless a signal
    /// requests the end. Where the processes that ranks had left run on, one of them may keep a stream open, without lines.
    fn wait_for_lines(&mut self) {
        let mut waits_since = Instant::now();
        while self.notes.is_unprinted() && waits_since.elapsed() < PRINT && self.pass_on_arrived() {
            if self.notes.is_writing() && self.failed.is_none() && self.signalled.is_none() {
                waits_since = Instant::now();
            }
            thread::sleep(LOOK);
        }
        if self.notes.is_writing() {
            self.notes.lose();
        }
    }

    /// Returns the ranks that run.
    fn running(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| rank.is_running())
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
    fn pass_on_arrived(&mut self) -> bool {
        loop {
            match self.control.try_recv() {
                Ok(signal) => self.pass_on(signal),
                Err(state) => return state == TryRecvError::Empty,
            }
        }
    }

    /// Waits for the signal that has ended a rank, if the launcher may still pass it on: a scheduler may send it to all
    /// processes at once, and the ranks end first. Returns whether the launcher runs.
    fn wait_for_its_signal(&mut self, index: usize) -> bool {
        let status = self.ranks[index].status.unwrap_or_default();
        let may_arrive = |signal| PASSED_ON.contains(&signal) && !HARMLESS.contains(&signal);
        let is_awaited = signal_of(status).is_some_and(may_arrive);
        while is_awaited && !self.is_ended_by_signal(status) {
            match self.control.recv_timeout(ARRIVAL) {
                Ok(signal) => self.pass_on(signal),
                Err(_) => break,
            }
        }
        self.pass_on_arrived()
    }

    /// Passes a signal of the launcher on to the ranks, and reports it.
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
        // In the pause before a restart, there are no ranks that it could end.
        if !HARMLESS.contains(&signal) && !self.ranks.is_empty() {
            self.passed_on.insert(signal);
        }
        match Signal::from_named_raw(signal) {
            Some(named) if !(is_ending && insists) => self.signal_all(named),
            _ => self.kill_all(&format!("a second signal ({name})")),
        }
        tracing::info!(signal = name, "the launcher got a signal");
        if is_first {
            self.notes.note(&self.interrupted(signal, name));
        }
    }

    /// Returns the note about a signal that requests the end, with the time that the ranks have.
    fn interrupted(&self, signal: i32, name: &str) -> String {
        let running = self.running().count();
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
                self.notes.note(&format!("rank {number} is lost: {how}"));
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
            let others = named(self.running().map(|rank| rank.number));
            let failed = self.ranks[index].number;
            self.notes.note(&format!(
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
        self.running().for_each(|rank| rank.signal(signal));
    }

    /// Kills the ranks that run, and reports it, once for each.
    fn kill_all(&mut self, reason: &str) {
        self.signal_all(Signal::KILL);
        let mut new: Vec<u32> = self.running().map(|rank| rank.number).collect();
        new.retain(|rank| self.killed.insert(*rank));
        if !new.is_empty() {
            self.notes.note(&format!("{reason}: kills {}", named(new)));
        }
    }
}

/// Names ranks: `rank 1`, or `ranks 0, 2`.
fn named(ranks: impl IntoIterator<Item = u32>) -> String {
    let numbers: Vec<String> = ranks.into_iter().map(|rank| rank.to_string()).collect();
    let plural = if numbers.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", numbers.join(", "))
}
