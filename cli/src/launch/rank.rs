//! The process of a rank: its start, its signals and its end.

use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::low_level::signal_name;

use super::control::code_of;
use super::descendants;
use super::output::{LastLines, print_lines};

/// The process of a rank.
pub(super) struct Rank {
    pub(super) number: u32,
    pub(super) status: Option<ExitStatus>,
    /// Whether the launcher has reported that it kills it.
    pub(super) is_reported_killed: bool,
    /// The last lines that it wrote to standard error.
    pub(super) last: LastLines,
    /// The threads that print its lines. Each returns whether it has written all of them.
    pub(super) printers: Vec<JoinHandle<bool>>,
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
    ) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In its own group, so that signals of the terminal reach it only through the launcher.
            .process_group(0);
        let mut child = descendants::start(command)?;
        tracing::info!(rank = number, process = child.id(), "a rank is started");
        let last = LastLines::default();
        let prefix = format!("[rank {number}] ");
        let (from, errors) = (child.stdout.take(), child.stderr.take());
        let kept = Some(last.clone());
        let printers = [
            from.map(|from| print_lines(from, out, prefix.clone(), None)),
            errors.map(|from| print_lines(from, io::stderr(), prefix, kept)),
        ];
        Ok(Self {
            number,
            status: None,
            is_reported_killed: false,
            last,
            printers: printers.into_iter().flatten().collect(),
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
            self.signal_group(Signal::KILL);
        }
    }

    /// Ends the rest of the group of a process that has ended, and notes when the group is empty.
    pub(super) fn look_after_group(&mut self, grace: Duration) {
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
    pub(super) fn is_stopped(&self) -> bool {
        let state = descendants::stat(self.child.id());
        state.is_some_and(|state| state.starts_with(['T', 't']))
    }

    /// Sends a signal if the rank runs.
    pub(super) fn signal(&self, signal: Signal) {
        if self.is_running() {
            self.signal_group(signal);
        }
    }

    fn signal_group(&self, signal: Signal) {
        // It fails if the group is empty.
        let _ = kill_process_group(self.group(), signal);
    }
}

/// Returns the end of a process as text, and its exit code.
pub(super) fn how(status: ExitStatus) -> (String, u8) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (format!("exit code {code}"), u8::try_from(code).unwrap_or(1)),
        (None, Some(signal)) => {
            let name = signal_name(signal).map(|name| format!(" ({name})"));
            let text = format!("ended by signal {signal}{}", name.unwrap_or_default());
            (text, code_of(signal))
        }
        (None, None) => ("ended".to_owned(), 1),
    }
}

/// Returns the signal that has ended a process. A shell reports the signal of its program as the exit code 128 + n.
pub(super) fn signal_of(status: ExitStatus) -> Option<i32> {
    let reported = || status.code().map(|code| code - 128);
    status.signal().or_else(reported)
}
