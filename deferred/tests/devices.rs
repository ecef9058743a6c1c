//! The same parameters on every device: CubeCL's CPU runtime, with the kernels of GPUs, compared with `flex`.

use burn::module::{Module, Param, ParamId};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    LinearLayout,
};
use burn::tensor::{Bool, BoolStore, DType, Device, Distribution, Tensor, TensorData};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Deferred, Executor, MaterializeOptions, Program, RandomKeys, RunContext,
    materialize_parameters, parameter_values,
};
use tinderbox_fake::{DynTensor, RecordOptions, Region, record};

/// Random values of every kind that Burn's modules draw, constants, and computed values.
#[derive(Module, Debug)]
struct Net {
    tokens: Embedding,
    layers: Vec<Linear>,
    column: Linear,
    normal: Linear,
    conv: Conv2d,
    norm: LayerNorm,
    computed: Param<Tensor<2>>,
    host: Param<Tensor<1>>,
}

impl Net {
    fn new(device: &Device) -> Self {
        let with = |initializer| LinearConfig::new(24, 12).with_initializer(initializer);
        let computed = |device: &Device, trainable: bool| {
            let draws = || Tensor::random([6, 10], Distribution::Normal(0.0, 1.0), device);
            (draws() + draws()).transpose().set_require_grad(trainable)
        };
        Self {
            tokens: EmbeddingConfig::new(73, 20).init(device),
            layers: (0..2)
                .map(|_| LinearConfig::new(33, 7).init(device))
                .collect(),
            column: LinearConfig::new(8, 12)
                .with_layout(LinearLayout::Col)
                .init(device),
            normal: with(Initializer::XavierNormal { gain: 0.5 }).init(device),
            conv: Conv2dConfig::new([3, 5], [3, 3]).init(device),
            norm: LayerNormConfig::new(9).init(device),
            computed: Param::uninitialized(
                ParamId::new(),
                computed,
                device.clone(),
                true,
                [10, 6].into(),
            ),
            host: Param::from_tensor(Tensor::from_floats([1.0, 2.5, -3.0], device)),
        }
    }
}

fn model() -> Deferred<Net> {
    Deferred::new(Net::new).expect("the closure records")
}

#[test]
fn every_parameter_has_the_same_bits() {
    let model = model();
    let source = model.initializer(Seed::new(7));
    for parameter in model.parameters().iter() {
        let path = parameter.path.as_str();
        let on = |device| model.materialize_tensor(path, &device, &source).unwrap();
        let (made, expected) = (on(Device::cpu()), on(Device::flex()));
        assert_eq!(made.meta().device.as_str(), "cpu", "{path}");
        assert_eq!(
            made.to_data().unwrap(),
            expected.to_data().unwrap(),
            "{path}"
        );
    }
}

#[test]
fn a_region_is_generated_alone() {
    let model = model();
    let source = model.initializer(Seed::new(7));
    for parameter in model.parameters().iter() {
        let path = parameter.path.as_str();
        let offset: Vec<u64> = parameter.shape.iter().map(|d| d / 3).collect();
        let size = parameter.shape.iter().map(|d| (d / 2).max(1)).collect();
        let region = Region::new(offset, size).unwrap();
        let on = |device| {
            let made = model.materialize_region(path, &region, &device, &source);
            made.unwrap().to_data().unwrap()
        };
        assert_eq!(on(Device::cpu()), on(Device::flex()), "{path}");
    }
}

#[test]
fn a_cast_runs_on_the_device() {
    let model = model();
    let source = model.initializer(Seed::new(7));
    let cast = |device: &Device| {
        let options = MaterializeOptions::on(device).dtype(|_| Some(DType::F16));
        let made = materialize_parameters(model.parameters(), options, &source).unwrap();
        let values = parameter_values(&made);
        let data = values
            .into_iter()
            .map(|(path, value)| (path, value.to_data().unwrap()));
        data.collect::<Vec<_>>()
    };
    assert_eq!(cast(&Device::cpu()), cast(&Device::flex()));
}

