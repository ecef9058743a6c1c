//! The names that a reader of programs has to know: few at the root of `tinderbox`, all others in its modules.

use std::collections::BTreeSet;
use std::fs;

use syn::{Item, TraitItem, Visibility};

use crate::source::{Crate, flatten, name, root};

/// More names than a reader remembers.
const MOST: usize = 45;

/// The modules at the root, which do not count. Those in `src` are no names of `pub use`.
const MODULES: [&str; 8] = [
    "batch", "deferred", "fake", "mpi", "pipeline", "planner", "schedule", "world",
];

/// The libraries whose errors a program meets.
const LIBRARIES: [&str; 8] = [
    "fake",
    "deferred",
    "pipeline/schedule",
    "pipeline/planner",
    "pipeline/graph",
    "pipeline",
    "pipeline/world",
    "checkpoint",
];

fn items(file: &str) -> Vec<Item> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    syn::parse_file(&text).unwrap().items
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether others can use an item that is no import and no module.
fn is_exported(item: &Item) -> bool {
    let visibility = match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Macro(item) => {
            let mut attributes = item.attrs.iter();
            return attributes.any(|one| one.path().is_ident("macro_export"));
        }
        _ => return false,
    };
    is_public(visibility)
}

/// Returns the names that items export, without the contents of their modules.
fn exported(items: &[Item]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in items {
        if let Item::Use(import) = item
            && is_public(&import.vis)
        {
            let mut leaves = Vec::new();
            flatten(&import.tree, &mut Vec::new(), &mut leaves);
            for (path, name) in leaves {
                let name = name.expect("each name is listed");
                // `as _` imports methods; the documentation has the name of their trait.
                let is_hidden = name == "_";
                names.insert(if is_hidden {
                    path[path.len() - 1].clone()
                } else {
                    name
                });
            }
        } else if is_exported(item) {
            names.extend(name(item));
        }
    }
    names
}

/// Returns the items of a module that is written in its parent's file.
fn inner(items: Vec<Item>, of: &str) -> Vec<Item> {
    let content = items.into_iter().find_map(|item| match item {
        Item::Mod(module) if module.ident == of => module.content,
        _ => None,
    });
    content.expect("the module is in this file").1
}

/// More methods than a store of one's own should need.
const MOST_OF_STORE: usize = 12;

#[test]
fn a_store_needs_few_methods() {
    let is_store = |item: Item| match item {
        Item::Trait(item) if item.ident == "Store" => Some(item.items),
        _ => None,
    };
    let mut items = items("checkpoint/src/store/mod.rs").into_iter();
    let methods = items.find_map(is_store).expect("the trait `Store`");
    let required = methods.into_iter().filter_map(|item| match item {
        TraitItem::Fn(method) if method.default.is_none() => Some(method.sig.ident.to_string()),
        _ => None,
    });
    let required: Vec<String> = required.collect();
    let count = required.len();
    assert!(count <= MOST_OF_STORE, "{count} required: {required:?}");
}

#[test]
fn the_root_has_few_names() {
    let mut names = exported(&items("src/lib.rs"));
    for module in MODULES {
        assert!(names.remove(module), "`{module}` is no name of the root");
    }
    names.extend(exported(&inner(items("src/lib.rs"), "prelude")));
    // A macro is a name of the root, wherever it is defined.
    for file in Crate::read(".").files.values() {
        let macros = file.items.iter();
        let macros = macros.filter(|item| matches!(item, Item::Macro(_)) && is_exported(item));
        names.extend(macros.filter_map(name));
    }
    assert!(
        names.len() <= MOST,
        "{} names at the root, {MOST} at most: {names:#?}",
        names.len()
    );
}

#[test]
fn every_error_is_in_one_module() {
    let found = exported(&items("src/error/mod.rs"));
    for library in LIBRARIES {
        let names = exported(&items(&format!("{library}/src/lib.rs")));
        let errors = names.into_iter().filter(|name| name.ends_with("Error"));
        let missing: Vec<String> = errors.filter(|name| !found.contains(name)).collect();
        assert!(missing.is_empty(), "`error` lacks {missing:?} of {library}");
    }
}

#[test]
fn the_module_of_checkpoints_has_all_of_its_crate() {
    let found = exported(&inner(items("src/lib.rs"), "checkpoint"));
    let of_crate = items("checkpoint/src/lib.rs");
    let mut names = exported(&of_crate);
    names.extend(of_crate.iter().filter_map(|item| match item {
        Item::Mod(module) if is_public(&module.vis) => Some(module.ident.to_string()),
        _ => None,
    }));
    let missing: Vec<&String> = names.difference(&found).collect();
    assert!(missing.is_empty(), "`checkpoint` lacks {missing:?}");
}
