//! `run numerics`: what the processor of this machine computes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use tinderbox_deferred::NumericFingerprint;

use crate::outcome::Outcome;
use crate::terminal::{Columns, Output, name_of, read_text};

/// Arguments of `numerics`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// What `run numerics --json` has printed on another machine: names the classes that differ; exit code 1 if there is one.
    /// `-` is standard input
    #[arg(value_name = "OTHER.json")]
    other: Option<PathBuf>,
}

#[derive(Serialize)]
struct Found<'a> {
    numerics: &'a BTreeMap<String, String>,
    /// The classes that differ from the classes of the other machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    differences: Option<Vec<String>>,
}

/// What another machine has printed.
#[derive(Deserialize)]
struct Printed {
    numerics: NumericFingerprint,
}

/// Prints the fingerprint, or compares it.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let own = NumericFingerprint::of_process();
    let other = flags.other.as_ref().map(|path| {
        let text = read_text(path)?;
        let printed: Result<Printed, _> = serde_json::from_str(&text);
        let printed = printed
            .with_context(|| format!("{} is not what `run numerics --json` prints", name_of(path)));
        Ok::<_, anyhow::Error>(printed?.numerics)
    });
    let other = other.transpose()?;
    if let Some(other) = &other
        && !own
            .classes()
            .keys()
            .any(|class| other.classes().contains_key(class))
    {
        bail!(
            "the other machine has none of the classes of operations of this version: use the same version on both"
        );
    }
    let differences = other.map(|other| {
        let classes = own.differences(&other).into_iter();
        classes.map(str::to_owned).collect::<Vec<_>>()
    });
    let found = Found {
        numerics: own.classes(),
        differences,
    };
    out.answer(&found, |out| match &found.differences {
        None => {
            let mut table = Columns::new(&["class of operations", "digest"], &[]);
            for (class, digest) in found.numerics {
                table.push(vec![class.clone(), digest.clone()]);
            }
            table.show(out)
        }
        Some(classes) if classes.is_empty() => {
            writeln!(
                out,
                "{} classes of operations are equal",
                found.numerics.len()
            )
        }
        Some(classes) => show_numerics(classes, out),
    })?;
    Ok(
        match found.differences.is_none_or(|classes| classes.is_empty()) {
            true => Outcome::Done,
            false => Outcome::No,
        },
    )
}

/// Names what the processors compute differently.
pub(super) fn show_numerics(classes: &[String], out: &mut Output) -> io::Result<()> {
    match classes.is_empty() {
        true => Ok(()),
        false => writeln!(
            out,
            "the processors or C libraries of the two round differently: {}",
            classes.join(", ")
        ),
    }
}
