//! Properties of operations: the values that they compute and read, whether a program can run them, and how Burn's
//! interpreter runs them as they were recorded.

use burn::tensor::{DType, Shape, read_sync};
use burn_backend::{TensorMetadata, tensor::IndexingUpdateOp};
use burn_ir::{
    ActivationOperationIr, BackendIr, BaseOperationIr, BoolOperationIr, FloatOperationIr,
    HandleKind, IntOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr, ScatterOpIr,
    SelectAssignOpIr, TensorId, TensorIr, TensorStatus,
};
use burn_router::TensorInterpreter;
use tinderbox_fake::{Node, Operation, TensorKind, ValueId};

use crate::ProgramError;

/// Returns the id of a value in the operations of its graph.
pub(super) fn tensor_id(value: ValueId) -> TensorId {
    TensorId::new(value.index() as u64)
}

/// Returns a value of a program as a tensor of Burn.
pub(super) fn tensor_ir(value: ValueId, (shape, dtype): (Shape, DType)) -> TensorIr {
    TensorIr {
        id: tensor_id(value),
        shape,
        status: TensorStatus::ReadOnly,
        dtype,
    }
}

/// Returns whether a node draws random values.
pub fn is_random(node: &Node) -> bool {
    node.operation().random().is_some()
}

/// Returns whether the result is a view into the memory of the first input, if that is in row-major order.
pub(crate) fn is_view(operation: &OperationIr) -> bool {
    use BaseOperationIr::{Expand, Flip, Permute, Reshape, Slice, SwapDims};
    matches!(
        base(operation),
        Some(Reshape(_) | SwapDims(_) | Permute(_) | Flip(_) | Expand(_) | Slice(_))
    )
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

/// Returns the family of base operations for tensors of a dtype: the same operation exists for each kind.
pub(crate) fn family(dtype: DType) -> fn(BaseOperationIr) -> OperationIr {
    match TensorKind::of(dtype) {
        TensorKind::Float => OperationIr::BaseFloat,
        TensorKind::Int => OperationIr::BaseInt,
        TensorKind::Bool => OperationIr::BaseBool,
    }
}

/// Returns whether each element of the result only depends on the elements of the inputs at the same index, and on
/// scalars.
pub(crate) fn is_elementwise(operation: &OperationIr) -> bool {
    match operation {
        OperationIr::Float(_, float) => {
            use FloatOperationIr::*;
            !matches!(
                float,
                Matmul(_) | Cross(_) | Random(_) | Quantize(_) | Dequantize(_) | GridSample2d(_)
            )
        }
        OperationIr::NumericFloat(_, numeric) | OperationIr::NumericInt(_, numeric) => {
            is_elementwise_numeric(numeric)
        }
        OperationIr::Int(int) => !matches!(int, IntOperationIr::Matmul(_)),
        OperationIr::Bool(bool) => {
            use BoolOperationIr::*;
            matches!(
                bool,
                IntoFloat(_) | IntoInt(_) | Not(_) | And(_) | Or(_) | Xor(_)
            )
        }
        OperationIr::Activation(activation) => {
            use ActivationOperationIr::*;
            matches!(
                activation,
                Relu(_) | LeakyRelu(_) | Gelu(_) | Sigmoid(_) | HardSigmoid(_) | LogSigmoid(_)
            )
        }
        _ => base(operation).is_some_and(|base| {
            use BaseOperationIr::*;
            matches!(
                base,
                Equal(_)
                    | EqualElem(_)
                    | NotEqual(_)
                    | NotEqualElem(_)
                    | MaskWhere(_)
                    | MaskFill(_)
                    | Cast(_)
                    | Empty(_)
                    | Ones(_)
                    | Zeros(_)
            )
        }),
    }
}

fn is_elementwise_numeric(numeric: &NumericOperationIr) -> bool {
    use NumericOperationIr::*;
    matches!(
        numeric,
        Add(_)
            | AddScalar(_)
            | Sub(_)
            | SubScalar(_)
            | Mul(_)
            | MulScalar(_)
            | Div(_)
            | DivScalar(_)
            | Rem(_)
            | RemScalar(_)
            | Powi(_)
            | PowiScalar(_)
            | Abs(_)
            | Neg(_)
            | Sign(_)
            | Full(_)
            | Greater(_)
            | GreaterElem(_)
            | GreaterEqual(_)
            | GreaterEqualElem(_)
            | Lower(_)
            | LowerElem(_)
            | LowerEqual(_)
            | LowerEqualElem(_)
            | Clamp(_)
            | ClampMin(_)
            | ClampMax(_)
    )
}

/// Returns whether the result on `flex` is certainly in row-major order without gaps, given whether each of the inputs is.
pub(crate) fn is_row_major(op: &OperationIr, inputs: impl IntoIterator<Item = bool>) -> bool {
    use BaseOperationIr as B;
    use NumericOperationIr as N;
    if Operation::from(op).random().is_some() {
        return true;
    }
    let mut inputs = inputs.into_iter();
    if is_elementwise(op) {
        return inputs.all(|input| input);
    }
    match op {
        OperationIr::Float(_, FloatOperationIr::Matmul(_)) => true,
        OperationIr::NumericFloat(_, N::Sum(_) | N::SumDim(_) | N::Mean(_) | N::MeanDim(_)) => true,
        _ => match base(op) {
            // A value in another order is copied when it is reshaped.
            Some(B::Reshape(_) | B::Zeros(_) | B::Ones(_) | B::Cat(_)) => true,
            Some(B::SliceAssign(_)) => inputs.next().unwrap_or(true),
            _ => false,
        },
    }
}

/// Returns the table and the indices of an operation that reads rows of a table, such as an embedding.
pub(super) fn row_selection(operation: &OperationIr) -> Option<(&TensorIr, &TensorIr)> {
    match operation {
        OperationIr::Module(ModuleOperationIr::Embedding(op)) => Some((&op.weights, &op.indices)),
        OperationIr::BaseFloat(BaseOperationIr::Select(op)) if op.dim == 0 => {
            Some((&op.tensor, &op.indices))
        }
        _ => None,
    }
}

/// An index tensor and the sizes of the indexed dimensions: one, or one for each element of the tensor's
/// last dimension.
pub(super) type Indexing<'a> = (&'a TensorIr, &'a [usize]);

/// Returns the indexing of an operation: gathers, selections, embeddings, scatters. The targets of a cross-entropy are
/// the indices of a gather.
pub(super) fn indexing(operation: &OperationIr) -> Option<Indexing<'_>> {
    let along = |dim: usize| dim..dim + 1;
    let first = |indices: &TensorIr| 0..indices.shape.as_slice().last().copied().unwrap_or(0);
    let (indices, tensor, dims) = match operation {
        OperationIr::Module(ModuleOperationIr::Embedding(op)) => (&op.indices, &op.weights, 0..1),
        OperationIr::Module(ModuleOperationIr::EmbeddingBackward(op)) => {
            (&op.indices, &op.weights, 0..1)
        }
        _ => match base(operation)? {
            BaseOperationIr::Gather(op) => (&op.indices, &op.tensor, along(op.dim)),
            BaseOperationIr::Scatter(op) => (&op.indices, &op.tensor, along(op.dim)),
            BaseOperationIr::Select(op) => (&op.indices, &op.tensor, along(op.dim)),
            BaseOperationIr::SelectAssign(op) => (&op.indices, &op.tensor, along(op.dim)),
            BaseOperationIr::GatherNd(op) => (&op.indices, &op.data, first(&op.indices)),
            BaseOperationIr::ScatterNd(op) => (&op.indices, &op.data, first(&op.indices)),
            _ => return None,
        },
    };
    Some((indices, tensor.shape.as_slice().get(dims)?))
}

