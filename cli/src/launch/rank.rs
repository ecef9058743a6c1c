//! The process of a rank: its start, its signals and its end.

use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::low_level::signal_name;

use super::control::code_of;
use super::descendants;
use super::output::{LastLines, Notes};

/// The process of a rank.
pub(super) struct Rank {
    pub(super) number: u32,
    pub(super) status: Option<ExitStatus>,
    /// The last lines that it wrote to standard error.
    pub(super) last: LastLines,
    child: Child,
    /// The end of its process, if a signal that was passed on has ended it. The others of its group, such as the program of a
    /// shell, got the signal as well, and have time to save.
    lingers: Option<Instant>,
}

impl Rank {
    /// Starts a rank. Its lines of standard output are written to `out`.
    pub(super) fn start(
        number: u32,
        command: &mut Command,
        out: impl Write + Send + 'static,
        notes: &Notes,
    ) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In its own group, so that signals of the terminal reach it only through the launcher.
            .process_group(0);
        let mut child = command.spawn()?;
        tracing::info!(rank = number, process = child.id(), "a rank is started");
        let last = LastLines::default();
        let (from, errors) = (child.stdout.take(), child.stderr.take());
        let kept = Some(last.clone());
        let printed = [
            from.map(|from| notes.print_lines(number, from, out, None)),
            errors.map(|from| notes.print_lines(number, from, io::stderr(), kept)),
        ];
        let printed: io::Result<()> = printed.into_iter().flatten().collect();
        // A rank whose lines nobody reads would wait.
        printed.inspect_err(|_| drop(child.kill()))?;
        Ok(Self {
            number,
            status: None,
            last,
            child,
            lingers: None,
        })
    }

    /// Returns the id of its process, which is the id of its group.
    pub(super) fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns whether its process runs, or others of its group have time to save.
    pub(super) fn is_running(&self) -> bool {
        self.status.is_none() || self.lingers.is_some()
    }

    /// Notes the end of its process.
    pub(super) fn end(&mut self, status: ExitStatus, by_signal: bool) {
        let (rank, process) = (self.number, self.child.id());
        tracing::info!(rank, process, "a rank has ended: {}", how(status).0);
        self.status = Some(status);
        // A process that exits by itself has ended its own processes before.
        self.lingers = (by_signal && status.signal().is_some()).then(Instant::now);
        if self.lingers.is_none() {
            // Processes that the rank has started may continue and keep its streams open.
            self.signal(Signal::KILL);
        }
    }

    /// Ends the rest of the group of a process that has ended, and notes when the group is empty.
    pub(super) fn look_after_group(&mut self, grace: Duration) {
        if self.lingers.is_some_and(|since| since.elapsed() >= grace) {
            self.signal(Signal::KILL);
        }
        let group = self.group();
        let is_left = |_: &Instant| test_kill_process_group(group).is_ok();
        self.lingers = self.lingers.filter(is_left);
    }

    /// Returns whether a signal has stopped it (Linux).
    pub(super) fn is_stopped(&self) -> bool {
        let state = descendants::stat(self.child.id());
        state.is_some_and(|state| state.starts_with(['T', 't']))
    }

    /// Sends a signal to its group.
    pub(super) fn signal(&self, signal: Signal) {
        // It fails if the group is empty.
        let _ = kill_process_group(self.group(), signal);
    }
}

/// Returns the end of a process as text, and its exit code.
pub(super) fn how(status: ExitStatus) -> (String, u8) {
    let Some(signal) = status.signal() else {
        let code = status.code().unwrap_or(1);
        return (format!("exit code {code}"), u8::try_from(code).unwrap_or(1));
    };
    let name = signal_name(signal).map(|name| format!(" ({name})"));
    let text = format!("ended by signal {signal}{}", name.unwrap_or_default());
    (text, code_of(signal))
}

/// Returns the signal that has ended a process. A shell reports the signal of its program as the exit code 128 + n.
pub(super) fn signal_of(status: ExitStatus) -> Option<i32> {
    let reported = || status.code().map(|code| code - 128);
    status.signal().or_else(reported)
}
