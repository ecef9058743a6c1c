//! Programs return what Burn returns, whatever is shared, reused, kept or dropped.

use burn::nn::DropoutConfig;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use proptest::prelude::*;
use tinderbox_deferred::random::{Domain, Seed};
use tinderbox_deferred::{
    Executor, Program, ProgramError, RandomKey, RandomKeys, RunContext, initialization_keys,
    is_random,
};
use tinderbox_fake::{DynTensor, Graph, Mode, RecordOptions, Recording, ValueId, record};

fn flex() -> Device {
    Device::flex()
}

fn context() -> RunContext {
    RunContext::initialization(Seed::new(7))
}

fn id(recording: &Recording, tensor: impl Into<DynTensor>) -> ValueId {
    let id = tensor.into().captured_id().unwrap();
    recording.value_of(id).unwrap()
}

/// Runs all nodes of a graph.
fn run(
    graph: &Graph,
    inputs: &[ValueId],
    outputs: &[ValueId],
    given: Vec<DynTensor>,
) -> Vec<TensorData> {
    let program =
        Program::new(graph, graph.node_ids(), inputs, outputs, &RandomKeys::new()).unwrap();
    let executable = Executor::new(&flex()).unwrap().load(program);
    let first = executable.run(given.clone(), &context()).unwrap();
    let second = executable.run(given, &context()).unwrap();
    let data = |values: Vec<DynTensor>| -> Vec<TensorData> {
        values.iter().map(|v| v.to_data().unwrap()).collect()
    };
    let first = data(first);
    assert_eq!(data(second), first, "a second run gives the same");
    first
}

/// One operation on a pool of square matrices: its kind, and the matrices that it reads.
#[derive(Clone, Debug)]
struct Op(u8, usize, usize, usize);

const SIDE: usize = 3;
const INPUTS: usize = 3;

/// Runs operations on a growing pool. Tensors without clones are consumed, so that Burn itself
/// works in place where it can.
fn apply(inputs: Vec<Tensor<2>>, ops: &[Op]) -> Vec<Tensor<2>> {
    let mut pool = inputs;
    for Op(kind, a, b, c) in ops {
        let pick = |index: &usize| pool[index % pool.len()].clone();
        let (x, y, z) = (pick(a), pick(b), pick(c));
        pool.push(match kind % 16 {
            0 => x + y,
            1 => x - y,
            2 => x.clone() * x,
            3 => x.matmul(y),
            4 => x.clone().matmul(x.transpose()),
            5 => x.tanh(),
            6 => x.abs().sqrt(),
            7 => x.mask_where(y.greater(z.clone()), z),
            8 => {
                x.clone()
                    .slice([0..2, 0..SIDE])
                    .repeat_dim(0, 2)
                    .slice([1..4, 0..SIDE])
                    + x
            }
            9 => Tensor::cat(vec![x.clone(), y, x], 0).slice([2..2 + SIDE, 0..SIDE]),
            10 => x.clone().sum_dim(1).expand([SIDE, SIDE]) / (y + 3.5),
            11 => {
                x.clone()
                    .slice_assign([0..1, 0..SIDE], y.slice([1..2, 0..SIDE]))
                    + x
            }
            12 => x.select(0, y.argmax(1).reshape([SIDE])),
            13 => x.clone().max_dim(0).expand([SIDE, SIDE]).swap_dims(0, 1),
            14 => burn::tensor::activation::softmax(x.clamp(-9.0, 9.0), 1),
            _ => (x * 0.5).exp().clamp(0.0, 100.0),
        });
    }
    pool
}

fn given(seed: u64) -> Vec<Tensor<2>> {
    let value = |i: u64| ((i.wrapping_mul(2_654_435_761) >> 7) % 2001) as f32 / 1000.0 - 1.0;
    (0..INPUTS as u64)
        .map(|tensor| {
            let start = seed.wrapping_mul(977).wrapping_add(tensor * 31);
            let values: Vec<f32> = (0..9).map(|i| value(start.wrapping_add(i))).collect();
            Tensor::from_data(TensorData::new(values, [SIDE, SIDE]), &flex())
        })
        .collect()
}

