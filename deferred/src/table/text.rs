//! A summary as a table in a terminal of any width.

use std::fmt;

use super::summary::{Entry, ModuleSummary, Summary};
use super::{Origin, Parameter, ParameterTable};

/// Default width if standard output is not a terminal.
const USUAL_WIDTH: usize = 100;
/// Minimum width of a table; on a narrower terminal lines are longer than the terminal.
const LEAST_WIDTH: usize = 24;
/// Columns between two cells.
const GAP: usize = 2;
/// Indentation of a module's contents.
const INDENT: usize = 2;

const HEADERS: [&str; COLUMNS] = [
    "module",
    "type",
    "shape",
    "dtype",
    "elements",
    "bytes",
    "trainable",
    "notes",
];
const COLUMNS: usize = 8;
const MODULE: usize = 0;
const TYPE: usize = 1;
const SHAPE: usize = 2;
const DTYPE: usize = 3;
const ELEMENTS: usize = 4;
const BYTES: usize = 5;
const TRAINABLE: usize = 6;
const NOTES: usize = 7;

/// The order in which columns are removed from a narrow table.
const LEFT_OUT: [usize; 6] = [TYPE, TRAINABLE, DTYPE, NOTES, BYTES, SHAPE];
/// Columns whose texts are shortened in the middle, and the width that they keep as long as there is
/// another column to remove.
const SHORTENED: [(usize, usize); 3] = [(NOTES, 16), (TYPE, 12), (MODULE, 24)];

type Row = [String; COLUMNS];

/// A summary as a table of a given width.
///
/// If a table is too wide, columns are removed, in this order: type, trainable, dtype, notes,
/// bytes, shape. Long names are shortened in the middle. Consecutive equal elements of a list,
/// such as the layers of a model, are shown once, with the numbers of each.
#[derive(Clone, Copy, Debug)]
pub struct SummaryTable<'a> {
    summary: &'a Summary,
    width: usize,
    full: bool,
}

impl Summary {
    /// Returns the table for a width, in columns of the terminal.
    pub fn width(&self, width: usize) -> SummaryTable<'_> {
        SummaryTable {
            summary: self,
            width,
            full: false,
        }
    }
}

impl SummaryTable<'_> {
    /// Shows each of equal modules.
    #[must_use]
    pub fn full(self) -> Self {
        Self { full: true, ..self }
    }

    /// Adds the rows of the contents of a module.
    fn rows(&self, module: &ModuleSummary, depth: usize, rows: &mut Vec<Row>) {
        let are_one = |one: &Entry, next: &Entry| !self.full && are_alike(one, next);
        for group in module.entries.chunk_by(are_one) {
            match &group[0] {
                Entry::Parameter(parameter) => {
                    rows.push(parameter_row(parameter, parameter.path.leaf(), "", depth));
                }
                Entry::Module(module) => {
                    let mut name = module.name().to_owned();
                    let (mut kind, mut dot) = (module.kind.clone(), ".");
                    if let [_, .., Entry::Module(last)] = group {
                        name = format!("{name} .. {}, each", last.name());
                        (kind, dot) = (format!("{} x {kind}", group.len()), " ");
                    }
                    // A module with one parameter and nothing else is one row.
                    if let [Entry::Parameter(only)] = module.entries.as_slice() {
                        let name = format!("{name}{dot}{}", only.path.leaf());
                        rows.push(parameter_row(only, &name, &kind, depth));
                    } else {
                        rows.push(module_row(module, &name, kind, depth));
                        self.rows(module, depth + 1, rows);
                    }
                }
            }
        }
    }

    fn totals(&self) -> Vec<Row> {
        let totals = &self.summary.model.totals;
        let counted = |count: u64, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{} {what}s", group_digits(count)),
        };
        let (all, bytes) = (totals.elements, totals.bytes);
        let (trains, trains_bytes) = (totals.trainable_elements, totals.trainable_bytes);
        let parameters = counted(totals.parameters, "parameter");
        let mut rows = vec![
            counted_row(parameters, all, bytes),
            counted_row("trainable".into(), trains, trains_bytes),
            counted_row("not trainable".into(), all - trains, bytes - trains_bytes),
        ];
        rows[0][TYPE] = self.summary.model.kind.clone();
        if totals.eager_elements > 0 {
            let (elements, bytes) = (totals.eager_elements, totals.eager_bytes);
            rows.push(counted_row("made eagerly".into(), elements, bytes));
        }
        if totals.clones > 0 {
            let mut row = Row::default();
            row[MODULE] = counted(totals.clones, "clone");
            rows.push(row);
        }
        rows
    }
}

