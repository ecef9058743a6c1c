//! Errors of creating and using plans, with their full text.

use std::error::Error;
use std::fmt::Debug;

use burn::tensor::{Device, Tensor};
use serde_json::{Value, json};
use tinderbox_deferred::{MaterializeOptions, random::Seed};
use tinderbox_pipeline::planner::PlanFileError;
use tinderbox_pipeline::schedule::{Placement, ScheduleKind};
use tinderbox_pipeline::{
    Cut, Machine, Outputs, Partitioner, Pipeline, Plan, PlanError, Planner, Traceable,
    check_materialized, check_model,
};
use tinderbox_pipeline_tests::{floats, full_text};

use crate::models::{Mlp, gpt_trace, mlp, mlp_trace};

fn text<T: Debug, E: Error + 'static>(result: Result<T, E>) -> String {
    full_text(&result.unwrap_err())
}

#[test]
fn wrong_cuts() {
    let gpt = gpt_trace(2, 3);
    for (cuts, expected) in [
        (
            vec![Cut::before("blocks.7.attention")],
            "no parameter is in module `blocks.7.attention`; the nearest are \
             `blocks.1.attention`, `blocks.0.attention`, `blocks`; mark a place without parameters by \
             `tinderbox::fake::mark` in the forward",
        ),
        (
            vec![Cut::after("decoder")],
            "no parameter is in module `decoder`; the nearest are `head`, `blocks`, \
             `norm`; mark a place without parameters by `tinderbox::fake::mark` in the forward",
        ),
        (
            vec![Cut::before("tokens")],
            "the cut before `tokens` leaves stage 0 without operations: it is at the beginning or the end of the forward, or at the position of another cut",
        ),
        (
            vec![Cut::before("blocks.1"), Cut::after("head")],
            "the cut after `head` leaves stage 2 without operations: it is at the beginning or the end of the forward, or at the position of another cut",
        ),
        (
            vec![Cut::before("blocks.1"), Cut::after("blocks.0")],
            "the cut after `blocks.0` is not after the cut before `blocks.1`: list each cut once, in the order of the forward",
        ),
        (
            vec![Cut::before("head"), Cut::before("blocks.1")],
            "the cut before `blocks.1` is not after the cut before `head`: list each cut once, in the order of the forward",
        ),
        (
            vec![Cut::mark(0)],
            "mark 0 does not exist: the forward has 0 mark(s), numbered from 0; add one with `tinderbox::fake::mark`",
        ),
    ] {
        assert_eq!(text(gpt.plan_at(&cuts)), expected);
    }
}

/// A schedule that was chosen is not replaced by another.
#[test]
fn schedules_that_do_not_fit_the_stages() {
    let gpt = gpt_trace(2, 4);
    let machine = |chunks, placement| {
        let machine = Machine::local(2).unwrap();
        machine.with_chunks(chunks, placement).unwrap()
    };
    let planned = |machine: &Machine, kind| Planner::new(&gpt, machine).schedule(kind).plan();
    let one = machine(1, Placement::Loop);
    assert_eq!(
        text(planned(&one, ScheduleKind::Zbv)),
        "zbv does not fit stages on ranks 0, 1: it has two stages per rank, placed in a V (`Placement::V`), so create \
         the machine with `with_chunks`, or choose another schedule"
    );
    let error = planned(&machine(2, Placement::V), ScheduleKind::Interleaved1F1B).unwrap_err();
    assert!(matches!(error, PlanError::ScheduleStages { .. }), "{error}");
    planned(&machine(2, Placement::V), ScheduleKind::Zbv).unwrap();
    for searches in [Partitioner::Mixed, Partitioner::Auto] {
        let planner = Planner::new(&gpt, &one).schedule(ScheduleKind::Zbv);
        planner.partitioner(searches).plan().unwrap();
    }
}

/// The forward reads nothing of the second layer.
#[test]
fn a_cut_at_a_module_without_operations() {
    let skips = |net: &Mlp, x: Tensor<2>| {
        let x = net.layers[0].forward(x);
        Outputs::loss(net.layers[2].forward(x).mean())
    };
    let example = floats([4, 8], 0, &Device::flex());
    let trace = mlp(3, 8).trace(&example, 1, skips).unwrap();
    assert_eq!(
        text(trace.plan_at(&[Cut::after("layers.1")])),
        "no operation belongs to `layers.1`: the forward reads none of its parameters; cut at another \
         module, or call `tinderbox::fake::mark` in the forward"
    );
}