fn bits(data: &TensorData) -> Vec<u8> {
    data.as_bytes().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn programs_equal_burn(
        seed in any::<u64>(),
        ops in prop::collection::vec((any::<u8>(), 0..20usize, 0..20usize, 0..20usize), 1..14),
        kept in prop::collection::vec(0..20usize, 1..5),
    ) {
        let ops: Vec<Op> = ops.into_iter().map(|(k, a, b, c)| Op(k, a, b, c)).collect();
        let expected = apply(given(seed), &ops);
        // Outputs: some of the pool, including inputs and repetitions.
        let kept: Vec<usize> = kept.into_iter().map(|k| k % expected.len()).collect();
        let (pool, recording) = record(&RecordOptions::default(), |device| {
            let inputs = (0..INPUTS).map(|_| Tensor::zeros([SIDE, SIDE], device)).collect();
            apply(inputs, &ops)
        })
        .unwrap();
        let ids: Vec<ValueId> = pool.into_iter().map(|t| id(&recording, t)).collect();
        let outputs: Vec<ValueId> = kept.iter().map(|k| ids[*k]).collect();
        let clones = given(seed);
        let before: Vec<TensorData> = clones.iter().map(|t| t.to_data()).collect();
        let values = clones.iter().cloned().map(DynTensor::from).collect();
        let found = run(recording.graph(), &ids[..INPUTS], &outputs, values);
        for (found, kept) in found.iter().zip(&kept) {
            let expected = expected[*kept].to_data();
            prop_assert_eq!(bits(found), bits(&expected), "value {} of {:?}", kept, ops);
            prop_assert_eq!(found.shape(), expected.shape());
        }
        let after: Vec<TensorData> = clones.into_iter().map(|t| t.into_data()).collect();
        prop_assert_eq!(after, before, "the caller's clones are intact");
        // The same without other references to the inputs.
        let program = Program::new(
            recording.graph(), recording.graph().node_ids(), &ids[..INPUTS], &outputs, &RandomKeys::new(),
        ).unwrap();
        let executable = Executor::new(&flex()).unwrap().load(program);
        let alone = given(seed).into_iter().map(DynTensor::from).collect();
        for (alone, found) in executable.run(alone, &context()).unwrap().iter().zip(found) {
            prop_assert_eq!(bits(&alone.to_data().unwrap()), bits(&found));
        }
    }
}

#[test]
fn ints_bools_and_constants() {
    let compute = |device: &Device| {
        let constant = Tensor::<1, Int>::from_ints([3, -1, 4, 1], device);
        let x = Tensor::<1, Int>::arange(0..4, device);
        let sum = constant.clone() * x.clone() + constant.clone();
        let mask = sum.clone().greater_elem(2);
        let float = sum.float().mask_fill(mask.clone(), f32::NEG_INFINITY);
        (mask, float, constant)
    };
    let ((mask, float, constant), recording) =
        record(&RecordOptions::like(&flex()), compute).unwrap();
    let outputs = [
        id(&recording, mask),
        id(&recording, float),
        id(&recording, constant),
    ];
    let found = run(recording.graph(), &[], &outputs, vec![]);
    let (mask, float, constant) = compute(&flex());
    assert_eq!(
        found,
        [mask.into_data(), float.into_data(), constant.into_data()]
    );
}

#[test]
fn only_outputs_are_kept() {
    let ((x, y), recording) = record(&RecordOptions::default(), |d| {
        let x = Tensor::<1>::zeros([4], d);
        let y = x.clone().exp();
        drop(y.clone().log().sqrt());
        (x, y)
    })
    .unwrap();
    let (x, y) = (id(&recording, x), id(&recording, y));
    let graph = recording.graph();
    let keys = RandomKeys::new();
    let whole = Program::new(graph, graph.node_ids(), &[x], &[y], &keys).unwrap();
    // An input is not recomputed, and frees are not counted.
    assert_eq!((whole.len(), whole.inputs()), (3, &[x][..]));
    let slice = graph.backward_slice([y], |v| v == x);
    let least = Program::new(graph, slice.nodes, &[x], &[y], &keys).unwrap();
    assert_eq!((least.len(), least.is_empty()), (1, false));
    let nothing = Program::new(graph, [], &[x], &[x, x], &keys).unwrap();
    assert!(nothing.is_empty());
    let input = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], &flex());
    let executable = Executor::new(&flex()).unwrap().load(nothing);
    let out = executable
        .run(vec![input.clone().into()], &context())
        .unwrap();
    assert_eq!(out.len(), 2);
    assert!(out.iter().all(|t| t.to_data().unwrap() == input.to_data()));
}

