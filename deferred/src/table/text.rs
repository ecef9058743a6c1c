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

    fn rows(&self, module: &ModuleSummary, depth: usize, rows: &mut Vec<Row>) {
        let mut entries = module.entries.as_slice();
        while let Some((first, rest)) = entries.split_first() {
            entries = rest;
            match first {
                Entry::Parameter(parameter) => {
                    rows.push(parameter_row(parameter, parameter.path.leaf(), "", depth));
                }
                Entry::Module(module) => {
                    let alike = match self.full {
                        true => 0,
                        false => rest.iter().take_while(|e| is_like(module, e)).count(),
                    };
                    entries = &rest[alike..];
                    let last = alike.checked_sub(1).map(|last| &rest[last]);
                    self.module_rows(module, last, alike + 1, depth, rows);
                }
            }
        }
    }

    fn module_rows(
        &self,
        module: &ModuleSummary,
        last: Option<&Entry>,
        count: usize,
        depth: usize,
        rows: &mut Vec<Row>,
    ) {
        let (name, kind) = match last {
            Some(Entry::Module(last)) => (
                format!("{} .. {}, each", module.name(), last.name()),
                format!("{count} x {}", module.kind),
            ),
            _ => (module.name().to_owned(), module.kind.clone()),
        };
        // A module with one parameter and nothing else is one row.
        if let [Entry::Parameter(only)] = module.entries.as_slice() {
            let dot = if count > 1 { " " } else { "." };
            let name = format!("{name}{dot}{}", only.path.leaf());
            rows.push(parameter_row(only, &name, &kind, depth));
            return;
        }
        let totals = &module.totals;
        let mut row = counted_row(
            indented(&name, INDENT * depth),
            totals.elements,
            totals.bytes,
        );
        row[TYPE] = kind;
        row[TRAINABLE] = match totals.trainable_elements {
            0 => "no",
            all if all == totals.elements => "yes",
            _ => "partly",
        }
        .into();
        rows.push(row);
        self.rows(module, depth + 1, rows);
    }

    fn totals(&self) -> Vec<Row> {
        let totals = &self.summary.model.totals;
        let counted = |count: u64, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{} {what}s", group_digits(count)),
        };
        let (all, bytes) = (totals.elements, totals.bytes);
        let (trainable, trainable_bytes) = (totals.trainable_elements, totals.trainable_bytes);
        let parameters = counted(totals.parameters, "parameter");
        let mut rows = vec![
            counted_row(parameters, all, bytes),
            counted_row("trainable".into(), trainable, trainable_bytes),
            counted_row(
                "not trainable".into(),
                all - trainable,
                bytes - trainable_bytes,
            ),
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

fn counted_row(name: String, elements: u64, bytes: u64) -> Row {
    let mut row = Row::default();
    row[MODULE] = name;
    row[ELEMENTS] = group_digits(elements);
    row[BYTES] = human_bytes(bytes);
    row
}

/// Returns whether two modules are equal elements of a list.
fn is_like(module: &ModuleSummary, entry: &Entry) -> bool {
    let is_element = |module: &ModuleSummary| module.name().parse::<u64>().is_ok();
    matches!(entry, Entry::Module(other)
        if is_element(module) && is_element(other) && module.is_like(other))
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
        let columns = columns(&rows, self.width.max(LEAST_WIDTH));
        let width = columns.iter().map(|(_, width)| width + GAP).sum::<usize>() - GAP;
        let rule = "─".repeat(width);
        writeln!(f, "{rule}")?;
        for (row, number) in rows.iter().zip(1..) {
            let cells = columns
                .iter()
                .map(|(column, width)| cell(&row[*column], *column, *width));
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            writeln!(f, "{}", line.trim_end())?;
            match number {
                1 => writeln!(f, "{}", "═".repeat(width))?,
                number if number == parameters_end => writeln!(f, "{rule}")?,
                _ => {}
            }
        }
        write!(f, "{rule}")
    }
}

/// Returns the columns that are shown, with their widths.
fn columns(rows: &[Row], width: usize) -> Vec<(usize, usize)> {
    let needs = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let mut columns: Vec<(usize, usize)> = (0..COLUMNS)
        .filter(|column| rows[1..].iter().any(|row| !row[*column].is_empty()))
        .map(|column| (column, needs(column).unwrap_or(0)))
        .collect();
    let gaps = |columns: &[(usize, usize)]| GAP * columns.len().saturating_sub(1);
    let least = |(column, needed): &(usize, usize)| {
        let shortened = SHORTENED.iter().find(|(shortened, _)| shortened == column);
        shortened.map_or(*needed, |(_, least)| *needed.min(least))
    };
    for left_out in LEFT_OUT {
        if columns.iter().map(least).sum::<usize>() + gaps(&columns) <= width {
            break;
        }
        columns.retain(|(column, _)| *column != left_out);
    }
    let all = columns.iter().map(|(_, width)| width).sum::<usize>() + gaps(&columns);
    let mut excess = all.saturating_sub(width);
    for (shortened, least) in SHORTENED {
        let Some((column, width)) = columns.iter_mut().find(|(c, _)| *c == shortened) else {
            continue;
        };
        // If no column can be removed, names are shortened further.
        let least = if *column == MODULE { LEAST_NAME } else { least };
        let taken = excess.min(width.saturating_sub(least));
        *width -= taken;
        excess -= taken;
    }
    columns
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
