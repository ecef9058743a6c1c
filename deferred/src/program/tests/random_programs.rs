//! Random programs: shared values, views, values read twice, in-place modifications, several
//! outputs, unread outputs.

use std::cell::Cell;
use std::fmt;

use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, TensorData, activation, module};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tinderbox_fake::{DynTensor, RecordOptions, Recording, ValueId, record};

use super::{data, run, values_of, without_liveness};
use crate::ProgramError;
use crate::program::{Executor, Program, RandomKeys, RunContext};
use crate::random::Seed;

/// The operands of an operation: two floats, integers and bools of any small shapes, and a number.
struct Operands {
    x: Tensor<2>,
    y: Tensor<2>,
    ints: Tensor<2, Int>,
    bools: Tensor<2, Bool>,
    number: usize,
}

enum Made {
    Float(Tensor<2>),
    Int(Tensor<2, Int>),
    Bool(Tensor<2, Bool>),
}

type Operation = (&'static str, fn(Operands) -> Vec<Made>);

fn float(tensor: Tensor<2>) -> Vec<Made> {
    vec![Made::Float(tensor)]
}

fn int(tensor: Tensor<2, Int>) -> Vec<Made> {
    vec![Made::Int(tensor)]
}

fn bool(tensor: Tensor<2, Bool>) -> Vec<Made> {
    vec![Made::Bool(tensor)]
}

fn floats(tensors: Vec<Tensor<2>>) -> Vec<Made> {
    tensors.into_iter().map(Made::Float).collect()
}

/// A tensor expanded and sliced to a shape, as a view if possible.
fn fit<K: burn::tensor::kind::Basic>(
    tensor: Tensor<2, K>,
    [rows, columns]: [usize; 2],
) -> Tensor<2, K> {
    let (found, wanted) = (tensor.shape().num_elements(), rows * columns);
    tensor
        .reshape([1, found])
        .expand([wanted.div_ceil(found), found])
        .reshape([1, wanted.div_ceil(found) * found])
        .slice([0..1, 0..wanted])
        .reshape([rows, columns])
}

/// Indices below a size, from any integers.
fn below(ints: Tensor<2, Int>, size: usize) -> Tensor<2, Int> {
    ints.abs().remainder_scalar(size as i64)
}

const OPERATIONS: &[Operation] = &[
    ("add", |o| float(o.x.clone() + fit(o.y, o.x.dims()))),
    ("sub", |o| float(fit(o.y, o.x.dims()) - o.x)),
    ("mul", |o| float(o.x.clone() * fit(o.y, o.x.dims()))),
    ("div", |o| float(o.x.clone() / (fit(o.y, o.x.dims()) + 3.5))),
    ("mul with itself", |o| float(o.x.clone() * o.x)),
    ("matmul", |o| float(o.x.clone().matmul(o.x.transpose()))),
    ("add a row", |o| float(o.x.clone() + o.x.slice_dim(0, 0..1))),
    ("tanh", |o| float(o.x.tanh())),
    ("abs and sqrt", |o| float(o.x.abs().sqrt())),
    ("scale and exp", |o| float((o.x * 0.5).exp())),
    ("transpose", |o| float(o.x.transpose())),
    ("reshape", |o| {
        let [rows, columns] = o.x.dims();
        float(o.x.reshape([columns, rows]))
    }),
    ("flatten", |o| {
        let size = o.x.shape().num_elements();
        float(o.x.reshape([1, size]))
    }),
    ("flip", |o| float(o.x.flip([0, 1]))),
    ("permute", |o| {
        float(o.x.unsqueeze::<3>().permute([2, 0, 1]).squeeze_dim(1))
    }),
    ("slice", |o| {
        let [rows, _] = o.x.dims();
        float(o.x.slice_dim(0, o.number % rows..rows))
    }),
    ("expand", |o| {
        let [rows, columns] = o.x.dims();
        float(o.x.sum_dim(0).expand([rows, columns]))
    }),
    ("slice assign", |o| {
        let row = o.x.clone().slice_dim(0, 0..1);
        let ranges = [0..1, 0..row.dims()[1]];
        float(o.x.clone().slice_assign(ranges, fit(o.y, row.dims())) + o.x)
    }),
    ("slice assign of itself", |o| {
        let row = o.x.clone().slice_dim(0, 0..1);
        let ranges = [0..1, 0..row.dims()[1]];
        float(o.x.slice_assign(ranges, row))
    }),
    ("cat with itself", |o| {
        float(Tensor::cat(vec![o.x.clone(), fit(o.y, o.x.dims()), o.x], 0))
    }),
    ("split", |o| floats(o.x.split(2, o.number % 2))),
    ("chunk", |o| floats(o.x.chunk(2, 0))),
    ("sort with indices", |o| {
        let (sorted, indices) = o.x.sort_with_indices(1);
        vec![Made::Float(sorted), Made::Int(indices)]
    }),
    ("max dim with indices", |o| {
        let (largest, indices) = o.x.max_dim_with_indices(0);
        vec![Made::Float(largest), Made::Int(indices)]
    }),
    ("topk with indices", |o| {
        let (largest, indices) = o.x.topk_with_indices(1, 1);
        vec![Made::Float(largest), Made::Int(indices)]
    }),
    ("argmax", |o| int(o.x.argmax(1))),
    ("cumsum", |o| float(o.x.cumsum(0).clamp(-50.0, 50.0))),
    ("mask where", |o| {
        let (mask, other) = (fit(o.bools, o.x.dims()), fit(o.y, o.x.dims()));
        float(o.x.mask_where(mask, other))
    }),
    ("mask fill", |o| {
        let mask = fit(o.bools, o.x.dims());
        float(o.x.mask_fill(mask, -1.5))
    }),
    ("gather", |o| {
        let [_, columns] = o.x.dims();
        let indices = below(fit(o.ints, o.x.dims()), columns);
        float(o.x.gather(1, indices))
    }),
    ("scatter into itself", |o| {
        let [_, columns] = o.x.dims();
        let indices = below(fit(o.ints, o.x.dims()), columns);
        float(o.x.clone().scatter(1, indices, o.x, IndexingUpdateOp::Add))
    }),
    ("select", |o| {
        let [rows, _] = o.x.dims();
        let indices = below(fit(o.ints, [1, 3]), rows).reshape([3]);
        float(o.x.select(0, indices))
    }),
    ("softmax", |o| {
        float(activation::softmax(o.x.clamp(-9.0, 9.0), 1))
    }),
    ("linear", |o| {
        let [_, columns] = o.x.dims();
        let weight = fit(o.y.clone(), [columns, 3]);
        let bias = fit(o.y, [1, 3]).reshape([3]);
        float(module::linear(o.x, weight, Some(bias)))
    }),
    ("layer norm", |o| {
        let [_, columns] = o.x.dims();
        let gamma = fit(o.y, [1, columns]).reshape([columns]);
        float(module::layer_norm(o.x, gamma.clone(), Some(gamma), 1e-5))
    }),
    ("add ints", |o| int(o.ints.clone() + o.ints.mul_scalar(3))),
    ("shift ints", |o| {
        int(o.ints.abs().bitwise_right_shift_scalar(1).flip([0]))
    }),
    ("to int", |o| int(o.x.clamp(-99.0, 99.0).int())),
    ("to float", |o| float(o.ints.remainder_scalar(97).float())),
    ("cast ints", |o| {
        use burn::tensor::IntDType;
        int(o.ints.clone().cast(IntDType::I64).cast(IntDType::I32) - o.ints)
    }),
    ("compare", |o| {
        bool(o.x.clone().greater(fit(o.y, o.x.dims())))
    }),
    ("compare with itself", |o| bool(o.x.clone().equal(o.x))),
    ("not and or", |o| {
        bool(o.bools.clone().bool_not().bool_or(o.bools.flip([1])))
    }),
];

/// An operation, its operands (indices modulo the pools), and its number.
#[derive(Clone)]
pub(super) struct Call(usize, [usize; 5]);

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", OPERATIONS[self.0].0, self.1)
    }
}

