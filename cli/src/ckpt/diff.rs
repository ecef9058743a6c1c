//! `ckpt diff`: compares two checkpoints.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use tinderbox_checkpoint::tools::{self, Diff, Difference, TensorDifference, ValueDifference};
use tinderbox_checkpoint::{Scalar, StoredDType};
use tinderbox_ids::text::count_text;

use super::place::{open, parse_step};
use crate::outcome::Outcome;
use crate::terminal::{Output, show_table, visible};

/// Number of differences of a kind that are shown without `--all`.
const SHOWN: usize = 20;

/// Arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffFlags {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    first: PathBuf,
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    second: PathBuf,
    /// Use this step of the runs instead of the newest; given twice: the step of FIRST, then the step of SECOND
    #[arg(long, value_name = "STEP", value_parser = parse_step)]
    step: Vec<u64>,
    /// Show every difference, not only the 20 largest of a kind
    #[arg(long)]
    all: bool,
}

/// Returns the step of each side of a comparison, as `--step` chooses them.
pub(crate) fn steps_of_both(steps: &[u64]) -> anyhow::Result<[Option<u64>; 2]> {
    match *steps {
        [] => Ok([None; 2]),
        [both] => Ok([Some(both); 2]),
        [first, second] => Ok([Some(first), Some(second)]),
        _ => bail!("--step can be given at most twice: two checkpoints are compared"),
    }
}

/// Compares two checkpoints.
pub(crate) fn diff(flags: &DiffFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let [first, second] = steps_of_both(&flags.step)?;
    let (first, second) = (open(&flags.first, first)?, open(&flags.second, second)?);
    let found = tools::diff(&first, &second, &out.bar("diff"))?;
    let shown = Shown {
        found: &found,
        dirs: [first.dir(), second.dir()],
        most: if flags.all { usize::MAX } else { SHOWN },
    };
    out.answer(&found, |out| shown.show(out))?;
    Ok(Outcome::of_answer(found.is_empty()))
}

/// Differences as text: the result first, then the largest differences of each kind.
struct Shown<'a> {
    found: &'a Diff,
    dirs: [&'a Path; 2],
    /// Maximum number of rows of a kind.
    most: usize,
}

impl Shown<'_> {
    fn show(&self, out: &mut Output) -> io::Result<()> {
        for (side, dir) in ["first", "second"].into_iter().zip(self.dirs) {
            writeln!(out, "{side:<6}  {}", visible(&dir.to_string_lossy()))?;
        }
        let (tensors, scalars) = (self.differing_tensors(), self.found.scalars.len());
        let all_tensors = count_text(tensors + self.found.equal_tensors, "tensor");
        let all_scalars = count_text(scalars + self.found.equal_scalars, "scalar");
        if self.found.is_empty() {
            return writeln!(out, "{all_tensors} and {all_scalars} are equal");
        }
        writeln!(
            out,
            "{tensors} of {all_tensors} and {scalars} of {all_scalars} differ"
        )?;
        self.show_forms(out)?;
        self.show_values(out)?;
        self.show_scalars(out)
    }

    /// Returns the number of tensors that differ; a tensor can differ in two ways.
    fn differing_tensors(&self) -> usize {
        let tensors = &self.found.tensors;
        let names = tensors.chunk_by(|a, b| (a.role, &a.name) == (b.role, &b.name));
        names.count()
    }

    /// Prints the first rows, and the number of the others.
    fn show_first<T>(
        &self,
        rows: &[T],
        out: &mut Output,
        show: impl FnOnce(&[T], &mut Output) -> io::Result<()>,
    ) -> io::Result<()> {
        let shown = rows.len().min(self.most);
        if shown > 0 {
            show(&rows[..shown], out)?;
        }
        match rows.len() - shown {
            0 => Ok(()),
            more => writeln!(out, "and {more} more: use --all to show them"),
        }
    }

    /// Prints the tensors whose values were not compared, or whose names differ.
    fn show_forms(&self, out: &mut Output) -> io::Result<()> {
        let in_words = |of: &TensorDifference| {
            let how = form_in_words(&of.name, &of.difference)?;
            Some(format!("{} {}: {how}", of.role, of.name))
        };
        let lines: Vec<String> = self.found.tensors.iter().filter_map(in_words).collect();
        self.show_first(&lines, out, |lines, out| {
            let mut lines = lines.iter();
            lines.try_for_each(|line| writeln!(out, "{}", visible(line)))
        })
    }

    /// Prints the tensors with other values, the largest difference first.
    fn show_values(&self, out: &mut Output) -> io::Result<()> {
        let tensors = self.found.tensors.iter();
        let values = tensors.filter_map(|of| match &of.difference {
            Difference::Values(values) => Some((of, values)),
            _ => None,
        });
        let mut values: Vec<(&TensorDifference, &ValueDifference)> = values.collect();
        let size = |values: &ValueDifference| match values.not_finite {
            0 => values.max_absolute.unwrap_or(0.0),
            _ => f64::INFINITY,
        };
        values.sort_by(|(_, one), (_, other)| size(other).total_cmp(&size(one)));
        let header = [
            "tensor",
            "role",
            "differing",
            "max absolute",
            "max relative",
            "not finite",
        ];
        let are_finite = values.iter().all(|(_, values)| values.not_finite == 0);
        let columns = header.len() - usize::from(are_finite);
        self.show_first(&values, out, |values, out| {
            let rows = values.iter().map(|(of, values)| {
                let (name, role) = (of.name.clone(), of.role.to_string());
                let differing = format!("{} of {}", values.differing, values.elements);
                let largest = [values.max_absolute, values.max_relative];
                let [absolute, relative] = largest.map(three_digits);
                let not_finite = values.not_finite.to_string();
                let mut row = vec![name, role, differing, absolute, relative, not_finite];
                row.truncate(columns);
                row
            });
            show_table(&header[..columns], &[2, 3, 4, 5], rows, out)
        })
    }

    /// Prints the scalars that differ; equal changes are one row.
    fn show_scalars(&self, out: &mut Output) -> io::Result<()> {
        let mut changes: BTreeMap<(&str, String, String), Vec<&str>> = BTreeMap::new();
        for scalar in &self.found.scalars {
            // With its dot: a scalar without a path has a row of its own.
            let field = &scalar.name[scalar.name.rfind('.').unwrap_or(0)..];
            let change = (field, value(scalar.first), value(scalar.second));
            changes.entry(change).or_default().push(&scalar.name);
        }
        let mut changes: Vec<_> = changes.into_iter().collect();
        changes.sort_by_key(|(_, names)| Reverse(names.len()));
        self.show_first(&changes, out, |changes, out| {
            let rows = changes.iter().map(|((_, first, second), names)| {
                let count = names.len().to_string();
                vec![pattern(names), count, first.clone(), second.clone()]
            });
            let header = ["scalar", "count", "first", "second"];
            show_table(&header, &[1, 2, 3], rows, out)
        })
    }
}

