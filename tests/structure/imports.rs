//! No modules of a crate import each other in a cycle, at any depth: an order exists in which each uses only those before
//! it. The page of a crate lists its modules in this order. `error` is exempt: its types name types of all modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::source::{Crate, ModulePath, crates, root};

/// The modules that each module uses, with the names that it uses.
type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A module that uses a module, and by which name.
type Use<'a> = (&'a [String], ModulePath, String);

/// Which module uses which names of which other, where they are in other files.
fn uses(read: &Crate) -> Vec<Use<'_>> {
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
fn of_files(read: &Crate, uses: &[Use<'_>]) -> Graph {
    let name = |module: &[String]| {
        let file = &read.modules[module].file;
        let short = file.strip_prefix(root()).unwrap_or(file);
        short.display().to_string()
    };
    let mut graph = Graph::new();
    for (from, to, names) in uses {
        let used = graph.entry(name(from)).or_default();
        used.entry(name(to)).or_default().insert(names.clone());
    }
    graph
}

/// The uses between the modules of one module, each with all that is in it.
fn of_siblings(uses: &[Use<'_>], parent: &[String]) -> Graph {
    let mut graph = Graph::new();
    for (from, to, names) in uses {
        let inner = |module: &[String]| module.strip_prefix(parent)?.first().cloned();
        if let (Some(from), Some(to)) = (inner(from), inner(to))
            && from != to
        {
            let used = graph.entry(from).or_default();
            used.entry(to).or_default().insert(names.clone());
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
    for name in &crates() {
        let read = Crate::read(name);
        let uses = uses(&read);
        found += &described(name, &of_files(&read, &uses));
        for parent in read.modules.keys() {
            let path = [std::slice::from_ref(name), &**parent].concat().join("::");
            found += &described(&path, &of_siblings(&uses, parent));
        }
    }
    assert!(found.is_empty(), "{found}");
}

#[test]
fn the_page_of_a_crate_lists_its_modules_in_order() {
    for name in &crates() {
        let read = Crate::read(name);
        let page = root().join(name).join("src/lib.rs");
        let Some(listed) = fs::read_to_string(page).ok().and_then(|page| listed(&page)) else {
            continue;
        };
        let modules = read.modules.keys().filter(|path| path.len() == 1);
        let modules: BTreeSet<String> = modules.map(|path| path[0].clone()).collect();
        let modules: BTreeSet<&str> = modules.iter().map(String::as_str).collect();
        let mut all: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
        all.insert("error");
        assert_eq!(&all | &modules, all, "{name}: the list of modules");
        let place = |module: &String| listed.iter().position(|listed| listed == module);
        for (from, used) in of_siblings(&uses(&read), &[]) {
            for (to, names) in used {
                assert!(
                    place(&to) <= place(&from),
                    "{name}: `{from}` uses {names:?} of `{to}`, which the page lists after it"
                );
            }
        }
    }
}

/// Returns the modules that a crate's page lists; none for a crate of few modules.
fn listed(page: &str) -> Option<Vec<String>> {
    let (_, after) = page.split_once("//! # Modules")?;
    let block = after.split("```").nth(1).expect("a block of names");
    let names = block.trim_start_matches("text").split_whitespace();
    Some(
        names
            .filter(|name| *name != "//!")
            .map(str::to_owned)
            .collect(),
    )
}
