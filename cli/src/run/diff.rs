//! `run diff`: compares the digests of two runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tinderbox_pipeline::StateDigest;

use super::numerics::show_numerics;
use super::replays::{self, SHOWN};
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The digests of a run: a file with what `Pipeline::digest` returned after each step, as a line of JSON. Of a step that
    /// was done again after a resume, the last line counts; steps that only one run has are counted, and are no difference. Or
    /// the digests of a replay: a line for each program
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The digests of another run
    #[arg(value_name = "B")]
    second: PathBuf,
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
            let digest = digest
                .with_context(|| format!("{}: line {number} is no digest", path.display()))?;
            let line = Line {
                offset,
                length,
                value: digest.value(),
            };
            steps.insert(digest.step, line);
            offset += length as u64;
        }
        if steps.is_empty() {
            bail!("{}: there are no digests", path.display());
        }
        Ok(Self {
            file: reader.into_inner(),
            steps,
        })
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

/// What is equal, and what is not.
#[derive(Serialize)]
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

/// Compares them.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    match (replays::read(&flags.first)?, replays::read(&flags.second)?) {
        (Some(first), Some(second)) => return replays::compare(&first, &second, out),
        (None, None) => {}
        (Some(_), None) | (None, Some(_)) => {
            bail!("one of the files is of a run, the other of a replay");
        }
    }
    let (mut first, mut second) = (Digests::open(&flags.first)?, Digests::open(&flags.second)?);
    let common = first.steps.iter();
    let common = common.filter_map(|(step, line)| Some((*step, line, second.steps.get(step)?)));
    let mut found = Found {
        equal: 0,
        last_equal: None,
        only_in_one: first.steps.len() + second.steps.len() - 2 * common.clone().count(),
        difference: None,
        numerics: Vec::new(),
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
    if found.equal == 0 && other.is_none() {
        let ((a, b), (c, d)) = (first.range(), second.range());
        bail!("the runs have no step in common: one has steps {a} to {b}, the other {c} to {d}");
    }
    if let Some(step) = other.or(found.last_equal) {
        let (first, second) = (first.read(step)?, second.read(step)?);
        let numerics = first.numerics.differences(&second.numerics);
        found.numerics = numerics.into_iter().map(str::to_owned).collect();
        let names = first.differences(&second).into_iter().map(str::to_owned);
        found.difference = other.map(|step| Difference {
            step,
            names: names.collect(),
        });
    }
    out.answer(&found, |out| show(&found, out))?;
    Ok(match found.difference {
        None => Outcome::Done,
        Some(_) => Outcome::No,
    })
}

fn show(found: &Found, out: &mut Output) -> io::Result<()> {
    match (&found.difference, found.last_equal) {
        (None, _) => writeln!(out, "{} step(s) are equal", found.equal)?,
        (Some(difference), None) => {
            writeln!(out, "step {} differs, the first of both", difference.step)?;
        }
        (Some(difference), Some(last)) => {
            let step = difference.step;
            writeln!(out, "step {step} differs, step {last} is equal")?;
        }
    }
    if let Some(Difference { names, .. }) = &found.difference {
        for name in names.iter().take(SHOWN) {
            writeln!(out, "  {name}")?;
        }
        if names.len() > SHOWN {
            writeln!(out, "  and {} more", names.len() - SHOWN)?;
        }
    }
    if found.only_in_one > 0 {
        writeln!(
            out,
            "{} step(s) are in one of the files only",
            found.only_in_one
        )?;
    }
    show_numerics(&found.numerics, out)
}
