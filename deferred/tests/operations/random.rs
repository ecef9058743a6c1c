//! Random operations: a program's values are the values of the counter-based generator, by the operation's key.

use std::collections::BTreeSet;

use burn::tensor::{DType, Device, Distribution, Int, Tensor};
use tinderbox_deferred::random::{DTYPES, Domain, Seed, Stream, generate};
use tinderbox_deferred::{Executor, Program, RandomKey, RandomKeys, RunContext, is_random};
use tinderbox_fake::{DynTensor, RecordOptions, TensorKind, record};

use crate::check::{data, same_bits};
use crate::keys::key;

const DISTRIBUTIONS: [Distribution; 4] = [
    Distribution::Default,
    Distribution::Bernoulli(0.25),
    Distribution::Uniform(3.0, 50.0),
    Distribution::Normal(1.0, 2.0),
];

/// Returns the operations that ran; panics if a program's values are not the generator's.
pub(crate) fn verify() -> BTreeSet<String> {
    let mut ran = BTreeSet::new();
    for dtype in DTYPES {
        for distribution in DISTRIBUTIONS {
            ran.extend(draw(dtype, distribution));
        }
    }
    ran
}

/// A random tensor, and another that is computed from it: it is read and kept.
fn call(drawn: DynTensor) -> Vec<DynTensor> {
    let read = match drawn.kind() {
        TensorKind::Int => {
            let drawn: Tensor<2, Int> = drawn.clone().typed().unwrap();
            DynTensor::from(drawn.bitwise_xor_scalar(5))
        }
        _ => {
            let drawn: Tensor<2> = drawn.clone().typed().unwrap();
            DynTensor::from(drawn.mul_scalar(-2))
        }
    };
    vec![drawn, read]
}

fn draw(dtype: DType, distribution: Distribution) -> BTreeSet<String> {
    const SHAPE: [usize; 2] = [5, 7];
    let device = Device::flex();
    let (fakes, recording) = record(&RecordOptions::like(&device), |d| {
        call(match dtype.is_float() {
            true => Tensor::<2>::random(SHAPE, distribution, (d, dtype)).into(),
            false => Tensor::<2, Int>::random(SHAPE, distribution, (d, dtype)).into(),
        })
    })
    .unwrap();
    let graph = recording.graph();
    let mut outputs = Vec::new();
    for fake in fakes {
        outputs.push(recording.value_of(fake.captured_id().unwrap()).unwrap());
    }
    let mut keys = RandomKeys::new();
    for node in graph.node_ids().filter(|id| is_random(graph.node(*id))) {
        let owner = "some.path".to_owned();
        let (domain, draw) = (Domain::Forward, 3);
        keys.insert(
            node,
            RandomKey {
                domain,
                owner,
                draw,
            },
        );
    }
    assert_eq!(keys.len(), 1);
    let seed = Seed::new(11);
    let context = RunContext {
        seed,
        step: 5,
        micro_batch: 2,
    };
    let program = Program::new(graph, graph.node_ids(), &[], &outputs, &keys).unwrap();
    let executable = Executor::new(&device).unwrap().load(program);
    let found = data(&executable.run(Vec::new(), &context).unwrap());

    let stream = Stream::new(seed, Domain::Forward, "some.path", 3).at(5, 2);
    let generated = generate(&stream, distribution, SHAPE.into(), dtype).unwrap();
    let expected = data(&call(DynTensor::from_data(generated, &device)));
    for (found, expected) in found.iter().zip(&expected) {
        assert!(same_bits(found, expected), "{distribution:?} of {dtype:?}");
    }
    graph
        .nodes()
        .iter()
        .map(|node| key(&node.operation))
        .collect()
}
