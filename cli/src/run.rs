//! `tinderbox run`: compares training runs, replays of a step, and the numerics of machines.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tinderbox_deferred::NumericFingerprint;
use tinderbox_pipeline::{ProgramDigest, ReplayComparison, ReplayDifference, StateDigest};

use crate::outcome::Outcome;
use crate::terminal::{Output, name_of, read_text, show_table};

/// The number of names that the text shows.
const SHOWN: usize = 10;

/// Compares two runs, or two replays of a step.
pub(crate) fn diff(first: &Path, second: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
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

/// The digests of a run. Their lines stay in the file, because a model has many parameters and a run many steps.
struct Digests {
    file: BufReader<File>,
    steps: BTreeMap<u64, Line>,
}

/// The line of a step.
struct Line {
    /// The position in the file in bytes.
    at: u64,
    /// The digest of all values.
    value: u64,
}

impl Digests {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        let mut file = BufReader::new(File::open(path).with_context(name)?);
        let mut steps = BTreeMap::new();
        let (mut at, mut text) = (0, Vec::new());
        for number in 1.. {
            text.clear();
            let length = file.read_until(b'\n', &mut text).with_context(name)?;
            // A run that was killed, or that still runs, leaves a part of a line.
            if text.pop() != Some(b'\n') {
                break;
            }
            let digest: Result<StateDigest, _> = serde_json::from_slice(&text);
            let digest =
                digest.with_context(|| format!("{}: line {number} is not a digest", name()))?;
            let value = digest.value();
            steps.insert(digest.step, Line { at, value });
            at += length as u64;
        }
        ensure!(!steps.is_empty(), "{}: there are no digests", name());
        Ok(Self { file, steps })
    }

    fn read(&mut self, step: u64) -> anyhow::Result<StateDigest> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(self.steps[&step].at))?;
        self.file.read_line(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    }

    fn range(&self) -> (u64, u64) {
        let mut steps = self.steps.keys();
        let first = steps.next().copied().unwrap_or(0);
        (first, steps.next_back().copied().unwrap_or(first))
    }
}

/// The comparison of two runs.
#[derive(Serialize)]
struct Found {
    /// The number of steps of both runs that are equal before the first difference.
    equal: usize,
    /// The last of these steps.
    last_equal: Option<u64>,
    /// The number of steps of only one run.
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
    let steps = first.steps.iter();
    let steps = steps.filter_map(|(step, line)| Some((*step, line, second.steps.get(step)?)));
    let common = steps.map(|(step, a, b)| (step, a.value == b.value));
    let common: Vec<(u64, bool)> = common.collect();
    let other = common.iter().position(|(_, is_equal)| !is_equal);
    let equal = other.unwrap_or(common.len());
    // The step that differs, or the last of both.
    let Some((step, _)) = common.get(equal).or(common.last()).copied() else {
        let ((a, b), (c, d)) = (first.range(), second.range());
        bail!("the runs have no step in common: one has steps {a} to {b}, the other {c} to {d}");
    };
    let only_in_one = first.steps.len() + second.steps.len() - 2 * common.len();
    let (first, second) = (first.read(step)?, second.read(step)?);
    let names = owned(first.differences(&second));
    Ok(Found {
        equal,
        last_equal: common[..equal].last().map(|(step, _)| *step),
        only_in_one,
        difference: other.map(|_| Difference { step, names }),
        numerics: owned(first.numerics.differences(&second.numerics)),
    })
}

fn owned(names: Vec<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

impl Found {
    fn show(&self, out: &mut Output) -> io::Result<()> {
        let (equal, difference) = (self.equal, self.difference.as_ref());
        let step = difference.map(|difference| difference.step);
        match (step, self.last_equal) {
            (None, _) => writeln!(out, "{equal} step(s) are equal")?,
            (Some(step), None) => writeln!(out, "step {step} differs, the first of both")?,
            (Some(step), Some(last)) => {
                writeln!(out, "step {step} differs, step {last} is equal")?;
            }
        }
        let names = difference.map_or(&[][..], |difference| &difference.names[..]);
        show_names(names, "", out)?;
        show_rest(self.only_in_one, "step(s)", &self.numerics, out)
    }
}

/// Prints the first names, each after a text.
fn show_names(names: &[String], what: &str, out: &mut Output) -> io::Result<()> {
    for name in names.iter().take(SHOWN) {
        writeln!(out, "  {what}{name}")?;
    }
    match names.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}

/// Reads the digests of a replay; `None` if the first line of the file is not one.
fn replay(path: &Path) -> anyhow::Result<Option<Vec<ProgramDigest>>> {
    let name = || path.display().to_string();
    let lines = BufReader::new(File::open(path).with_context(name)?).lines();
    let mut programs = Vec::new();
    for (line, number) in lines.zip(1..) {
        match serde_json::from_str(&line.with_context(name)?) {
            Ok(program) => programs.push(program),
            Err(_) if number == 1 => return Ok(None),
            Err(error) => {
                let what = format!("{}: line {number} is not a program of a replay", name());
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
    let (step, batch) = (&found.step, &found.micro_batch);
    writeln!(out, "step {step} differs, first in micro-batch {batch}")?;
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

/// The printed numerics of a machine.
#[derive(Serialize, Deserialize)]
struct Printed {
    numerics: NumericFingerprint,
    /// The classes that differ from the classes of the other machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    differences: Option<Vec<String>>,
}

/// Prints the numerics of this machine, or compares them with another machine.
pub(crate) fn numerics(other: Option<&Path>, out: &mut Output) -> anyhow::Result<Outcome> {
    let own = NumericFingerprint::of_process();
    let (numerics, mut classes) = (own.classes(), own.classes().keys());
    let other = other.map(fingerprint_in).transpose()?;
    if let Some(other) = &other
        && !classes.any(|class| other.classes().contains_key(class))
    {
        bail!(
            "the other machine has none of the classes of operations of this version: use the same version on both"
        );
    }
    let printed = Printed {
        numerics: own.clone(),
        differences: other.map(|other| owned(own.differences(&other))),
    };
    let differences = printed.differences.as_deref();
    out.answer(&printed, |out| match differences {
        None => {
            let cells = |(class, digest): (&String, &String)| vec![class.clone(), digest.clone()];
            let header = ["class of operations", "digest"];
            show_table(&header, &[], numerics.iter().map(cells), out)
        }
        Some([]) => writeln!(out, "{} classes of operations are equal", numerics.len()),
        Some(classes) => show_numerics(classes, out),
    })?;
    Ok(Outcome::of_answer(differences.is_none_or(<[_]>::is_empty)))
}

/// Reads the printed numerics of another machine.
fn fingerprint_in(path: &Path) -> anyhow::Result<NumericFingerprint> {
    let printed: Result<Printed, _> = serde_json::from_str(&read_text(path)?);
    let name = name_of(path);
    let wrong = || format!("{name} is not the output of `run numerics --json`");
    Ok(printed.with_context(wrong)?.numerics)
}

/// Prints the number of items that only one file has, and the differing classes of operations.
fn show_rest(count: usize, what: &str, numerics: &[String], out: &mut Output) -> io::Result<()> {
    if count > 0 {
        writeln!(out, "{count} {what} are in one of the files only")?;
    }
    show_numerics(numerics, out)
}

/// Prints the classes of operations that the processors round differently.
fn show_numerics(classes: &[String], out: &mut Output) -> io::Result<()> {
    match &*classes.join(", ") {
        "" => Ok(()),
        classes => writeln!(
            out,
            "the processors or C libraries of the two round differently: {classes}"
        ),
    }
}
