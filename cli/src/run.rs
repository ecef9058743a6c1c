//! `tinderbox run`: compares training runs, replays of a step, and what machines compute.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use tinderbox_deferred::NumericFingerprint;
use tinderbox_pipeline::{ProgramDigest, ReplayComparison, ReplayDifference, StateDigest};

use crate::outcome::Outcome;
use crate::terminal::{Columns, Output, name_of, read_text};

/// The names that the text shows.
const SHOWN: usize = 10;

/// The run commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Find the first step and the first value in which two runs differ, or the first operation in which two replays of a step
    /// differ; exit code 1 if there is one
    Diff {
        /// The digests of a run: a file with what `Pipeline::digest` returned after each step, as a line of JSON. Of a step that
        /// was done again after a resume, the last line counts; steps that only one run has are counted, and are no difference. Or
        /// the digests of a replay: a line for each program
        #[arg(value_name = "A")]
        first: PathBuf,
        /// The digests of another run
        #[arg(value_name = "B")]
        second: PathBuf,
    },
    /// Print a digest of what the processor and the C library of this machine compute, for each class of operations that is
    /// rounded differently on others, or compare it with another machine's
    Numerics {
        /// What `run numerics --json` has printed on another machine: names the classes that differ; exit code 1 if there is one.
        /// `-` is standard input
        #[arg(value_name = "OTHER.json")]
        other: Option<PathBuf>,
    },
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut Output) -> anyhow::Result<Outcome> {
        match self {
            Self::Diff { first, second } => diff(first, second, out),
            Self::Numerics { other } => numerics(other.as_deref(), out),
        }
    }
}

/// Compares two runs, or two replays of a step.
fn diff(first: &Path, second: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
    match (replay(first)?, replay(second)?) {
        (Some(first), Some(second)) => {
            let found = ReplayComparison::of(&first, &second);
            if found.micro_batches == 0 {
                bail!("the replays have no micro-batch of one step in common");
            }
            out.answer(&found, |out| show_replays(&found, out))?;
            Ok(Outcome::of_answer(found.difference.is_none()))
        }
        (None, None) => {
            let found = compare(Digests::open(first)?, Digests::open(second)?)?;
            out.answer(&found, |out| found.show(out))?;
            Ok(Outcome::of_answer(found.difference.is_none()))
        }
        _ => bail!("one of the files is of a run, the other of a replay"),
    }
}

/// Where the digest of a step is.
struct Line {
    offset: u64,
    length: usize,
    /// The digest of all values.
    value: u64,
}

/// The digests of a run. The lines are in the file only, because a model has many parameters and a run many steps.
struct Digests {
    file: File,
    steps: BTreeMap<u64, Line>,
}

impl Digests {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        let mut reader = BufReader::new(File::open(path).with_context(name)?);
        let mut steps = BTreeMap::new();
        let (mut offset, mut text) = (0, Vec::new());
        for number in 1.. {
            text.clear();
            let length = reader.read_until(b'\n', &mut text).with_context(name)?;
            // A run that is killed, or still runs, leaves a part of a line.
            if text.pop() != Some(b'\n') {
                break;
            }
            let digest: Result<StateDigest, _> = serde_json::from_slice(&text);
            let digest =
                digest.with_context(|| format!("{}: line {number} is no digest", name()))?;
            let line = Line {
                offset,
                length,
                value: digest.value(),
            };
            steps.insert(digest.step, line);
            offset += length as u64;
        }
        ensure!(!steps.is_empty(), "{}: there are no digests", name());
        let file = reader.into_inner();
        Ok(Self { file, steps })
    }

    fn read(&mut self, step: u64) -> anyhow::Result<StateDigest> {
        let line = &self.steps[&step];
        let mut text = vec![0; line.length];
        self.file.seek(SeekFrom::Start(line.offset))?;
        self.file.read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn range(&self) -> (u64, u64) {
        let mut steps = self.steps.keys();
        let first = steps.next().copied().unwrap_or(0);
        (first, steps.next_back().copied().unwrap_or(first))
    }
}

/// What is equal in two runs, and what is not.
#[derive(Default, Serialize)]
struct Found {
    /// The steps of both runs that are equal before the first difference.
    equal: u64,
    /// The last of these.
    last_equal: Option<u64>,
    /// The steps of one run only.
    only_in_one: usize,
    difference: Option<Difference>,
    /// The classes of operations in which the processors of the runs round differently.
    numerics: Vec<String>,
}

#[derive(Serialize)]
struct Difference {
    step: u64,
    /// Parameters in the order of their table, then the optimizer's state.
    names: Vec<String>,
}

fn compare(mut first: Digests, mut second: Digests) -> anyhow::Result<Found> {
    let common = first.steps.iter();
    let common = common.filter_map(|(step, line)| Some((*step, line, second.steps.get(step)?)));
    let mut found = Found {
        only_in_one: first.steps.len() + second.steps.len() - 2 * common.clone().count(),
        ..Found::default()
    };
    let mut other = None;
    for (step, first, second) in common {
        if first.value != second.value {
            other = Some(step);
            break;
        }
        found.equal += 1;
        found.last_equal = Some(step);
    }
    let Some(step) = other.or(found.last_equal) else {
        let ((a, b), (c, d)) = (first.range(), second.range());
        bail!("the runs have no step in common: one has steps {a} to {b}, the other {c} to {d}");
    };
    let (first, second) = (first.read(step)?, second.read(step)?);
    found.numerics = owned(first.numerics.differences(&second.numerics));
    let names = owned(first.differences(&second));
    found.difference = other.map(|step| Difference { step, names });
    Ok(found)
}

