//! Damaged and invalid files.

use serde_json::Value;
use tinderbox_schedule::{RankIndex, StageIndex};

use super::{places, samples, show};
use crate::Plan;

#[test]
fn a_truncated_file_is_not_a_plan() {
    let json = samples::smallest().to_json();
    // All but the line end after the last brace.
    for length in 0..json.len() - 1 {
        if let Some(start) = json.get(..length) {
            assert!(Plan::from_json(start).is_err(), "{length}");
        }
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_another_plan_that_can_be_shown() {
    let plan = samples::smallest();
    let json = plan.to_json().into_bytes();
    let mut plans = 0;
    for at in 0..json.len() {
        let mut flipped = json.clone();
        flipped[at] ^= 1 << (at % 8);
        let Ok(text) = std::str::from_utf8(&flipped) else {
            continue;
        };
        if let Ok(found) = Plan::from_json(text) {
            assert_eq!(plan.diff(&found).is_empty(), plan == found, "byte {at}");
            assert!(show(&found) > 0);
            plans += 1;
        }
    }
    // Digits and letters of names: ensures that enough damaged files are still plans.
    assert!(plans > json.len() / 20, "{plans} of {}", json.len());
}

/// The replacements of a value of the file.
fn replacements(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(_) => {
            let numbers = [0, 1, 7, 99, 1 << 40, u64::MAX / 2, u64::MAX];
            numbers.into_iter().map(Value::from).collect()
        }
        Value::String(_) => {
            let harmful = "\u{1b}[2J</pre><script>&\"'\\\n";
            let texts = ["", harmful, "f32", "backward", "zbv", "0F0 0F1\n-"];
            texts.map(Value::from).to_vec()
        }
        Value::Array(all) => {
            let reversed = all.iter().rev().cloned().collect();
            let twice = [&all[..], all].concat();
            [Vec::new(), reversed, twice].map(Value::Array).to_vec()
        }
        Value::Bool(value) => vec![Value::Bool(!value)],
        Value::Null | Value::Object(_) => vec![],
    }
}

/// Every value of a plan replaced by nonsense: stages 99, sums beyond all numbers, empty and doubled
/// lists. Each is shown, and the difference to the plan is never empty.
#[test]
fn nonsense_can_be_shown_and_is_a_difference() {
    for plan in [samples::smallest(), samples::own_lists()] {
        let whole = serde_json::to_value(&plan).unwrap();
        let mut all = Vec::new();
        places(&whole, String::new(), &mut all);
        let mut shown = 0;
        for place in &all {
            for replacement in replacements(whole.pointer(place).unwrap()) {
                let mut other = whole.clone();
                *other.pointer_mut(place).unwrap() = replacement.clone();
                let Ok(found) = Plan::from_json(&other.to_string()) else {
                    continue;
                };
                let (there, back) = (plan.diff(&found), found.diff(&plan));
                assert_eq!(there.is_empty(), plan == found, "{place} = {replacement}");
                assert_eq!(back.is_empty(), plan == found, "{place} = {replacement}");
                let text = there.to_string();
                assert!(!text.trim().is_empty(), "{place} = {replacement}");
                assert!(show(&found) > 0);
                shown += 1;
            }
        }
        assert!(shown > all.len(), "{shown} of {}", all.len());
    }
}

/// Values that no file contains, but a program might create.
#[test]
fn nonsense_that_no_file_contains_can_be_shown() {
    let mut plan = samples::own_lists();
    plan.stages[1].rank = RankIndex::new(usize::MAX);
    plan.stages[2].stage = StageIndex::new(usize::MAX);
    plan.prediction.ranks[0].rank = RankIndex::new(usize::MAX);
    plan.step.micro_batches = usize::MAX;
    assert_eq!(plan.ranks(), 1 << 32);
    assert!(show(&plan) > 0);
    let other = samples::two_stages();
    assert!(!plan.diff(&other).is_empty() && !other.diff(&plan).is_empty());
    plan.stages.clear();
    plan.lists = None;
    assert!(show(&plan) > 0);
    assert!(plan.diff(&other).to_string().contains(" added 0, 1\n"));
}
