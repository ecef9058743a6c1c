//! Tests of `tinderbox run` as a process.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::{check_contains, run, run_with, text};

/// A line of each step, with the digests of two parameters and a moment.
pub fn digests(steps: &[(u64, [u64; 3])]) -> String {
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
        "4 steps are equal\n"
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

/// A resumed run has repeated some steps, a killed run has begun a line, and another run may have more steps.
#[test]
fn runs_that_were_resumed_or_killed_are_compared() {
    let (whole, wrong) = ([1, 2, 3], [9, 9, 9]);
    let straight = digests(&[(1, whole), (2, whole), (3, whole)]);
    let resumed = digests(&[(1, whole), (2, wrong), (2, whole), (3, whole), (4, whole)]);
    let (_directory, a, b) = files(&straight, &(resumed + "{\"step\":5,\"par"));
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(0);
    insta::assert_snapshot!(found, @r#"
    3 steps are equal
    1 step is in one of the files only
    "#);
}

/// Two runs on different processors may differ; each class of operations that they round differently is named.
#[test]
fn other_processors_are_named() {
    let of = |classes: serde_json::Value| {
        let mut line: serde_json::Value =
            serde_json::from_str(digests(&[(1, [1, 2, 3])]).trim_end()).unwrap();
        line["numerics"] = classes;
        format!("{line}\n")
    };
    let one = of(serde_json::json!({"sums": "1", "tanh": "2", "of one": "3"}));
    let other = of(serde_json::json!({"sums": "0", "tanh": "2"}));
    let (_directory, a, b) = files(&one, &other);
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(0);
    insta::assert_snapshot!(found, @"
    1 step is equal
    the processors or C libraries of the two round differently: sums
    ");
    let json = run(&["run", "diff", "--json", text(&a), text(&b)]).json(0);
    assert_eq!(json["numerics"], serde_json::json!(["sums"]));
}

#[test]
fn files_that_are_not_runs_are_refused() {
    let whole = [1, 2, 3];
    let (directory, a, b) = files(&digests(&[(1, whole)]), &digests(&[(7, whole), (9, whole)]));
    let none = run(&["run", "diff", text(&a), text(&b)]).fails(2);
    insta::assert_snapshot!(none, @"error: the runs have no step in common: one has step 1, the other steps 7 to 9");
    let other = directory.path().join("other");
    let refused = |content: &str, expected: &str| {
        fs::write(&other, content).unwrap();
        for [first, second] in [[&a, &other], [&other, &a]] {
            let error = run(&["run", "diff", text(first), text(second)]).fails(2);
            check_contains(&error, &[expected]);
        }
    };
    refused(
        "",
        "other is empty: expected the digests of a run or the digests of a replay",
    );
    refused(
        "step 3\n",
        "other: line 1 is not a digest: expected the digests",
    );
    refused(
        "step 3",
        "other: line 1 is not a digest: expected the digests",
    );
    // Cut off inside the first line.
    let line = digests(&[(1, whole)]);
    for end in [1, 8, line.len() - 2] {
        refused(
            &line[..end],
            "other has no digests: it ends inside its first line, as when a run is killed in its first step",
        );
    }
    let plan = fs::read_to_string(crate::plan::golden()).unwrap();
    let expected = "other: expected the digests of a run or the digests of a replay, found a plan: \
                    `tinderbox plan show` and `plan diff` read plans";
    refused(&plan, expected);
    let compact: serde_json::Value = serde_json::from_str(&plan).unwrap();
    refused(&compact.to_string(), expected);
    // A line of a later step.
    fs::write(&other, format!("{line}step 3\n")).unwrap();
    let error = run(&["run", "diff", text(&a), text(&other)]).fails(2);
    check_contains(&error, &["other: line 2 is not a digest: "]);
    fs::remove_file(&other).unwrap();
    let error = run(&["run", "diff", text(&a), text(&other)]).fails(3);
    check_contains(&error, &["other can't be read: No such file"]);
}

#[test]
fn digests_are_read_from_standard_input() {
    let steps = [(1, [1, 2, 3]), (2, [4, 5, 6])];
    let equal = digests(&steps);
    let (_directory, a, b) = files(&equal, &programs(&[(0, "forward", 1, &[])]));
    for both in [["-", text(&a)], [text(&a), "-"]] {
        let ran = run_with(&equal, &["run", "diff", both[0], both[1]]);
        assert_eq!(ran.ends(0), "2 steps are equal\n");
    }
    // The lines of a difference are read a second time.
    let other = digests(&[steps[0], (2, [4, 5, 7])]);
    let found = run_with(&other, &["run", "diff", text(&a), "-"]).ends(1);
    check_contains(&found, &["step 2 differs", "optimizer.a.weight.moment_1"]);
    let replay = fs::read_to_string(&b).unwrap();
    let found = run_with(&replay, &["run", "diff", text(&b), "-"]).ends(0);
    assert_eq!(found, "1 micro-batch is equal in every operation\n");
    let error = run_with(&equal, &["run", "diff", "-", "-"]).fails(2);
    check_contains(
        &error,
        &["only one of the files can be read from standard input"],
    );
    let error = run_with("", &["run", "diff", text(&a), "-"]).fails(2);
    check_contains(&error, &["error: standard input is empty: expected"]);
}

/// The position, the name and the digest of each operation.
type Operations<'a> = &'a [(u64, &'a str, u64)];

/// A line for each program of a replay: its micro-batch, its name, the digest of a weight, and its operations.
fn programs(of: &[(u64, &str, u64, Operations<'_>)]) -> String {
    let line = |(micro_batch, compute, weight, operations): &(_, _, _, Operations<'_>)| {
        let operations = operations.iter().map(|(position, name, digest)| {
            serde_json::json!({
                "position": position,
                "name": name,
                "place": "in `layers.3`",
                "result": 0,
                "digest": digest,
            })
        });
        let program = serde_json::json!({
            "step": 12,
            "micro_batch": micro_batch,
            "stage": 0,
            "compute": compute,
            "inputs": [["layers.3.weight", weight]],
            "operations": operations.collect::<Vec<_>>(),
        });
        format!("{program}\n")
    };
    of.iter().map(line).collect()
}

#[test]
fn the_first_operation_of_two_replays_that_differs_is_found() {
    let forward = (
        0,
        "forward",
        1,
        &[(7, "Float.Matmul", 5), (8, "Float.Add", 6)][..],
    );
    let equal = programs(&[forward, (0, "backward", 1, &[(9, "Float.Sum", BIG)])]);
    let other = programs(&[forward, (0, "backward", 1, &[(9, "Float.Sum", BIG - 1)])]);
    let (_directory, a, b) = files(&equal, &other);
    assert_eq!(
        run(&["run", "diff", text(&a), text(&a)]).ends(0),
        "1 micro-batch is equal in every operation\n"
    );
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(1);
    insta::assert_snapshot!(found, @r#"
    step 12 differs, first in micro-batch 0
      the first operation with another result: `Float.Sum` in `layers.3` (operation 9)
    "#);
    let json = run(&["run", "diff", "--json", text(&a), text(&b)]).json(1);
    assert_eq!(json["micro_batches"], 1);
    assert_eq!(json["difference"]["operations"][1]["digest"], BIG - 1);
    // Another weight, and so another product.
    let given = (
        0,
        "forward",
        2,
        &[(7, "Float.Matmul", 4), (8, "Float.Add", 6)][..],
    );
    let (_directory, a, b) = files(&equal, &programs(&[given]));
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(1);
    insta::assert_snapshot!(found, @r#"
    step 12 differs, first in micro-batch 0
      given another value: layers.3.weight
      the first operation with another result: `Float.Matmul` in `layers.3` (operation 7)
    "#);
    // Another operation, and a missing one.
    let renamed = (
        0,
        "forward",
        1,
        &[(7, "Float.Matmul", 5), (8, "Float.Tanh", 6)][..],
    );
    let (_directory, a, b) = files(&equal, &programs(&[renamed]));
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(1);
    insta::assert_snapshot!(found, @r#"
    step 12 differs, first in micro-batch 0
      the first other operation: `Float.Add` in `layers.3` (operation 8) in one, `Float.Tanh` in `layers.3` (operation 8) in the other
    "#);
    let (_directory, a, b) = files(&equal, &programs(&[forward]));
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(1);
    insta::assert_snapshot!(found, @r#"
    step 12 differs, first in micro-batch 0
      the first other operation: `Float.Sum` in `layers.3` (operation 9), in one of them only
    "#);
    let two = programs(&[forward, (1, "forward", 1, &[])]);
    let (_directory, a, b) = files(&two, &programs(&[forward]));
    let found = run(&["run", "diff", text(&a), text(&b)]).ends(0);
    insta::assert_snapshot!(found, @r#"
    1 micro-batch is equal in every operation
    1 micro-batch is in one of the files only
    "#);
    // Other micro-batches, another kind of file, a line that is cut off, and an empty file.
    let (_directory, a, b) = files(&equal, &programs(&[(1, "forward", 1, &[])]));
    insta::assert_snapshot!(run(&["run", "diff", text(&a), text(&b)]).fails(2), @"error: the replays have no micro-batch of one step in common");
    let (_directory, a, b) = files(&equal, &digests(&[(1, [1, 2, 3])]));
    insta::assert_snapshot!(run(&["run", "diff", text(&a), text(&b)]).fails(2), @"error: one of the files is of a run, the other of a replay");
    let (_directory, a, b) = files(&equal, &equal[..equal.len() - 2]);
    let refused = run(&["run", "diff", text(&a), text(&b)]).fails(2);
    assert!(
        refused.contains("line 2 is not a program of a replay"),
        "{refused}"
    );
    let (_directory, a, b) = files(&equal, "");
    let refused = run(&["run", "diff", text(&a), text(&b)]).fails(2);
    check_contains(&refused, &["is empty: expected the digests of a run"]);
}

#[test]
fn machines_are_compared_by_what_they_compute() {
    let own = run(&["run", "numerics", "--json"]).ends(0);
    let (_directory, a, b) = files(&own, &own.replace("\"tanh\":\"", "\"tanh\":\"0"));
    let same = run(&["run", "numerics", text(&a)]).ends(0);
    assert!(
        same.ends_with(" classes of operations are equal\n"),
        "{same}"
    );
    let other = run(&["run", "numerics", text(&b)]).ends(1);
    insta::assert_snapshot!(other, @"the processors or C libraries of the two round differently: tanh");
    let json = run(&["run", "numerics", "--json", text(&b)]).json(1);
    assert_eq!(json["differences"], serde_json::json!(["tanh"]));
    let table = run(&["run", "numerics"]).ends(0);
    assert!(table.contains("products with vectors"), "{table}");
    std::fs::write(&a, "{}").unwrap();
    let error = run(&["run", "numerics", text(&a)]).fails(2);
    assert!(
        error.contains("is not the output of `run numerics --json`"),
        "{error}"
    );
    fs::write(&a, digests(&[(1, [1, 2, 3]), (2, [1, 2, 3])])).unwrap();
    let error = run(&["run", "numerics", text(&a)]).fails(2);
    check_contains(
        &error,
        &[
            "expected the numerics of a machine",
            "found the digests of a run",
        ],
    );
}
