//! Every schedule of two models is certified, and every mutation of one is refused.

mod carried;
mod lists;
mod models;
mod programs;

use burn::tensor::TensorData;
use tinderbox_deferred::RandomKeys;
use tinderbox_fake::{Graph, GraphBuilder, Node, NodeId, ValueId};

use super::refused::Result;
use super::{CertifiedPrograms, CertifiedStep, certify_lists, certify_programs};
use crate::CertifyError;
use crate::cut::{Cutting, Phase, StagePrograms};
use crate::lists::StepLists;
use crate::schedule::{Compute, Dependencies, Schedule, lower};
use crate::sum::Groups;
use crate::trace::JointGraph;
use models::Model;

/// Cuts a graph of a model into the programs of every stage.
fn programs(model: &Model, joint: &JointGraph, recompute: bool) -> Vec<StagePrograms> {
    let mut layout = model.layout.clone();
    layout.recompute.fill(recompute);
    let cutting = Cutting::new(joint, &layout).unwrap();
    StagePrograms::of_stages(joint, &cutting, &layout).unwrap()
}

fn phase(programs: &mut StagePrograms, compute: Compute) -> &mut Phase {
    programs.phases[compute.slot()].as_mut().unwrap()
}

/// Compares programs with the model's own graph.
fn certified(model: &Model, stages: &[StagePrograms]) -> Result<CertifiedPrograms> {
    certify_programs(&model.joint, stages.to_vec(), &model.layout.ranks)
}

/// Lowers a schedule of compute actions.
fn lowered(model: &Model, stages: &[StagePrograms], compute: &Schedule, norm: bool) -> Schedule {
    let edges = stages.iter().flat_map(|one| one.sends.keys().copied());
    let dependencies = Dependencies::new(stages.len(), edges, model.layout.ties());
    match norm {
        true => lower(compute, &dependencies.with_global_norm()),
        false => lower(compute, &dependencies),
    }
}

/// Runs lists in which every micro-batch has the same programs.
fn run(model: &Model, stages: &[StagePrograms], schedule: &Schedule, norm: bool) -> Result<()> {
    let programs = certified(model, stages).unwrap();
    let each = vec![&programs; schedule.micro_batches];
    run_each(model, each, schedule, norm)
}

fn run_each(
    model: &Model,
    micro_batches: Vec<&CertifiedPrograms>,
    schedule: &Schedule,
    global_norm: bool,
) -> Result<()> {
    certify_lists(&CertifiedStep {
        replicas: vec![(&StepLists::of(schedule.clone()), 0)],
        groups: Groups {
            micro_batches: micro_batches.len(),
            groups: 1,
        },
        micro_batches,
        table: model.joint.table(),
        layout: &model.layout,
        global_norm,
    })
}

/// The text of an error with its cause.
fn text(error: &CertifyError) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// A model's graph in which one operation is another, or reads other values.
fn changed(joint: &JointGraph, at: NodeId, operation: &Node, inputs: &[ValueId]) -> JointGraph {
    let change = |id| (id == at).then_some((operation, inputs));
    rebuilt(joint, change, |data| data)
}

/// A model's graph with changed operations, rebuilt node by node with the same ids.
fn rebuilt<'a>(
    joint: &JointGraph,
    change: impl Fn(NodeId) -> Option<(&'a Node, &'a [ValueId])>,
    constant: impl Fn(TensorData) -> TensorData,
) -> JointGraph {
    let graph = joint.graph();
    let mut builder = GraphBuilder::new();
    for value in graph.value_ids() {
        let known = graph.value(value);
        match graph.constant(value) {
            Some(data) => builder.constant(constant(data.clone())),
            None => builder.declare(known.shape.clone(), known.dtype),
        };
    }
    for id in graph.node_ids() {
        let node = graph.node(id);
        let (operation, inputs) = change(id).unwrap_or((node, node.inputs()));
        builder.copy(&operation.operation, inputs, node.outputs());
    }
    let rebuilt: Graph = builder.finish().unwrap();
    assert!(rebuilt != *graph, "the graph was not changed");
    joint.with(rebuilt, joint.keys().clone())
}

/// The same graph with other keys.
fn rekeyed(joint: &JointGraph, change: impl Fn(&mut RandomKeys)) -> JointGraph {
    let mut keys = joint.keys().clone();
    change(&mut keys);
    assert!(keys != *joint.keys(), "the keys were not changed");
    joint.with(joint.graph().clone(), keys)
}
