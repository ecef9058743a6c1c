//! Tables that fit the terminal.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, TableComponent, presets};

use super::{
    Output,
    text::{shorten, visible},
};

/// Minimum width of a shortened name in characters.
const SHORTEST_NAME: usize = 16;

/// The columns of a table whose first column holds names.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    header: Vec<&'static str>,
    /// Indices of the columns with numbers.
    right: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// Creates an empty table; columns at the indices `right` hold numbers.
    pub(crate) fn new(header: &[&'static str], right: &[usize]) -> Self {
        Self {
            header: header.to_vec(),
            right: right.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Appends a row with one cell per column.
    pub(crate) fn push(&mut self, cells: Vec<String>) {
        let cells = cells.iter().map(|cell| visible(cell).into_owned());
        self.rows.push(cells.collect());
    }

    /// Prints the table with at most the width of the terminal; without a terminal, names are not shortened.
    pub(crate) fn show(&self, out: &mut Output) -> io::Result<()> {
        let table = self.fitted(out.width());
        writeln!(out, "{table}")
    }

    /// Formats the table with at most `width` characters, as far as names can be shortened.
    fn fitted(&self, width: Option<usize>) -> String {
        let names = self.rows.iter().map(|row| row[0].chars().count());
        let longest = names.max().unwrap_or(0);
        let whole = self.table(longest);
        let found = whole.lines().map(|line| line.chars().count()).max();
        let excess = found
            .unwrap_or(0)
            .saturating_sub(width.unwrap_or(usize::MAX));
        match excess {
            0 => whole,
            _ => self.table(longest.saturating_sub(excess).max(SHORTEST_NAME)),
        }
    }

    /// Formats the table with names of at most `name_width` characters.
    fn table(&self, name_width: usize) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        for between_rows in [
            TableComponent::HorizontalLines,
            TableComponent::MiddleIntersections,
        ] {
            table.remove_style(between_rows);
        }
        table.set_header(self.header.iter().copied());
        for row in &self.rows {
            let (name, rest) = (shorten(&row[0], name_width), &row[1..]);
            let cells = std::iter::once(&*name).chain(rest.iter().map(|cell| &**cell));
            table.add_row(cells);
        }
        for at in &self.right {
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
        let mut columns = Columns::new(&["name", "bytes"], &[1]);
        let name = "blocks.11.attention.query.weight";
        columns.push(vec![name.to_owned(), "1.00 KiB".to_owned()]);
        columns.push(vec!["a\x1bb".to_owned(), "4 B".to_owned()]);
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
            Columns::new(&["name"], &[])
                .fitted(Some(80))
                .contains("name")
        );
    }
}
