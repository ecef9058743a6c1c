//! The first moment of a rank: ends with its launcher.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Context;
use clap::Args;

use crate::outcome::Outcome;

/// Arguments of the command that becomes a rank.
#[derive(Args, Debug)]
pub(crate) struct RankFlags {
    /// Process id of the launcher
    #[arg(long)]
    launcher: u32,
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes the program of a rank, which the operating system ends when the launcher does, however that ends.
///
/// A step between the launcher and the program, because a process can only ask this for itself.
#[cfg(target_os = "linux")]
pub(crate) fn become_rank(flags: &RankFlags) -> anyhow::Result<Outcome> {
    use std::os::unix::process::CommandExt;

    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get());
    if parent.and_then(|parent| u32::try_from(parent).ok()) != Some(flags.launcher) {
        // It ended before.
        return Ok(Outcome::Machine);
    }
    let error = Command::new(&flags.program[0])
        .args(&flags.program[1..])
        .exec();
    Err(error).with_context(|| format!("{} can't be started", flags.program[0].to_string_lossy()))
}

/// Runs the program of a rank.
#[cfg(not(target_os = "linux"))]
pub(crate) fn become_rank(flags: &RankFlags) -> anyhow::Result<Outcome> {
    let status = Command::new(&flags.program[0])
        .args(&flags.program[1..])
        .status();
    let status = status
        .with_context(|| format!("{} can't be started", flags.program[0].to_string_lossy()))?;
    Ok(Outcome::Program(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    ))
}