pub(super) fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = (0..OPERATIONS.len(), prop::array::uniform5(0..16_usize));
    let call = call.prop_map(|(operation, reads)| Call(operation, reads));
    prop::collection::vec(call, 1..20)
}

/// Number of tensors of data at the start of a program.
pub(super) const GIVEN: usize = 5;

fn numbers(shape: [usize; 2], seed: u64) -> TensorData {
    let value = |i: u64| ((i.wrapping_mul(2_654_435_761) >> 7) % 2001) as f32 / 1000.0 - 1.0;
    let start = seed.wrapping_mul(977) + shape[1] as u64;
    let count = (shape[0] * shape[1]) as u64;
    let values: Vec<f32> = (0..count).map(|i| value(start.wrapping_add(i))).collect();
    TensorData::new(values, shape)
}

/// All tensors that the calls compute, after the given ones.
pub(super) fn apply(device: &Device, seed: u64, calls: &[Call]) -> Vec<DynTensor> {
    let mut x: Vec<Tensor<2>> = [[3, 4], [1, 5], [4, 2]]
        .map(|shape| Tensor::from_data(numbers(shape, seed), device))
        .into();
    let digits = [[3, -1, 4], [1, -5, seed as i32 % 10]];
    let mut ints: Vec<Tensor<2, Int>> = vec![Tensor::from_data(digits, device)];
    let mut bools: Vec<Tensor<2, Bool>> = vec![Tensor::from_data([[true, false, true]], device)];
    let mut all: Vec<DynTensor> = x.iter().cloned().map(Into::into).collect();
    all.push(ints[0].clone().into());
    all.push(bools[0].clone().into());
    assert_eq!(all.len(), GIVEN);
    for Call(operation, reads) in calls {
        let made = OPERATIONS[*operation].1(Operands {
            x: x[reads[0] % x.len()].clone(),
            y: x[reads[1] % x.len()].clone(),
            ints: ints[reads[2] % ints.len()].clone(),
            bools: bools[reads[3] % bools.len()].clone(),
            number: reads[4],
        });
        for made in made {
            match made {
                Made::Float(tensor) => {
                    all.push(tensor.clone().into());
                    x.push(small(tensor));
                }
                Made::Int(tensor) => {
                    all.push(tensor.clone().into());
                    ints.push(tensor);
                }
                Made::Bool(tensor) => {
                    all.push(tensor.clone().into());
                    bools.push(tensor);
                }
            }
        }
    }
    all
}

