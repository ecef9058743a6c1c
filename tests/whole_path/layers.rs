//! Which crate may use which: `burn <- fake <- deferred <- {pipeline, checkpoint} <- facade`,
//! `path <- {deferred, planner}`, `pages <- {deferred, checkpoint, facade}`, `schedule <- {link, planner, pipeline}`,
//! `{link, planner} <- pipeline`, and `{checkpoint, schedule, planner, pipeline} <- cli`. And which module of a crate may
//! use which: those before it in the order that the crate's page has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATES: [(&str, &[&str]); 12] = [
    ("tinderbox-path", &[]),
    ("tinderbox-pages", &[]),
    ("tinderbox-schedule", &[]),
    ("tinderbox-link", &["tinderbox-schedule"]),
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
        "tinderbox-pipeline",
        &[
            "tinderbox-deferred",
            "tinderbox-fake",
            "tinderbox-link",
            "tinderbox-pages",
            "tinderbox-planner",
            "tinderbox-schedule",
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
            "tinderbox-pipeline",
            "tinderbox-planner",
            "tinderbox-schedule",
        ],
    ),
    (
        "tinderbox",
        &[
            "tinderbox-checkpoint",
            "tinderbox-deferred",
            "tinderbox-fake",
            "tinderbox-pages",
            "tinderbox-pipeline",
            "tinderbox-planner",
        ],
    ),
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

/// The folders of crates whose page has the order of their modules.
const ORDERED: [&str; 4] = ["schedule", "planner", "link", "pages"];

#[test]
fn modules_import_in_one_direction() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let faults: Vec<String> = ORDERED
        .iter()
        .flat_map(|folder| faults(&root.join(folder).join("src")))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What is wrong with the order of the modules of a crate.
fn faults(src: &Path) -> Vec<String> {
    let page = fs::read_to_string(src.join("lib.rs")).unwrap();
    let docs = page.lines().map_while(|line| line.strip_prefix("//!"));
    let docs: String = docs.collect();
    let order = docs.split("in this order of modules:").nth(1);
    let order = order.unwrap_or_else(|| panic!("{} has no order of modules", src.display()));
    let order = order.split('.').next().unwrap().split('`');
    let order: Vec<&str> = order.skip(1).step_by(2).collect();
    // The modules, and the module of each name that the crate exports.
    let (mut modules, mut names) = (Vec::new(), BTreeMap::new());
    for item in page.split(';') {
        let item = item.trim_start();
        let item = item.rsplit_once("]\n").map_or(item, |(_, item)| item);
        let item = item.rsplit_once("\n\n").map_or(item, |(_, item)| item);
        let item = item.strip_prefix("pub ").unwrap_or(item);
        if let Some(module) = item.strip_prefix("mod ") {
            modules.push(module);
        } else if let Some((module, exports)) = item
            .strip_prefix("use ")
            .and_then(|use_| use_.split_once("::"))
        {
            names.extend(words(exports).map(|name| (name, module)));
        }
    }
    modules.retain(|module| *module != "tests");
    let mut sorted = order.clone();
    sorted.sort_unstable();
    modules.sort_unstable();
    assert_eq!(sorted, modules, "the modules of {}", src.display());
    let place = |module: &str| order.iter().position(|other| *other == module);
    let mut faults = Vec::new();
    for module in &order {
        for file in files(src, module) {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let code = code.lines().map(|line| line.split("//").next().unwrap());
            let code: String = code.collect();
            for import in code.split("crate::").skip(1) {
                let imported: Vec<&str> = match import.strip_prefix('{') {
                    Some(list) => words(list.split('}').next().unwrap()).collect(),
                    None => words(import).take(1).collect(),
                };
                for name in imported {
                    let from = names.get(name).copied().unwrap_or(name);
                    if place(from) > place(module) {
                        faults.push(format!("{}: {name} of {from}", file.display()));
                    }
                }
            }
        }
    }
    faults
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.filter(|word| !word.is_empty())
}

/// The files of a module without those of its tests.
fn files(folder: &Path, module: &str) -> Vec<PathBuf> {
    let mut files = vec![folder.join(format!("{module}.rs"))];
    let mut folders = vec![folder.join(module)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("tests") {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                files.push(path);
            }
        }
    }
    files.retain(|file| file.is_file());
    files
}
