//! Mutations of programs that carry tensors of the batch.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use insta::assert_snapshot;
use tinderbox_deferred::Deferred;

use super::models::Model;
use super::{CertifiedPrograms, Result, certified, lowered, phase, programs, run_each, text};
use crate::cut::{Phase, StagePrograms};
use crate::schedule::{Compute, RankIndex, forward_only_on};
use crate::{Carried, Cut, Outputs, Traceable};

type Row = (Tensor<2>, Carried<[Tensor<2>; 3]>);

/// A chain in two stages, which adds to the first tensor in its first stage, and to the second in its last; the
/// third is replaced in the first stage without being read.
fn chain() -> Model {
    let x = || Tensor::<2>::zeros([1, 3], &Device::flex());
    let model = Deferred::new(|device: &Device| -> Vec<Linear> {
        let layer = || LinearConfig::new(3, 3).init(device);
        (0..4).map(|_| layer()).collect()
    });
    let forward = |layers: &Vec<Linear>, (x, Carried([first, last, _])): Row| {
        let x = layers[0].forward(x);
        let first = first + x.clone();
        let y = layers[3].forward(layers[2].forward(layers[1].forward(first.clone())));
        let last = last + y;
        let outputs = Outputs::none().with("y", last.clone());
        outputs.carry([first, last, x])
    };
    let batch = (x(), Carried([x(), x(), x()]));
    let trace = model.unwrap().trace_forward(&batch, forward).unwrap();
    Model::new("chain", &trace, &[Cut::before("2")])
}

/// Runs two micro-batches.
fn run_two(chain: &Model, programs: &CertifiedPrograms) -> Result<()> {
    let compute = forward_only_on(&[0, 1].map(RankIndex::new), 2);
    let lists = lowered(chain, &programs.stages, &compute, false);
    run_each(chain, vec![programs; 2], &lists, false)
}

fn forward(stage: &mut StagePrograms) -> &mut Phase {
    phase(stage, Compute::Forward)
}

#[test]
fn each_stage_replaces_what_it_reads() {
    let chain = chain();
    let mut stages = programs(&chain, &chain.joint, false);
    assert_eq!(forward(&mut stages[0]).carried, [1, 3]);
    assert_eq!(forward(&mut stages[1]).carried, [2]);
    run_two(&chain, &certified(&chain, &stages).unwrap()).unwrap();
}

#[test]
fn another_value_of_a_carried_tensor_is_refused() {
    let chain = chain();
    let refused = |change: fn(&mut Vec<usize>)| {
        let mut stages = programs(&chain, &chain.joint, false);
        change(&mut forward(&mut stages[0]).carried);
        text(&certified(&chain, &stages).unwrap_err())
    };
    assert_snapshot!(refused(|carried| carried[0] = 2), @"rank 0, stage 0, program F: the new value of tensor `1.1` of the batch is bound to %15 of NumericFloat.Add, expected %25 of NumericFloat.Add");
    assert_snapshot!(refused(|carried| carried.swap(0, 1)), @"rank 0, stage 0, program F: the new value of tensor `1.2` of the batch is bound to %15 of NumericFloat.Add, expected %14 of NumericFloat.Add");
    assert_snapshot!(refused(|carried| carried[1] = 0), @"rank 0, stage 0, program F: the new value of tensor `0` of the batch is bound to %14 of NumericFloat.Add, expected no value of the model");
    assert_snapshot!(refused(Vec::clear), @"rank 0, stage 0, program F: the number of bound outputs is 1, expected 3");
}

#[test]
fn a_carried_tensor_that_is_not_replaced_is_refused() {
    let chain = chain();
    let stages = programs(&chain, &chain.joint, false);
    let certified = certified(&chain, &stages).unwrap();
    let refused = |stage: usize, change: fn(&mut Vec<usize>)| {
        let mut programs = certified.clone();
        change(&mut forward(&mut programs.stages[stage]).carried);
        text(&run_two(&chain, &programs).unwrap_err())
    };
    assert_snapshot!(refused(0, |carried| carried.retain(|at| *at != 1)), @"rank 0, stage 0, micro-batch 0, action 0F0: found no new value, expected the new value of tensor 1 of the batch from the stage that reads it");
    assert_snapshot!(refused(0, |carried| carried.retain(|at| *at != 3)), @"rank 0, stage 0, micro-batch 0, end of the step: found none, expected a new value of tensor 3 of the batch");
    assert_snapshot!(refused(1, Vec::clear), @"rank 1, stage 1, micro-batch 0, action 1F0: found no new value, expected the new value of tensor 2 of the batch from the stage that reads it");
    assert_snapshot!(refused(1, |carried| carried.push(2)), @"rank 1, stage 1, micro-batch 0, action 1F0: found a second one, expected one new value of tensor 2 of the batch");
}
