//! Every operation that Burn can record, run by the executor and by Burn itself: the same bits.
//!
//! `cargo test --workspace --test operations -- --nocapture coverage` prints which operations of
//! `burn_ir` run, and which do not and why.

mod backward;
mod basic;
mod check;
mod gaps;
mod hand_made;
mod keys;
mod kinds;
mod modules;
mod numeric;
mod primitives;
mod random;
mod refused;
mod selected_bools;

use std::collections::BTreeSet;

use burn::tensor::{Bool, BoolDType, DType, Float, Int};

use check::{Row, check};
use gaps::GAPS;

fn all_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        rows.extend(basic::rows::<Float>(dtype));
        rows.extend(basic::number_rows::<Float>(dtype));
        rows.extend(numeric::rows::<Float>(dtype));
        rows.extend(kinds::float_rows(dtype));
    }
    for dtype in [DType::I32, DType::I64] {
        rows.extend(basic::rows::<Int>(dtype));
        rows.extend(basic::number_rows::<Int>(dtype));
        rows.extend(numeric::rows::<Int>(dtype));
        rows.extend(kinds::int_rows(dtype));
    }
    rows.extend(basic::rows::<Bool>(BoolDType::Native.into()));
    rows.extend(kinds::bool_rows());
    rows.extend(kinds::cast_rows());
    rows.extend(kinds::grid_rows());
    rows.extend(modules::rows());
    rows.extend(backward::rows());
    rows.extend(primitives::rows());
    rows
}

/// Runs every row, and reports the operations of the recordings, independent of the claims of a row.
#[test]
fn coverage() {
    let rows = all_rows();
    let (mut ran, failures) = check(&rows);
    assert!(
        failures.is_empty(),
        "{} of {} rows fail:\n{}",
        failures.len(),
        rows.len(),
        failures.join("\n")
    );
    ran.extend(random::verify());
    ran.extend(selected_bools::verify());

    let all = keys::all_keys();
    println!(
        "{} rows; {} of {} operations of burn_ir run:",
        rows.len(),
        ran.len(),
        all.len()
    );
    for key in &all {
        match GAPS.iter().find(|gap| gap.key == key) {
            Some(gap) => println!("  {key}: no, {}", gap.reason),
            None => println!("  {key}"),
        }
    }
    let gaps: BTreeSet<String> = GAPS.iter().map(|gap| gap.key.to_owned()).collect();
    let needless: Vec<_> = gaps.intersection(&ran).collect();
    assert!(needless.is_empty(), "gaps that run: {needless:?}");
    let covered: BTreeSet<String> = gaps.union(&ran).cloned().collect();
    let known: BTreeSet<String> = all.into_iter().collect();
    let missing: Vec<_> = known.difference(&covered).collect();
    assert!(missing.is_empty(), "neither a row nor a gap: {missing:?}");
    let unknown: Vec<_> = covered.difference(&known).collect();
    assert!(unknown.is_empty(), "no operation of burn_ir: {unknown:?}");
}

#[test]
fn the_page_of_recording_names_every_gap() {
    let text = include_str!("../../../docs/src/recording.md");
    for gap in GAPS {
        assert!(
            text.contains(&format!("`{}`", gap.key)),
            "{} is not in docs/src/recording.md",
            gap.key
        );
    }
}
