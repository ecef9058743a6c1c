//! Tables for a terminal.

use comfy_table::{CellAlignment, Row, Table};

/// Lines around a table and below its header, in the form of `comfy_table::presets`.
const LINES: &str = "  ── ══      ──    ";

/// Creates a table. Columns of numbers, which `is_number` selects by index, are aligned to the right.
#[must_use]
pub fn table<R: Into<Row>>(
    header: impl Into<Row>,
    rows: impl IntoIterator<Item = R>,
    is_number: impl Fn(usize) -> bool,
) -> Table {
    let mut table = Table::new();
    table.load_preset(LINES);
    table.set_header(header);
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        if is_number(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
