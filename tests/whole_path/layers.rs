//! Which crate may use which: `burn <- fake <- deferred <- {pipeline, checkpoint} <- facade`,
//! `path <- {deferred, world, planner, graph}`, `pages <- {deferred, checkpoint, pipeline}`, `schedule <- {link, world, planner,
//! graph, pipeline}`, `simulation <- {link, world}`, `link <- world`, `{derive, deferred, planner} <- graph`, `{graph, link, world} <- pipeline`, `{checkpoint, schedule, planner, pipeline} <- cli`, and `facade <- {train,
//! gpu-check}`. What tests alone use does not count.

use std::collections::BTreeMap;
use std::process::Command;

const CRATES: [(&str, &[&str]); 18] = [
    ("tinderbox-path", &[]),
    ("tinderbox-derive", &[]),
    ("tinderbox-pages", &[]),
    ("tinderbox-schedule", &[]),
    ("tinderbox-simulation", &[]),
    (
        "tinderbox-link",
        &["tinderbox-schedule", "tinderbox-simulation"],
    ),
    (
        "tinderbox-world",
        &[
            "tinderbox-link",
            "tinderbox-path",
            "tinderbox-schedule",
            "tinderbox-simulation",
        ],
    ),
    (
        "tinderbox-world-mpi",
        &["tinderbox-schedule", "tinderbox-world"],
    ),
    ("tinderbox-fake", &[]),
    (
        "tinderbox-planner",
        &["tinderbox-path", "tinderbox-schedule"],
    ),
    (
        "tinderbox-deferred",
        &["tinderbox-fake", "tinderbox-pages", "tinderbox-path"],
    ),
    (
        "tinderbox-graph",
        &[
            "tinderbox-deferred",
            "tinderbox-derive",
            "tinderbox-fake",
            "tinderbox-path",
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
            "tinderbox-link",
            "tinderbox-pages",
            "tinderbox-planner",
            "tinderbox-schedule",
            "tinderbox-world",
        ],
    ),
    (
        "tinderbox-checkpoint",
        &["tinderbox-deferred", "tinderbox-fake", "tinderbox-pages"],
    ),
    (
        "tinderbox-cli",
        &[
            "tinderbox-checkpoint",
            "tinderbox-deferred",
            "tinderbox-pages",
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
    ("tinderbox-gpu-check", &["tinderbox"]),
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
