use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use serde_json::{Value, json};
use tinderbox_ids::ParameterPath;
use tinderbox_schedule::ScheduleKind;

use super::text::{Place, is_small};
use super::{Change, PlanDiff};
use crate::plan::tests::places;
use crate::plan::tests::samples::{self, Sample};
use crate::{Machine, PLAN_VERSION, Plan, Step};

fn cut(starts: &[usize], recompute: &[usize]) -> Plan {
    Sample {
        layers: 6,
        machine: Machine::local(starts.len()).unwrap(),
        step: Step::new(ScheduleKind::OneFOneB, 4),
        starts: starts.to_vec(),
        ranks: (0..starts.len()).collect(),
        recompute: recompute.to_vec(),
    }
    .plan()
}

#[test]
fn the_same_plan_has_no_difference() {
    let plan = samples::four_stages();
    let diff = plan.diff(&plan);
    assert!(diff.is_empty());
    assert_eq!(diff.to_string(), "the plans are the same\n");
}

#[test]
fn another_cut() {
    let diff = cut(&[0, 6], &[]).diff(&cut(&[0, 8], &[1]));
    insta::assert_snapshot!(diff, @r"
    moved parameters
      blocks.2 blocks.3 (4 parameters): stage 1 -> 0

    prediction
      step                 241 ms -> 274 ms (+13.7 %)
      idle                 18.7 % -> 23.6 %
      bottleneck, F and B  27.0 ms -> 26.8 ms (-0.7 %)

    rank 0
      busy                 183 ms -> 238 ms (+29.7 %)
      bubble               58.0 ms -> 36.5 ms (-37.1 %)
      memory, parameters   52.2 MiB -> 64.2 MiB (+23.1 %)
      memory, gradients    52.2 MiB -> 64.2 MiB (+23.1 %)
      memory, optimizer    104 MiB -> 128 MiB (+23.1 %)
      memory, activations  48.0 MiB -> 64.0 MiB (+33.3 %)
      memory, total        291 MiB -> 355 MiB (+22.1 %)

    rank 1
      busy                 209 ms -> 181 ms (-13.2 %)
      bubble               26.8 ms -> 85.1 ms (+217.4 %)
      memory, parameters   69.2 MiB -> 57.1 MiB (-17.4 %)
      memory, gradients    45.2 MiB -> 33.1 MiB (-26.7 %)
      memory, optimizer    90.4 MiB -> 66.3 MiB (-26.7 %)
      memory, activations  32.2 MiB -> 4.25 MiB (-86.8 %)
      memory, transient    6.00 MiB -> 26.0 MiB (+333.3 %)
      memory, total        247 MiB -> 191 MiB (-22.7 %)

    stage 0
      modules              added blocks.2.feed_forward, blocks.3.attention
      bytes of parameters  52.2 MiB -> 64.2 MiB (+23.1 %)
      F                    5.56 ms -> 7.86 ms (+41.4 %)
      B                    11.1 ms -> 15.7 ms (+41.4 %)
      kept                 24.0 MiB -> 32.0 MiB (+33.3 %)
      and 12 other changes

    stage 1
      modules              removed blocks.2.feed_forward, blocks.3.attention
      bytes of parameters  45.2 MiB -> 33.1 MiB (-26.7 %)
      recomputes           false -> true
      F                    9.00 ms -> 6.70 ms (-25.6 %)
      B                    18.0 ms -> 20.1 ms (+11.7 %)
      kept                 32.2 MiB -> 4.25 MiB (-86.8 %)
      and 15 other changes
    ");
}

#[test]
fn another_step_and_machine() {
    let before = cut(&[0, 6], &[]);
    let mut after = before.clone();
    after.step.schedule = ScheduleKind::ZbH1;
    after.step.micro_batches = 8;
    after.choice.partitioner = "manual".to_owned();
    after.machine = after.machine.with_memory_limit(1 << 30);
    after.ties[0].copies.clear();
    insta::assert_snapshot!(before.diff(&after), @r"
    inputs
      memory limit of rank 0  none -> 1.00 GiB
      memory limit of rank 1  none -> 1.00 GiB
      schedule                1f1b -> zb-h1
      micro-batches           4 -> 8

    plan
      partitioner                    chain -> manual
      ties[embedding.weight].copies  [1] -> []
    ");
}

#[test]
fn another_model() {
    let before = cut(&[0, 6], &[]);
    let mut after = before.clone();
    after.parameters.remove(0);
    after.parameters[0].dtype = "bf16".to_owned();
    let text = before.diff(&after).to_string();
    insta::assert_snapshot!(text, @r"
    inputs
      parameters[embedding.bias].dtype  f32 -> bf16
      parameters                        removed embedding.weight
    ");
}

/// The parameters of the first stage that `of` selects are moved to the second.
fn moved(of: fn(&str) -> bool) -> PlanDiff {
    let before = cut(&[0, 6], &[]);
    let mut after = before.clone();
    let parameters = std::mem::take(&mut after.stages[0].parameters);
    let (goes, stays): (Vec<_>, _) = parameters.into_iter().partition(|path| of(path.as_str()));
    after.stages[0].parameters = stays;
    after.stages[1].parameters.splice(0..0, goes);
    before.diff(&after)
}

#[test]
fn moved_parameters_are_grouped() {
    insta::assert_snapshot!(moved(|path| path.starts_with("blocks.1")), @r"
    moved parameters
      blocks.1 (4 parameters): stage 0 -> 1

    stage 0
      parameters  removed blocks.1.attention.weight, blocks.1.attention.bias,
                  blocks.1.feed_forward.weight, blocks.1.feed_forward.bias

    stage 1
      parameters  added blocks.1.attention.weight, blocks.1.attention.bias,
                  blocks.1.feed_forward.weight, blocks.1.feed_forward.bias
    ");
    insta::assert_snapshot!(moved(|path| path == "blocks.1.attention.bias"), @r"
    moved parameters
      blocks.1.attention.bias: stage 0 -> 1

    stage 0
      parameters  removed blocks.1.attention.bias

    stage 1
      parameters  added blocks.1.attention.bias
    ");
    insta::assert_snapshot!(moved(|path| path.ends_with("weight")), @r"
    moved parameters
      embedding blocks.0..2 (6 parameters): stage 0 -> 1

    stage 0
      parameters  removed embedding.weight, blocks.0.attention.weight,
                  blocks.0.feed_forward.weight, blocks.1.attention.weight,
                  blocks.1.feed_forward.weight, and 1 more

    stage 1
      parameters  added embedding.weight, blocks.0.attention.weight,
                  blocks.0.feed_forward.weight, blocks.1.attention.weight,
                  blocks.1.feed_forward.weight, and 1 more
    ");
    insta::assert_snapshot!(moved(|_| true), @r"
    moved parameters
      embedding blocks.0..2 (12 parameters): stage 0 -> 1

    stage 0
      parameters  removed embedding.weight, embedding.bias,
                  blocks.0.attention.weight, blocks.0.attention.bias,
                  blocks.0.feed_forward.weight, and 7 more

    stage 1
      parameters  added embedding.weight, embedding.bias, blocks.0.attention.weight,
                  blocks.0.attention.bias, blocks.0.feed_forward.weight, and 7 more
    ");
}

#[test]
fn more_stages() {
    let (two, three) = (cut(&[0, 6], &[]), cut(&[0, 5, 10], &[]));
    let moves = |diff: &PlanDiff| {
        let text = diff.to_string();
        let from = text.find("moved parameters").unwrap();
        text[from..].split("\n\n").next().unwrap().to_owned()
    };
    let diff = two.diff(&three);
    insta::assert_snapshot!(moves(&diff), @r"
    moved parameters
      blocks.2 (2 parameters): stage 0 -> 1
      blocks.4 blocks.5 head (8 parameters): stage 1 -> 2
    ");
    assert!(diff.to_string().contains(" added 2\n"), "{diff}");
    let back = three.diff(&two);
    insta::assert_snapshot!(moves(&back), @r"
    moved parameters
      blocks.2 (2 parameters): stage 1 -> 0
      blocks.4 blocks.5 head (8 parameters): stage 2 -> 1
    ");
    assert!(back.to_string().contains(" removed 2\n"), "{back}");
}

#[test]
fn json_has_every_change() {
    let before = samples::smallest();
    let mut after = before.clone();
    let parameter = after.stages[0].parameters.pop().unwrap();
    after.stages[1].parameters.insert(0, parameter);
    after.stages[1].costs.forward += 1;
    after.machine.link.latency = 0;
    after.boundaries.truncate(1);
    let json = serde_json::to_string_pretty(&before.diff(&after)).unwrap();
    insta::assert_snapshot!(json, @r#"
    {
      "changes": [
        {
          "path": "boundaries",
          "before": [
            "stage 0 forward -> stage 1 forward",
            "stage 1 backward -> stage 0 backward"
          ],
          "after": [
            "stage 0 forward -> stage 1 forward"
          ]
        },
        {
          "path": "machine.link.latency",
          "before": 5000,
          "after": 0
        },
        {
          "path": "parameters[embedding.bias].stage",
          "before": 0,
          "after": 1
        },
        {
          "path": "stages[0].parameters",
          "before": [
            "embedding.weight",
            "embedding.bias"
          ],
          "after": [
            "embedding.weight"
          ]
        },
        {
          "path": "stages[1].costs.forward",
          "before": 700000,
          "after": 700001
        },
        {
          "path": "stages[1].parameters",
          "before": [
            "head.weight",
            "head.bias"
          ],
          "after": [
            "embedding.bias",
            "head.weight",
            "head.bias"
          ]
        }
      ]
    }
    "#);
}

#[test]
fn values_have_units() {
    let mut all = String::new();
    let (short, long) = (json!("a".repeat(80)), json!("a".repeat(90)));
    for (path, before, after) in [
        ("a.bytes", json!(4 << 20), json!(3 << 20)),
        ("a.step_ns", json!(0), json!(1500)),
        ("stages.costs.forward", json!(1_000_000), json!(1_000_001)),
        ("a.memory_bytes", Value::Null, json!(1)),
        ("a.idle_permille", json!(100), json!(105)),
        ("a.program", json!("a\u{1b}"), json!("")),
        ("a.memory.total", json!(1), json!(u64::MAX)),
        ("a.rank", json!(1), json!(2)),
        ("a.shape", json!([8, 128]), json!([4, 128])),
        ("a.clones", Value::Null, json!(["b", "c"])),
        ("a.names", json!(["a", "b"]), json!(["b", "a"])),
        ("a.lists", long.clone(), json!("b")),
        ("a.lists", short, long),
    ] {
        let change = Change {
            path: path.to_owned(),
            before,
            after,
        };
        let changes = vec![change];
        let text = PlanDiff { changes }.to_string();
        all.push_str(text.strip_prefix("plan\n").unwrap_or(&text));
    }
    insta::assert_snapshot!(all, @r#"
      a.bytes  4.00 MiB -> 3.00 MiB (-25.0 %)
      a.step_ns  0 ns -> 1.50 µs
    1 change of less than 0.05 %
      a.memory_bytes  none -> 1 B
      a.idle_permille  10.0 % -> 10.5 %
      a.program  a\u{1b} -> ""
      a.memory.total  1 B -> 16.0 EiB (+1844674407370955161.5 %)
      a.rank  1 -> 2
      a.shape  [8,128] -> [4,128]
      a.clones  added b, c
      a.names  in another order or number
      a.lists  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa… ->
               b
      a.lists  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
               ->
               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "#);
}

/// The fields of a path without the keys of elements.
fn fields(path: &str) -> Vec<&str> {
    let outside = path.split(['[', ']']).step_by(2);
    let fields = outside.flat_map(|names| names.split('.'));
    fields.filter(|name| !name.is_empty()).collect()
}

/// Returns other values for a value of a plan file, and how many of those that are read are compared.
fn others(value: &Value) -> (Vec<Value>, usize) {
    match value {
        // A small and a large difference.
        Value::Number(number) => {
            let number = number.as_u64().unwrap();
            let double = number.wrapping_mul(2) + 1;
            (vec![json!(number ^ 1), json!(double)], 2)
        }
        Value::Bool(is) => (vec![json!(!is)], 1),
        // Names, then variants of enums.
        Value::String(text) => {
            let other = format!("{text}x");
            let texts = [other.as_str(), "gpipe", "v", "weight_gradient"];
            (texts.map(Value::from).to_vec(), 1)
        }
        other => panic!("{other}"),
    }
}

/// Checks that a diff has a change at a place, and that a line of its text begins with the word of the change.
fn check_named(diff: &PlanDiff, place: &[&str]) {
    /// Fields that identify elements: a changed value is another element.
    const KEYS: [&str; 5] = ["path", "name", "rank", "stage", "compute"];
    let is_key = KEYS.contains(&place[place.len() - 1]);
    let is_named = |change: &Change| {
        let path = fields(&change.path);
        path == place || (is_key && place.starts_with(&path))
    };
    let mut named = diff.changes.iter().filter(|change| is_named(change));
    assert!(named.clone().next().is_some(), "{place:?}: {diff:?}");
    let text = diff.to_string();
    let is_shown = |change: &Change| match is_small(change) {
        true => text.contains(" of less than 0.05 %\n"),
        false => {
            let start = format!("  {}  ", Place::of(change).word().1);
            text.lines().any(|line| line.starts_with(&start))
        }
    };
    assert!(is_key || named.all(is_shown), "{place:?}: {text}");
}

#[test]
fn every_value_of_the_file_is_compared() {
    let mut refused = BTreeSet::new();
    for plan in [samples::four_stages(), samples::own_lists()] {
        let json = serde_json::to_value(&plan).unwrap();
        let mut all = Vec::new();
        places(&json, String::new(), &mut all);
        for place in &all {
            let value = json.pointer(place).unwrap();
            let (others, count) = match value {
                Value::Object(_) | Value::Array(_) => continue,
                // The version before this one is read as this one.
                _ if place == "/version" => (vec![json!(PLAN_VERSION + 1)], 1),
                value => others(value),
            };
            let read = others.into_iter().filter_map(|other| {
                let mut changed = json.clone();
                *changed.pointer_mut(place).unwrap() = other;
                Plan::from_json(&changed.to_string()).ok()
            });
            let read: Vec<Plan> = read.take(count).collect();
            let names = place.split('/').skip(1);
            let names = names.filter(|name| name.parse::<usize>().is_err());
            let place: Vec<&str> = names.collect();
            if read.is_empty() {
                refused.insert(place.join("."));
            }
            for other in read {
                check_named(&plan.diff(&other), &place);
                check_named(&other.diff(&plan), &place);
            }
        }
    }
    // Numbers without gaps, and the version.
    let refused: Vec<String> = refused.into_iter().collect();
    assert_eq!(refused, ["stages.rank", "stages.stage", "version"]);
}

/// JSON with lists as in the plan file, and with repeated keys; a plan file has no null.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        (0..3_u64).prop_map(Value::from),
        prop::sample::select(vec!["", "a", "b", "[a]"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let names = prop::sample::select(vec!["path", "stage", "edge", "bytes"]);
        let fields = prop::collection::hash_map(names, inner.clone(), 0..3);
        let object = |fields: HashMap<&str, Value>| {
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (name.to_owned(), value));
            fields.collect::<Value>()
        };
        let objects = prop::collection::vec(fields.clone().prop_map(object), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            objects.prop_map(Value::from),
            fields.prop_map(object),
        ]
    })
}

proptest! {
    #[test]
    fn only_equal_values_have_no_changes(before in values(), after in values()) {
        let diff = |before: &Value, after: &Value| {
            let mut diff = PlanDiff::default();
            diff.compare("", before, after);
            diff
        };
        prop_assert!(diff(&before, &before).is_empty());
        for diff in [diff(&before, &after), diff(&after, &before)] {
            prop_assert_eq!(diff.is_empty(), before == after);
            prop_assert!(!diff.to_string().is_empty());
        }
    }
}

/// Deeper than any stack of calls.
#[test]
fn a_path_may_have_any_number_of_names() {
    let mut before = samples::smallest();
    before.parameters[0].path = ParameterPath::new("a.".repeat(100_000));
    before.stages[0].parameters = vec![before.parameters[0].path.clone()];
    let mut after = before.clone();
    after.stages[0].parameters.clear();
    let text = before.diff(&after).to_string();
    assert!(text.contains("a.: stage 0 -> none\n"));
}
