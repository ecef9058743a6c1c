//! One or more rows for every public module of `burn::nn`: deferred and materialized it has the bits of plain
//! Burn, its traced forward computes the same as plain Burn, and its joint graph computes the gradients of
//! Burn's autodiff. The row of a module that can't be traced contains the exact error.

mod check;
mod eager;
mod inputs;
mod probe;
mod row;
mod rows;
mod sources;
mod table;
mod traced;

use std::collections::{BTreeMap, BTreeSet};

#[test]
fn every_module_conforms() {
    let mut table = table::Table::default();
    for row in rows::all() {
        table.add(&*row);
    }
    println!("{table}");
    assert!(table.failures().is_empty(), "{}", table.failures());
}

/// The rows match the sources that this build compiles: the test fails for a module without a row, a row
/// without a module, and an enum variant that no row uses.
#[test]
fn every_public_module_has_a_row() {
    let sources = sources::of_package("burn-nn");
    let modules: BTreeMap<String, Vec<String>> = sources::modules(&sources)
        .into_iter()
        .filter(|module| module.public)
        .map(|module| (module.path, module.variants))
        .collect();
    let mut rows: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for row in &rows::all() {
        rows.entry(row.module()).or_default().insert(row.case());
    }

    let mut wrong = Vec::new();
    for (module, variants) in &modules {
        let Some(cases) = rows.get(module) else {
            wrong.push(format!("{module} has no row"));
            continue;
        };
        let missing = variants
            .iter()
            .filter(|name| !cases.contains(name.as_str()));
        wrong.extend(missing.map(|name| format!("{module} has no row `{name}`, its variant")));
    }
    let gone = rows.keys().filter(|name| !modules.contains_key(*name));
    wrong.extend(gone.map(|name| format!("a row is for {name}, which is no public module")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
