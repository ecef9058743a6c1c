//! `LIMITS.md` is short, and no row of it leaves a column out.

use std::fs;

use crate::source::root;

/// More rows than a reader looks through.
const MOST: usize = 40;

/// Returns the cells of a row of a table; `None` for a line that is no row.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

fn is_separator(cells: &[&str]) -> bool {
    let is_dashes = |cell: &&str| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':'));
    cells.iter().all(is_dashes)
}

#[test]
fn the_page_of_limits_has_few_rows_with_every_column() {
    let text = fs::read_to_string(root().join("LIMITS.md")).unwrap();
    let (mut rows, mut faults) = (0, Vec::new());
    // The cells of the line before, and the number of columns of the table.
    let (mut before, mut columns): (Option<Vec<&str>>, usize) = (None, 0);
    for (number, line) in (1..).zip(text.lines()) {
        if !line.starts_with('|') {
            (before, columns) = (None, 0);
            continue;
        }
        let Some(cells) = cells(line) else {
            faults.push(format!("line {number} begins a row and does not end it"));
            continue;
        };
        if is_separator(&cells) && columns == 0 {
            // The line before was the header.
            let header = before.as_ref().map(Vec::len);
            if header != Some(cells.len()) {
                faults.push(format!(
                    "line {number} separates a header of {header:?} columns"
                ));
            }
            columns = cells.len();
        } else if columns > 0 {
            rows += 1;
            let is_filled = cells.len() == columns && cells.iter().all(|cell| !cell.is_empty());
            if !is_filled {
                faults.push(format!(
                    "line {number} does not fill {columns} columns: {line}"
                ));
            }
        } else if before.is_some() {
            faults.push(format!("line {number} is in a table without a separator"));
        }
        before = Some(cells);
    }
    assert!(faults.is_empty(), "LIMITS.md:\n{}", faults.join("\n"));
    assert!(rows > 0, "LIMITS.md has no row");
    assert!(
        rows <= MOST,
        "LIMITS.md has {rows} rows, at most {MOST} are read"
    );
}
