//! The process that the user starts, and the start of a rank.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use clap::Args;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT};
use signal_hook::iterator::Signals;
use tracing::dispatcher::set_default;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use super::control::{PASSED_ON, SUPERVISOR};
use super::descendants;
use super::flags::Flags;
use super::output::Notes;
use super::rank::how;
use super::run::supervise;
use crate::outcome::Outcome;
use crate::terminal::Output;

/// Runs the launcher, or the supervisor that it has started, which runs the ranks. Errors and events are [`Notes`] too.
pub(crate) fn launch(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    // The output is the output of the ranks, which threads write.
    out.is_withheld = true;
    let notes = Notes::start(out.quiet).context("a thread can't be started")?;
    let writer = notes.clone();
    let _events = set_default(&out.events(BoxMakeWriter::new(move || writer.clone())));
    let outcome = match std::env::var_os(SUPERVISOR) {
        Some(_) => supervise(flags, out, &notes),
        None => run_supervisor(&notes),
    };
    let outcome = outcome.unwrap_or_else(|error| {
        notes.say("error", &format!("{error:#}"));
        Outcome::of(&error)
    });
    notes.wait();
    Ok(outcome)
}

/// Starts the supervisor with the arguments of this process, passes signals on to it, and returns its exit code.
fn run_supervisor(notes: &Notes) -> anyhow::Result<Outcome> {
    let ignored = ignored_signals();
    let is_ignored = |signal: i32| RESPECTED.contains(&signal) && ignored >> (signal - 1) & 1 == 1;
    let passed_on = PASSED_ON.into_iter().filter(|signal| !is_ignored(*signal));
    let signals = Signals::new(passed_on.chain([SIGCHLD]));
    let mut signals = signals.context("signals can't be received")?;
    descendants::adopt().context("descendants can't be adopted")?;
    // A shell may have started children before this program replaced it.
    let inherited = descendants::children();
    let own = std::env::current_exe().context("the path of this program is unknown")?;
    // In another group, so that a kill of this group does not end both.
    let mut supervisor = Command::new(own)
        .process_group(0)
        .args(std::env::args_os().skip(1))
        .env(SUPERVISOR, "1")
        .stdin(Stdio::piped())
        .spawn()
        .context("the supervisor of the ranks can't be started")?;
    tracing::debug!(
        process = supervisor.id(),
        "the supervisor of the ranks is started"
    );
    // The pipe closes when this process ends.
    let mut control = supervisor.stdin.take();
    for signal in signals.forever() {
        if let (true, Some(control)) = (signal != SIGCHLD, &mut control) {
            // The number is below 32. The write fails if the supervisor has ended.
            let _ = control.write_all(&[signal as u8]);
        }
        let status = supervisor.try_wait();
        let status = status.context("the supervisor of the ranks can't be waited for")?;
        let Some(status) = status else {
            continue;
        };
        descendants::end_all_but(&inherited, notes);
        let (how, code) = how(status);
        if status.signal().is_some() {
            let text = format!("the supervisor of the ranks was {how}: all ranks are ended");
            notes.say("error", &text);
        }
        return Ok(Outcome(code));
    }
    unreachable!("nothing closes the iterator")
}

/// The signals that stay ignored if they were ignored when this process started: by `nohup`, or by a shell without job control
/// that runs it in the background.
const RESPECTED: [i32; 3] = [SIGHUP, SIGINT, SIGQUIT];

/// Returns a bit for each ignored signal, from the first signal on; 0 on a system without `/proc`.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0)
}

/// Arguments of the command that becomes a rank.
#[derive(Args, Debug)]
pub(crate) struct RankFlags {
    /// Process id of the supervisor
    #[arg(long)]
    supervisor: i32,
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes the program of a rank, which the operating system ends with the supervisor (Linux).
///
/// It is a process between the supervisor and the program, because a process can request this only for itself.
pub(crate) fn become_rank(flags: &RankFlags) -> anyhow::Result<Outcome> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};

        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid().map(|parent| parent.as_raw_pid()) != Some(flags.supervisor) {
            // The supervisor ended before the request.
            return Ok(Outcome::MACHINE);
        }
    }
    let program = &flags.program[0];
    let error = Command::new(program).args(&flags.program[1..]).exec();
    let name = program.to_string_lossy();
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let mut text = format!("{name} can't be started");
    // As a shell does, the system looks for a name without `/` in PATH alone.
    if is_missing && !name.contains('/') && Path::new(program).is_file() {
        text +=
            &format!(", because PATH has no {name} (use ./{name} for the file of this directory)");
    }
    Err(error).context(text)
}
