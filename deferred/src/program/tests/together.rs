//! Independent products run at the same time, and change no bit.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Device, Distribution, Tensor, TensorData, module};
use insta::assert_snapshot;
use proptest::prelude::*;
use tinderbox_fake::{DynTensor, NodeId, RecordOptions, record};

use super::interpret::Count;
use super::random_programs::{fixed_seed, same_bits};
use super::{data, run, values_of};
use crate::program::together::{Worthwhile, bring_together};
use crate::program::{Program, RandomKey, Step, Together, is_random, is_view};
use crate::random::Domain;

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
    let [inputs, outputs] = [&given[..], &made].map(|of| values_of(&recording, of));
    let graph = recording.graph();
    let nodes = graph.backward_slice(outputs.iter().copied(), |value| inputs.contains(&value));
    let random = graph.node_ids().filter(|node| is_random(graph.node(*node)));
    let keys = random.map(|node| {
        let key = RandomKey {
            domain: Domain::Forward,
            owner: node.to_string(),
            draw: 0,
        };
        (node, key)
    });
    Program::new(graph, nodes.nodes, &inputs, &outputs, &keys.collect()).unwrap()
}

fn described(program: &Program) -> String {
    let steps = program.steps.iter().map(|step| match step {
        Step::Operation { node, .. } => program.nodes[node.index()].name(),
        Step::Together(together) => format!("{} together", together.operations.len()),
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
    // The last two depend on the others. The values that the second reads last are freed where it was recorded.
    assert_snapshot!(described(&program([128, 128], attention)), @"BaseFloat.SwapDims; 3 together; Float.Tanh; free %2; Float.Tanh; free %1; free %0; free %7; BaseFloat.SwapDims; Float.Matmul; Float.Matmul");
    let of_vectors = |inputs: [Tensor<2>; 3]| {
        let [x, w, v] = inputs;
        let x = x.slice([0..1, 0..512]);
        let gate = x.clone().matmul(w).tanh();
        vec![gate * x.matmul(v)]
    };
    assert_snapshot!(described(&program([512, 512], of_vectors)), @"BaseFloat.Slice; 2 together; Float.Tanh; free %3; free %2; NumericFloat.Mul");
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
    let of_random = |[x, w, v]: [Tensor<2>; 3]| {
        let device = x.device();
        let first = x.matmul(w);
        let random = Tensor::<2>::random([128, 128], Distribution::Default, &device);
        vec![first * random.matmul(v)]
    };
    for (steps, needs) in [
        (described(&program([128, 128], of_sum)), "a sum"),
        (described(&program([128, 128], of_random)), "a draw"),
    ] {
        assert!(!steps.contains("together"), "it needs {needs}: {steps}");
    }
}

/// Results that exist early are in memory only up to a limit: each product that moves gets its bytes back where it was
/// recorded.
#[test]
fn few_bytes_are_early_at_a_time() {
    let many = |[x, _, _]: [Tensor<2>; 3]| {
        let wide = x.clone().slice([0..64, 0..64]);
        let mut chain = wide.clone();
        let chain: Vec<_> = (0..20)
            .map(|_| {
                chain = chain.clone().matmul(wide.clone());
                chain.clone()
            })
            .collect();
        let others = (0..40).map(|at| {
            let rows = x.clone().slice([at..at + 64, 0..64]);
            rows.matmul(x.clone().slice([0..64, 0..1024]))
        });
        chain.into_iter().chain(others).collect()
    };
    let recorded = program([1024, 1024], many);
    let mut moved: Vec<NodeId> = Vec::new();
    let mut most = 0;
    for step in &recorded.steps {
        let Step::Together(together) = step else {
            continue;
        };
        let mut nodes = together.operations.iter().map(|(node, _)| *node);
        let first = nodes.next().unwrap();
        moved.extend(nodes);
        // The results of products that were recorded after this one.
        let early = moved.iter().filter(|node| **node > first).flat_map(|node| {
            let results = recorded.nodes[node.index()].operation.outputs();
            results.map(|result| 4 * result.shape.num_elements())
        });
        most = most.max(early.sum());
    }
    assert!((1..=1 << 20).contains(&most), "{most} B");
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

#[test]
fn operations_that_depend_on_each_other_are_refused_together() {
    let chain = |[x, w, v]: [Tensor<2>; 3]| vec![x.matmul(w).matmul(v)];
    let mut program = program([128, 128], chain);
    program.interpret(&mut Count, vec![0; 3]).unwrap();
    let operations = operations(&program).collect();
    program.steps = vec![Step::Together(Box::new(Together { operations }))];
    let error = program.interpret(&mut Count, vec![0; 3]).unwrap_err();
    assert_snapshot!(error, @"Float.Matmul reads %3, which is not available: a program has inputs, constants and results of earlier operations, until they are freed");
}

/// The operations of a program, and what each may modify in place.
fn operations(program: &Program) -> impl Iterator<Item = (NodeId, Range<u32>)> {
    program.steps.iter().flat_map(|step| match step {
        Step::Operation { node, last_uses } => vec![(*node, last_uses.clone())],
        Step::Together(together) => together.operations.clone(),
        Step::Free(_) | Step::Random(_) => Vec::new(),
    })
}

/// The operation of [`apply`] that draws.
const RANDOM: usize = 9;

/// Operations of square matrices; most are products and views.
fn apply(calls: &[(usize, usize, usize)], given: [Tensor<2>; 3]) -> Vec<Tensor<2>> {
    let mut all = Vec::from(given);
    for (operation, x, y) in calls {
        let [x, y] = [x, y].map(|of| all[all.len() - 1 - of % all.len()].clone());
        all.push(match *operation {
            0 => x.matmul(y),
            1 => x.matmul(y).clamp(-2.0, 2.0),
            2 => module::linear(x, y, None).clamp(-2.0, 2.0),
            3 | 4 => x.transpose(),
            5 => x * 0.75,
            6 => x + y,
            7 => x.clone() - x.sum_dim(0) * 0.01,
            RANDOM => Tensor::random(x.shape(), Distribution::Default, &x.device()),
            _ => x.clone() + x.sum().reshape([1, 1]) * 0.001,
        });
    }
    all
}

proptest! {
    #![proptest_config(fixed_seed(300))]

    #[test]
    fn order_and_threads_change_no_bit(
        calls in prop::collection::vec((0..10_usize, 0..6_usize, 0..6_usize), 2..24),
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
        let is_random = calls.iter().any(|(operation, _, _)| *operation == RANDOM);
        let expected = run(&recorded, inputs());
        prop_assert!(is_random || same_bits(&expected, &data(&plain)));
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| run(&ordered, inputs()));
            prop_assert!(same_bits(&found, &expected), "{} threads: {}", threads, described(&ordered));
        }
        ordered.interpret(&mut Count, vec![0; 3]).unwrap();
        let before: BTreeMap<_, _> = operations(&recorded).collect();
        for (node, last_uses) in operations(&ordered) {
            let moved = &ordered.nodes[node.index()];
            let may_move = is_view(&moved.operation) || moved.name().contains("Matmul");
            prop_assert!(last_uses == before[&node] || (may_move && last_uses.is_empty()));
        }
    }
}
