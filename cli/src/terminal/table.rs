//! Tables that fit the terminal.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table};

use super::output::Output;
use super::text::{shorten, visible};

/// Minimum width of a shortened name in characters.
const SHORTEST_NAME: usize = 16;

/// Lines around a table and below its header, in the form of `comfy_table::presets`.
const LINES: &str = "  ── ══      ──    ";

/// A table whose first column holds names.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    header: &'a [&'a str],
    /// Indices of the columns with numbers.
    right: &'a [usize],
    rows: Vec<Vec<String>>,
}

impl<'a> Columns<'a> {
    /// Creates a table of rows with one cell per column; columns at the indices `right` hold numbers.
    pub(crate) fn new(
        header: &'a [&'a str],
        right: &'a [usize],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        let cells = |row: Vec<String>| row.iter().map(|cell| visible(cell).into()).collect();
        let rows = rows.into_iter().map(cells).collect();
        Self {
            header,
            right,
            rows,
        }
    }

    /// Prints the table with at most the width of the terminal; without a terminal, names are not shortened.
    pub(crate) fn show(&self, out: &mut Output) -> io::Result<()> {
        writeln!(out, "{}", self.fitted(out.width()))
    }

    /// Formats the table with at most `width` characters, as far as names can be shortened.
    fn fitted(&self, width: Option<usize>) -> String {
        let names = self.rows.iter().map(|row| row[0].chars().count());
        let longest = names.max().unwrap_or(0);
        let whole = self.table(longest);
        let found = whole.lines().map(|line| line.chars().count()).max();
        let most = width.unwrap_or(usize::MAX);
        match found.unwrap_or(0).saturating_sub(most) {
            0 => whole,
            excess => self.table(longest.saturating_sub(excess).max(SHORTEST_NAME)),
        }
    }

    /// Formats the table with names of at most `name_width` characters.
    fn table(&self, name_width: usize) -> String {
        let mut table = Table::new();
        table.load_preset(LINES);
        table.set_header(self.header);
        for row in &self.rows {
            let mut row = row.clone();
            row[0] = shorten(&row[0], name_width).into_owned();
            table.add_row(row);
        }
        for at in self.right {
            if let Some(column) = table.column_mut(*at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits() {
        let name = "blocks.11.attention.query.weight";
        let rows = [[name, "1.00 KiB"], ["a\x1bb", "4 B"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let columns = Columns::new(&["name", "bytes"], &[1], rows);
        let whole = columns.fitted(None);
        assert!(
            whole.contains(name) && whole.contains("a\\u{1b}b"),
            "{whole}"
        );
        for width in 31..60 {
            let table = columns.fitted(Some(width));
            let widest = table.lines().map(|line| line.chars().count()).max();
            assert!(widest.unwrap() <= width, "{width}\n{table}");
            assert!(table.contains(".weight"), "{table}");
        }
        // A table that can't fit is not shortened further.
        assert!(columns.fitted(Some(5)).contains("blocks....weight"));
        assert!(
            Columns::new(&["name"], &[], [])
                .fitted(Some(80))
                .contains("name")
        );
    }
}
