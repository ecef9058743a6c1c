//! A summary as a table in a terminal of any width.

use std::fmt;

use tinderbox_ids::text::{group_digits, human_bytes};

use super::summary::{Entry, ModuleSummary, Summary};
use super::{Origin, Parameter, ParameterTable};

/// The default width if standard output is not a terminal.
const USUAL_WIDTH: usize = 100;
/// The minimum width of a table. On a narrower terminal, lines are longer than the terminal.
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
/// The columns whose texts are shortened in the middle, and the width that they keep while another column can be removed.
const SHORTENED: [(usize, usize); 3] = [(NOTES, 16), (TYPE, 12), (MODULE, 24)];

type Row = [String; COLUMNS];

/// Adds the rows of the contents of a module.
fn add_rows(module: &ModuleSummary, depth: usize, is_full: bool, rows: &mut Vec<Row>) {
    let are_one = |one: &Entry, next: &Entry| !is_full && are_alike(one, next);
    for group in module.entries.chunk_by(are_one) {
        match &group[0] {
            Entry::Parameter(one) => rows.push(parameter_row(one, one.path.leaf(), "", depth)),
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
                    add_rows(module, depth + 1, is_full, rows);
                }
            }
        }
    }
}

/// Returns the rows of the totals of a model.
fn total_rows(model: &ModuleSummary) -> Vec<Row> {
    let totals = &model.totals;
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
    rows[0][TYPE] = model.kind.clone();
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

/// Prints a table as wide as the formatter's width (`{:60}`), or else as the terminal, or else of 100 columns. The alternate
/// form (`{:#}`) shows each of equal modules.
///
/// If the table is too wide, columns are removed, in this order: type, trainable, dtype, notes, bytes, shape. Long names are
/// shortened in the middle. Consecutive equal elements of a list, such as the layers of a model, are shown once, with
/// their numbers.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or_else(terminal_width).max(LEAST_WIDTH);
        let mut rows = vec![HEADERS.map(str::to_owned)];
        add_rows(&self.model, 0, f.alternate(), &mut rows);
        let parameters_end = rows.len();
        rows.extend(total_rows(&self.model));
        let widths = widths(&rows, width);
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

/// The widths of the columns; 0 for a column that is not shown.
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
        let removed = excess.min(widths[column].saturating_sub(least));
        widths[column] -= removed;
        excess -= removed;
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

/// Shortens a text to at most `width` characters by removing its middle; keeps the indentation if possible.
fn shorten(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let indent = text.chars().take_while(|c| *c == ' ').count();
    let name: Vec<char> = text.trim_start().chars().collect();
    // At a large depth, the name needs the space more than its indentation.
    let indent = indent.min((width / 2).max(width.saturating_sub(name.len())));
    let space = width - indent;
    if name.len() <= space {
        return indented(text.trim_start(), indent);
    }
    let tail = (space - 1) / 2;
    let (head, tail) = (&name[..space - 1 - tail], &name[name.len() - tail..]);
    let short: String = head.iter().chain(&['…']).chain(tail).collect();
    indented(&short, indent)
}

/// Prints the [`Summary`].
impl fmt::Display for ParameterTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary().fmt(f)
    }
}

/// Returns the width of the terminal, or the default.
fn terminal_width() -> usize {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    size.map_or(USUAL_WIDTH, |(width, _)| usize::from(width.0))
}

#[cfg(test)]
mod tests {
    use super::shorten;

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
