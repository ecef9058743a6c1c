//! Peak memory of a materialization, measured on the heap. One test, alone in its process.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use peak_alloc::PeakAlloc;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Deferred, MaterializeOptions};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;
/// Side of a matrix of 1 MiB in f32.
const SIDE: usize = 512;
const LAYERS: usize = 16;

#[derive(Module, Debug)]
struct Net {
    lazy: Vec<Linear>,
    eager: Vec<Param<Tensor<2>>>,
}

fn net(lazy: usize, eager: usize, device: &Device) -> Net {
    let config = LinearConfig::new(SIDE, SIDE).with_bias(false);
    let matrix = || Tensor::random([SIDE, SIDE], Default::default(), device);
    Net {
        lazy: (0..lazy).map(|_| config.init(device)).collect(),
        eager: (0..eager).map(|_| Param::from_tensor(matrix())).collect(),
    }
}

/// The maximum growth of the heap, in MiB, rounded up.
fn growth(lazy: usize, eager: usize, dtype: DType, whole: bool) -> usize {
    let model = Deferred::new(move |device| net(lazy, eager, device)).unwrap();
    let source = model.initializer(Seed::new(1));
    let make = || {
        let options = MaterializeOptions::on(&Device::flex()).dtype(move |_| Some(dtype));
        match whole {
            true => drop(model.materialize(options, &source).unwrap()),
            false => {
                let parameters = model.materialize_parameters(options, &source);
                drop(parameters.unwrap());
            }
        }
    };
    // Threads and their buffers are created in the first run.
    make();
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    make();
    HEAP.peak_usage().saturating_sub(before).div_ceil(MIB)
}

/// A model whose parameters are all created from the same data.
fn from_data(parameters: usize, data: &TensorData, device: &Device) -> Net {
    let matrix = || Tensor::from_data(data.clone(), device);
    Net {
        lazy: Vec::new(),
        eager: (0..parameters)
            .map(|_| Param::from_tensor(matrix()))
            .collect(),
    }
}

/// One MiB for everything that is not a tensor.
const BESIDE: usize = 1;

#[test]
fn at_most_one_tensor_in_addition_to_the_result() {
    let check = |lazy, eager, dtype, whole, expected: usize| {
        let found = growth(lazy, eager, dtype, whole);
        assert!(
            found <= expected + BESIDE,
            "{lazy} lazy and {eager} eager matrices as {dtype:?}: {found} MiB, not {expected}"
        );
        // The measurement is not zero.
        assert!(found >= expected - 1, "{found} MiB, not {expected}");
    };
    for whole in [true, false] {
        check(LAYERS, 0, DType::F32, whole, LAYERS);
        // The last one exists in both precisions.
        check(LAYERS, 0, DType::BF16, whole, LAYERS / 2 + 1);
        check(LAYERS, 0, DType::F16, whole, LAYERS / 2 + 1);
    }
    check(0, LAYERS, DType::BF16, false, LAYERS / 2 + 1);
    // The closure itself creates them in full precision. They are freed before the values are computed.
    check(0, LAYERS, DType::BF16, true, LAYERS);
    check(0, LAYERS, DType::F32, true, LAYERS);
    check(LAYERS, LAYERS, DType::BF16, true, LAYERS + 1);
    data_is_not_copied();
}

/// The recording holds the data once, and parameters on the CPU share it.
fn data_is_not_copied() {
    let data = TensorData::new(vec![0.5_f32; SIDE * SIDE], [SIDE, SIDE]);
    let model = Deferred::new(move |device| from_data(LAYERS, &data, device)).unwrap();
    let source = model.initializer(Seed::new(1));
    let make = || model.materialize_parameters(&Device::flex(), &source);
    drop(make().unwrap());
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let made = make().unwrap();
    let growth = HEAP.peak_usage().saturating_sub(before).div_ceil(MIB);
    assert!(
        growth <= BESIDE,
        "{growth} MiB for {} parameters",
        made.len()
    );
    drop(made);

    // Written in place, because the tensor is not shared: it gets bytes of its own then.
    let first = || model.materialize_tensor("eager.0", &Device::flex(), &source);
    let one: Tensor<2> = first().unwrap().typed().unwrap();
    let written = one.add_scalar(1.0).into_data();
    assert_eq!(written.as_slice::<f32>().unwrap()[0], 1.5);
    let again = first().unwrap().to_data().unwrap();
    assert_eq!(again.as_slice::<f32>().unwrap()[0], 0.5);
}
