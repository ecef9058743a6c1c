//! Draws a schedule.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use tinderbox_schedule::{Costs, Dependencies, LinkCosts, draw, lower, simulate, verify};

use super::given::Given;
use super::times::Times;
use crate::outcome::Outcome;

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    #[command(flatten)]
    given: Given,
    /// Ticks of F, I and W of each stage; the duration of B is that of I plus W
    #[arg(long, value_name = "F,I,W", default_value = "1,1,1")]
    times: Times,
    /// Ticks from the end of a send to its arrival
    #[arg(long, value_name = "TICKS", default_value_t = 0)]
    latency: u64,
    /// Also write the picture as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also write a trace for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the action lists instead of the drawing, one row per rank
    #[arg(long, conflicts_with = "json")]
    actions: bool,
    /// Print the lists, or with --json the schedule, with sends, receives, reduces and updates
    #[arg(long)]
    lowered: bool,
    /// Print the schedule as JSON
    #[arg(long)]
    json: bool,
    /// Width of the drawing in columns, at least 40 [default: the terminal width, or 100]
    #[arg(long, value_name = "COLUMNS")]
    width: Option<usize>,
}

/// Default width without a terminal.
const WIDTH: usize = 100;

/// Draws the schedule; reports why an invalid schedule can't run.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let schedule = flags.given.schedule()?;
    // The number of stages that the file actually has; its claims are checked next.
    let chain = Dependencies::chain(schedule.stage_to_rank.len());
    if let Err(fault) = verify(&schedule, &chain) {
        writeln!(out, "{} can't run: {fault}", schedule.name.escape_debug())?;
        return Ok(Outcome::Found);
    }
    let mut costs = Costs::uniform(schedule.stages, flags.times.0);
    costs.link = LinkCosts {
        latency: flags.latency,
        ticks_per_mib: 0,
    };
    let predicted = simulate(&schedule, &chain, &costs)?;
    let all = [&predicted];
    if let Some(path) = &flags.svg {
        write_file(path, &draw::svg(&all, &draw::SvgOptions::default()))?;
    }
    if let Some(path) = &flags.trace {
        write_file(path, &draw::trace(&all))?;
    }
    let printed = match flags.lowered {
        true => lower(&schedule, &chain),
        false => schedule,
    };
    if flags.json {
        writeln!(out, "{}", printed.to_json())?;
    } else if flags.actions || flags.lowered {
        writeln!(out, "{printed}")?;
    } else {
        let options = draw::TerminalOptions {
            width: flags.width.unwrap_or_else(terminal_width),
            color: use_color(),
        };
        write!(out, "{}", draw::terminal(&predicted, &options))?;
    }
    Ok(Outcome::Fine)
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn terminal_width() -> usize {
    terminal_size::terminal_size().map_or(WIDTH, |(width, _)| usize::from(width.0))
}

/// Returns whether to use colour: on a terminal, unless disabled: <https://no-color.org>.
fn use_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
