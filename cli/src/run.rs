//! `tinderbox run`: compares training runs, replays of a step, and the numerics of machines.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use tinderbox_deferred::NumericFingerprint;
use tinderbox_ids::text::count_text;
use tinderbox_pipeline::{ProgramDigest, ReplayComparison, ReplayDifference, StateDigest};

use crate::outcome::Outcome;
use crate::terminal::{Output, name_of, one_input, read_text, show_table, unexpected, visible};

/// The number of names that the text shows.
const SHOWN: usize = 10;
/// The bytes of a file that are read to find out what it is. A plan, and the digests of a step, may have several MiB.
const MOST_BYTES: u64 = 64 << 20;

/// Compares two runs, or two replays of a step.
pub(crate) fn diff(first: &Path, second: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
    one_input([first, second])?;
    match (Digests::open(first)?, Digests::open(second)?) {
        (Digests::Replay(first), Digests::Replay(second)) => {
            let found = ReplayComparison::of(&first, &second);
            if found.micro_batches == 0 {
                bail!("the replays have no micro-batch of one step in common");
            }
            out.answer(&found, |out| show_replays(&found, out))?;
            Ok(Outcome::of_answer(found.difference.is_none()))
        }
        (Digests::Run(first), Digests::Run(second)) => {
            let found = compare(first, second)?;
            out.answer(&found, |out| found.show(out))?;
            Ok(Outcome::of_answer(found.difference.is_none()))
        }
        _ => bail!("one of the files is of a run, the other of a replay"),
    }
}

/// A file whose lines can be read again.
trait Lines: BufRead + Seek {}

impl<T: BufRead + Seek> Lines for T {}

/// Opens a file, or standard input for `-`. Standard input and pipes are read into memory.
fn lines_of(path: &Path) -> io::Result<Box<dyn Lines>> {
    let mut all = Vec::new();
    if path == Path::new("-") {
        io::stdin().read_to_end(&mut all)?;
    } else {
        let mut file = File::open(path)?;
        if file.metadata()?.is_file() {
            return Ok(Box::new(BufReader::new(file)));
        }
        file.read_to_end(&mut all)?;
    }
    Ok(Box::new(Cursor::new(all)))
}

/// The digests of a file.
enum Digests {
    Run(Steps),
    Replay(Vec<ProgramDigest>),
}

impl Digests {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let unread = || format!("{} can't be read", name_of(path));
        let mut file = lines_of(path).with_context(unread)?;
        let mut first = Vec::new();
        let read = file.by_ref().take(MOST_BYTES).read_until(b'\n', &mut first);
        read.and_then(|_| file.rewind()).with_context(unread)?;
        if serde_json::from_slice::<ProgramDigest>(&first).is_ok() {
            return replay(file, path).map(Self::Replay);
        }
        if serde_json::from_slice::<StateDigest>(&first).is_ok() {
            return Steps::of(file, path).map(Self::Run);
        }
        let mut start = Vec::new();
        let mut file = file.take(MOST_BYTES);
        file.read_to_end(&mut start).with_context(unread)?;
        let wanted = "the digests of a run or the digests of a replay";
        let (name, is_line) = (name_of(path), first.ends_with(b"\n"));
        let is_cut = !is_line && (first.len() as u64) < MOST_BYTES;
        let other = unexpected(path, &start, wanted, &["state", "operations"]);
        Err(match other {
            Some(error) => error,
            None if is_cut && first.starts_with(b"{") => anyhow!(
                "{name} has no digests: it ends inside its first line, as when a run is killed in its first step"
            ),
            None => anyhow!("{name}: line 1 is not a digest: expected {wanted}"),
        })
    }
}

/// The digests of a run. Their lines stay in the file, because a model has many parameters and a run many steps.
struct Steps {
    file: Box<dyn Lines>,
    steps: BTreeMap<u64, Line>,
}

/// The line of a step.
struct Line {
    /// The position in the file in bytes.
    at: u64,
    /// The digest of all values.
    value: u64,
}

impl Steps {
    fn of(mut file: Box<dyn Lines>, path: &Path) -> anyhow::Result<Self> {
        let name = name_of(path);
        let mut steps = BTreeMap::new();
        let (mut at, mut text) = (0, Vec::new());
        for number in 1.. {
            text.clear();
            let length = file.read_until(b'\n', &mut text);
            let length = length.with_context(|| format!("{name} can't be read"))?;
            let digest: StateDigest = match serde_json::from_slice(&text) {
                Ok(digest) => digest,
                // A run that was killed, or that still runs, leaves a part of a line.
                Err(_) if !text.ends_with(b"\n") => break,
                Err(error) => {
                    let what = format!("{name}: line {number} is not a digest");
                    return Err(error).context(what);
                }
            };
            let value = digest.value();
            steps.insert(digest.step, Line { at, value });
            at += length as u64;
        }
        Ok(Self { file, steps })
    }