#[test]
fn too_many_stages_and_none() {
    let trace = mlp_trace(3, 4, 40);
    assert_eq!(
        text(trace.plan(&Machine::local(40).unwrap())),
        "40 stages were requested, but the model can be cut into at most 8"
    );
    assert_eq!(
        full_text(&Machine::local(0).unwrap_err()),
        "a plan needs at least one rank"
    );
}

/// A plan file of two stages, edited manually, and the errors.
#[test]
fn wrong_files() {
    let trace = mlp_trace(3, 4, 2);
    let table = trace.parameters();
    let plan = trace.plan_at(&[Cut::before("layers.1")]).unwrap();
    let edited = |place: &str, value: Value| {
        let mut json: Value = serde_json::from_str(&plan.to_json()).unwrap();
        *json.pointer_mut(place).unwrap() = value;
        let plan = Plan::from_json(&json.to_string());
        let plan = plan.map_err(PlanError::from);
        text(plan.and_then(|plan| check_model(&plan, table)))
    };
    let first = "/stages/1/parameters/0";
    assert_eq!(plan.stages[1].parameters[0].as_str(), "layers.1.weight");
    for (place, value, expected) in [
        (
            "/version",
            json!(1),
            "the plan has version 1 and this build reads versions 2 to 3: create the plan again",
        ),
        (
            "/version",
            json!(4),
            "the plan has version 4 and this build reads versions 2 to 3: create the plan again",
        ),
        (
            "/stages/1/rank",
            json!(5),
            "rank 1 has no stage: the ranks of a plan are numbered from 0 without gaps",
        ),
        (
            first,
            json!("layers.1.weigth"),
            "the plan contains `layers.1.weigth`, which the model does not have; the nearest are \
             `layers.1.weight`, `layers.1.bias`",
        ),
        (
            first,
            json!("layers.0.weight"),
            "stages 0 and 1 both own `layers.0.weight`",
        ),
        (
            first,
            json!("layers.1.bias"),
            "stage 1 lists `layers.1.bias` twice",
        ),
        (
            "/stages/1/parameters",
            json!(["layers.1.bias", "layers.2.weight", "layers.2.bias"]),
            "no stage owns `layers.1.weight`",
        ),
        (
            "/stages/0/replicas",
            json!(["layers.0.bias"]),
            "stage 0 lists `layers.0.bias` both as a parameter and as a copy",
        ),
        (
            "/stages/0/replicas",
            json!(["layers.0.norm"]),
            "the plan contains `layers.0.norm`, which the model does not have; the nearest are \
             `layers.0.bias`, `layers.0.weight`",
        ),
    ] {
        assert_eq!(edited(place, value), expected, "{place}");
    }
    for field in ["\"version\": 3,", "\"stages\": ["] {
        let renamed = plan.to_json().replacen(field, &field.replace("s", "z"), 1);
        let found = text(Plan::from_json(&renamed));
        assert!(found.contains("missing field `"), "{field}: {found}");
    }
    check_model(&plan, table).unwrap();
    let mut divided = plan;
    divided.step.shards = 2;
    let expected = "the plan divides every stage into 2 shards, and this version runs no shards: create the plan with one shard";
    assert_eq!(text(check_model(&divided, table)), expected);
    assert_eq!(text(Plan::from_json(&divided.to_json())), expected);
}

#[test]
fn another_model() {
    let plan = mlp_trace(3, 4, 1).plan_at(&[]).unwrap();
    assert_eq!(
        text(check_model(&plan, mlp_trace(2, 4, 1).parameters())),
        "the plan is for another model: 2 parameters are missing (`layers.2.weight`, \
         `layers.2.bias`); create a plan for this one"
    );
    let wider = text(check_model(&plan, mlp_trace(3, 5, 1).parameters()));
    assert!(
        wider.starts_with(
            "the plan is for another model: 6 parameters are of another shape or dtype \
             (`layers.0.weight`: f32[4, 4] planned, f32[5, 5] found, "
        ),
        "{wider}"
    );
}

