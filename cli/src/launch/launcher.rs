//! The process that the user starts.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::Context;
use signal_hook::consts::{SIGCHLD, SIGHUP};
use signal_hook::iterator::Signals;

use super::control::PASSED_ON;
use super::descendants;
use super::run::how;
use crate::outcome::Outcome;
use crate::terminal::say;

/// Starts the supervisor with the arguments of this process, passes signals on to it, and returns its exit code.
pub(crate) fn launch() -> anyhow::Result<Outcome> {
    let passed_on = PASSED_ON
        .iter()
        .filter(|signal| **signal != SIGHUP || !ignores_hangups());
    let mut signals =
        Signals::new(passed_on.chain([&SIGCHLD])).context("signals can't be received")?;
    descendants::adopt().context("descendants can't be adopted")?;
    let own = std::env::current_exe().context("the path of this program is unknown")?;
    let mut supervisor = Command::new(own)
        .args(["supervise", "--"])
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::piped())
        .spawn()
        .context("the supervisor of the ranks can't be started")?;
    // It closes when this process ends.
    let mut control = supervisor.stdin.take();
    for signal in signals.forever() {
        if signal != SIGCHLD {
            if let (Some(control), Ok(signal)) = (&mut control, u8::try_from(signal)) {
                // The supervisor may have ended by now.
                let _ = control.write_all(&[signal]);
            }
            continue;
        }
        let status = supervisor.try_wait();
        let Some(status) = status.context("the supervisor of the ranks can't be waited for")?
        else {
            continue;
        };
        let (how, code) = how(status);
        if status.signal().is_some() {
            let text = format!("the supervisor of the ranks was {how}: all ranks are ended");
            say("error", &text);
        }
        descendants::end_all();
        return Ok(Outcome::Program(code));
    }
    unreachable!("nothing closes the iterator")
}

/// Whether it was started by `nohup` or the like, as far as the system has `/proc`.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The first bit is that of the first signal.
    mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}
