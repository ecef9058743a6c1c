//! Every kind of module that authors of Burn models write: its table, and that it equals
//! plain Burn's. `src/kinds.md` has a row for each, and names its test.

mod again;
mod check;
mod containers;
mod dtypes;
mod facts;
mod fields;
mod lora;
mod parameters;
mod training;

use std::collections::BTreeSet;
use std::process::Command;

const PAGE: &str = include_str!("../../src/kinds.md");

/// The names in the last cell of each row.
fn named() -> BTreeSet<String> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| "));
    let rows = rows.filter(|row| !row.ends_with("| test |"));
    let mut names = BTreeSet::new();
    for row in rows {
        let cell = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
        let in_row: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!in_row.is_empty(), "a row without a test: {row}");
        names.extend(in_row.into_iter().map(str::to_owned));
    }
    names
}

/// The test harness lists the tests.
#[test]
fn every_row_has_its_test_and_every_test_its_row() {
    let harness = std::env::current_exe().unwrap();
    let listed = Command::new(harness).arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let tests = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    let tests = tests.filter(|test| test.contains("::")).map(str::to_owned);
    assert_eq!(named(), tests.collect());
}
