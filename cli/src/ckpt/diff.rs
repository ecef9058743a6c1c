//! `ckpt diff`: compares two checkpoints.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use tinderbox_checkpoint::{
    Scalar,
    tools::{Diff, Difference, ScalarDifference, TensorDifference, ValueDifference, diff},
};

use super::place::open;
use crate::{
    outcome::Outcome,
    terminal::{Output, visible},
};

/// Arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    first: PathBuf,
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    second: PathBuf,
}

/// Compares them.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let (first, second) = (open(&flags.first)?, open(&flags.second)?);
    let found = diff(&first, &second, &out.bar("diff"))?;
    out.answer(&found, |out| show(&found, out))?;
    Ok(match found.is_empty() {
        true => Outcome::Done,
        false => Outcome::No,
    })
}

fn show(found: &Diff, out: &mut Output) -> io::Result<()> {
    for TensorDifference {
        role,
        name,
        difference,
    } in &found.tensors
    {
        let how = match difference {
            Difference::OnlyFirst => "only in the first".to_owned(),
            Difference::OnlySecond => "only in the second".to_owned(),
            Difference::Form {
                first_dtype,
                first_shape,
                second_dtype,
                second_shape,
            } => format!(
                "{first_dtype} of shape {first_shape:?}, in the second {second_dtype} of shape {second_shape:?}"
            ),
            Difference::Names { first, second } => format!(
                "also called {}, in the second {}",
                others(name, first),
                others(name, second)
            ),
            Difference::Values(values) => in_words(values),
        };
        writeln!(out, "{role} {}: {}", visible(name), visible(&how))?;
    }
    for ScalarDifference {
        name,
        first,
        second,
    } in &found.scalars
    {
        let (first, second) = (value(*first), value(*second));
        writeln!(
            out,
            "scalar {}: {first}, in the second {second}",
            visible(name)
        )?;
    }
    let Diff {
        equal_tensors,
        equal_scalars,
        ..
    } = found;
    let (tensors, scalars) = (found.tensors.len(), found.scalars.len());
    writeln!(
        out,
        "{tensors} difference(s) of tensors, {scalars} of scalars; {equal_tensors} tensor(s) and {equal_scalars} scalar(s) are equal"
    )?;
    Ok(())
}

/// Returns the names other than the reported one.
fn others(name: &str, names: &[String]) -> String {
    let others: Vec<&str> = names.iter().map(|n| &**n).filter(|n| *n != name).collect();
    match others.is_empty() {
        true => "nothing else".to_owned(),
        false => others.join(", "),
    }
}

fn in_words(values: &ValueDifference) -> String {
    let ValueDifference {
        elements,
        differing,
        not_finite,
        ..
    } = values;
    let mut text = format!("{differing} of {elements} element(s) differ");
    if let (Some(absolute), Some(relative)) = (values.max_absolute, values.max_relative) {
        text.push_str(&format!(", by up to {absolute:e}, relative {relative:e}"));
    }
    if *not_finite > 0 {
        text.push_str(&format!(", {not_finite} of them infinite or NaN"));
    }
    text
}

fn value(scalar: Option<Scalar>) -> String {
    match scalar {
        None => "missing".to_owned(),
        Some(Scalar::Int(value)) => value.to_string(),
        Some(Scalar::Uint(value)) => value.to_string(),
        Some(Scalar::Float(value)) => format!("{value:e}"),
        Some(Scalar::Bool(value)) => value.to_string(),
    }
}
