//! The supervisor: starts ranks, and starts them again after a failure.

use std::fs::File;
use std::io::{self, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use tinderbox_ids::text::count_text;

use super::control::{SUPERVISOR, listen};
use super::descendants;
use super::flags::{Flags, shown};
use super::output::writer;
use super::rank::{Rank, how};
use super::watch::Watch;
use crate::outcome::Outcome;
use crate::terminal::{Output, say};

/// The pause of several machines before a restart, in which the ranks of the other machines end. A rank that still meets ranks
/// of the failed start is refused, and costs a restart.
const PAUSE: Duration = Duration::from_secs(3);

/// Starts the program as ranks, and restarts it after failures, for the launcher at standard input. All processes that the
/// ranks have started end with them.
pub(super) fn supervise(flags: &Flags, out: &Output) -> anyhow::Result<Outcome> {
    flags.check()?;
    ensure!(!out.json, "the output is the program's: leave out --json");
    let file = match out.file() {
        Some(path) => {
            let file = File::create(path);
            let file = file.with_context(|| format!("can't write {}", path.display()))?;
            Some(Arc::new(file))
        }
        None => None,
    };
    descendants::adopt().context("descendants can't be adopted")?;
    let control = listen()?;
    let outcome = run(flags, out, file.as_ref(), &control);
    descendants::end_all_but(&[]);
    outcome
}

/// Runs the program until it is not started again. The lines of standard output are written to the file, if there is one.
fn run(
    flags: &Flags,
    out: &Output,
    file: Option<&Arc<File>>,
    control: &Receiver<i32>,
) -> anyhow::Result<Outcome> {
    let mut here = flags.ranks;
    for restart in 0.. {
        let ranks = start(flags, here, restart, file)?;
        let failed = match Watch::new(ranks, flags, out).wait(control) {
            Ok(outcome) => return Ok(outcome),
            Err(failed) => failed,
        };
        let place = if flags.survives() { "last" } else { "first" };
        let code = report(&failed, place);
        if restart == flags.restarts {
            return Ok(Outcome(code));
        }
        here = flags.restart_ranks.unwrap_or(here);
        if flags.nodes > 1 {
            thread::sleep(PAUSE);
        }
        let ranks = count_text(here.into(), "rank");
        let (number, all) = (restart + 1, flags.restarts);
        out.note(&format!("starts {ranks} again ({number} of {all})"));
    }
    unreachable!("the last restart returns")
}

/// Reports the rank whose failure is the reason for the end, with its last lines; returns its exit code.
fn report(failed: &Rank, place: &str) -> u8 {
    let number = failed.number;
    let (how, code) = how(failed.status.unwrap_or_default());
    let text = format!("rank {number} was the {place} to fail: {how}");
    say("error", &text);
    let lines = failed.last.take();
    let heading = match lines.is_empty() {
        true => format!("rank {number} wrote nothing to standard error"),
        false => format!("the last lines of rank {number} on standard error:"),
    };
    say("note", &heading);
    for line in lines {
        // A failure to write to standard error can't be reported.
        let _ = writeln!(io::stderr(), "[rank {number}] {line}");
    }
    code
}

/// Starts the processes of this machine: ranks, then spares.
fn start(
    flags: &Flags,
    here: u16,
    restart: u32,
    file: Option<&Arc<File>>,
) -> anyhow::Result<Vec<Rank>> {
    let variables = flags.variables(here, restart)?;
    let processes = flags.processes(here);
    tracing::info!(program = ?flags.program, processes, restart, "the program is started");
    tracing::debug!("variables of all ranks: {}", shown(&variables));
    let own = std::env::current_exe().context("the path of this program is unknown")?;
    let mut ranks: Vec<Rank> = Vec::new();
    for local in 0..processes {
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
            .env("LOCAL_RANK", local.to_string());
        tracing::debug!("variables of a rank: RANK={number} LOCAL_RANK={local}");
        match Rank::start(number, &mut command, writer(file)) {
            Ok(rank) => ranks.push(rank),
            Err(error) => {
                ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
                return Err(error).context("a rank can't be started");
            }
        }
    }
    Ok(ranks)
}