    fn read(&mut self, step: u64) -> anyhow::Result<StateDigest> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(self.steps[&step].at))?;
        self.file.read_line(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the steps in words: `step 3`, `steps 1 to 9`.
    fn range(&self) -> String {
        let mut steps = self.steps.keys();
        let first = steps.next().copied().unwrap_or(0);
        match steps.next_back() {
            Some(last) => format!("steps {first} to {last}"),
            None => format!("step {first}"),
        }
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

fn compare(mut first: Steps, mut second: Steps) -> anyhow::Result<Found> {
    let steps = first.steps.iter();
    let steps = steps.filter_map(|(step, line)| Some((*step, line, second.steps.get(step)?)));
    let common = steps.map(|(step, a, b)| (step, a.value == b.value));
    let common: Vec<(u64, bool)> = common.collect();
    let other = common.iter().position(|(_, is_equal)| !is_equal);
    let equal = other.unwrap_or(common.len());
    // The step that differs, or the last of both.
    let Some((step, _)) = common.get(equal).or(common.last()).copied() else {
        let (first, second) = (first.range(), second.range());
        bail!("the runs have no step in common: one has {first}, the other {second}");
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
            (None, _) => writeln!(out, "{} equal", are(equal, "step"))?,
            (Some(step), None) => writeln!(out, "step {step} differs, the first of both")?,
            (Some(step), Some(last)) => {
                writeln!(out, "step {step} differs, step {last} is equal")?;
            }
        }
        let names = difference.map_or(&[][..], |difference| &difference.names[..]);
        show_names(names, "", out)?;
        show_rest(self.only_in_one, "step", &self.numerics, out)
    }
}

/// Returns `1 step is`, or `2 steps are`.
fn are(count: usize, noun: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", count_text(count, noun))
}

/// Prints the first names, each after a text.
fn show_names(names: &[String], what: &str, out: &mut Output) -> io::Result<()> {
    for name in names.iter().take(SHOWN) {
        writeln!(out, "  {what}{}", visible(name))?;
    }
    match names.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}

/// Reads the digests of a replay.
fn replay(file: Box<dyn Lines>, path: &Path) -> anyhow::Result<Vec<ProgramDigest>> {
    let name = name_of(path);
    let programs = file.lines().zip(1..).map(|(line, number)| {
        let line = line.with_context(|| format!("{name} can't be read"))?;
        let program = serde_json::from_str::<ProgramDigest>(&line);
        program.with_context(|| format!("{name}: line {number} is not a program of a replay"))
    });
    programs.collect()
}

fn show_replays(found: &ReplayComparison, out: &mut Output) -> io::Result<()> {
    match &found.difference {
        None => {
            let equal = are(found.micro_batches, "micro-batch");
            writeln!(out, "{equal} equal in every operation")?;
        }
        Some(difference) => show_difference(difference, out)?,
    }
    show_rest(found.only_in_one, "micro-batch", &found.numerics, out)
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
    out.sentence(&format!("  the first {text}"))
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
    let text = read_text(path)?;
    let printed = serde_json::from_str::<Printed>(&text);
    let printed = printed.map_err(|error| {
        let wanted = "the numerics of a machine, the output of `run numerics --json`";
        let other = unexpected(path, text.as_bytes(), wanted, &["numerics"]);
        other.unwrap_or_else(|| {
            let name = name_of(path);
            let wrong = format!("{name} is not the output of `run numerics --json`");
            anyhow::Error::new(error).context(wrong)
        })
    });
    Ok(printed?.numerics)
}

/// Prints the number of items that only one file has, and the differing classes of operations.
fn show_rest(count: usize, what: &str, numerics: &[String], out: &mut Output) -> io::Result<()> {
    if count > 0 {
        writeln!(out, "{} in one of the files only", are(count, what))?;
    }
    show_numerics(numerics, out)
}

/// Prints the classes of operations that the processors round differently.
fn show_numerics(classes: &[String], out: &mut Output) -> io::Result<()> {
    match &*classes.join(", ") {
        "" => Ok(()),
        classes => out.sentence(&format!(
            "the processors or C libraries of the two round differently: {classes}"
        )),
    }
}
