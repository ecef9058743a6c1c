//! The output of a command: standard output or a file, as text or JSON.

use std::{
    fs,
    io::{self, BufWriter, IsTerminal, StdoutLock, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{ArgAction, Args};
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

use super::{Bar, say};

/// The version of all JSON objects that are not files of the library.
const SCHEMA: u32 = 1;

/// Arguments of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct OutputFlags {
    /// Write the output to this file; `-` is standard output
    #[arg(short, long, global = true, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON: one object with its version, or the JSON file of a plan. In a path, what is not UTF-8 is replaced by U+FFFD
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print no warnings and no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print what the library does, to standard error; twice for every detail
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
#[derive(Debug)]
pub(crate) struct Output {
    target: Target,
    /// Whether the answer is JSON.
    pub(crate) json: bool,
    quiet: bool,
    /// Whether another process writes the answer.
    is_withheld: bool,
}

#[derive(Debug)]
enum Target {
    Standard(BufWriter<StdoutLock<'static>>),
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
            None => Target::Standard(BufWriter::new(io::stdout().lock())),
        };
        Self {
            target,
            json,
            quiet,
            is_withheld: false,
        }
    }

    /// Writes everything; a command that has failed writes no file.
    pub(crate) fn finish(mut self, failed: bool) -> anyhow::Result<()> {
        match &self.target {
            Target::File(path, bytes) if !failed && !self.is_withheld => {
                fs::write(path, bytes).with_context(|| format!("can't write {}", path.display()))
            }
            _ => Ok(self.flush()?),
        }
    }

    /// Writes no file, because another process of a launcher does.
    pub(crate) fn withhold(&mut self) {
        self.is_withheld = true;
    }

    /// Returns the width of the terminal; `None` without one.
    pub(crate) fn width(&self) -> Option<usize> {
        let Target::Standard(_) = self.target else {
            return None;
        };
        let size = terminal_size::terminal_size_of(io::stdout());
        size.map(|(width, _)| usize::from(width.0))
    }

    /// Returns whether to use colour: on a terminal, unless disabled: <https://no-color.org>.
    pub(crate) fn has_color(&self) -> bool {
        matches!(self.target, Target::Standard(_))
            && io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
    }

    /// Prints a note to standard error, unless there are to be no warnings.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            say("note", text);
        }
    }

    /// Creates a progress bar for an operation.
    pub(crate) fn bar(&self, work: &'static str) -> Bar {
        Bar::new(work, self.quiet)
    }

    /// Prints an answer as text, or as one JSON object, whose first field is its version.
    pub(crate) fn answer(
        &mut self,
        answer: &impl Serialize,
        text: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.json {
            return Ok(text(self)?);
        }
        #[derive(Serialize)]
        struct Versioned<'a, T> {
            schema: u32,
            #[serde(flatten)]
            answer: &'a T,
        }
        let schema = SCHEMA;
        let text = serde_json::to_string(&Versioned { schema, answer })?;
        Ok(writeln!(self, "{text}")?)
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

/// Adds what failed to an error of standard output.
fn unwritten(error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("can't write to standard output: {error}"),
    )
}
