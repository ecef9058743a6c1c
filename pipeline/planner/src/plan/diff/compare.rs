//! The comparison of two plans, field by field of their JSON.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::Plan;

/// The differences between two plans, returned by [`Plan::diff`].
///
/// Its text groups the changes, in the words of the plan's tables, formats units, and counts consequences of other changes and
/// changes of less than 0.05 %. Its JSON has every change:
/// `{"changes": [{"path": "step.micro_batches", "before": 4, "after": 8}]}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PlanDiff {
    /// The changes: fields in alphabetical order, list elements in the order of the earlier plan.
    pub changes: Vec<Change>,
}

/// A value that differs between two plans.
///
/// Lists of strings and numbers are one value. Objects in a list are compared by key: their path, name,
/// stage, rank or edge, else their index. Where the lists differ in keys or order, the keys are one
/// value, and elements of both lists are compared field by field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The fields from the root and the keys of elements: `stages[0].costs.forward`. Two fields are
    /// not in the file: `parameters[<path>].stage`, the stage that owns the parameter, and
    /// `prediction.ranks[<rank>].memory.total`, in bytes.
    pub path: String,
    /// The value in the earlier plan; null if it has none.
    pub before: Value,
    /// The value in the later plan; null if it has none.
    pub after: Value,
}

impl Plan {
    /// Compares the plan with a later one. The result is empty if and only if both plans have the same
    /// [JSON](Self::to_json). Linear in both files, times a logarithm.
    pub fn diff(&self, later: &Self) -> PlanDiff {
        let mut diff = PlanDiff::default();
        diff.compare("", &json(self), &json(later));
        diff
    }
}

impl PlanDiff {
    /// Returns whether the plans are the same.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Adds the differences between two values at a path: at least one if they are not equal.
    pub(super) fn compare(&mut self, path: &str, before: &Value, after: &Value) {
        let (before, after) = match (before, after) {
            _ if before == after => return,
            (Value::Object(before), Value::Object(after)) => {
                let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
                for name in names {
                    let [before, after] =
                        [before, after].map(|fields| fields.get(name).unwrap_or(&Value::Null));
                    self.compare(&format!("{path}.{name}"), before, after);
                }
                return;
            }
            (Value::Array(before), Value::Array(after))
                if before.iter().chain(after).all(Value::is_object) =>
            {
                let keys = [before, after].map(|list| keys(list));
                let after: BTreeMap<_, _> = keys[1].iter().zip(after).collect();
                for (key, before) in keys[0].iter().zip(before) {
                    if let Some(after) = after.get(key) {
                        self.compare(&format!("{path}[{}]", key.0), before, after);
                    }
                }
                if keys[0] == keys[1] {
                    return;
                }
                let [before, after] =
                    keys.map(|keys| keys.into_iter().map(|(name, _)| name).collect());
                (before, after)
            }
            _ => (before.clone(), after.clone()),
        };
        let path = path.trim_start_matches('.').to_owned();
        self.changes.push(Change {
            path,
            before,
            after,
        });
    }
}

/// The plan's JSON with the derived fields of [`Change::path`], and with `recompute` where it is false.
fn json(plan: &Plan) -> Value {
    let mut json = serde_json::to_value(plan).expect("a plan has string keys and no floats");
    for (index, rank) in plan.prediction.ranks.iter().enumerate() {
        json["prediction"]["ranks"][index]["memory"]["total"] = rank.memory.total().into();
    }
    let mut owners = BTreeMap::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        json["stages"][index]["recompute"] = stage.recompute.into();
        owners.extend(stage.parameters.iter().map(|path| (path, index)));
    }
    for (index, parameter) in plan.parameters.iter().enumerate() {
        if let Some(stage) = owners.get(&parameter.path) {
            json["parameters"][index]["stage"] = (*stage).into();
        }
    }
    json
}

/// The key of each object of a list, and the count of objects with this key up to it.
fn keys(list: &[Value]) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::new();
    let keys = list.iter().enumerate().map(|(index, element)| {
        let mut fields = ["path", "name", "stage", "rank", "edge"].iter();
        let name = match fields.find_map(|field| element.get(*field)) {
            Some(edge) if edge.is_object() => {
                let compute = |end: &str| edge[end]["compute"].as_str().unwrap_or_default();
                let stage = |end: &str| format!("stage {} {}", edge[end]["stage"], compute(end));
                format!("{} -> {}", stage("from"), stage("to"))
            }
            Some(Value::String(name)) => name.clone(),
            Some(name) => name.to_string(),
            None => index.to_string(),
        };
        let count = counts.entry(name.clone()).or_insert(0);
        *count += 1;
        (name, *count)
    });
    keys.collect()
}