#[test]
fn errors_say_what_is_wrong() {
    let ((x, y, z), recording) = record(&RecordOptions::default(), |d| {
        let x = Tensor::<1>::zeros([4], d);
        let y = Tensor::<1>::random([4], burn::tensor::Distribution::Default, d);
        (x.clone(), y.clone(), x + y)
    })
    .unwrap();
    let fake = DynTensor::from(z.clone());
    let (x, y, z) = (id(&recording, x), id(&recording, y), id(&recording, z));
    let graph = recording.graph();
    let keys = RandomKeys::new();
    let error = |result: Result<Program, ProgramError>| result.map(drop).unwrap_err().to_string();
    assert_eq!(
        error(Program::new(graph, graph.node_ids(), &[], &[z], &keys)),
        "random operation #1 has no key"
    );
    assert_eq!(
        error(Program::new(
            graph,
            graph.node_ids().skip(2),
            &[x],
            &[z],
            &keys
        )),
        "NumericFloat.Add reads %1, which is not available: a program has inputs, constants and results of \
         earlier operations, until they are freed"
    );
    assert_eq!(
        error(Program::new(graph, [], &[x], &[z], &keys)),
        "the program's output reads %2, which is not available: a program has inputs, constants and results of \
         earlier operations, until they are freed"
    );
    let program = Program::new(graph, graph.node_ids(), &[x, y], &[z], &keys).unwrap();
    let executable = Executor::new(&flex()).unwrap().load(program);
    let good = || DynTensor::zeros([4].into(), DType::F32, &flex());
    let check = |inputs: Vec<DynTensor>, expected: &str| {
        let error = executable.run(inputs, &context()).map(drop).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(vec![good()], "the program has 2 inputs, found 1");
    check(
        vec![good(), DynTensor::zeros([2, 2].into(), DType::F32, &flex())],
        "input %1 of the program must be f32[4], found f32[2, 2]",
    );
    check(
        vec![DynTensor::zeros([4].into(), DType::I32, &flex()), good()],
        "input %0 of the program must be f32[4], found i32[4]",
    );
    let tail =
        "can't be an input of a program: it must be on the program's backend, without autodiff";
    check(
        vec![good(), good().to_device(&flex().autodiff()).unwrap()],
        &format!("tensor(..., size=[4], dtype=f32, device=flex, fake=false) {tail}"),
    );
    check(
        vec![fake, good()],
        &format!("tensor(..., size=[4], dtype=f32, device=flex, fake=true) {tail}"),
    );
    executable.run(vec![good(), good()], &context()).unwrap();

    let options = RecordOptions::default().claiming("cuda:7".parse().unwrap());
    let (device, _) = record(&options, Device::clone).unwrap();
    // The devices of the build follow.
    let expected =
        "programs can't run on a recording device (cuda:7): this build runs them on flex";
    let said = Executor::new(&device).map(drop).unwrap_err().to_string();
    assert!(said.starts_with(expected), "{said}");
    let plain = Executor::new(&flex().autodiff()).unwrap();
    assert!(!plain.device().is_autodiff());
}

#[test]
fn random_values_follow_their_key() {
    let options = RecordOptions::default().in_mode(Mode::Training);
    let (y, recording) = record(&options, |d| {
        let x = Tensor::<1>::ones([64], d);
        let dropout = DropoutConfig::new(0.5).init();
        dropout.forward(dropout.forward(x))
    })
    .unwrap();
    let y = id(&recording, y);
    let graph = recording.graph();
    let keys = |owner: &str| -> RandomKeys {
        let nodes = graph.node_ids().filter(|n| is_random(graph.node(*n)));
        let keyed = nodes.zip(0..).map(|(node, draw)| {
            let owner = owner.to_owned();
            (
                node,
                RandomKey {
                    domain: Domain::Forward,
                    owner,
                    draw,
                },
            )
        });
        keyed.collect()
    };
    let run = |owner: &str, seed: u64, step: u32, micro_batch: u32| {
        let program = Program::new(graph, graph.node_ids(), &[], &[y], &keys(owner)).unwrap();
        let context = RunContext {
            seed: Seed::new(seed),
            step,
            micro_batch,
        };
        let out = Executor::new(&flex())
            .unwrap()
            .load(program)
            .run(vec![], &context)
            .unwrap();
        bits(&out[0].to_data().unwrap())
    };
    let base = run("a", 1, 0, 0);
    assert_eq!(run("a", 1, 0, 0), base);
    for other in [
        run("b", 1, 0, 0),
        run("a", 2, 0, 0),
        run("a", 1, 1, 0),
        run("a", 1, 0, 1),
    ] {
        assert_ne!(other, base);
    }
    // Two draws of one owner: values are 0, or 1 over the kept fraction of both.
    let values: Vec<f32> = base
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert!(values.iter().all(|v| *v == 0.0 || *v == 4.0), "{values:?}");
    assert!(values.contains(&0.0) && values.contains(&4.0));

    let owned = initialization_keys(graph, [("w", y)]);
    let draws: Vec<_> = owned
        .values()
        .map(|k| (k.owner.as_str(), k.draw, k.domain))
        .collect();
    assert_eq!(draws, [("w", 0, Domain::Init), ("w", 1, Domain::Init)]);
    let unowned = initialization_keys(graph, []);
    let draws: Vec<_> = unowned
        .values()
        .map(|k| (k.owner.as_str(), k.draw))
        .collect();
    assert_eq!(draws, [("#0", 0), ("#1", 0)]);
}

#[test]
fn bool_inputs_and_outputs() {
    let ((a, b), recording) = record(&RecordOptions::like(&flex()), |d| {
        let a = Tensor::<1, Bool>::zeros([3], d);
        (a.clone(), a.clone().bool_or(a.bool_not()))
    })
    .unwrap();
    let (a, b) = (id(&recording, a), id(&recording, b));
    let input = Tensor::<1, Bool>::from_bool([true, false, true], &flex());
    let found = run(recording.graph(), &[a], &[b, a], vec![input.clone().into()]);
    assert_eq!(found[0], TensorData::from([true, true, true]));
    assert_eq!(found[1], input.into_data());
}