/// Describes a difference of dtype, shape or names; `None` for other values.
fn form_in_words(name: &str, difference: &Difference) -> Option<String> {
    let form = |dtype: &StoredDType, shape: &[u64]| {
        format!("{} of shape {shape:?}", dtype.name().to_lowercase())
    };
    match difference {
        Difference::OnlyFirst => Some("only in the first".to_owned()),
        Difference::OnlySecond => Some("only in the second".to_owned()),
        Difference::Form {
            first_dtype,
            first_shape,
            second_dtype,
            second_shape,
        } => {
            let first = form(first_dtype, first_shape);
            let second = form(second_dtype, second_shape);
            Some(format!("{first}, in the second {second}"))
        }
        Difference::Names { first, second } => {
            let (first, second) = (others(name, first), others(name, second));
            Some(format!("also called {first}, in the second {second}"))
        }
        Difference::Values(_) => None,
    }
}

/// Returns the names other than the reported one.
fn others(name: &str, names: &[String]) -> String {
    let others: Vec<&str> = names.iter().map(|n| &**n).filter(|n| *n != name).collect();
    match others.is_empty() {
        true => "nothing else".to_owned(),
        false => others.join(", "),
    }
}

fn three_digits(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.2e}"))
}

fn value(scalar: Option<Scalar>) -> String {
    scalar.map_or_else(|| "missing".to_owned(), |value| value.to_string())
}

/// Returns a name, or a pattern for sorted paths with the same last component, such as `optimizer.*.time`. The star is for at
/// least one component of each path.
fn pattern(names: &[&str]) -> String {
    let [first, .., last] = names else {
        return names.concat();
    };
    let dots = names.iter().map(|name| name.matches('.').count());
    let most = dots.min().unwrap_or(0).saturating_sub(1);
    let pairs = first.split('.').zip(last.split('.')).take(most);
    let mut parts: Vec<&str> = pairs.map_while(|(a, b)| (a == b).then_some(a)).collect();
    parts.push("*");
    parts.extend(first.rsplit('.').next());
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_changes_have_a_pattern() {
        for (names, expected) in [
            (&["steps"][..], "steps"),
            (
                &["optimizer.a.time", "optimizer.b.c.time"],
                "optimizer.*.time",
            ),
            (&["a.b.c.time", "a.b.d.time"], "a.b.*.time"),
            (&["a.time", "b.time"], "*.time"),
            (&["a.b.time", "a.time"], "*.time"),
            (&["a.b.time", "a.time.time"], "a.*.time"),
        ] {
            assert_eq!(pattern(names), expected);
        }
    }
}
