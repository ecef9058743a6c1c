//! The forms of a schedule in the output.

use std::io::Write;

use clap::Args;
use tinderbox_schedule::{Schedule, Timeline, draw};

use crate::terminal::Output;

/// Default width without a terminal.
const WIDTH: usize = 100;

/// The form of the output: drawn for the terminal, unless specified.
#[derive(Args, Debug)]
pub(super) struct Form {
    /// Print the picture as SVG
    #[arg(long, group = "form", conflicts_with = "json")]
    svg: bool,
    /// Print a trace for Perfetto or chrome://tracing
    #[arg(long, group = "form", conflicts_with = "json")]
    trace: bool,
    /// Print the action lists, one row per rank
    #[arg(long, group = "form", conflicts_with = "json")]
    actions: bool,
    /// Print the lists, or with --json the schedule, with sends, receives, reduces and updates
    #[arg(long, conflicts_with_all = ["svg", "trace"])]
    lowered: bool,
    /// Width of the drawing in columns, at least 40 [default: the terminal width, or 100]
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(40..))]
    width: Option<u16>,
}

impl Form {
    /// Returns whether the output is the drawing for the terminal.
    pub(super) fn is_drawing(&self, out: &Output) -> bool {
        !(self.svg || self.trace || self.actions || self.lowered || out.json)
    }

    /// Prints a schedule and its times; `lower` adds messages.
    pub(super) fn print(
        &self,
        schedule: Schedule,
        predicted: &Timeline,
        lower: impl FnOnce(&Schedule) -> anyhow::Result<Schedule>,
        out: &mut Output,
    ) -> anyhow::Result<()> {
        if self.is_drawing(out) {
            let options = draw::TerminalOptions {
                width: self.width.map(usize::from).or(out.width()).unwrap_or(WIDTH),
                color: out.has_color(),
            };
            return Ok(write!(out, "{}", draw::terminal(predicted, &options))?);
        }
        if self.svg || self.trace {
            let text = match self.svg {
                true => draw::svg(&[predicted], &draw::SvgOptions::default()),
                false => draw::trace(&[predicted]),
            };
            return Ok(out.write_all(text.as_bytes())?);
        }
        let printed = match self.lowered {
            true => lower(&schedule)?,
            false => schedule,
        };
        out.answer(&printed, |out| writeln!(out, "{printed}"))
    }
}
