//! Operations that no program can run, and operations that Burn's interpreter does not run
//! as they were recorded.

use burn::tensor::{DType, read_sync};
use burn_backend::{TensorMetadata, tensor::IndexingUpdateOp};
use burn_ir::{
    BackendIr, BaseOperationIr, FloatOperationIr, HandleKind, ModuleOperationIr,
    NumericOperationIr, OperationIr, TensorIr, TensorStatus,
};
use burn_router::TensorInterpreter;
use tinderbox_fake::Node;

use crate::ProgramError;

/// Returns whether the result is a view into the memory of the first input, if that is in row-major order.
pub(crate) fn is_view(operation: &OperationIr) -> bool {
    use BaseOperationIr as B;
    base(operation).is_some_and(|base| {
        matches!(
            base,
            B::Reshape(_)
                | B::SwapDims(_)
                | B::Permute(_)
                | B::Flip(_)
                | B::Expand(_)
                | B::Slice(_)
        )
    })
}

/// Returns the part of an operation that is the same for floats, ints and bools.
pub(crate) fn base(operation: &OperationIr) -> Option<&BaseOperationIr> {
    match operation {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => {
            Some(base)
        }
        _ => None,
    }
}

/// Rejects operations at which the interpreter would panic.
pub(super) fn supported(node: &Node) -> Result<(), ProgramError> {
    let quantized = |t: &TensorIr| matches!(t.dtype, DType::QFloat(_));
    let update = "bools are only or-ed into place: use `IndexingUpdateOp::Add`, or compute on ints";
    let reason = match &node.operation {
        OperationIr::Custom(_) => "custom operations are not supported: use Burn's own operations",
        OperationIr::Distributed(_) => "a recording has one device: leave collectives out of it",
        OperationIr::Float(_, FloatOperationIr::Quantize(_) | FloatOperationIr::Dequantize(_)) => {
            "quantized tensors are not supported: quantize after materialization"
        }
        operation if operation.nodes().into_iter().any(quantized) => {
            "quantized tensors are not supported: quantize after materialization"
        }
        OperationIr::BaseBool(BaseOperationIr::Scatter(scatter))
            if scatter.update != IndexingUpdateOp::Add =>
        {
            update
        }
        OperationIr::BaseBool(BaseOperationIr::SelectAssign(assign))
            if assign.update != IndexingUpdateOp::Add =>
        {
            update
        }
        OperationIr::BaseBool(
            BaseOperationIr::ScatterNd(_) | BaseOperationIr::GatherNd(_) | BaseOperationIr::Cast(_),
        ) => "Burn supports it for numbers only: compute on ints, and compare",
        OperationIr::NumericFloat(_, NumericOperationIr::IntRandom(_)) => {
            "its result is an int tensor: draw floats, or an int tensor"
        }
        // Never recorded: Burn asks the backend first, and decomposes the gradients of the loss.
        OperationIr::Module(ModuleOperationIr::CtcLossBackward(_)) => {
            "no supported backend implements it: record the gradients of `ctc_loss` with Burn's autodiff"
        }
        OperationIr::NumericInt(_, operation) if !positions_fit(operation) => {
            "its positions do not fit the dtype of its input: cast the input to i32 or i64 before"
        }
        _ => return Ok(()),
    };
    Err(ProgramError::Unsupported {
        operation: node.name(),
        reason,
    })
}

/// Returns the positions that an operation computes: of which tensor, along which dimension, and the output.
fn positions(operation: &NumericOperationIr) -> Option<(&TensorIr, usize, &TensorIr)> {
    match operation {
        NumericOperationIr::ArgMax(op)
        | NumericOperationIr::ArgMin(op)
        | NumericOperationIr::ArgTopK(op) => Some((&op.input, op.axis, &op.out)),
        NumericOperationIr::ArgSort(op) => Some((&op.input, op.dim, &op.out)),
        NumericOperationIr::SortWithIndices(op) => Some((&op.input, op.dim, &op.out_indices)),
        NumericOperationIr::TopKWithIndices(op) => Some((&op.tensor, op.dim, &op.out_indices)),
        NumericOperationIr::MaxDimWithIndices(op) | NumericOperationIr::MinDimWithIndices(op) => {
            Some((&op.tensor, op.dim, &op.out_indices))
        }
        _ => None,
    }
}

/// Returns whether the positions fit: Burn records them in an int tensor with the dtype of the tensor itself.
fn positions_fit(operation: &NumericOperationIr) -> bool {
    let Some((tensor, dim, out)) = positions(operation) else {
        return true;
    };
    let largest: u128 = match out.dtype {
        DType::I8 => i8::MAX as u128,
        DType::U8 => u8::MAX as u128,
        DType::I16 => i16::MAX as u128,
        DType::U16 => u16::MAX as u128,
        DType::I32 => i32::MAX as u128,
        DType::U32 => u32::MAX as u128,
        _ => i64::MAX as u128,
    };
    tensor.shape[dim] as u128 <= largest + 1
}

/// Runs one operation, so that its outputs have the recorded dtypes.
///
/// # Panics
///
/// When Burn's operation panics.
pub(super) fn run<B: BackendIr>(interpreter: &mut TensorInterpreter<B>, operation: OperationIr) {
    let conforming = match &operation {
        // Burn records casts between ints, which its interpreter does not implement.
        OperationIr::BaseInt(BaseOperationIr::Cast(cast)) => {
            let tensor = interpreter.get_tensor(&cast.input);
            interpreter.register_tensor_to_device(cast.out.id, tensor);
            return conform(interpreter, &cast.out);
        }
        // `flex` returns positions in an int tensor as i64; the recording has, and continues with, the
        // dtype of the tensor itself.
        OperationIr::NumericInt(_, operation) => positions(operation).map(|(_, _, out)| out),
        // `flex` gives selected bools the dtype u8.
        OperationIr::BaseBool(BaseOperationIr::Select(select)) => Some(&select.out),
        OperationIr::BaseBool(BaseOperationIr::Gather(gather)) => Some(&gather.out),
        _ => None,
    };
    let conforming = conforming.cloned();
    interpreter.register_op(operation);
    if let Some(out) = conforming {
        conform(interpreter, &out);
    }
}

/// Casts a value to its recorded dtype, if the backend chose another.
fn conform<B: BackendIr>(interpreter: &mut TensorInterpreter<B>, value: &TensorIr) {
    let mut taken = value.clone();
    taken.status = TensorStatus::ReadWrite;
    let dtype = value.dtype;
    let conformed = match interpreter.get_tensor(&taken) {
        HandleKind::Int(tensor) if tensor.dtype() != dtype => {
            HandleKind::Int(B::int_cast(tensor, dtype.into()))
        }
        HandleKind::Bool(tensor) if tensor.dtype() != dtype => {
            let device = interpreter.device();
            let data = read_sync(B::bool_into_data(tensor)).expect("bools can be read");
            HandleKind::Bool(B::bool_from_data(data.convert_dtype(dtype), &device))
        }
        tensor => tensor,
    };
    interpreter.register_tensor_to_device(value.id, conformed);
}
