//! Sums that are so long that `flex` divides them among threads.

use burn::tensor::{DType, Device, Tensor, TensorData};
use rayon::ThreadPoolBuilder;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Executor, Program, RandomKeys, RunContext};
use tinderbox_fake::{DynTensor, RecordOptions, record};

/// More than 4 Mi, and no multiple of the parts into which `flex` divides a sum.
const ELEMENTS: usize = (5 << 20) + 12_345;

/// Values of very different sizes, so that every order of a sum has other bits.
fn values() -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..ELEMENTS)
        .map(|_| next() as f32 * 2_f32.powi(next() as i32 % 20 - 40))
        .collect()
}

fn in_pool<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    let pool = ThreadPoolBuilder::new().num_threads(threads);
    pool.build().unwrap().install(run)
}

#[test]
fn long_sums_have_the_order_of_one_thread() {
    type Reduction = fn(Tensor<1>) -> Tensor<1>;
    let cases: [(&str, DType, Reduction); 3] = [
        ("sum", DType::F32, Tensor::sum),
        ("mean", DType::F32, Tensor::mean),
        ("mean", DType::BF16, Tensor::mean),
    ];
    let data = TensorData::new(values(), [ELEMENTS]);
    for (name, dtype, reduce) in cases {
        let data = data.clone().convert_dtype(dtype);
        let ((x, y), recording) = record(&RecordOptions::default(), |device| {
            let x = Tensor::<1>::empty([ELEMENTS], (device, dtype));
            (x.clone(), reduce(x))
        })
        .unwrap();
        let id = |tensor: Tensor<1>| {
            let id = DynTensor::from(tensor).captured_id().unwrap();
            recording.value_of(id).unwrap()
        };
        let graph = recording.graph();
        let nodes = graph.node_ids();
        let program = Program::new(graph, nodes, &[id(x)], &[id(y)], &RandomKeys::new()).unwrap();
        let executable = Executor::new(&Device::flex()).unwrap().load(program);
        let context = RunContext::initialization(Seed::new(0));
        let given = DynTensor::from_data(data.clone(), &Device::flex());
        let burn = Tensor::<1>::from_data(data, (&Device::flex(), dtype));
        let expected = in_pool(1, || reduce(burn).into_data());
        for threads in [1, 2, 3, 8] {
            for run in 0..3 {
                let found = in_pool(threads, || {
                    executable.run(vec![given.clone()], &context).unwrap()
                });
                let found = found[0].to_data().unwrap();
                assert_eq!(
                    found, expected,
                    "{name} of {dtype:?}, {threads} threads, run {run}"
                );
            }
        }
    }
}