fn owned(names: Vec<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

impl Found {
    fn show(&self, out: &mut Output) -> io::Result<()> {
        match (&self.difference, self.last_equal) {
            (None, _) => writeln!(out, "{} step(s) are equal", self.equal)?,
            (Some(Difference { step, names }), last) => {
                match last {
                    None => writeln!(out, "step {step} differs, the first of both")?,
                    Some(last) => writeln!(out, "step {step} differs, step {last} is equal")?,
                }
                show_names(names, "", out)?;
            }
        }
        show_rest(self.only_in_one, "step(s)", &self.numerics, out)
    }
}

/// Prints the first names, with what they are.
fn show_names(names: &[String], what: &str, out: &mut Output) -> io::Result<()> {
    for name in names.iter().take(SHOWN) {
        writeln!(out, "  {what}{name}")?;
    }
    match names.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}

/// Reads the digests of a replay; nothing from a file whose first line has others.
fn replay(path: &Path) -> anyhow::Result<Option<Vec<ProgramDigest>>> {
    let name = || path.display().to_string();
    let lines = BufReader::new(File::open(path).with_context(name)?).lines();
    let mut programs = Vec::new();
    for (line, number) in lines.zip(1..) {
        match serde_json::from_str(&line.with_context(name)?) {
            Ok(program) => programs.push(program),
            Err(_) if number == 1 => return Ok(None),
            Err(error) => {
                let what = format!("{}: line {number} is no program of a replay", name());
                return Err(error).context(what);
            }
        }
    }
    ensure!(!programs.is_empty(), "{}: there are no digests", name());
    Ok(Some(programs))
}

fn show_replays(found: &ReplayComparison, out: &mut Output) -> io::Result<()> {
    match &found.difference {
        None => {
            let count = found.micro_batches;
            writeln!(out, "{count} micro-batch(es) are equal in every operation")?;
        }
        Some(difference) => show_difference(difference, out)?,
    }
    show_rest(found.only_in_one, "micro-batch(es)", &found.numerics, out)
}

fn show_difference(found: &ReplayDifference, out: &mut Output) -> io::Result<()> {
    let (step, micro_batch) = (&found.step, &found.micro_batch);
    write!(out, "step {step} differs, ")?;
    writeln!(out, "first in micro-batch {micro_batch}")?;
    show_names(&found.inputs, "given another value: ", out)?;
    let text = match &found.operations {
        [Some(one), Some(other)] if (&one.name, &one.place) == (&other.name, &other.place) => {
            format!("operation with another result: {one}")
        }
        [Some(one), Some(other)] => format!("other operation: {one} in one, {other} in the other"),
        [Some(one), None] | [None, Some(one)] => {
            format!("other operation: {one}, in one of them only")
        }
        [None, None] => return Ok(()),
    };
    writeln!(out, "  the first {text}")
}

/// What a machine computes, as it is printed.
#[derive(Serialize)]
struct Printed<'a> {
    numerics: &'a BTreeMap<String, String>,
    /// The classes that differ from the classes of the other machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    differences: Option<Vec<String>>,
}

/// Prints what this machine computes, or compares it.
fn numerics(other: Option<&Path>, out: &mut Output) -> anyhow::Result<Outcome> {
    let own = NumericFingerprint::of_process();
    let other = other.map(fingerprint_in).transpose()?;
    let (numerics, mut classes) = (own.classes(), own.classes().keys());
    if let Some(other) = &other
        && !classes.any(|class| other.classes().contains_key(class))
    {
        bail!(
            "the other machine has none of the classes of operations of this version: use the same version on both"
        );
    }
    let printed = Printed {
        numerics,
        differences: other.map(|other| owned(own.differences(&other))),
    };
    let differences = printed.differences.as_deref();
    out.answer(&printed, |out| match differences {
        None => {
            let cells = |(class, digest): (&String, &String)| vec![class.clone(), digest.clone()];
            let header = ["class of operations", "digest"];
            Columns::new(&header, &[], numerics.iter().map(cells)).show(out)
        }
        Some([]) => writeln!(out, "{} classes of operations are equal", numerics.len()),
        Some(classes) => show_numerics(classes, out),
    })?;
    Ok(Outcome::of_answer(differences.is_none_or(<[_]>::is_empty)))
}

/// Reads what another machine has printed.
fn fingerprint_in(path: &Path) -> anyhow::Result<NumericFingerprint> {
    #[derive(Deserialize)]
    struct Printed {
        numerics: NumericFingerprint,
    }
    let printed: Result<Printed, _> = serde_json::from_str(&read_text(path)?);
    let wrong = || format!("{} is not what `run numerics --json` prints", name_of(path));
    Ok(printed.with_context(wrong)?.numerics)
}

/// Prints what can't be compared, and what the processors compute differently.
fn show_rest(count: usize, what: &str, numerics: &[String], out: &mut Output) -> io::Result<()> {
    if count > 0 {
        writeln!(out, "{count} {what} are in one of the files only")?;
    }
    show_numerics(numerics, out)
}

/// Names what the processors compute differently.
fn show_numerics(classes: &[String], out: &mut Output) -> io::Result<()> {
    match &*classes.join(", ") {
        "" => Ok(()),
        classes => writeln!(
            out,
            "the processors or C libraries of the two round differently: {classes}"
        ),
    }
}