/// Returns the number of elements that an operation adds to one number.
pub(super) fn summed_elements(operation: &OperationIr) -> Option<usize> {
    use NumericOperationIr::{Mean, Sum};
    match operation {
        OperationIr::NumericFloat(_, Sum(sum) | Mean(sum)) => Some(sum.input.shape.num_elements()),
        _ => None,
    }
}

/// Returns the dtype, the terms of each sum, and the shape of the result of a matrix product.
pub(super) fn matrix_product(operation: &OperationIr) -> Option<(DType, usize, &Shape)> {
    let OperationIr::Float(dtype, FloatOperationIr::Matmul(product)) = operation else {
        return None;
    };
    let terms = product.lhs.shape.as_slice().last().copied()?;
    Some((*dtype, terms, &product.out.shape))
}

/// Returns whether an operation reshapes its input.
pub(super) fn is_reshape(operation: &OperationIr) -> bool {
    matches!(base(operation), Some(BaseOperationIr::Reshape(_)))
}

/// Rejects operations at which the interpreter would panic.
pub(super) fn supported(node: &Node) -> Result<(), ProgramError> {
    let quantized = |t: &TensorIr| matches!(t.dtype, DType::QFloat(_));
    let reason = match &node.operation {
        OperationIr::Custom(_) => "custom operations are not supported: use Burn's own operations",
        OperationIr::Distributed(_) => "a recording has one device: leave collectives out of it",
        OperationIr::Float(_, FloatOperationIr::Quantize(_) | FloatOperationIr::Dequantize(_)) => {
            "quantized tensors are not supported: quantize after materialization"
        }
        operation if operation.nodes().into_iter().any(quantized) => {
            "quantized tensors are not supported: quantize after materialization"
        }
        OperationIr::BaseBool(
            BaseOperationIr::Scatter(ScatterOpIr { update, .. })
            | BaseOperationIr::SelectAssign(SelectAssignOpIr { update, .. }),
        ) if *update != IndexingUpdateOp::Add => {
            "bools are only or-ed into place: use `IndexingUpdateOp::Add`, or compute on ints"
        }
        OperationIr::BaseBool(
            BaseOperationIr::ScatterNd(_) | BaseOperationIr::GatherNd(_) | BaseOperationIr::Cast(_),
        ) => "Burn supports it for numbers only: compute on ints, and compare",
        OperationIr::NumericFloat(_, NumericOperationIr::IntRandom(_)) => {
            "its result is an int tensor: draw floats, or an int tensor"
        }
        // Never recorded: the backend does not support it, so Burn decomposes the gradients of the loss.
        OperationIr::Module(ModuleOperationIr::CtcLossBackward(_)) => {
            "no supported backend implements it: record the gradients of `ctc_loss` with Burn's autodiff"
        }
        OperationIr::NumericInt(_, operation) if !positions_fit(operation) => {
            "its positions do not fit the dtype of its input: cast the input to i32 or i64 before"
        }
        _ => return Ok(()),
    };
    let operation = node.name();
    Err(ProgramError::Unsupported { operation, reason })
}

/// Returns the tensor in which an operation computes positions, their dimension, and the output.
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
    let bits = 8 * out.dtype.size() - usize::from(out.dtype.is_int());
    tensor.shape[dim] as u128 <= 1 << bits
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
    let mut consumed = value.clone();
    consumed.status = TensorStatus::ReadWrite;
    let dtype = value.dtype;
    let conformed = match interpreter.get_tensor(&consumed) {
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