/// The module of a user works on the device.
#[test]
fn the_module_computes() {
    let model = model();
    let source = model.initializer(Seed::new(7));
    let output = |device: &Device| {
        let net = model.materialize(device, &source).unwrap();
        let x = Tensor::<2>::ones([2, 33], device);
        net.layers[1]
            .forward(x)
            .into_data()
            .try_to_vec::<f32>()
            .unwrap()
    };
    let (made, expected) = (output(&Device::cpu()), output(&Device::flex()));
    for (made, expected) in made.iter().zip(&expected) {
        assert!((made - expected).abs() < 1e-5, "{made} {expected}");
    }
    assert_eq!(made.len(), 14);
}

/// Booleans, which kernels store in another way than Rust: inputs, results, constants, operands, and outputs. Each is
/// an output, so that none stays inside a fused kernel.
#[test]
fn truth_values_are_the_same() {
    const SHAPE: [usize; 2] = [33, 65];
    let recorded = record(&RecordOptions::default(), |device| {
        let x = Tensor::<2>::zeros(SHAPE, device);
        let given = DynTensor::zeros(SHAPE.into(), DType::Bool(BoolStore::Native), device);
        let inputs = vec![DynTensor::from(x.clone()), given.clone()];
        let given: Tensor<2, Bool> = given.typed().unwrap();
        let triangle = Tensor::<2, Bool>::tril_mask(SHAPE, 0, device);
        let columns = TensorData::from([std::array::from_fn::<bool, 65, _>(|i| i % 3 == 0)]);
        let columns = Tensor::<2, Bool>::from_data(columns, device);
        let both = triangle.clone().bool_and(given).bool_or(columns.clone());
        let filled = x.clone().mask_fill(both.clone(), -1.5);
        let positive = filled.clone().greater_elem(0.25);
        let counted = positive.clone().int().sum_dim(1);
        let outputs: Vec<DynTensor> = vec![
            triangle.into(),
            both.into(),
            filled.into(),
            positive.into(),
            counted.into(),
        ];
        (inputs, outputs)
    });
    let ((inputs, outputs), recording) = recorded.unwrap();
    let ids = |tensors: &[DynTensor]| -> Vec<_> {
        let ids = tensors.iter().map(|fake| fake.captured_id().unwrap());
        ids.map(|id| recording.value_of(id).unwrap()).collect()
    };
    let (inputs, outputs) = (ids(&inputs), ids(&outputs));
    let graph = recording.graph();
    let run = |device: &Device| {
        let nodes = graph.node_ids();
        let program = Program::new(graph, nodes, &inputs, &outputs, &RandomKeys::new()).unwrap();
        let executable = Executor::new(device).unwrap().load(program);
        let flex = Device::flex();
        let elements = SHAPE[0] * SHAPE[1];
        let values: Vec<f32> = (0..elements).map(|i| (i as f32 * 0.37).sin()).collect();
        let bools: Vec<bool> = (0..elements).map(|i| i % 5 < 3).collect();
        let given = vec![
            DynTensor::from_data(TensorData::new(values, SHAPE), device),
            // Whatever its original device.
            DynTensor::from_data(TensorData::new(bools, SHAPE), &flex)
                .to_device(device)
                .unwrap(),
        ];
        let context = RunContext::initialization(Seed::new(1));
        let made = executable.run(given, &context).unwrap();
        let data = made
            .into_iter()
            .map(|value| value.to_device(&flex).unwrap().to_data().unwrap());
        data.collect::<Vec<_>>()
    };
    let (made, expected) = (run(&Device::cpu()), run(&Device::flex()));
    for (place, (made, expected)) in made.iter().zip(&expected).enumerate() {
        assert_eq!(made, expected, "output {place}");
    }
}

/// A device stores booleans in its own way, wherever they come from.
#[test]
fn truth_values_change_their_dtype_between_devices() {
    let kept = DynTensor::zeros([4].into(), DType::Bool(BoolStore::Native), &Device::cpu());
    assert_eq!(kept.dtype(), DType::Bool(BoolStore::U8));
    let here = kept.to_device(&Device::flex()).unwrap();
    assert_eq!(here.dtype(), DType::Bool(BoolStore::Native));
    let there = here.to_device(&Device::cpu()).unwrap();
    assert_eq!(there.dtype(), DType::Bool(BoolStore::U8));
}
