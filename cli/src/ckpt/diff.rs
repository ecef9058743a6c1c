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

use super::place::open;
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
    #[arg(long, value_name = "STEP")]
    step: Vec<u64>,
    /// Show every difference, not only the 20 largest of a kind
    #[arg(long)]
    all: bool,
}

/// Compares two checkpoints.
pub(crate) fn diff(flags: &DiffFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let [first, second] = match flags.step[..] {
        [] => [None; 2],
        [both] => [Some(both); 2],
        [first, second] => [Some(first), Some(second)],
        _ => bail!("--step can be given at most twice: two checkpoints are compared"),
    };
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
        let [first, second] = self.dirs.map(|dir| dir.display().to_string());
        writeln!(
            out,
            "first   {}\nsecond  {}",
            visible(&first),
            visible(&second)
        )?;
        let (tensors, scalars) = (self.differing_tensors(), self.found.scalars.len());
        let (equal_tensors, equal_scalars) = (self.found.equal_tensors, self.found.equal_scalars);
        let of = |differing: usize, equal: usize, noun| {
            format!("{differing} of {}", count_text(differing + equal, noun))
        };
        if self.found.is_empty() {
            let tensors = count_text(equal_tensors, "tensor");
            let scalars = count_text(equal_scalars, "scalar");
            return writeln!(out, "{tensors} and {scalars} are equal");
        }
        let tensors = of(tensors, equal_tensors, "tensor");
        let scalars = of(scalars, equal_scalars, "scalar");
        writeln!(out, "{tensors} and {scalars} differ")?;
        self.show_forms(out)?;
        self.show_values(out)?;
        self.show_scalars(out)
    }

    /// Returns the number of tensors that differ; a tensor can differ in two ways.
    fn differing_tensors(&self) -> usize {
        let keys = self.found.tensors.iter().map(|of| (of.role, &of.name));
        // Sorted by these.
        let mut keys: Vec<_> = keys.collect();
        keys.dedup();
        keys.len()
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
        let has_infinite = values.iter().any(|(_, values)| values.not_finite > 0);
        let mut header = vec![
            "tensor",
            "role",
            "differing",
            "max absolute",
            "max relative",
        ];
        if has_infinite {
            header.push("not finite");
        }
        self.show_first(&values, out, |values, out| {
            let rows = values.iter().map(|(of, values)| {
                let mut row = vec![
                    of.name.clone(),
                    of.role.to_string(),
                    format!("{} of {}", values.differing, values.elements),
                    three_digits(values.max_absolute),
                    three_digits(values.max_relative),
                ];
                if has_infinite {
                    row.push(values.not_finite.to_string());
                }
                row
            });
            show_table(&header, &[2, 3, 4, 5], rows, out)
        })
    }

    /// Prints the scalars that differ; equal changes are one row.
    fn show_scalars(&self, out: &mut Output) -> io::Result<()> {
        let mut changes: BTreeMap<(&str, String, String), Vec<&str>> = BTreeMap::new();
        for scalar in &self.found.scalars {
            let field = scalar.name.rsplit('.').next().unwrap_or_default();
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
            show_table(
                &["scalar", "count", "first", "second"],
                &[1, 2, 3],
                rows,
                out,
            )
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

/// Returns a name, or a pattern for sorted names with the same last component, such as `optimizer.*.time`.
fn pattern(names: &[&str]) -> String {
    let [first, .., last] = names else {
        return names.concat();
    };
    let pairs = first.split('.').zip(last.split('.'));
    let mut parts: Vec<&str> = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
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
        ] {
            assert_eq!(pattern(names), expected);
        }
    }
}
