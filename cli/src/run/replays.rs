//! `run diff` of two replays: the first operation with another result.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, bail};
use tinderbox_pipeline::{ProgramDigest, ReplayComparison, ReplayDifference};

use super::numerics::show_numerics;
use crate::{outcome::Outcome, terminal::Output};

/// The names that the text shows.
pub(super) const SHOWN: usize = 10;

/// Reads the digests of a replay; nothing from a file whose first line has others.
pub(super) fn read(path: &Path) -> anyhow::Result<Option<Vec<ProgramDigest>>> {
    let name = || path.display().to_string();
    let mut reader = BufReader::new(File::open(path).with_context(name)?);
    let (mut programs, mut text) = (Vec::new(), String::new());
    for number in 1.. {
        text.clear();
        reader.read_line(&mut text).with_context(name)?;
        if text.is_empty() {
            break;
        }
        match serde_json::from_str(&text) {
            Ok(program) => programs.push(program),
            Err(_) if number == 1 => return Ok(None),
            Err(error) => {
                let what = format!("{}: line {number} is no program of a replay", name());
                return Err(error).context(what);
            }
        }
    }
    match programs.is_empty() {
        true => bail!("{}: there are no digests", name()),
        false => Ok(Some(programs)),
    }
}

/// Compares two replays.
pub(super) fn compare(
    first: &[ProgramDigest],
    second: &[ProgramDigest],
    out: &mut Output,
) -> anyhow::Result<Outcome> {
    let found = ReplayComparison::of(first, second);
    if found.micro_batches == 0 {
        bail!("the replays have no micro-batch of one step in common");
    }
    out.answer(&found, |out| show(&found, out))?;
    Ok(match found.difference {
        None => Outcome::Done,
        Some(_) => Outcome::No,
    })
}

fn show(found: &ReplayComparison, out: &mut Output) -> io::Result<()> {
    match &found.difference {
        None => {
            let count = found.micro_batches;
            writeln!(out, "{count} micro-batch(es) are equal in every operation")?;
        }
        Some(difference) => show_difference(difference, out)?,
    }
    match found.only_in_one {
        0 => {}
        count => writeln!(out, "{count} micro-batch(es) are in one of the files only")?,
    }
    show_numerics(&found.numerics, out)
}

fn show_difference(difference: &ReplayDifference, out: &mut Output) -> io::Result<()> {
    let ReplayDifference {
        step,
        micro_batch,
        inputs,
        operations,
    } = difference;
    writeln!(
        out,
        "step {step} differs, first in micro-batch {micro_batch}"
    )?;
    for name in inputs.iter().take(SHOWN) {
        writeln!(out, "  given another value: {name}")?;
    }
    if inputs.len() > SHOWN {
        writeln!(out, "  and {} more", inputs.len() - SHOWN)?;
    }
    match operations {
        [Some(one), Some(other)] if (&one.name, &one.place) == (&other.name, &other.place) => {
            writeln!(out, "  the first operation with another result: {one}")
        }
        [Some(one), Some(other)] => {
            writeln!(
                out,
                "  the first other operation: {one} in one, {other} in the other"
            )
        }
        [Some(one), None] | [None, Some(one)] => {
            writeln!(
                out,
                "  the first other operation: {one}, in one of them only"
            )
        }
        [None, None] => Ok(()),
    }
}
