//! `run diff` of two replays: the first operation with another result.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, bail};
use serde::Serialize;
use tinderbox_pipeline::{ProgramDigest, ReplayDifference, first_replay_difference};

use crate::{outcome::Outcome, terminal::Output};

/// Reads the digests of a replay; nothing from a file whose first line has others.
pub(super) fn read(path: &Path) -> anyhow::Result<Option<Vec<ProgramDigest>>> {
    let name = || path.display().to_string();
    let mut reader = BufReader::new(File::open(path).with_context(name)?);
    let (mut programs, mut text) = (Vec::new(), String::new());
    for number in 1.. {
        text.clear();
        reader.read_line(&mut text).with_context(name)?;
        // A replay that was killed leaves a part of a line.
        if !text.ends_with('\n') {
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
    Ok((!programs.is_empty()).then_some(programs))
}

/// What is equal, and what is not.
#[derive(Serialize)]
struct Found {
    /// The micro-batches that both replays have.
    micro_batches: usize,
    difference: Option<ReplayDifference>,
}

/// Compares two replays.
pub(super) fn compare(
    first: &[ProgramDigest],
    second: &[ProgramDigest],
    out: &mut Output,
) -> anyhow::Result<Outcome> {
    let (micro_batches, difference) = first_replay_difference(first, second);
    if micro_batches == 0 {
        bail!("the replays have no micro-batch of one step in common");
    }
    let found = Found {
        micro_batches,
        difference,
    };
    out.answer(&found, |out| show(&found, out))?;
    Ok(match found.difference {
        None => Outcome::Done,
        Some(_) => Outcome::No,
    })
}

fn show(found: &Found, out: &mut Output) -> io::Result<()> {
    let Some(ReplayDifference {
        step,
        micro_batch,
        inputs,
        operations,
    }) = &found.difference
    else {
        let count = found.micro_batches;
        return writeln!(out, "{count} micro-batch(es) are equal in every operation");
    };
    writeln!(
        out,
        "the step after {step} differs first in micro-batch {micro_batch}"
    )?;
    for name in inputs {
        writeln!(out, "  given another value: {name}")?;
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
