//! Operations that no program can run are rejected by name when the program is created.

use burn::tensor::quantization::QuantScheme;
use burn::tensor::{Bool, DType, Device, Distribution, IndexingUpdateOp, Int, Tensor};
use burn_backend::distributed::ReduceOperation;
use burn_ir::{
    AllReduceOpIr, BaseOperationIr, CastOpIr, CtcLossBackwardOpIr, CustomOpIr, DequantizeOpIr,
    DistributedOperationIr, FloatOperationIr, GatherNdOpIr, ModuleOperationIr, NumericOperationIr,
    OperationIr, QuantizationParametersIr, QuantizeOpIr, RandomOpIr, ScatterNdOpIr, ScatterOpIr,
    SelectAssignOpIr, TensorIr,
};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Executor, Program, RandomKeys, RunContext};
use tinderbox_fake::{DynTensor, RecordOptions, record};

use crate::check::{floats, ints};
use crate::hand_made::hand_made;

fn check(made: impl FnOnce(&Device) -> DynTensor, expected: &str) {
    let (_, recording) = record(&RecordOptions::default(), made).unwrap();
    let graph = recording.graph();
    let program = Program::new(graph, graph.node_ids(), &[], &[], &RandomKeys::new());
    assert_eq!(program.map(drop).unwrap_err().to_string(), expected);
}

/// Records an operation on a bool tensor and indices.
fn on_bools(
    device: &Device,
    make: impl FnOnce(TensorIr, TensorIr, TensorIr, TensorIr) -> BaseOperationIr,
) -> DynTensor {
    let bools = Tensor::<1, Bool>::zeros([4], device);
    let inputs = vec![
        bools.clone().into(),
        ints(device, [2], &[0, 1]).into(),
        bools.into(),
    ];
    let dtype = device.settings().bool_dtype.into();
    hand_made(device, inputs, ([4], dtype), |inputs, out| {
        let [tensor, indices, value] = inputs.try_into().unwrap();
        OperationIr::BaseBool(make(tensor, indices, value, out))
    })
}

/// Records an operation on one float tensor.
fn on_floats(
    device: &Device,
    dtype: DType,
    make: impl FnOnce(TensorIr, TensorIr) -> OperationIr,
) -> DynTensor {
    let inputs = vec![floats(device, [4], 1).into()];
    hand_made(device, inputs, ([4], dtype), |mut inputs, out| {
        make(inputs.remove(0), out)
    })
}

#[test]
fn operations_of_no_backend() {
    check(
        |d| {
            on_floats(d, DType::F32, |input, out| {
                OperationIr::Custom(CustomOpIr::new("fused_rope", &[input], &[out]))
            })
        },
        "operation Custom.fused_rope can't be replayed: custom operations are not supported: use \
         Burn's own operations",
    );
    let distributed = "a recording has one device: leave collectives out of it";
    check(
        |d| {
            on_floats(d, DType::F32, |tensor, out| {
                OperationIr::Distributed(DistributedOperationIr::AllReduce(AllReduceOpIr {
                    tensor,
                    out,
                    op: ReduceOperation::Sum,
                    device_ids: Vec::new(),
                }))
            })
        },
        &format!("operation Distributed.AllReduce can't be replayed: {distributed}"),
    );
    check(
        |d| {
            on_floats(d, DType::F32, |_, _| {
                OperationIr::Distributed(DistributedOperationIr::SyncCollective)
            })
        },
        &format!("operation Distributed.SyncCollective can't be replayed: {distributed}"),
    );
    check(
        |d| {
            on_floats(d, DType::F32, |tensor, out| {
                OperationIr::Module(ModuleOperationIr::CtcLossBackward(CtcLossBackwardOpIr {
                    log_probs: tensor.clone(),
                    targets: tensor.clone(),
                    input_lengths: tensor.clone(),
                    target_lengths: tensor.clone(),
                    grad_loss: tensor,
                    blank: 0,
                    out,
                }))
            })
        },
        "operation Module.CtcLossBackward can't be replayed: no supported backend implements it: record the \
         gradients of `ctc_loss` with Burn's autodiff",
    );
    check(
        |d| {
            on_floats(d, DType::F32, |_, out| {
                let distribution = Distribution::Default;
                let random = NumericOperationIr::IntRandom(RandomOpIr { out, distribution });
                OperationIr::NumericFloat(DType::F32, random)
            })
        },
        "operation NumericFloat.IntRandom can't be replayed: its result is an int tensor: draw floats, or an int \
         tensor",
    );
}