fn module_row(module: &ModuleSummary, name: &str, kind: String, depth: usize) -> Row {
    let totals = &module.totals;
    let name = indented(name, INDENT * depth);
    let mut row = counted_row(name, totals.elements, totals.bytes);
    row[TYPE] = kind;
    let trains = match totals.trainable_elements {
        0 => "no",
        all if all == totals.elements => "yes",
        _ => "partly",
    };
    row[TRAINABLE] = trains.into();
    row
}

fn counted_row(name: String, elements: u64, bytes: u64) -> Row {
    let mut row = Row::default();
    row[MODULE] = name;
    row[ELEMENTS] = group_digits(elements);
    row[BYTES] = human_bytes(bytes);
    row
}

/// Returns whether two modules are equal elements of a list.
fn are_alike(one: &Entry, other: &Entry) -> bool {
    let is_element = |module: &ModuleSummary| module.name().parse::<u64>().is_ok();
    matches!((one, other), (Entry::Module(one), Entry::Module(other))
        if is_element(one) && is_element(other) && one.is_like(other))
}

fn parameter_row(parameter: &Parameter, name: &str, kind: &str, depth: usize) -> Row {
    let name = indented(name, INDENT * depth);
    let mut row = counted_row(name, parameter.elements(), parameter.bytes);
    row[TYPE] = kind.into();
    row[SHAPE] = format!("{:?}", parameter.shape);
    row[DTYPE] = tinderbox_fake::dtype_name(parameter.dtype).into();
    row[TRAINABLE] = if parameter.trainable { "yes" } else { "no" }.into();
    let eager = (parameter.origin == Origin::Eager).then(|| "eager".to_owned());
    let mut notes = Vec::from_iter(eager);
    if let Some(original) = &parameter.clone_of {
        notes.push(format!("clone of {original}"));
        (row[ELEMENTS], row[BYTES]) = ("-".into(), "-".into());
    }
    row[NOTES] = notes.join(", ");
    row
}

fn indented(name: &str, spaces: usize) -> String {
    format!("{:spaces$}{name}", "")
}

impl fmt::Display for SummaryTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![HEADERS.map(str::to_owned)];
        self.rows(&self.summary.model, 0, &mut rows);
        let parameters_end = rows.len();
        rows.extend(self.totals());
        let widths = widths(&rows, self.width.max(LEAST_WIDTH));
        let rule = "─".repeat(total(&widths));
        writeln!(f, "{rule}")?;
        for (row, number) in rows.iter().zip(1..) {
            let shown = (0..COLUMNS).filter(|column| widths[*column] > 0);
            let cells = shown.map(|column| cell(&row[column], column, widths[column]));
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            writeln!(f, "{}", line.trim_end())?;
            match number {
                1 => writeln!(f, "{}", "═".repeat(total(&widths)))?,
                number if number == parameters_end => writeln!(f, "{rule}")?,
                _ => {}
            }
        }
        write!(f, "{rule}")
    }
}

/// Widths of the columns; 0 for one that is not shown.
type Widths = [usize; COLUMNS];

/// Returns the width of the table.
fn total(widths: &Widths) -> usize {
    let shown = widths.iter().filter(|width| **width > 0);
    shown.map(|width| width + GAP).sum::<usize>() - GAP
}

