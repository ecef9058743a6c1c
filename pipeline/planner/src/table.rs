//! Tables for a terminal.

use comfy_table::{CellAlignment, Row, Table, TableComponent, presets};

/// Creates a table. Columns of numbers, which `is_number` selects by index, are aligned to the right.
pub fn table<R: Into<Row>>(
    header: impl Into<Row>,
    rows: impl IntoIterator<Item = R>,
    is_number: impl Fn(usize) -> bool,
) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.remove_style(TableComponent::HorizontalLines);
    table.remove_style(TableComponent::MiddleIntersections);
    table.set_header(header);
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        if is_number(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
