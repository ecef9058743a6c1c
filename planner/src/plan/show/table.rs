//! A table with a title.

use std::fmt;

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, presets,
};

/// Columns of a terminal that a table is made for.
pub(super) const WIDTH: usize = 100;

/// A table of which only some columns hold words.
#[derive(Debug, Clone)]
pub(super) struct Titled {
    title: String,
    header: Vec<String>,
    /// Positions of columns that hold words; others hold numbers and stand on the right.
    words: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Titled {
    pub(super) fn new(
        title: impl Into<String>,
        words: &[usize],
        header: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            title: title.into(),
            header: header.into_iter().map(Into::into).collect(),
            words: words.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, a cell for each column.
    pub(super) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Leaves out columns of words and numbers that say nothing in any row.
    fn without_empty(&self) -> Vec<usize> {
        let says = |column: &usize| {
            let mut cells = self.rows.iter().map(|row| row.get(*column));
            cells.any(|cell| cell.is_some_and(|cell| !cell.is_empty()))
        };
        (0..self.header.len()).filter(says).collect()
    }

    /// Writes title and table below an empty line; nothing if there are no rows.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return Ok(());
        }
        let shown = self.without_empty();
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        for between_rows in [
            TableComponent::HorizontalLines,
            TableComponent::MiddleIntersections,
        ] {
            table.remove_style(between_rows);
        }
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(WIDTH as u16);
        let pick = |cells: &[String]| -> Vec<String> {
            shown
                .iter()
                .filter_map(|at| cells.get(*at).cloned())
                .collect()
        };
        table.set_header(pick(&self.header));
        for row in &self.rows {
            table.add_row(pick(row));
        }
        for (position, at) in shown.iter().enumerate() {
            if let Some(column) = table.column_mut(position) {
                column.set_padding((0, 1));
                if !self.words.contains(at) {
                    column.set_cell_alignment(CellAlignment::Right);
                    // A number over two lines is none; words make room.
                    column.set_constraint(ColumnConstraint::ContentWidth);
                }
            }
        }
        writeln!(f, "\n{}", self.title)?;
        writeln!(f, "{}", table.trim_fmt())
    }
}
