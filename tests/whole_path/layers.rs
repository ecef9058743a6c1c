//! Which crate may use which: `burn <- fake <- deferred <- {pipeline, checkpoint} <- tinderbox`, `memory <- {deferred,
//! checkpoint, pipeline}`, `ids <- {schedule, deferred, world, planner, graph}`, `schedule <- planner <- references`,
//! `simulation <- world <- engines`, `{derive, deferred, planner, schedule} <- graph`, `{graph, world} <- pipeline`,
//! `{checkpoint, pipeline} <- cli`, and `tinderbox <- {train, models, gpu-check, lm}`. What tests alone use does not count.

use std::collections::BTreeMap;
use std::process::Command;

const CRATES: [(&str, &[&str]); 27] = [
    ("tinderbox-ids", &[]),
    ("tinderbox-derive", &[]),
    ("tinderbox-memory", &[]),
    ("tinderbox-simulation", &[]),
    ("tinderbox-schedule", &["tinderbox-ids"]),
    (
        "tinderbox-world",
        &["tinderbox-ids", "tinderbox-simulation"],
    ),
    ("tinderbox-world-mpi", &["tinderbox-ids", "tinderbox-world"]),
    ("tinderbox-fake", &[]),
    (
        "tinderbox-planner",
        &["tinderbox-ids", "tinderbox-schedule"],
    ),
    (
        "tinderbox-deferred",
        &["tinderbox-fake", "tinderbox-ids", "tinderbox-memory"],
    ),
    (
        "tinderbox-graph",
        &[
            "tinderbox-deferred",
            "tinderbox-derive",
            "tinderbox-fake",
            "tinderbox-ids",
            "tinderbox-planner",
            "tinderbox-schedule",
        ],
    ),
    (
        "tinderbox-pipeline",
        &[
            "tinderbox-deferred",
            "tinderbox-fake",
            "tinderbox-graph",
            "tinderbox-memory",
            "tinderbox-planner",
            "tinderbox-schedule",
            "tinderbox-world",
        ],
    ),
    (
        "tinderbox-checkpoint",
        &["tinderbox-deferred", "tinderbox-fake", "tinderbox-memory"],
    ),
    (
        "tinderbox-cli",
        &[
            "tinderbox-checkpoint",
            "tinderbox-deferred",
            "tinderbox-fake",
            "tinderbox-ids",
            "tinderbox-memory",
            "tinderbox-pipeline",
            "tinderbox-planner",
            "tinderbox-schedule",
            "tinderbox-world",
        ],
    ),
    (
        "tinderbox",
        &[
            "tinderbox-checkpoint",
            "tinderbox-deferred",
            "tinderbox-fake",
            "tinderbox-pipeline",
            "tinderbox-world",
            "tinderbox-world-mpi",
        ],
    ),
    ("tinderbox-train", &["tinderbox"]),
    // Not published.
    (
        "tinderbox-engines",
        &["tinderbox-simulation", "tinderbox-world"],
    ),
    (
        "tinderbox-references",
        &["tinderbox-planner", "tinderbox-schedule"],
    ),
    ("tinderbox-models", &["tinderbox"]),
    ("tinderbox-examples", &["tinderbox", "tinderbox-models"]),
    ("tinderbox-gpu-check", &["tinderbox", "tinderbox-models"]),
    ("tinderbox-lm", &["tinderbox", "tinderbox-models"]),
    ("tinderbox-benches", &["tinderbox", "tinderbox-models"]),
    ("tinderbox-tests", &[]),
    ("tinderbox-deferred-tests", &[]),
    (
        "tinderbox-pipeline-tests",
        &[
            "tinderbox-deferred",
            "tinderbox-models",
            "tinderbox-pipeline",
        ],
    ),
    (
        "tinderbox-checkpoint-tests",
        &["tinderbox-checkpoint", "tinderbox-fake"],
    ),
];

#[test]
fn crates_depend_in_one_direction() {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap().to_owned();
        let mut uses: Vec<String> = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
            .filter_map(|dependency| dependency["name"].as_str())
            .filter(|used| used.starts_with("tinderbox") && *used != name)
            .map(str::to_owned)
            .collect();
        uses.sort();
        uses.dedup();
        found.insert(name, uses);
    }
    let expected: BTreeMap<String, Vec<String>> = CRATES
        .iter()
        .map(|(name, uses)| ((*name).into(), uses.iter().map(|u| (*u).into()).collect()))
        .collect();
    assert_eq!(found, expected);
}
