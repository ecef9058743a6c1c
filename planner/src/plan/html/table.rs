//! Tables of the page.

use std::fmt::{self, Write};

use crate::plan::escape::Html;

/// One cell.
pub(super) enum Cell {
    /// Words, escaped when they are written.
    Words(String),
    /// A number, on the right.
    Number(String),
    /// What is HTML already.
    Markup(String),
}

/// A table whose first column names its rows.
pub(super) struct Table<'a> {
    /// What it shows, in a few words.
    pub(super) caption: &'a str,
    pub(super) header: Vec<String>,
    /// Each with the class of its row.
    pub(super) rows: Vec<(&'static str, Vec<Cell>)>,
}

impl Table<'_> {
    /// Writes the table in a box that scrolls on narrow screens.
    pub(super) fn write(&self, out: &mut String) -> fmt::Result {
        let caption = Html(self.caption);
        writeln!(
            out,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">"
        )?;
        writeln!(out, "<table>\n<caption>{caption}</caption>\n<thead><tr>")?;
        let is_number = |column: usize| {
            let cells = self.rows.iter().filter_map(|(_, cells)| cells.get(column));
            let mut cells = cells.peekable();
            cells.peek().is_some() && cells.all(|cell| matches!(cell, Cell::Number(_)))
        };
        for (column, name) in self.header.iter().enumerate() {
            let class = if is_number(column) {
                " class=\"number\""
            } else {
                ""
            };
            writeln!(out, "<th scope=\"col\"{class}>{}</th>", Html(name))?;
        }
        writeln!(out, "</tr></thead>\n<tbody>")?;
        for (class, cells) in &self.rows {
            match class.is_empty() {
                true => write!(out, "<tr>")?,
                false => write!(out, "<tr class=\"{class}\">")?,
            }
            for (column, cell) in cells.iter().enumerate() {
                write_cell(out, cell, column == 0)?;
            }
            writeln!(out, "</tr>")?;
        }
        writeln!(out, "</tbody>\n</table>\n</div>")
    }
}

fn write_cell(out: &mut String, cell: &Cell, names_row: bool) -> fmt::Result {
    let (tag, scope) = if names_row {
        ("th", " scope=\"row\"")
    } else {
        ("td", "")
    };
    match cell {
        Cell::Words(text) => write!(out, "<{tag}{scope}>{}</{tag}>", Html(text)),
        Cell::Number(text) => write!(out, "<{tag}{scope} class=\"number\">{}</{tag}>", Html(text)),
        Cell::Markup(markup) => write!(out, "<{tag}{scope} class=\"name\">{markup}</{tag}>"),
    }
}
