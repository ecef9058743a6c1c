//! The supervisor: starts ranks, and starts them again after a failure.

use std::fs::File;
use std::io;
use std::path::Path;
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
use super::output::{Notes, writer};
use super::rank::{Rank, how};
use super::watch::Watch;
use crate::outcome::Outcome;
use crate::terminal::Output;

/// The pause of several machines before a restart, in which the ranks of the other machines end. A rank that still meets ranks
/// of the failed start is refused, and costs a restart.
const PAUSE: Duration = Duration::from_secs(3);

/// Starts the program as ranks, and restarts it after failures, for the launcher at standard input. All processes that the
/// ranks have started end with them.
pub(super) fn supervise(flags: &Flags, out: &Output, notes: &Notes) -> anyhow::Result<Outcome> {
    flags.check()?;
    ensure!(!out.json, "the output is the program's: leave out --json");
    let create = |path: &Path| {
        let file = File::create(path).map(Arc::new);
        file.with_context(|| format!("can't write {}", path.display()))
    };
    let file = out.file().map(create).transpose()?;
    descendants::adopt().context("descendants can't be adopted")?;
    let control = listen()?;
    let outcome = run(flags, file.as_ref(), &control, notes);
    descendants::end_all_but(&[], notes);
    outcome
}

/// Runs the program until it is not started again. The lines of standard output are written to the file, if there is one.
fn run(
    flags: &Flags,
    file: Option<&Arc<File>>,
    control: &Receiver<i32>,
    notes: &Notes,
) -> anyhow::Result<Outcome> {
    let mut here = flags.ranks;
    for restart in 0.. {
        let mut watch = Watch::new(flags, notes, control);
        if watch.may_start() {
            let ranks = start(commands(flags, here, restart)?, file, notes);
            watch.ranks = ranks.context("a rank can't be started")?;
        }
        let failed = match watch.wait() {
            Ok(outcome) => return Ok(outcome),
            Err(failed) => failed,
        };
        let place = if flags.survives() { "last" } else { "first" };
        let code = report(&failed, place, notes);
        if restart == flags.restarts {
            return Ok(Outcome(code));
        }
        here = flags.restart_ranks.unwrap_or(here);
        let ranks = count_text(here.into(), "rank");
        let (number, all) = (restart + 1, flags.restarts);
        notes.note(&format!("starts {ranks} again ({number} of {all})"));
        if flags.nodes > 1 {
            thread::sleep(PAUSE);
        }
    }
    unreachable!("the last restart returns")
}

/// Reports the rank whose failure is the reason for the end, with its last lines; returns its exit code.
fn report(failed: &Rank, place: &str, notes: &Notes) -> u8 {
    let number = failed.number;
    let (how, code) = how(failed.status.unwrap_or_default());
    let text = format!("rank {number} was the {place} to fail: {how}");
    notes.say("error", &text);
    let lines = failed.last.lock();
    let heading = match lines.is_empty() {
        true => format!("rank {number} wrote nothing to standard error"),
        false => format!("the last lines of rank {number} on standard error:"),
    };
    notes.say("note", &heading);
    lines.iter().for_each(|line| notes.print(line.as_slice()));
    code
}

/// Returns the commands of the processes of this machine, with their ranks: first ranks, then spares.
fn commands(flags: &Flags, here: u16, restart: u32) -> anyhow::Result<Vec<(u32, Command)>> {
    let variables = flags.variables(here, restart)?;
    let processes = flags.processes(here);
    tracing::info!(program = ?flags.program, processes, restart, "the program is started");
    tracing::debug!("variables of all ranks: {}", shown(&variables));
    let own = std::env::current_exe().context("the path of this program is unknown")?;
    let command_of = |local| {
        let number = flags.rank(here, local);
        let mut command = Command::new(&own);
        command
            .arg("become-rank")
            .args(["--supervisor", &std::process::id().to_string(), "--"])
            .args(&flags.program)
            .envs(variables.iter().cloned())
            // The program may be a launcher itself.
            .env_remove(SUPERVISOR)
            .env("RANK", number.to_string())
            .env("LOCAL_RANK", local.to_string());
        tracing::debug!("variables of a rank: RANK={number} LOCAL_RANK={local}");
        (number, command)
    };
    Ok((0..processes).map(command_of).collect())
}

/// Starts ranks. If one can't be started, the ranks before it end.
fn start(
    commands: impl IntoIterator<Item = (u32, Command)>,
    file: Option<&Arc<File>>,
    notes: &Notes,
) -> io::Result<Vec<Rank>> {
    let mut ranks: Vec<Rank> = Vec::new();
    for (number, mut command) in commands {
        match Rank::start(number, &mut command, writer(file), notes) {
            Ok(rank) => ranks.push(rank),
            Err(error) => {
                ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
                notes.wait();
                return Err(error);
            }
        }
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;
    use std::{fs, iter};

    use super::*;

    /// A rank that can't be started ends the others, whose lines are complete.
    #[test]
    fn the_lines_of_ranks_are_complete_if_another_one_can_not_be_started() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, written) = (dir.path().join("lines"), dir.path().join("written"));
        let mut first = Command::new("sh");
        // Fewer bytes than a pipe keeps, in lines that take longer to print than to write.
        let script = "yes | head -n 20000; : >\"$0\"; exec sleep 1000";
        first.args(["-c", script]).arg(&written);
        let missing = iter::once_with(|| {
            let began = Instant::now();
            while !written.exists() {
                assert!(began.elapsed() < Duration::from_secs(20));
                thread::sleep(Duration::from_millis(1));
            }
            (1, Command::new("/no/such/program"))
        });
        let file = Arc::new(File::create(&lines).unwrap());
        let notes = Notes::start(true).unwrap();
        let commands = iter::once((0, first)).chain(missing);
        let error = start(commands, Some(&file), &notes).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let printed = fs::read_to_string(&lines).unwrap();
        assert!(printed == "[rank 0] y\n".repeat(20_000), "{printed:.80}");
    }
}
