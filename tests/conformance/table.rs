//! The table of all rows.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::check::{Report, check};
use crate::row::Subject;

/// Passed rows, and the errors of the others.
#[derive(Default)]
pub struct Table {
    rows: Vec<[String; 6]>,
    failures: Vec<String>,
}

const HEADER: [&str; 6] = [
    "module",
    "case",
    "materialized",
    "forward",
    "training forward",
    "gradients",
];

impl Table {
    /// Checks a row; a panic is a failure and does not stop the others.
    pub fn add(&mut self, row: &dyn Subject) {
        let result = catch_unwind(AssertUnwindSafe(|| check(row)))
            .unwrap_or_else(|_| Err("panicked, see above".into()));
        let path = row.module();
        let name = path.rsplit("::").next().unwrap_or(&path).to_owned();
        match result {
            Ok(report) => self.rows.push(cells(name, row.case(), &report)),
            Err(reason) => self
                .failures
                .push(format!("{name} ({}): {reason}", row.case())),
        }
    }

    /// Returns one line for each failed row.
    pub fn failures(&self) -> String {
        self.failures.join("\n")
    }
}

fn cells(name: String, case: &str, report: &Report) -> [String; 6] {
    [
        name,
        case.to_owned(),
        report.materialized.to_string(),
        report.inference.to_string(),
        report.training.to_string(),
        report.gradients.to_string(),
    ]
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = HEADER.map(str::to_owned);
        let rows = || std::iter::once(&header).chain(&self.rows);
        let width = |column: usize| rows().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        for row in rows() {
            let cells = row.iter().zip(widths);
            let line: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        write!(
            f,
            "{} rows hold, {} fail",
            self.rows.len(),
            self.failures.len()
        )
    }
}