/// A parameter that two stages read: the gradient is summed on the first of them, so no later stage can
/// own it.
#[test]
fn a_shared_parameter_whose_owner_is_not_its_first_reader() {
    let model = mlp(3, 8);
    let twice = |net: &Mlp, x: Tensor<2>| {
        let x = net.layers[0].forward(x);
        let x = net.layers[1].forward(x);
        Outputs::loss(net.layers[0].forward(x).mean())
    };
    let trace = model.trace(&floats([8, 8], 0, &Device::flex()), 2, twice);
    let trace = trace.unwrap();
    let plan = trace.plan_at(&[Cut::before("layers.1")]).unwrap();
    check_model(&plan, trace.parameters()).unwrap();
    let mut json: Value = serde_json::from_str(&plan.to_json()).unwrap();
    let mut move_all = |from: &str, to: &str, path: &str| {
        let list = json.pointer_mut(from).unwrap().as_array_mut().unwrap();
        list.retain(|other| other != path);
        let list = json.pointer_mut(to).unwrap().as_array_mut().unwrap();
        list.push(json!(path));
    };
    let path = "layers.0.weight";
    move_all("/stages/0/parameters", "/stages/0/replicas", path);
    move_all("/stages/1/replicas", "/stages/1/parameters", path);
    let edited = Plan::from_json(&json.to_string()).unwrap();
    let expected = "stage 1 owns `layers.0.weight`, and stage 0 before it holds a copy: gradients go from later stages to \
                    earlier ones, so the first stage that reads a parameter must own it: list it among the parameters of \
                    stage 0 and among the copies of stage 1, or create the plan again";
    assert_eq!(text(check_model(&edited, trace.parameters())), expected);
    let started = Pipeline::builder(&model, &trace, &edited).start();
    assert_eq!(
        full_text(&started.unwrap_err()),
        format!("the plan can't be used\n{expected}")
    );
}

/// A plan file truncated at any byte is refused without a panic.
#[test]
fn a_truncated_file() {
    let json = mlp_trace(2, 4, 1).plan_at(&[]).unwrap().to_json();
    for length in 0..json.len() - 2 {
        let error = Plan::from_json(&json[..length]).unwrap_err();
        assert!(
            matches!(error, PlanFileError::Json { .. }),
            "{length}: {error}"
        );
    }
}

#[test]
fn missing_files() {
    let plan = mlp_trace(2, 4, 1).plan_at(&[]).unwrap();
    let nowhere = "/nowhere/plan.json";
    let missing = "No such file or directory (os error 2)";
    assert_eq!(
        text(Plan::load(nowhere)),
        format!("the plan file {nowhere} can't be read\n{missing}")
    );
    assert_eq!(
        text(plan.save(nowhere)),
        format!("the plan file {nowhere} can't be written\n{missing}")
    );
}

#[test]
fn ranks_and_parameters_that_they_do_not_hold() {
    let trace = mlp_trace(3, 4, 3);
    let plan = trace
        .plan_at(&["layers.1", "layers.2"].map(Cut::before))
        .unwrap();
    assert_eq!(plan.ranks(), 3);
    assert_eq!(
        text(plan.rank(3)),
        "rank 3 does not exist: the plan has 3 ranks, numbered from 0"
    );
    let model = mlp(3, 4);
    let mine = plan.rank(1).unwrap()[0];
    let initializer = model.initializer(Seed::new(1));
    let of_rank = |path: &str| {
        let options = MaterializeOptions::on(&Device::flex());
        let options = options.only(|p| mine.holds(&p.path) || p.path.as_str() == path);
        let module = model.materialize(options, &initializer);
        check_materialized(&plan, 1, &module.unwrap())
    };
    assert_eq!(
        text(of_rank("layers.2.bias")),
        "rank 1 does not hold these parameters of the module:\n  \
         `layers.0.weight` belongs to rank 0\n  \
         `layers.0.bias` belongs to rank 0\n  \
         `layers.2.weight` belongs to rank 2"
    );
    let whole = model.materialize(&Device::flex(), &initializer).unwrap();
    check_materialized(&plan, 1, &whole).unwrap();
    for parameter in trace.parameters().iter() {
        let owner = plan.owner(&parameter.path).unwrap();
        assert!(owner.holds(&parameter.path));
    }
}
