//! Independent products run at the same time, and change no bit.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData, module};
use burn_ir::OperationIr;
use insta::assert_snapshot;
use proptest::prelude::*;
use tinderbox_fake::{DynTensor, NodeId, RecordOptions, ValueId, operation_name, record};

use super::random_programs::{fixed_seed, same_bits};
use super::{data, run, value_of};
use crate::ProgramError;
use crate::program::together::{Worthwhile, bring_together};
use crate::program::{Interpreter, Program, RandomKeys, RandomValues, Step, is_view};

const ALWAYS: Worthwhile = Worthwhile {
    product: 1,
    others: 1,
};

/// The program of a function of three tensors, whose results are its outputs.
fn program(shape: [usize; 2], run: impl Fn([Tensor<2>; 3]) -> Vec<Tensor<2>>) -> Program {
    let options = RecordOptions::like(&Device::flex());
    let ((given, made), recording) = record(&options, |device| {
        let given = [(); 3].map(|()| Tensor::<2>::zeros(shape, device));
        let made = run(given.clone()).into_iter().map(DynTensor::from);
        (given.map(DynTensor::from), made.collect::<Vec<_>>())
    })
    .unwrap();
    let [inputs, outputs] = [&given[..], &made].map(|of| {
        of.iter()
            .map(|fake| value_of(&recording, fake))
            .collect::<Vec<_>>()
    });
    let graph = recording.graph();
    let nodes = graph.backward_slice(outputs.iter().copied(), |value| inputs.contains(&value));
    Program::new(graph, nodes.nodes, &inputs, &outputs, &RandomKeys::new()).unwrap()
}

fn described(program: &Program) -> String {
    let steps = program.steps.iter().map(|step| match step {
        Step::Operation { node, .. } => operation_name(&program.nodes[node.index()].operation),
        Step::Together(count) => format!("together {count}"),
        Step::Free(value) => format!("free %{}", value.id.value()),
        Step::Random(_) => "random".to_owned(),
    });
    steps.collect::<Vec<_>>().join("; ")
}

#[test]
fn queries_keys_and_values_are_computed_together() {
    let attention = |[x, w, v]: [Tensor<2>; 3]| {
        let queries = module::linear(x.clone(), w.clone(), None).tanh();
        let keys = module::linear(x.clone(), v, None).tanh();
        let values = x.matmul(w.transpose());
        vec![queries.matmul(keys.transpose()).matmul(values)]
    };
    // The last two depend on the others. What the second reads last is freed where it was recorded.
    assert_snapshot!(described(&program([128, 128], attention)), @"BaseFloat.SwapDims; together 3; Float.Matmul; Float.Matmul; Float.Matmul; Float.Tanh; free %2; Float.Tanh; free %1; free %0; free %7; BaseFloat.SwapDims; Float.Matmul; Float.Matmul");
    let of_vectors = |inputs: [Tensor<2>; 3]| {
        let [x, w, v] = inputs;
        let x = x.slice([0..1, 0..512]);
        let gate = x.clone().matmul(w).tanh();
        vec![gate * x.matmul(v)]
    };
    assert_snapshot!(described(&program([512, 512], of_vectors)), @"BaseFloat.Slice; together 2; Float.Matmul; Float.Matmul; Float.Tanh; free %3; free %2; NumericFloat.Mul");
}

#[test]
fn products_that_gain_nothing_stay_where_they_are() {
    let two = |[x, w, v]: [Tensor<2>; 3]| vec![x.clone().matmul(w).tanh() * x.matmul(v)];
    for (size, is_moved) in [(32, false), (64, true), (128, true), (192, false)] {
        let steps = described(&program([size, size], two));
        assert_eq!(steps.contains("together"), is_moved, "{size}: {steps}");
    }
    let of_sum =
        |[x, w, v]: [Tensor<2>; 3]| vec![x.clone().matmul(w.clone()).tanh() * x.matmul(w + v)];
    let steps = described(&program([128, 128], of_sum));
    assert!(!steps.contains("together"), "it needs a sum: {steps}");
}

