//! No modules of a crate import each other in a cycle, at any depth: an order exists in which each uses only those before it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::source::{CRATES, Crate, root};

/// The files that each file of a crate uses, with the names that it uses.
type Graph = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

fn graph(read: &Crate) -> Graph {
    let mut graph = Graph::new();
    for (at, module) in &read.modules {
        let used = graph.entry(module.file.clone()).or_default();
        // What a module only hands on, it does not use.
        let imports = module.imports.iter().filter(|(_, (_, is_shared))| !is_shared);
        let imports = imports.map(|(_, (path, _))| path).chain(&module.globs);
        for path in imports.chain(&module.named) {
            let Some(target) = read.resolve(at, path) else {
                continue;
            };
            // A variable may have the name of a module.
            if path.len() == 1 && target.last() == path.last() {
                continue;
            }
            let file = &read.modules[&target].file;
            // Errors name types of all modules, and are named by all.
            if *file != module.file && !is_of_errors(&target) && !is_of_errors(at) {
                used.entry(file.clone()).or_default().insert(path.join("::"));
            }
        }
    }
    graph
}

fn is_of_errors(module: &[String]) -> bool {
    module.first().is_some_and(|first| first == "error")
}

/// Returns the groups of files that use each other in cycles.
fn cycles(graph: &Graph) -> Vec<Vec<PathBuf>> {
    let reached = |from: &PathBuf| {
        let (mut found, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(file) = left.pop() {
            for used in graph.get(file).into_iter().flat_map(BTreeMap::keys) {
                if found.insert(used) {
                    left.push(used);
                }
            }
        }
        found
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        graph.keys().map(|file| (file, reached(file))).collect();
    let mut cycles = BTreeSet::new();
    for (file, from) in &reached {
        let back = |other: &&&PathBuf| reached.get(**other).is_some_and(|of| of.contains(file));
        if from.contains(file) {
            cycles.insert(from.iter().filter(back).copied().cloned().collect());
        }
    }
    cycles.into_iter().collect()
}

#[test]
fn no_modules_import_each_other_in_a_cycle() {
    let mut found = String::new();
    for name in CRATES {
        let graph = graph(&Crate::read(name));
        for cycle in cycles(&graph) {
            found += &format!("\n{name}: {} files use each other:\n", cycle.len());
            for file in &cycle {
                for (other, names) in graph[file].iter().filter(|(other, _)| cycle.contains(other)) {
                    let short = |file: &PathBuf| file.strip_prefix(root()).unwrap().display().to_string();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    found += &format!("  {} -> {}: {}\n", short(file), short(other), names.join(", "));
                }
            }
        }
    }
    assert!(found.is_empty(), "{found}");
}
