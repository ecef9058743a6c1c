//! Mutations of programs that carry tensors of the batch.

use std::sync::Arc;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use insta::assert_snapshot;
use tinderbox_deferred::{Deferred, ParameterTable};

use super::{CertifiedPrograms, CertifiedStep, certify_lists, certify_programs, text};
use crate::CertifyError;
use crate::cut::{Cutting, Layout, Phase, StagePrograms};
use crate::lists::StepLists;
use crate::schedule::{Compute, Dependencies, RankIndex, forward_only_on, lower};
use crate::sum::Groups;
use crate::trace::{JointGraph, Traceable};
use crate::{Carried, Cut, Outputs, Plan};

type Row = (Tensor<2>, Carried<[Tensor<2>; 3]>);

/// A chain in two stages, which adds to the first tensor in its first stage, and to the second in its last; the
/// third is replaced in the first stage without being read.
struct Chain {
    joint: Arc<JointGraph>,
    layout: Layout,
    table: Arc<ParameterTable>,
}

impl Chain {
    fn new() -> Self {
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
        let plan = Plan::manual(&trace, &[Cut::before("2")]).unwrap();
        Self {
            joint: trace.example_program().unwrap(),
            layout: plan.layout(trace.parameters()).unwrap(),
            table: trace.parameters().clone(),
        }
    }

    fn programs(&self) -> Vec<StagePrograms> {
        let cutting = Cutting::new(&self.joint, &self.layout).unwrap();
        StagePrograms::of_stages(&self.joint, &cutting, &self.layout).unwrap()
    }

    fn certified(&self, stages: Vec<StagePrograms>) -> Result<CertifiedPrograms, CertifyError> {
        certify_programs(&self.joint, stages, &self.layout.ranks)
    }

    fn run(&self, programs: &CertifiedPrograms) -> Result<(), CertifyError> {
        let edges = programs.stages.iter().flat_map(|s| s.sends.keys().copied());
        let dependencies = Dependencies::new(2, edges, []);
        let lists = forward_only_on(&[0, 1].map(RankIndex::new), 2);
        certify_lists(&CertifiedStep {
            replicas: vec![(&StepLists::of(lower(&lists, &dependencies)), 0)],
            micro_batches: vec![programs; 2],
            groups: Groups {
                micro_batches: 2,
                groups: 1,
            },
            table: &self.table,
            layout: &self.layout,
            global_norm: false,
        })
    }
}

fn forward(stage: &mut StagePrograms) -> &mut Phase {
    stage.phases[Compute::Forward.slot()].as_mut().unwrap()
}

#[test]
fn each_stage_replaces_what_it_reads() {
    let chain = Chain::new();
    let mut programs = chain.programs();
    assert_eq!(forward(&mut programs[0]).carried, [1, 3]);
    assert_eq!(forward(&mut programs[1]).carried, [2]);
    chain.run(&chain.certified(programs).unwrap()).unwrap();
}

#[test]
fn another_value_of_a_carried_tensor_is_refused() {
    let chain = Chain::new();
    let refused = |change: fn(&mut Vec<usize>)| {
        let mut programs = chain.programs();
        change(&mut forward(&mut programs[0]).carried);
        text(&chain.certified(programs).unwrap_err())
    };
    assert_snapshot!(refused(|carried| carried[0] = 2), @"rank 0, stage 0, program F: the new value of tensor `1.1` of the batch is bound to %15 of NumericFloat.Add, expected %25 of NumericFloat.Add");
    assert_snapshot!(refused(|carried| carried.swap(0, 1)), @"rank 0, stage 0, program F: the new value of tensor `1.2` of the batch is bound to %15 of NumericFloat.Add, expected %14 of NumericFloat.Add");
    assert_snapshot!(refused(|carried| carried[1] = 0), @"rank 0, stage 0, program F: the new value of tensor `0` of the batch is bound to %14 of NumericFloat.Add, expected no value of the model");
    assert_snapshot!(refused(Vec::clear), @"rank 0, stage 0, program F: the number of bound outputs is 1, expected 3");
}

#[test]
fn a_carried_tensor_that_is_not_replaced_is_refused() {
    let chain = Chain::new();
    let refused = |stage: usize, change: fn(&mut Vec<usize>)| {
        let mut programs = chain.certified(chain.programs()).unwrap();
        change(&mut forward(&mut programs.stages[stage]).carried);
        text(&chain.run(&programs).unwrap_err())
    };
    assert_snapshot!(refused(0, |carried| carried.retain(|at| *at != 1)), @"rank 0, stage 0, micro-batch 0, action 0F0: expected the new value of tensor 1 of the batch from the stage that reads it, found no new value");
    assert_snapshot!(refused(0, |carried| carried.retain(|at| *at != 3)), @"rank 0, stage 0, micro-batch 0, end of the step: expected a new value of tensor 3 of the batch, found none");
    assert_snapshot!(refused(1, Vec::clear), @"rank 1, stage 1, micro-batch 0, action 1F0: expected the new value of tensor 2 of the batch from the stage that reads it, found no new value");
    assert_snapshot!(refused(1, |carried| carried.push(2)), @"rank 1, stage 1, micro-batch 0, action 1F0: expected one new value of tensor 2 of the batch, found a second one");
}
