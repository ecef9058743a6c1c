//! Why a plan can't be made or used, in full.

use burn::tensor::Device;
use tinderbox_deferred::{MaterializeOptions, random::Seed};
use tinderbox_pipeline::{Cut, Machine, Plan, PlanError};

use crate::models::{gpt_trace, mlp, mlp_trace};
use crate::support::full_text;

fn text<T: std::fmt::Debug>(result: Result<T, PlanError>) -> String {
    full_text(&result.unwrap_err())
}

#[test]
fn wrong_cuts() {
    let gpt = gpt_trace(2);
    for (cuts, expected) in [
        (
            vec![Cut::before("blocks.7.attention")],
            "no parameter stands under `blocks.7.attention`; the nearest are \
             `blocks.1.attention`, `blocks.0.attention`, `blocks`",
        ),
        (
            vec![Cut::after("decoder")],
            "no parameter stands under `decoder`; the nearest are `head`, `blocks`, \
             `norm`",
        ),
        (
            vec![Cut::before("tokens")],
            "the cut at `tokens` leaves a stage without parameters before or after it (cut number \
             1): give the cuts in the order of the forward, each module once",
        ),
        (
            vec![Cut::before("blocks.1"), Cut::after("head")],
            "the cut at `head` leaves a stage without parameters before or after it (cut number \
             2): give the cuts in the order of the forward, each module once",
        ),
        (
            vec![Cut::before("blocks.1"), Cut::after("blocks.0")],
            "the cut at `blocks.0` leaves a stage without parameters before or after it (cut number \
             2): give the cuts in the order of the forward, each module once",
        ),
    ] {
        assert_eq!(text(Plan::manual(&gpt, &cuts)), expected);
    }
}

#[test]
fn too_many_stages_and_none() {
    let trace = mlp_trace(3, 4);
    assert_eq!(
        text(Plan::auto(&trace, &Machine::local(4).unwrap())),
        "4 stages are too many: the model has 3 modules with parameters, and a stage needs one"
    );
    assert_eq!(text(Machine::local(0)), "a machine has at least one rank");
}

/// A plan file of two stages, edited by hand, and what is said of it.
#[test]
fn wrong_files() {
    let trace = mlp_trace(3, 4);
    let table = trace.parameters();
    let plan = Plan::manual(&trace, &[Cut::before("layers.1")]).unwrap();
    let json = plan.to_json();
    let owned = "\"layers.1.weight\"";
    for (from, to, expected) in [
        (
            "\"version\": 1",
            "\"version\": 2",
            "the plan has version 2, this build reads 1: make the plan again",
        ),
        (
            "\"version\": 1,\n  \"model\"",
            "\"version\": 3,\n  \"models\"",
            "the plan has version 3, this build reads 1: make the plan again",
        ),
        (
            "\"version\": 1,",
            "",
            "this is not a plan file\nmissing field `version` at line 72 column 1",
        ),
        (
            "\"stages\"",
            "\"steps\"",
            "this is not a plan file\nmissing field `stages` at line 72 column 1",
        ),
        (
            "\"rank\": 1",
            "\"rank\": 5",
            "no stage is on rank 1: number the ranks from 0 without a gap",
        ),
        (
            owned,
            "\"layers.1.weigth\"",
            "the plan names `layers.1.weigth`, which the model does not have; the nearest are \
             `layers.1.weight`, `layers.1.bias`",
        ),
        (
            owned,
            "\"layers.0.weight\"",
            "stages 0 and 1 both own `layers.0.weight`",
        ),
        (
            owned,
            "\"layers.1.bias\"",
            "stage 1 lists `layers.1.bias` twice",
        ),
        (
            "        \"layers.1.weight\",\n",
            "",
            "no stage owns `layers.1.weight`",
        ),
        (
            "\"replicas\": []",
            "\"replicas\": [\"layers.0.bias\"]",
            "stage 0 holds `layers.0.bias` and is to hold a copy of it too",
        ),
        (
            "\"replicas\": []",
            "\"replicas\": [\"layers.0.norm\"]",
            "the plan names `layers.0.norm`, which the model does not have; the nearest are \
             `layers.0.bias`, `layers.0.weight`",
        ),
    ] {
        assert!(json.contains(from), "{from} in {json}");
        let edited = json.replacen(from, to, 1);
        let checked = Plan::from_json(&edited).and_then(|plan| plan.check_model(table));
        assert_eq!(text(checked), expected, "{from} -> {to}");
    }
    plan.check_model(table).unwrap();
}

#[test]
fn another_model() {
    let plan = Plan::manual(&mlp_trace(3, 4), &[]).unwrap();
    let other = mlp_trace(3, 5);
    let found = Plan::manual(&other, &[]).unwrap();
    assert_eq!(
        text(plan.check_model(other.parameters())),
        format!(
            "the plan is for a model with digest {}, this one has {}: make the plan again",
            plan.model(),
            found.model()
        )
    );
}

/// A plan file cut off at every byte is refused, and never panics.
#[test]
fn a_truncated_file() {
    let json = Plan::manual(&mlp_trace(2, 4), &[]).unwrap().to_json();
    for length in 0..json.len() - 2 {
        let error = Plan::from_json(&json[..length]).unwrap_err();
        assert!(matches!(error, PlanError::Json { .. }), "{length}: {error}");
    }
}

#[test]
fn files_that_are_not_there() {
    let plan = Plan::manual(&mlp_trace(2, 4), &[]).unwrap();
    let nowhere = "/nowhere/plan.json";
    let missing = "failed\nNo such file or directory (os error 2)";
    assert_eq!(
        text(Plan::load(nowhere)),
        format!("reading {nowhere} {missing}")
    );
    assert_eq!(
        text(plan.save(nowhere)),
        format!("writing {nowhere} {missing}")
    );
}

#[test]
fn ranks_and_what_they_do_not_hold() {
    let trace = mlp_trace(3, 4);
    let plan = Plan::auto(&trace, &Machine::local(3).unwrap()).unwrap();
    assert_eq!(plan.ranks(), 3);
    assert_eq!(
        text(plan.rank(3)),
        "there is no rank 3: the plan has 3 rank(s), numbered from 0"
    );
    let model = mlp(3, 4);
    let mine = plan.rank(1).unwrap()[0];
    let replay = model.replay(Seed::new(1));
    let of_rank = |path: &str| {
        let options = MaterializeOptions::only(|p| mine.holds(&p.path) || p.path.as_str() == path);
        let module = model.materialize_with(&Device::flex(), &replay, options);
        plan.check_lit(1, &module.unwrap())
    };
    assert_eq!(
        text(of_rank("layers.2.bias")),
        "rank 1 does not hold what it is to use:\n  \
         `layers.0.weight` belongs to rank 0\n  \
         `layers.0.bias` belongs to rank 0\n  \
         `layers.2.weight` belongs to rank 2"
    );
    let whole = model.materialize(&Device::flex(), &replay).unwrap();
    plan.check_lit(1, &whole).unwrap();
    for parameter in trace.parameters().iter() {
        let owner = plan.owner(&parameter.path).unwrap();
        assert!(owner.holds(&parameter.path));
    }
}
