//! Which module of a crate may use which: the page of a crate lists its modules, and a module uses only those before
//! it. `error` is exempt: its types name types of all modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 9] = [
    "pages",
    "fake",
    "deferred",
    "schedule",
    "link",
    "world",
    "planner",
    "pipeline",
    "checkpoint",
];

#[test]
fn modules_use_only_those_before_them() {
    for name in CRATES {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join("src");
        let page = fs::read_to_string(source.join("lib.rs")).unwrap();
        let listed = listed(&page);
        let declared = page.lines().filter_map(|line| {
            let line = line.trim_start_matches("pub ").strip_prefix("mod ")?;
            line.split([';', ' ']).next()
        });
        let declared: BTreeSet<&str> = declared
            .filter(|module| !["error", "tests"].contains(module))
            .collect();
        let all: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(all, declared, "{name}: the list of modules");
        let exported = exported(&page);
        let place = |module: &str| listed.iter().position(|listed| *listed == module);
        for (number, module) in listed.iter().enumerate() {
            for file in files(&source, module) {
                let text = fs::read_to_string(&file).unwrap();
                for used in used(&text) {
                    let of = exported.get(&*used).copied().unwrap_or(&used);
                    assert!(
                        place(of).is_none_or(|of| of <= number),
                        "{}: {used} is of `{of}`, which is after `{module}`",
                        file.display()
                    );
                }
            }
        }
    }
}

/// Returns the modules that a crate's page lists.
fn listed(page: &str) -> Vec<&str> {
    let (_, after) = page.split_once("//! # Modules").expect("a list of modules");
    let block = after.split("```").nth(1).expect("a block of names");
    let names = block.trim_start_matches("text").split_whitespace();
    names.filter(|name| *name != "//!").collect()
}

/// Returns the module of each name that the crate's root has, public or not.
fn exported(page: &str) -> BTreeMap<&str, &str> {
    let uses = ["\nuse ", "\npub use ", "\npub(crate) use "];
    let uses = uses.iter().flat_map(|start| page.split(start).skip(1));
    let uses = uses.filter_map(|rest| rest.split(';').next()?.split_once("::"));
    let names = uses.flat_map(|(module, names)| {
        let names = names.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        names.map(move |name| (name, module))
    });
    names.filter(|(name, _)| !name.is_empty()).collect()
}

/// Returns the files of a module, without its tests.
fn files(source: &Path, module: &str) -> Vec<PathBuf> {
    let mut found = vec![source.join(format!("{module}.rs"))];
    let mut folders = vec![source.join(module)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true if !path.ends_with("tests") => folders.push(path),
                true => {}
                false => found.push(path),
            }
        }
    }
    found.retain(|file| file.extension().is_some_and(|end| end == "rs") && file.exists());
    found
}

/// Returns the names after `crate::` in code that is not a test.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.map(|line| format!("{line}\n")).collect();
    let mut names = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        let rest = &code[at + found.len()..];
        let mut depth = 0;
        let mut name = String::new();
        for c in rest.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => {}
                c if depth <= 1 && (c.is_alphanumeric() || c == '_') => {
                    name.push(c);
                    continue;
                }
                // What is after the first name of a path is inside of its module.
                ':' if depth == 1 => {}
                c if c.is_whitespace() => continue,
                _ => {}
            }
            names.extend(Some(std::mem::take(&mut name)).filter(|name| !name.is_empty()));
            if depth <= 0 {
                break;
            }
        }
    }
    names
}