/// The tensor, or a corner of it if it is large.
fn small(tensor: Tensor<2>) -> Tensor<2> {
    let [rows, columns] = tensor.dims();
    match rows * columns > 64 {
        true => tensor.slice([0..rows.min(5), 0..columns.min(5)]),
        false => tensor,
    }
}

/// A recording of random calls, and the values of its tensors.
pub(super) fn recorded(seed: u64, calls: &[Call]) -> (Recording, Vec<ValueId>) {
    let options = RecordOptions::like(&Device::flex());
    let (fakes, recording) = record(&options, |d| apply(d, seed, calls)).unwrap();
    let ids = values_of(&recording, &fakes);
    (recording, ids)
}

/// The same cases in every run; a failure prints its shrunk case.
pub(super) fn fixed_seed(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_240_615),
        ..ProptestConfig::default()
    }
}

pub(super) fn same_bits(found: &[TensorData], expected: &[TensorData]) -> bool {
    let bits = |data: &TensorData| (data.dtype(), data.shape().clone(), data.as_bytes().to_vec());
    found.iter().map(bits).eq(expected.iter().map(bits))
}

proptest! {
    #![proptest_config(fixed_seed(400))]

    #[test]
    fn liveness_changes_no_bit(
        seed in 0..1000_u64,
        calls in calls(),
        given in prop::array::uniform5(any::<bool>()),
        kept in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        whole in any::<bool>(),
    ) {
        let expected = data(&apply(&Device::flex(), seed, &calls));
        let kept: Vec<usize> = kept.iter().map(|index| index.index(expected.len())).collect();
        let expected: Vec<TensorData> = kept.iter().map(|k| expected[*k].clone()).collect();
        let (recording, ids) = recorded(seed, &calls);
        let graph = recording.graph();
        let outputs: Vec<ValueId> = kept.iter().map(|k| ids[*k]).collect();
        // Some of the data are inputs, to be consumed; the others are constants.
        let inputs: Vec<ValueId> = (0..GIVEN).filter(|i| given[*i]).map(|i| ids[i]).collect();
        // All operations, including unread ones, or only the ones that the outputs need.
        let nodes = match whole {
            true => graph.node_ids().collect(),
            false => graph.backward_slice(outputs.iter().copied(), |_| false).nodes,
        };
        let program = Program::new(graph, nodes, &inputs, &outputs, &RandomKeys::new()).unwrap();
        let fresh = || -> Vec<DynTensor> {
            let given = inputs.iter().map(|id| graph.constant(*id).unwrap().clone());
            given.map(|data| DynTensor::from_data(data, &Device::flex())).collect()
        };
        let held = fresh();
        let before = data(&held);
        let with = run(&program, held.clone());
        prop_assert!(same_bits(&with, &expected), "Burn: {:?} of {:?}", kept, calls);
        let without = run(&without_liveness(&program), held.clone());
        prop_assert!(same_bits(&with, &without), "without liveness: {:?} of {:?}", kept, calls);
        prop_assert!(same_bits(&data(&held), &before), "inputs of {:?}", calls);
        let alone = run(&program, fresh());
        prop_assert!(same_bits(&alone, &expected), "inputs consumed: {:?} of {:?}", kept, calls);
    }

    #[test]
    fn a_program_stops_before_any_of_its_steps(calls in calls()) {
        let (recording, wanted) = recorded(1, &calls);
        let (graph, keys) = (recording.graph(), RandomKeys::new());
        let program = Program::new(graph, graph.node_ids(), &[], &wanted, &keys).unwrap();
        let executable = Executor::new(&Device::flex()).unwrap().load(program);
        let context = RunContext::initialization(Seed::new(1));
        let run = |most: usize| {
            let checks = Cell::new(0);
            let is_stopped = || checks.replace(checks.get() + 1) == most;
            let result = executable.run_until(Vec::new(), &context, &is_stopped);
            (result, checks.get())
        };
        let (whole, steps) = run(usize::MAX);
        let expected = executable.run(Vec::new(), &context).unwrap();
        prop_assert!(same_bits(&data(&whole.unwrap()), &data(&expected)));
        for most in 0..steps {
            let (stopped, checks) = run(most);
            prop_assert!(matches!(stopped, Err(ProgramError::Stopped)));
            prop_assert_eq!(checks, most + 1);
        }
    }

    #[test]
    fn inputs_may_share_their_data(seed in 0..1000_u64, calls in calls()) {
        let square = |d: &Device| Tensor::<2>::from_data(numbers([4, 4], seed), d);
        let calculate = |x: Tensor<2>, view: Tensor<2>| -> Vec<DynTensor> {
            let mut all = vec![x, view];
            for Call(operation, reads) in &calls {
                let x = all[reads[0] % all.len()].clone();
                let made = OPERATIONS[*operation].1(Operands {
                    ints: x.clone().mul_scalar(9).clamp(-99.0, 99.0).int(),
                    bools: x.clone().greater_scalar(0),
                    y: all[reads[1] % all.len()].clone(),
                    x,
                    number: reads[4],
                });
                all.extend(made.into_iter().filter_map(|made| match made {
                    Made::Float(tensor) => Some(small(tensor)),
                    _ => None,
                }));
            }
            all.into_iter().map(Into::into).collect()
        };
        let x = square(&Device::flex());
        let expected = data(&calculate(x.clone(), x.clone().transpose()));
        let (fakes, recording) = record(&RecordOptions::like(&Device::flex()), |d| {
            calculate(Tensor::zeros([4, 4], d), Tensor::zeros([4, 4], d))
        })
        .unwrap();
        let ids = values_of(&recording, &fakes);
        let (graph, keys) = (recording.graph(), RandomKeys::new());
        let program = Program::new(graph, graph.node_ids(), &ids[..2], &ids[2..], &keys).unwrap();
        // The inputs are a tensor and a view of it, not shared otherwise.
        let found = run(&program, vec![x.clone().into(), x.transpose().into()]);
        prop_assert!(same_bits(&found, &expected[2..]), "{:?}", calls);
    }
}
