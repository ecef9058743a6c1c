//! The seeds that are tried.

use crate::runs::{Runs, check_all, seeds};

#[test]
fn one_seed_is_one_run() {
    let runs = Runs::new();
    (0..20).for_each(|seed| runs.check_is_one_run(seed));
}

#[test]
fn those_that_are_left_compute_what_an_undisturbed_run_computes() {
    let seeds = seeds(1000);
    let count = seeds.end - seeds.start;
    let counts = check_all(seeds);
    assert!(counts.recovered * 4 > count);
    // Of so many runs, each fault has happened everywhere.
    if count >= 100_000 {
        let rare = counts.table.rare(100);
        assert!(rare.is_empty(), "{rare:#?}");
    }
}
