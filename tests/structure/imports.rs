//! No modules of a crate import each other in a cycle, at any depth: an order exists in which each uses only those before it.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{CRATES, Crate, ModulePath, root};

/// The modules that each module uses, with the names that it uses.
type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Which file uses which names of which other, as modules with a path from the root of the crate.
fn uses(read: &Crate) -> Vec<(&[String], ModulePath, String)> {
    let mut uses = Vec::new();
    for (at, module) in &read.modules {
        // What a module only hands on, it does not use.
        let imports = module.imports.values().filter(|(_, is_shared)| !is_shared);
        let imports = imports.map(|(path, _)| path).chain(&module.globs);
        for path in imports.chain(&module.named) {
            let Some(target) = read.resolve(at, path) else {
                continue;
            };
            // A variable may have the name of a module.
            let is_variable = path.len() == 1 && target.last() == path.last();
            let is_same_file = read.modules[&target].file == module.file;
            // Errors name types of all modules, and are named by all.
            if !is_variable && !is_same_file && !is_of_errors(&target) && !is_of_errors(at) {
                uses.push((&**at, target, path.join("::")));
            }
        }
    }
    uses
}

/// The uses between files.
fn of_files(read: &Crate) -> Graph {
    let name = |module: &[String]| {
        let file = &read.modules[module].file;
        let short = file.strip_prefix(root()).unwrap_or(file);
        short.display().to_string()
    };
    let mut graph = Graph::new();
    for (from, to, names) in uses(read) {
        let used = graph.entry(name(from)).or_default();
        used.entry(name(&to)).or_default().insert(names);
    }
    graph
}

/// The uses between the modules of one module, each with all that is in it.
fn of_siblings(read: &Crate, parent: &[String]) -> Graph {
    let mut graph = Graph::new();
    for (from, to, names) in uses(read) {
        let inner = |module: &[String]| module.strip_prefix(parent)?.first().cloned();
        if let (Some(from), Some(to)) = (inner(from), inner(&to))
            && from != to
        {
            let used = graph.entry(from).or_default();
            used.entry(to).or_default().insert(names);
        }
    }
    graph
}

fn is_of_errors(module: &[String]) -> bool {
    module.first().is_some_and(|first| first == "error")
}

/// Returns the groups of modules that use each other in cycles.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let (mut found, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(module) = left.pop() {
            for used in graph.get(module).into_iter().flat_map(BTreeMap::keys) {
                if found.insert(used) {
                    left.push(used);
                }
            }
        }
        found
    };
    let reached: BTreeMap<&String, BTreeSet<&String>> = graph
        .keys()
        .map(|module| (module, reached(module)))
        .collect();
    let mut cycles = BTreeSet::new();
    for (module, from) in &reached {
        let back = |other: &&&String| reached.get(**other).is_some_and(|of| of.contains(module));
        if from.contains(module) {
            cycles.insert(from.iter().filter(back).copied().cloned().collect());
        }
    }
    cycles.into_iter().collect()
}

/// Each cycle in words, with what ties it.
fn described(of: &str, graph: &Graph) -> String {
    let mut text = String::new();
    for cycle in cycles(graph) {
        text += &format!("\n{of}: {} modules use each other:\n", cycle.len());
        for module in &cycle {
            let used = graph[module]
                .iter()
                .filter(|(other, _)| cycle.contains(other));
            for (other, names) in used {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                text += &format!("  {module} -> {other}: {}\n", names.join(", "));
            }
        }
    }
    text
}

#[test]
fn no_modules_import_each_other_in_a_cycle() {
    let mut found = String::new();
    for name in CRATES {
        let read = Crate::read(name);
        found += &described(name, &of_files(&read));
        for parent in read.modules.keys() {
            let path = [&[name.to_owned()], &**parent].concat().join("::");
            found += &described(&path, &of_siblings(&read, parent));
        }
    }
    assert!(found.is_empty(), "{found}");
}