#[test]
fn quantized_tensors() {
    let quantized = DType::QFloat(QuantScheme::default());
    let way_out = "quantized tensors are not supported: quantize after materialization";
    check(
        |d| {
            on_floats(d, DType::F32, |tensor, out| {
                let scales = tensor.clone();
                let quantize = FloatOperationIr::Quantize(QuantizeOpIr {
                    tensor,
                    qparams: QuantizationParametersIr {
                        scales,
                        global: None,
                    },
                    scheme: QuantScheme::default(),
                    out,
                });
                OperationIr::Float(DType::F32, quantize)
            })
        },
        &format!("operation Float.Quantize can't be replayed: {way_out}"),
    );
    check(
        |d| {
            on_floats(d, DType::F32, |input, out| {
                let dequantize = FloatOperationIr::Dequantize(DequantizeOpIr { input, out });
                OperationIr::Float(DType::F32, dequantize)
            })
        },
        &format!("operation Float.Dequantize can't be replayed: {way_out}"),
    );
    check(
        |d| {
            on_floats(d, quantized, |input, out| {
                OperationIr::BaseFloat(BaseOperationIr::Cast(CastOpIr { input, out }))
            })
        },
        &format!("operation BaseFloat.Cast can't be replayed: {way_out}"),
    );
}

#[test]
fn bools_are_no_numbers() {
    let update = IndexingUpdateOp::Mul;
    let or_only =
        "bools are only or-ed into place: use `IndexingUpdateOp::Add`, or compute on ints";
    let numbers_only = "Burn supports it for numbers only: compute on ints, and compare";
    check(
        |d| {
            on_bools(d, |tensor, indices, value, out| {
                let dim = 0;
                BaseOperationIr::Scatter(ScatterOpIr {
                    tensor,
                    dim,
                    indices,
                    value,
                    update,
                    out,
                })
            })
        },
        &format!("operation BaseBool.Scatter can't be replayed: {or_only}"),
    );
    check(
        |d| {
            on_bools(d, |tensor, indices, value, out| {
                let assign = SelectAssignOpIr {
                    tensor,
                    dim: 0,
                    indices,
                    value,
                    update,
                    out,
                };
                BaseOperationIr::SelectAssign(assign)
            })
        },
        &format!("operation BaseBool.SelectAssign can't be replayed: {or_only}"),
    );
    check(
        |d| {
            on_bools(d, |data, indices, values, out| {
                let reduction = IndexingUpdateOp::Add;
                BaseOperationIr::ScatterNd(ScatterNdOpIr {
                    data,
                    indices,
                    values,
                    reduction,
                    out,
                })
            })
        },
        &format!("operation BaseBool.ScatterNd can't be replayed: {numbers_only}"),
    );
    check(
        |d| {
            on_bools(d, |data, indices, _, out| {
                BaseOperationIr::GatherNd(GatherNdOpIr { data, indices, out })
            })
        },
        &format!("operation BaseBool.GatherNd can't be replayed: {numbers_only}"),
    );
    check(
        |d| {
            on_bools(d, |input, _, _, out| {
                BaseOperationIr::Cast(CastOpIr { input, out })
            })
        },
        &format!("operation BaseBool.Cast can't be replayed: {numbers_only}"),
    );
}

#[test]
fn positions_that_their_dtype_can_not_hold() {
    let x = |device: &Device, size: usize| {
        Tensor::<1, Int>::arange(0..size as i64, (device, DType::I32)).cast(DType::U8)
    };
    let way_out =
        "its positions do not fit the dtype of its input: cast the input to i32 or i64 before";
    check(
        |d| x(d, 257).argmax(0).into(),
        &format!("operation NumericInt.ArgMax can't be replayed: {way_out}"),
    );
    check(
        |d| x(d, 257).sort_with_indices(0).1.into(),
        &format!("operation NumericInt.SortWithIndices can't be replayed: {way_out}"),
    );
    // The last position of 256 just fits.
    let (fake, recording) = record(&RecordOptions::default(), |d| {
        DynTensor::from(x(d, 256).argmax(0))
    })
    .unwrap();
    let output = recording.value_of(fake.captured_id().unwrap()).unwrap();
    let graph = recording.graph();
    let program =
        Program::new(graph, graph.node_ids(), &[], &[output], &RandomKeys::new()).unwrap();
    let executable = Executor::new(&Device::flex()).unwrap().load(program);
    let context = RunContext::initialization(Seed::new(0));
    let found = executable.run(Vec::new(), &context).unwrap()[0]
        .to_data()
        .unwrap();
    let expected = x(&Device::flex(), 256).argmax(0).into_data();
    assert_eq!(found.dtype(), DType::U8);
    assert_eq!(found, expected.convert_dtype(DType::U8));
}
