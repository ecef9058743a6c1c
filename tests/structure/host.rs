//! Which files name Burn's internals: all others ask these what an operation is.

use std::collections::BTreeSet;

use crate::source::{Crate, crates, root};

const INTERNALS: [&str; 8] = [
    "burn_ir",
    "burn_router",
    "burn_capture",
    "burn_dispatch",
    "burn_backend",
    "burn_autodiff",
    "burn_flex",
    "burn_cubecl",
];

/// The folders and files that may name them.
const HOST: [&str; 18] = [
    "deferred/src/device/",
    "deferred/src/program/",
    "deferred/src/random/cube/",
    "deferred/src/random/on_device.rs",
    "deferred/src/recipe/push.rs",
    "deferred/src/recipe/rules.rs",
    "fake/src/backward.rs",
    "fake/src/dtype.rs",
    "fake/src/dyn_tensor.rs",
    "fake/src/error.rs",
    "fake/src/file.rs",
    "fake/src/graph/",
    "fake/src/host.rs",
    "fake/src/lib.rs",
    "fake/src/meta.rs",
    "fake/src/operation/",
    "fake/src/record.rs",
    "fake/src/scope.rs",
];

#[test]
fn only_the_host_names_internals_of_burn() {
    let mut naming = BTreeSet::new();
    for name in crates() {
        for module in Crate::read(&name).modules.values() {
            let imports = module.imports.values().map(|(path, _)| path);
            let mut paths = imports.chain(&module.globs).chain(&module.named);
            if paths.any(|path| INTERNALS.contains(&path[0].as_str())) {
                let file = module.file.strip_prefix(root()).unwrap();
                naming.insert(file.display().to_string());
            }
        }
    }
    let elsewhere: Vec<&String> = naming
        .iter()
        .filter(|file| !HOST.iter().any(|host| file.starts_with(host)))
        .collect();
    assert!(elsewhere.is_empty(), "{elsewhere:#?}");
    let unused: Vec<&&str> = HOST
        .iter()
        .filter(|host| !naming.iter().any(|file| file.starts_with(*host)))
        .collect();
    assert!(unused.is_empty(), "listed without need: {unused:?}");
}
