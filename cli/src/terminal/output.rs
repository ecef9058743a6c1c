//! The output of a command: text, tables that fit the terminal or JSON, for standard output or a file.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgAction, Args};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tinderbox_deferred::Observer;
use tinderbox_ids::text::wrapped;
use tinderbox_planner::table;
use tracing::Dispatch;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use super::text::{say, visible};
use crate::outcome::Outcome;

/// The version of all JSON objects that are not files of the library.
const SCHEMA: u32 = 1;

/// The progress in bytes, their rate, and an estimate of the remaining time.
const BAR_STYLE: &str =
    "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";

/// The output of a command. It is written when the command has ended. Its arguments are arguments of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct Output {
    /// Write the output to this file; `-` is standard output
    #[arg(short, long, global = true, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON: one object with its version, or the JSON file of a plan. In a path, bytes that are not UTF-8 become U+FFFD
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no warnings and no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print events to standard error; twice for every detail
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// The output so far.
    #[arg(skip)]
    bytes: Vec<u8>,
    /// Whether another process or thread writes the output.
    #[arg(skip)]
    pub(crate) is_withheld: bool,
}

impl Output {
    /// Prints events to standard error from now on.
    pub(crate) fn print_events(&self) {
        self.events(BoxMakeWriter::new(io::stderr)).init();
    }

    /// Returns the subscriber that prints events to a writer, each as one write.
    pub(crate) fn events(&self, writer: BoxMakeWriter) -> Dispatch {
        let level = match (self.quiet, self.verbose) {
            (true, _) => LevelFilter::ERROR,
            (false, 0) => LevelFilter::WARN,
            (false, 1) => LevelFilter::INFO,
            (false, _) => LevelFilter::DEBUG,
        };
        let events = tracing_subscriber::fmt().with_writer(writer);
        // Colors depend on the features that other crates enable.
        let events = events.without_time().with_target(false).with_ansi(false);
        // The fallback for a failed write panics if standard error is closed.
        let events = events.log_internal_errors(false);
        events.with_max_level(level).into()
    }

    /// Returns the file of the output; `None` for standard output.
    pub(crate) fn file(&self) -> Option<&Path> {
        let file = self.output.as_deref();
        file.filter(|path| *path != Path::new("-"))
    }

    /// Writes the whole output. A command that has failed writes no file.
    pub(crate) fn finish(&self, failed: bool) -> anyhow::Result<()> {
        let mut out = io::stdout();
        match self.file() {
            _ if self.is_withheld => Ok(()),
            Some(_) if failed => Ok(()),
            Some(path) => fs::write(path, &self.bytes)
                .with_context(|| format!("can't write {}", path.display())),
            None => {
                let written = out.write_all(&self.bytes).and_then(|()| out.flush());
                written.context("can't write to standard output")
            }
        }
    }

    /// Returns the width of the terminal or, without one, the width in `COLUMNS`, which shells do not export by themselves;
    /// `None` for a file and for a pipe.
    pub(crate) fn width(&self) -> Option<usize> {
        if self.file().is_some() {
            return None;
        }
        let size = terminal_size::terminal_size_of(io::stdout());
        let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
        let width = size.map(|(width, _)| usize::from(width.0));
        width.or_else(columns).filter(|columns| *columns > 0)
    }

    /// Returns whether to use colour: on a terminal, unless disabled: <https://no-color.org>.
    pub(crate) fn has_color(&self) -> bool {
        self.file().is_none()
            && io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Prints a sentence, on a terminal in lines that fit.
    pub(crate) fn sentence(&mut self, text: &str) -> io::Result<()> {
        match self.width() {
            Some(width) => wrapped(text.split(' '), " ", width)
                .iter()
                .try_for_each(|line| writeln!(self, "{line}")),
            None => writeln!(self, "{text}"),
        }
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
        // A bar would overwrite the events.
        if self.quiet || self.verbose > 0 {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Bar(bar)
    }

    /// Prints an answer as text, or as one JSON object, whose first field is its version. In an answer, a path is a text with
    /// U+FFFD for bytes that are not UTF-8: serde's own form of a path would fail for them, after the work is done.
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
        Ok(Outcome::DONE)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

/// Minimum width of the column of names in characters, if longer names are broken.
const LEAST_NAMES: usize = 16;

/// Prints a table of rows with one cell per column. The first column has names, and the columns at the indices `right` have
/// numbers. Long names are broken into lines if the table is wider than the terminal.
pub(crate) fn show_table(
    head: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
    out: &mut Output,
) -> io::Result<()> {
    writeln!(out, "{}", fitted(head, right, rows, out.width()))
}

/// Formats a table with at most `width` characters, as far as names can be broken into lines.
fn fitted(
    head: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
    width: Option<usize>,
) -> String {
    let cells = |row: Vec<String>| row.iter().map(|cell| visible(cell).into()).collect();
    let mut rows: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
    let text_of = |rows: &[Vec<String>]| table(head, rows, |at| right.contains(&at)).trim_fmt();
    let whole = text_of(&rows);
    let widest = whole.lines().map(|line| line.chars().count()).max();
    let most = width.unwrap_or(usize::MAX);
    let excess = widest.unwrap_or(0).saturating_sub(most);
    if excess == 0 {
        return whole;
    }
    let names = rows.iter().map(|row| row[0].chars().count());
    let longest = names.max().unwrap_or(0);
    let name_width = longest.saturating_sub(excess).max(LEAST_NAMES);
    for row in &mut rows {
        row[0] = broken(&row[0], name_width);
    }
    text_of(&rows)
}

/// Breaks a name between its parts into lines of at most `width` characters, if no part is longer. Further lines are indented.
fn broken(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    let text = name.trim_start();
    let indent = &name[..name.len() - text.len()];
    let parts = text.split_inclusive(['.', ' ', '/']);
    let lines = wrapped(parts, "", width.saturating_sub(indent.len() + 2));
    indent.to_owned() + &lines.join(&format!("\n{indent}  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_indentation_is_not_broken() {
        let found = broken("      attention.query.weight", 14);
        let expected = "      attention.\n        query.\n        weight";
        assert_eq!(found, expected);
    }

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
            let shown = name.split_inclusive('.').all(|part| table.contains(part));
            assert!(shown, "{table}");
        }
        // A table that can't fit is not broken further.
        assert!(fitted(Some(5)).contains("blocks.11."));
        assert!(super::fitted(&["name"], &[], [], Some(80)).contains("name"));
    }
}