fn tensor(shape: [usize; 2], seed: u64) -> Tensor<2> {
    let count = shape[0] * shape[1];
    let values = (0..count as u64).map(|i| {
        let mixed = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (seed << 17));
        (mixed >> 40) as f32 / (1 << 24) as f32 - 0.5
    });
    let values: Vec<f32> = values.collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// Computes nothing.
struct Nothing;

impl Interpreter for Nothing {
    type Value = ();
    type Error = ProgramError;

    fn constant(&mut self, _: ValueId, _: &TensorData) -> Result<(), ProgramError> {
        Ok(())
    }

    fn operation(
        &mut self,
        operation: &OperationIr,
        _: &[()],
        outputs: &mut Vec<()>,
    ) -> Result<(), ProgramError> {
        outputs.extend(operation.outputs().map(|_| ()));
        Ok(())
    }

    fn random(&mut self, _: RandomValues<'_>) -> Result<(), ProgramError> {
        Ok(())
    }
}

#[test]
fn operations_that_depend_on_each_other_are_refused_together() {
    let chain = |[x, w, v]: [Tensor<2>; 3]| vec![x.matmul(w).matmul(v)];
    let mut program = program([128, 128], chain);
    program.interpret(&mut Nothing, vec![(); 3]).unwrap();
    program.steps.insert(0, Step::Together(2));
    let error = program.interpret(&mut Nothing, vec![(); 3]).unwrap_err();
    assert_snapshot!(error, @"Float.Matmul reads %3, which is not an input, a constant or computed before");
}

/// The operations of a program, and what each may modify in place.
fn operations(program: &Program) -> impl Iterator<Item = (NodeId, Range<u32>)> {
    program.steps.iter().filter_map(|step| match step {
        Step::Operation { node, last_uses } => Some((*node, last_uses.clone())),
        _ => None,
    })
}

/// Operations of square matrices, of which most are products and views.
fn apply(calls: &[(usize, usize, usize)], given: [Tensor<2>; 3]) -> Vec<Tensor<2>> {
    let mut all = Vec::from(given);
    for (operation, x, y) in calls {
        let [x, y] = [x, y].map(|of| all[all.len() - 1 - of % all.len()].clone());
        all.push(match operation {
            0 => x.matmul(y),
            1 => x.matmul(y).clamp(-2.0, 2.0),
            2 => module::linear(x, y, None).clamp(-2.0, 2.0),
            3 | 4 => x.transpose(),
            5 => x * 0.75,
            6 => x + y,
            7 => x.clone() - x.sum_dim(0) * 0.01,
            _ => x.clone() + x.sum().reshape([1, 1]) * 0.001,
        });
    }
    all
}

proptest! {
    #![proptest_config(fixed_seed(300))]

    #[test]
    fn order_and_threads_change_no_bit(
        calls in prop::collection::vec((0..9_usize, 0..6_usize, 0..6_usize), 2..24),
        seed in 0..100_u64,
    ) {
        let shape = [12, 12];
        let recorded = program(shape, |given| apply(&calls, given).split_off(3));
        let mut ordered = recorded.clone();
        bring_together(&mut ordered, ALWAYS);
        let given = || [seed, seed + 1, seed + 2].map(|seed| tensor(shape, seed));
        let inputs = || given().map(DynTensor::from).to_vec();
        let plain = apply(&calls, given()).split_off(3);
        let plain: Vec<DynTensor> = plain.into_iter().map(DynTensor::from).collect();
        let plain = data(&plain);
        prop_assert!(same_bits(&run(&recorded, inputs()), &plain));
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| run(&ordered, inputs()));
            prop_assert!(same_bits(&found, &plain), "{} threads: {}", threads, described(&ordered));
        }
        ordered.interpret(&mut Nothing, vec![(); 3]).unwrap();
        let before: BTreeMap<_, _> = operations(&recorded).collect();
        for (node, last_uses) in operations(&ordered) {
            let operation = &ordered.nodes[node.index()].operation;
            let may_move = is_view(operation) || operation_name(operation).contains("Matmul");
            prop_assert!(last_uses == before[&node] || (may_move && last_uses.is_empty()));
        }
    }
}
