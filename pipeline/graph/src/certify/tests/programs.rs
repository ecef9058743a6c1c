//! Mutations of programs.

use burn::tensor::{Tensor, TensorData};
use tinderbox_deferred::random::Domain;
use tinderbox_fake::{NodeId, RecordOptions, record};

use super::models::{Model, tied, with_dropout};
use super::{certified, changed, phase, programs, rebuilt, rekeyed, text};
use crate::cut::StagePrograms;
use crate::schedule::Compute;
use crate::trace::JointGraph;

fn refused(model: &Model, stages: &[StagePrograms]) -> String {
    text(&certified(model, stages).unwrap_err())
}

/// The node that sums the gradient of the parameter that two stages read.
fn sum_of_tie(joint: &JointGraph) -> NodeId {
    let gradient = joint.gradients()[0].unwrap();
    let producer = joint.graph().value(gradient).producer.unwrap();
    assert_eq!(joint.graph().node(producer).name(), "NumericFloat.Add");
    producer
}

#[test]
fn unchanged_programs_are_certified() {
    for recompute in [false, true] {
        for model in [with_dropout(3), tied(3)] {
            let stages = programs(&model, &model.joint, recompute);
            certified(&model, &stages).unwrap();
        }
    }
}

#[test]
fn a_swapped_operand() {
    let model = with_dropout(3);
    let graph = model.joint.graph();
    let is_matmul = |id: &NodeId| graph.node(*id).name() == "Float.Matmul";
    let first = graph.node_ids().find(is_matmul).unwrap();
    let product = graph.node(first);
    let (lhs, rhs) = (product.inputs()[0], product.inputs()[1]);
    let joint = changed(&model.joint, first, product, &[rhs, lhs]);
    let stages = programs(&model, &joint, false);
    insta::assert_snapshot!(refused(&model, &stages), @"rank 0, stage 0, program F: %19, at parameter `layers.0.weight`, is computed by Float.Matmul() -> f32[2, 3] of %0 f32[3, 3], %18 f32[2, 3], expected Float.Matmul() -> f32[2, 3] of %18 f32[2, 3], %0 f32[3, 3]");
}

#[test]
fn a_dropped_part_of_a_sum() {
    let model = tied(3);
    let sum = sum_of_tie(&model.joint);
    let scalar = record(&RecordOptions::default(), |device| {
        let _ = Tensor::<2>::zeros([3, 3], device) + 0.0;
    });
    let scalar = scalar.unwrap().1.into_graph();
    let lhs = model.joint.graph().node(sum).inputs()[0];
    let joint = changed(&model.joint, sum, &scalar.nodes()[1], &[lhs]);
    let stages = programs(&model, &joint, false);
    insta::assert_snapshot!(refused(&model, &stages), @"rank 0, stage 0, program B: %129, at the gradient of parameter `embed.weight`, is computed by NumericFloat.AddScalar(Float(0.0)) -> f32[3, 3] of %128 f32[3, 3], expected NumericFloat.Add() -> f32[3, 3] of %128 f32[3, 3], %118 f32[3, 3]");
}

#[test]
fn a_sum_in_another_order() {
    let model = tied(3);
    let sum = sum_of_tie(&model.joint);
    let add = model.joint.graph().node(sum);
    let (lhs, rhs) = (add.inputs()[0], add.inputs()[1]);
    let joint = changed(&model.joint, sum, add, &[rhs, lhs]);
    let stages = programs(&model, &joint, false);
    insta::assert_snapshot!(refused(&model, &stages), @"rank 0, stage 0, program B: %129, at the gradient of parameter `embed.weight`, is computed by NumericFloat.Add() -> f32[3, 3] of %118 f32[3, 3], %128 f32[3, 3], expected NumericFloat.Add() -> f32[3, 3] of %128 f32[3, 3], %118 f32[3, 3]");
}

