//! Tests of `tinderbox run` as a process.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::{run, text};

/// A line of each step, with the digests of two parameters and a moment.
fn digests(steps: &[(u64, [u64; 3])]) -> String {
    let line = |(step, [a, b, c]): &(u64, [u64; 3])| {
        format!(
            "{{\"step\":{step},\"parameters\":[[\"a.weight\",{a}],[\"b.bias\",{b}]],\
             \"state\":[[\"optimizer.a.weight.moment_1\",{c}]]}}\n"
        )
    };
    steps.iter().map(line).collect()
}

fn files(first: &str, second: &str) -> (TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = ["a.jsonl", "b.jsonl"].map(|name| directory.path().join(name));
    fs::write(&a, first).unwrap();
    fs::write(&b, second).unwrap();
    (directory, a, b)
}

const BIG: u64 = u64::MAX;

#[test]
fn the_first_difference_is_found() {
    let equal = [
        (1, [5, 6, 7]),
        (2, [BIG, 8, 9]),
        (3, [1, 1, 1]),
        (4, [2, 2, 2]),
    ];
    let mut other = equal;
    other[2].1 = [1, 0, 0];
    other[3].1 = [0, 0, 0];
    let (_directory, a, b) = files(&digests(&equal), &digests(&other));
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(1);
    insta::assert_snapshot!(found, @r#"
    step 3 differs, step 2 is equal
      b.bias
      optimizer.a.weight.moment_1
    "#);
    let json = run(&["run", "diff", "--json", text(&a), text(&b)]).json(1);
    assert_eq!(json["difference"]["step"], 3);
    assert_eq!(
        json["difference"]["names"],
        serde_json::json!(["b.bias", "optimizer.a.weight.moment_1"])
    );
    assert_eq!(
        run(&["run", "diff", text(&a), text(&a)]).ends(0),
        "4 step(s) are equal\n"
    );
    // One bit of a large number.
    other = equal;
    other[1].1[0] = BIG - 1;
    let (_directory, a, b) = files(&digests(&equal), &digests(&other));
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(1);
    insta::assert_snapshot!(found, @r#"
    step 2 differs, step 1 is equal
      a.weight
    "#);
}

/// A resumed run has done some steps again, a killed one has begun a line, and another may have done more.
#[test]
fn runs_that_were_resumed_or_killed_are_compared() {
    let (whole, wrong) = ([1, 2, 3], [9, 9, 9]);
    let straight = digests(&[(1, whole), (2, whole), (3, whole)]);
    let resumed = digests(&[(1, whole), (2, wrong), (2, whole), (3, whole), (4, whole)]);
    let (_directory, a, b) = files(&straight, &(resumed + "{\"step\":5,\"par"));
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(0);
    insta::assert_snapshot!(found, @r#"
    3 step(s) are equal
    1 step(s) are in one of the files only
    "#);
}

#[test]
fn what_is_no_run_is_refused() {
    let whole = [1, 2, 3];
    let (directory, a, b) = files(&digests(&[(1, whole)]), &digests(&[(7, whole), (9, whole)]));
    let none = run(&["run", "diff", text(&a), text(&b)]).fails(2);
    insta::assert_snapshot!(none, @"error: the runs have no step in common: one has steps 1 to 1, the other 7 to 9");
    let other = directory.path().join("other");
    fs::write(&other, "").unwrap();
    assert!(
        run(&["run", "diff", text(&a), text(&other)])
            .fails(2)
            .contains("no digests")
    );
    fs::write(&other, "step 3\n").unwrap();
    assert!(
        run(&["run", "diff", text(&a), text(&other)])
            .fails(2)
            .contains("line 1 is no digest")
    );
    fs::remove_file(&other).unwrap();
    run(&["run", "diff", text(&a), text(&other)]).fails(3);
}
