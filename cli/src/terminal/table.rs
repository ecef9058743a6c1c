//! A table that fits the terminal.

use comfy_table::{CellAlignment, Table, TableComponent, presets};

use super::text::{shorten, visible};

/// A name is not made shorter than this, in characters: it would tell nothing.
const SHORTEST_NAME: usize = 16;

/// The columns of a table whose first column holds names.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    header: Vec<&'static str>,
    /// Positions of columns of numbers.
    right: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// No rows yet; columns at the positions `right` hold numbers.
    pub(crate) fn new(header: &[&'static str], right: &[usize]) -> Self {
        Self {
            header: header.to_vec(),
            right: right.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, a cell for each column.
    pub(crate) fn push(&mut self, cells: Vec<String>) {
        let cells = cells.iter().map(|cell| visible(cell).into_owned());
        self.rows.push(cells.collect());
    }

    /// The table, as wide as the terminal at most where there is one; elsewhere every name is whole.
    pub(crate) fn show(&self) -> String {
        let size = terminal_size::terminal_size_of(std::io::stdout());
        self.fitted(size.map(|(width, _)| usize::from(width.0)))
    }

    /// The table in at most `width` characters, if names can be shortened so far.
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

    /// The table with names of at most so many characters.
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
        // What can't fit is not cut down to nothing.
        assert!(columns.fitted(Some(5)).contains("blocks....weight"));
        assert!(
            Columns::new(&["name"], &[])
                .fitted(Some(80))
                .contains("name")
        );
    }
}