/// The forward draws its mask correctly, and the backward draws it again with another key.
#[test]
fn another_random_key_where_a_mask_is_drawn_again() {
    let model = with_dropout(3);
    let other = |change: fn(&mut tinderbox_deferred::RandomKey)| {
        let joint = rekeyed(&model.joint, |keys| {
            let mut masks = keys.values_mut().filter(|k| k.domain == Domain::Forward);
            // A mask of the second stage.
            change(masks.nth(3).unwrap());
        });
        let mut stages = programs(&model, &model.joint, false);
        let changed = programs(&model, &joint, false).remove(1);
        stages[1].phases[1..].clone_from_slice(&changed.phases[1..]);
        refused(&model, &stages)
    };
    insta::assert_snapshot!(other(|key| key.owner = "99".into()), @"rank 1, stage 1, program B: %44, at module `layers.3`, is computed by draw 0 of random operation 99 of the forward, Bernoulli(0.5) of [2, 3], expected draw 0 of random operation 3 of the forward, Bernoulli(0.5) of [2, 3]");
    insta::assert_snapshot!(other(|key| key.draw = 1), @"rank 1, stage 1, program B: %44, at module `layers.3`, is computed by draw 1 of random operation 3 of the forward, Bernoulli(0.5) of [2, 3], expected draw 0 of random operation 3 of the forward, Bernoulli(0.5) of [2, 3]");
}

#[test]
fn a_wrong_constant() {
    let model = with_dropout(3);
    let zeros = |data: TensorData| match data.shape().as_slice() == [1, 3] {
        // Equal as a number, but not as a divisor.
        true => TensorData::new(vec![1.0_f32, -0.0, 3.0], [1, 3]),
        false => data,
    };
    let stages = programs(&model, &rebuilt(&model.joint, |_| None, zeros), false);
    insta::assert_snapshot!(refused(&model, &stages), @"rank 0, stage 0, program F: %17 is other data f32[1, 3], expected constant %17 f32[1, 3]");
}

#[test]
fn an_output_bound_to_another_value() {
    let model = with_dropout(3);
    let mut stages = programs(&model, &model.joint, false);
    let outputs = &mut phase(&mut stages[1], Compute::Forward).outputs;
    let (first, second) = (outputs[0].0, outputs[1].0);
    (outputs[0].0, outputs[1].0) = (second, first);
    insta::assert_snapshot!(refused(&model, &stages), @"rank 1, stage 1, program F: an output is bound to %35 of NumericFloat.Add, expected %39 of NumericFloat.MulScalar");

    let mut stages = programs(&model, &model.joint, false);
    let gradients = &mut phase(&mut stages[1], Compute::Backward).gradients;
    gradients.swap(0, 1);
    insta::assert_snapshot!(refused(&model, &stages), @"rank 1, stage 1, program B: the gradient of parameter `layers.2.bias` is bound to %131 of Float.Matmul, expected %151 of BaseFloat.Reshape");

    let mut stages = programs(&model, &model.joint, false);
    stages[2].outputs[0].1 = stages[2].loss.unwrap();
    insta::assert_snapshot!(refused(&model, &stages), @"rank 2, stage 2, results: output `y` is bound to %75 of NumericFloat.Mean, expected %74 of NumericFloat.MulScalar");
}

#[test]
fn an_input_bound_to_another_value() {
    let model = with_dropout(3);
    let mut stages = programs(&model, &model.joint, false);
    let inputs = &mut phase(&mut stages[1], Compute::Forward).inputs;
    inputs.swap(0, 1);
    insta::assert_snapshot!(refused(&model, &stages), @"rank 1, stage 1, program F: an input is bound to parameter `layers.2.bias`, expected parameter `layers.2.weight`");
}

/// A gradient that a program computes and that is never added.
#[test]
fn a_gradient_that_is_not_bound() {
    let model = with_dropout(3);
    let mut stages = programs(&model, &model.joint, false);
    let weight = phase(&mut stages[1], Compute::WeightGradient);
    weight.gradients.pop().unwrap();
    insta::assert_snapshot!(refused(&model, &stages), @"rank 1, stage 1, program W: the number of bound outputs is 5, expected 6");
}
