//! The modules of a crate import only in the order that its `lib.rs` states.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The beginning of the sentence of a `lib.rs` that lists its modules, each in backticks.
const SENTENCE: &str = "A module imports only from those before it:";

/// The modules of a crate in order, and the module of each name that its root exports.
struct Order {
    modules: Vec<String>,
    exported: HashMap<String, String>,
}

impl Order {
    fn of(root: &str) -> Self {
        let comments = root.lines().filter_map(|line| line.strip_prefix("//!"));
        let docs: String = comments.map(str::trim_start).collect::<Vec<_>>().join(" ");
        let (_, listed) = docs.split_once(SENTENCE).expect("the order is stated");
        let (listed, _) = listed.split_once('.').expect("it is a sentence");
        let modules = listed.split('`').skip(1).step_by(2);
        let mut exported = HashMap::new();
        for statement in root.split(';') {
            let Some((_, path)) = statement.split_once("pub use ") else {
                continue;
            };
            if let Some((module, names)) = path.split_once("::") {
                for name in names.split(|c: char| !c.is_alphanumeric() && c != '_') {
                    exported.insert(name.to_owned(), module.to_owned());
                }
            }
        }
        Self {
            modules: modules.map(str::to_owned).collect(),
            exported,
        }
    }

    /// The position of the module that a name after `crate::` is of; `None` for another crate, and for
    /// errors, which contain types of any module.
    fn position(&self, name: &str) -> Option<usize> {
        let of = |name: &str| self.modules.iter().position(|module| module == name);
        of(name).or_else(|| of(self.exported.get(name)?))
    }
}

/// The names that follow `crate::` in a source, without its tests.
fn imports(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next();
    let lines = code.unwrap_or_default().lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    let code = lines.join(" ");
    let statements = code.split("crate::").skip(1);
    let statements = statements.filter_map(|rest| rest.split(';').next());
    let names = statements.flat_map(|rest| match rest.strip_prefix('{') {
        Some(names) => names.split(',').map(str::trim).collect(),
        None => vec![rest],
    });
    let is_end = |c: char| !c.is_alphanumeric() && c != '_';
    let names = names.filter_map(|name| name.split(is_end).next());
    names.map(str::to_owned).collect()
}

/// Adds the imports of a file, or of all files of a folder, from later modules.
fn check(path: &Path, here: usize, order: &Order, wrong: &mut Vec<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("tests") {
                check(&path, here, order, wrong);
            }
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        for name in imports(&fs::read_to_string(path).unwrap()) {
            if order.position(&name).is_some_and(|there| there > here) {
                wrong.push(format!("{} imports {name}", path.display()));
            }
        }
    }
}

#[test]
fn the_pipelines_modules_import_in_order() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipeline/src");
    let root = fs::read_to_string(folder.join("lib.rs")).unwrap();
    let order = Order::of(&root);
    assert_eq!(order.position("Plan"), order.position("plan"));
    assert_eq!(
        imports("use crate::{\n    a::B,\n    C,\n};"),
        ["a", "C", ""]
    );
    let mut wrong = Vec::new();
    for line in root.lines() {
        let module = line.trim_start_matches("pub ").strip_prefix("mod ");
        let Some(module) = module.and_then(|module| module.strip_suffix(';')) else {
            continue;
        };
        match order.position(module) {
            Some(here) => {
                for path in [folder.join(module), folder.join(format!("{module}.rs"))] {
                    if path.exists() {
                        check(&path, here, &order, &mut wrong);
                    }
                }
            }
            None if module == "error" => {}
            None => wrong.push(format!("{module} has no place in the order")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