/// Returns the widths of the columns in a table of at most this width, if possible.
fn widths(rows: &[Row], width: usize) -> Widths {
    let mut widths: Widths = std::array::from_fn(|column| {
        let is_used = rows[1..].iter().any(|row| !row[column].is_empty());
        let needed = rows.iter().map(|row| row[column].chars().count());
        needed.max().filter(|_| is_used).unwrap_or(0)
    });
    for left_out in LEFT_OUT {
        let mut least = widths;
        for (column, shortened) in SHORTENED {
            least[column] = least[column].min(shortened);
        }
        if total(&least) <= width {
            break;
        }
        widths[left_out] = 0;
    }
    let mut excess = total(&widths).saturating_sub(width);
    for (column, least) in SHORTENED {
        // If no column can be removed, names are shortened further.
        let least = if column == MODULE { LEAST_NAME } else { least };
        let taken = excess.min(widths[column].saturating_sub(least));
        widths[column] -= taken;
        excess -= taken;
    }
    widths
}

/// The minimum length of a shortened name.
const LEAST_NAME: usize = 6;

fn cell(text: &str, column: usize, width: usize) -> String {
    let text = shorten(text, width);
    match column {
        ELEMENTS | BYTES => format!("{text:>width$}"),
        _ => format!("{text:width$}"),
    }
}

/// Shortens a text to at most `width` characters by removing its middle. The indentation stays.
fn shorten(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let indent = text.chars().take_while(|c| *c == ' ').count();
    let name: Vec<char> = text.trim_start().chars().collect();
    // At a large depth, the name needs the space more than its indentation.
    let indent = indent.min((width / 2).max(width.saturating_sub(name.len())));
    let room = width - indent;
    if name.len() <= room {
        return indented(text.trim_start(), indent);
    }
    let tail = (room - 1) / 2;
    let (head, tail) = (&name[..room - 1 - tail], &name[name.len() - tail..]);
    let short: String = head.iter().chain(&['…']).chain(tail).collect();
    indented(&short, indent)
}

/// A table as wide as the formatter's width (`{:60}`), or else as the terminal, or else of 100 columns;
/// the alternate form (`{:#}`) shows each of equal modules.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.width(f.width().unwrap_or_else(terminal_width));
        match f.alternate() {
            true => write!(f, "{}", table.full()),
            false => write!(f, "{table}"),
        }
    }
}

/// The summary, as [`Summary`] prints it.
impl fmt::Display for ParameterTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary().fmt(f)
    }
}

/// The width of the terminal, or the usual one.
fn terminal_width() -> usize {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map_or(USUAL_WIDTH, |(width, _)| usize::from(width.0))
}

/// Formats bytes with three digits and a unit: `3.91 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let all = bytes as f64;
    let power = (all as u64).checked_ilog2().unwrap_or(0) / 10;
    let (size, unit) = (all / 1024_f64.powi(power as i32), UNITS[power as usize]);
    let decimals = match size {
        ..10.0 if power > 0 => 2,
        ..100.0 if power > 0 => 1,
        _ => 0,
    };
    format!("{size:.decimals$} {unit}")
}

/// Like [`human_bytes`], or with all digits if another number has the same three: two numbers in one sentence that
/// differ never look the same.
pub fn human_bytes_distinct(bytes: u64, other: u64) -> String {
    match human_bytes(bytes) {
        same if same == human_bytes(other) => format!("{bytes} B"),
        distinct => distinct,
    }
}

/// Formats a number with a comma between groups of three digits.
fn group_digits(number: u64) -> String {
    let digits = number.to_string().into_bytes();
    let groups = digits.rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{group_digits, human_bytes, shorten};

    #[test]
    fn groups_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(group_digits(number), text);
        }
    }

    #[test]
    fn bytes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 * 1024, "10.0 KiB"),
            (1536 * 1024, "1.50 MiB"),
            (282_214_825_984, "263 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn long_names_lose_their_middle() {
        for (name, width, text) in [
            ("weight", 6, "weight"),
            ("layers.0.query.weight", 10, "layer…ight"),
            ("    query.weight", 12, "    quer…ght"),
            ("            query.weight", 12, "      que…ht"),
            ("            norm", 12, "        norm"),
        ] {
            assert_eq!(shorten(name, width), text, "{name} in {width}");
            assert!(text.chars().count() <= width);
        }
    }
}
