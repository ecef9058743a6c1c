//! The output of a command: standard output or a file, as text, tables that fit the terminal or JSON.

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgAction, Args};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tinderbox_deferred::Observer;
use tinderbox_planner::table;
use tracing_subscriber::filter::LevelFilter;

use super::text::{say, shorten, visible};
use crate::outcome::Outcome;

/// The version of all JSON objects that are not files of the library.
const SCHEMA: u32 = 1;

/// The progress in bytes, their rate, and an estimate of the remaining time.
const BAR_STYLE: &str =
    "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";

/// Arguments of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct OutputFlags {
    /// Write the output to this file; `-` is standard output
    #[arg(short, long, global = true, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON: one object with its version, or the JSON file of a plan. In a path, bytes that are not UTF-8 become U+FFFD
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no warnings and no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print the events of the library to standard error; twice for every detail
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

impl OutputFlags {
    /// Prints the events of the library to standard error from now on.
    pub(crate) fn print_events(&self) {
        let level = match (self.quiet, self.verbose) {
            (true, _) => LevelFilter::ERROR,
            (false, 0) => LevelFilter::WARN,
            (false, 1) => LevelFilter::INFO,
            (false, _) => LevelFilter::DEBUG,
        };
        let events = tracing_subscriber::fmt().with_writer(io::stderr);
        // Colors depend on the features that other crates enable.
        let events = events.without_time().with_target(false).with_ansi(false);
        events.with_max_level(level).init();
    }
}

/// The output of a command.
pub(crate) struct Output {
    target: Target,
    /// Whether the answer is JSON.
    pub(crate) json: bool,
    quiet: bool,
    /// Whether another process or thread writes the output.
    pub(crate) is_withheld: bool,
}

enum Target {
    Standard(BufWriter<Stdout>),
    /// Written when the command has succeeded.
    File(PathBuf, Vec<u8>),
}

impl Output {
    /// Creates the output that the arguments specify.
    pub(crate) fn new(flags: OutputFlags) -> Self {
        let OutputFlags { json, quiet, .. } = flags;
        let file = flags.output.filter(|path| path != Path::new("-"));
        let target = match file {
            Some(path) => Target::File(path, Vec::new()),
            None => Target::Standard(BufWriter::new(io::stdout())),
        };
        Self {
            target,
            json,
            quiet,
            is_withheld: false,
        }
    }

    /// Writes the whole output. A command that has failed writes no file.
    pub(crate) fn finish(mut self, failed: bool) -> anyhow::Result<()> {
        match &self.target {
            _ if self.is_withheld => Ok(()),
            Target::File(path, bytes) if !failed => {
                fs::write(path, bytes).with_context(|| format!("can't write {}", path.display()))
            }
            _ => Ok(self.flush()?),
        }
    }

    /// Returns the width of the terminal; `None` without one.
    pub(crate) fn width(&self) -> Option<usize> {
        let size = terminal_size::terminal_size_of(io::stdout());
        let size = size.filter(|_| matches!(self.target, Target::Standard(_)));
        size.map(|(width, _)| usize::from(width.0))
    }

    /// Returns whether to use colour: on a terminal, unless disabled: <https://no-color.org>.
    pub(crate) fn has_color(&self) -> bool {
        matches!(self.target, Target::Standard(_))
            && io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Prints a note to standard error, except with `--quiet`.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            say("note", text);
        }
    }

    /// Creates a progress bar for an operation.
    pub(crate) fn bar(&self, work: &'static str) -> Bar {
        // The length is not known yet.
        let bar = ProgressBar::new(0).with_message(work);
        let style = ProgressStyle::with_template(BAR_STYLE);
        bar.set_style(style.expect("the template is well-formed"));
        if self.quiet {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Bar(bar)
    }

    /// Prints an answer as text, or as one JSON object, whose first field is its version.
    pub(crate) fn answer(
        &mut self,
        answer: &impl Serialize,
        text: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> anyhow::Result<Outcome> {
        #[derive(Serialize)]
        struct Versioned<'a, T> {
            schema: u32,
            #[serde(flatten)]
            answer: &'a T,
        }
        let schema = SCHEMA;
        if self.json {
            let text = serde_json::to_string(&Versioned { schema, answer })?;
            writeln!(self, "{text}")?;
        } else {
            text(self)?;
        }
        Ok(Outcome::Done)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.target {
            Target::Standard(out) => out.write(bytes).map_err(unwritten),
            Target::File(_, held) => held.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Standard(out) => out.flush().map_err(unwritten),
            Target::File(..) => Ok(()),
        }
    }
}

/// Adds the name of standard output to its error.
fn unwritten(error: io::Error) -> io::Error {
    let text = format!("can't write to standard output: {error}");
    io::Error::new(error.kind(), text)
}

/// A progress bar over bytes on standard error; hidden without a terminal. `indicatif` clears it on drop.
pub(crate) struct Bar(ProgressBar);

impl Observer for Bar {
    fn begin(&self, _: usize, bytes: u64) {
        self.0.inc_length(bytes);
    }

    fn advanced(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

/// Minimum width of a shortened name in characters.
const SHORTEST_NAME: usize = 16;

/// Prints a table of rows with one cell per column. The first column has names, and the columns at the indices `right` have
/// numbers. Names are shortened if the table is wider than the terminal.
pub(crate) fn show_table(
    head: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
    out: &mut Output,
) -> io::Result<()> {
    writeln!(out, "{}", fitted(head, right, rows, out.width()))
}

/// Formats a table with at most `width` characters, as far as names can be shortened.
fn fitted(
    head: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
    width: Option<usize>,
) -> String {
    let cells = |row: Vec<String>| row.iter().map(|cell| visible(cell).into()).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
    let with_names_of = |name_width: usize| {
        let rows = rows.iter().map(|row| {
            let mut row = row.clone();
            row[0] = shorten(&row[0], name_width).into_owned();
            row
        });
        table(head, rows, |at| right.contains(&at)).trim_fmt()
    };
    let names = rows.iter().map(|row| row[0].chars().count());
    let longest = names.max().unwrap_or(0);
    let whole = with_names_of(longest);
    let found = whole.lines().map(|line| line.chars().count()).max();
    let most = width.unwrap_or(usize::MAX);
    match found.unwrap_or(0).saturating_sub(most) {
        0 => whole,
        excess => with_names_of(longest.saturating_sub(excess).max(SHORTEST_NAME)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits() {
        let name = "blocks.11.attention.query.weight";
        let rows = [[name, "1.00 KiB"], ["a\x1bb", "4 B"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let fitted = |width| fitted(&["name", "bytes"], &[1], rows.clone(), width);
        let whole = fitted(None);
        assert!(
            whole.contains(name) && whole.contains("a\\u{1b}b"),
            "{whole}"
        );
        for width in 31..60 {
            let table = fitted(Some(width));
            let widest = table.lines().map(|line| line.chars().count()).max();
            assert!(widest.unwrap() <= width, "{width}\n{table}");
            assert!(table.contains(".weight"), "{table}");
        }
        // A table that can't fit is not shortened further.
        assert!(fitted(Some(5)).contains("blocks....weight"));
        assert!(super::fitted(&["name"], &[], [], Some(80)).contains("name"));
    }
}
