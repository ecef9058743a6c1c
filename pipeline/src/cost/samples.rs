//! Operations of every family, on a batch.

use burn_backend::quantization::{QuantScheme, QuantStore};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{DType, Distribution, Shape};
use burn_ir::{
    ActivationOperationIr as A, AdaptiveAvgPool2dOpIr, AttentionOpIr, AttentionOptionsIr,
    AvgPool1dOpIr, BaseOperationIr as B, BatchNormOpIr, BinaryOpIr, CastOpIr, Conv1dOpIr,
    Conv1dOptionsIr, Conv1dXBackwardOpIr, ConvTranspose1dOpIr, ConvTranspose1dOptionsIr,
    CtcLossBackwardOpIr, CtcLossOpIr, CustomOpIr, DeformConv2dOpIr, DeformableConv2dOptionsIr,
    DequantizeOpIr, DimOpIr, EmbeddingBackwardOpIr, EmbeddingOpIr, FloatOperationIr as F,
    GatherOpIr, InterpolateModeIr, InterpolateOpIr, InterpolateOptionsIr, LayerNormOpIr,
    LinearOpIr, LinearWeightBackwardOpIr, LinearXBackwardOpIr, MatmulOpIr, ModuleOperationIr as M,
    NumericOperationIr as N, OperationIr, RandomOpIr, ReduceDimOpIr, ScalarIr, ScatterOpIr,
    SelectOpIr, SortOpIr, UnaryOpIr,
};

use super::fixture::{indices, output, tensor, tensor_of};

/// An operation on floats that ints have too.
pub(super) fn numeric_operation(operation: N) -> OperationIr {
    OperationIr::NumericFloat(DType::F32, operation)
}

/// An operation on floats alone.
pub(super) fn float_operation(operation: F) -> OperationIr {
    OperationIr::Float(DType::F32, operation)
}

/// Operations on a batch of rows, whose work and whose results are proportional to it.
pub(super) fn row_operations(batch: usize, length: usize, width: usize) -> Vec<OperationIr> {
    let x = || tensor(0, &[batch, length, width]);
    let gradient = tensor(2, &[batch, length, 5]);
    let weight = || tensor(1, &[width, 5]);
    let many = indices(1, &[batch, length, width]);
    let scheme = QuantScheme::default().with_store(QuantStore::Native);
    let quantized = tensor_of(0, &[batch, length, width], DType::QFloat(scheme));
    let shape = Shape::new([batch, length, width]);
    let add = IndexingUpdateOp::Add;
    let random = RandomOpIr::create(shape, DType::F32, Distribution::Normal(0.0, 1.0), output);
    let batched = tensor(1, &[batch, width, 5]);
    vec![
        numeric_operation(N::Add(BinaryOpIr::create(
            x(),
            tensor(1, &[1, 1, width]),
            output,
        ))),
        numeric_operation(N::SumDim(ReduceDimOpIr::create(x(), 1, 1, output))),
        numeric_operation(N::MeanDim(ReduceDimOpIr::create(x(), 2, 1, output))),
        numeric_operation(N::CumSum(DimOpIr::create(x(), 1, output))),
        numeric_operation(N::Sort(SortOpIr::create(x(), 2, false, output))),
        OperationIr::Activation(A::LogSoftmax(DimOpIr::create(x(), 2, output))),
        OperationIr::Activation(A::Gelu(UnaryOpIr::create(x(), output))),
        OperationIr::BaseFloat(B::Cast(CastOpIr::create(x(), DType::BF16, output))),
        OperationIr::BaseFloat(B::Gather(GatherOpIr::create(x(), 1, many.clone(), output))),
        OperationIr::BaseFloat(B::Scatter(ScatterOpIr::create(
            x(),
            1,
            many,
            tensor(3, &[batch, length, width]),
            add,
            output,
        ))),
        float_operation(F::Random(random)),
        float_operation(F::Dequantize(DequantizeOpIr::create(
            quantized,
            DType::F32,
            output,
        ))),
        float_operation(F::Matmul(MatmulOpIr::create(x(), batched, output))),
        OperationIr::Module(M::Linear(LinearOpIr::create(x(), weight(), None, output))),
        OperationIr::Module(M::LinearXBackward(LinearXBackwardOpIr::create(
            weight(),
            gradient,
            output,
        ))),
        OperationIr::Module(M::LayerNorm(LayerNormOpIr::create(
            x(),
            tensor(1, &[width]),
            Some(tensor(2, &[width])),
            1e-5,
            output,
        ))),
    ]
}

/// Layers on a batch of signals and images, proportional to it too.
pub(super) fn layer_operations(batch: usize, channels: usize, size: usize) -> Vec<OperationIr> {
    let signal = || tensor(0, &[batch, channels, size]);
    let image = || tensor(0, &[batch, channels, size, size]);
    let heads = |id| tensor(id, &[batch, channels, size, 8]);
    let (stride, padding, dilation) = ([1], [(1, 1)], [1]);
    let conv = Conv1dOptionsIr {
        stride,
        padding,
        dilation,
        groups: 1,
    };
    let transposed = ConvTranspose1dOptionsIr {
        stride: [2],
        padding: [0],
        padding_out: [0],
        dilation,
        groups: 1,
    };
    let deformable = DeformableConv2dOptionsIr {
        stride: [1, 1],
        padding: [1, 1],
        dilation: [1, 1],
        weight_groups: 1,
        offset_groups: 1,
    };
    let attention = AttentionOptionsIr {
        scale: None,
        softcap: None,
        is_causal: true,
    };
    let bilinear = InterpolateOptionsIr {
        mode: InterpolateModeIr::Bilinear,
        align_corners: false,
    };
    let weight = || tensor(1, &[4, channels, 3]);
    let forward = Conv1dOpIr::create(signal(), weight(), None, conv.clone(), output);
    let gradient = tensor(2, &[batch, 4, size]);
    let backward = Conv1dXBackwardOpIr::create(signal(), weight(), gradient, conv, output);
    let up = tensor(1, &[channels, 4, 3]);
    let up = ConvTranspose1dOpIr::create(signal(), up, None, transposed, output);
    let offset = tensor(1, &[batch, 18, size, size]);
    let kernel = tensor(2, &[4, channels, 3, 3]);
    let deformed =
        DeformConv2dOpIr::create(image(), offset, kernel, None, None, deformable, output);
    let (query, key, value) = (heads(0), heads(1), heads(2));
    let attention = AttentionOpIr::create(query, key, value, None, None, attention, output);
    let resized = InterpolateOpIr::create(image(), [7, 9], bilinear, output);
    let pooled = AdaptiveAvgPool2dOpIr::create(image(), [2, 3], output);
    vec![
        OperationIr::Module(M::Conv1d(forward)),
        OperationIr::Module(M::Conv1dXBackward(backward)),
        OperationIr::Module(M::ConvTranspose1d(up)),
        OperationIr::Module(M::DeformableConv2d(Box::new(deformed))),
        OperationIr::Module(M::Attention(attention)),
        OperationIr::Module(M::Interpolate(resized)),
        OperationIr::Module(M::AdaptiveAvgPool2d(pooled)),
        OperationIr::Module(M::AvgPool1d(AvgPool1dOpIr::create(
            signal(),
            2,
            2,
            0,
            true,
            false,
            output,
        ))),
    ]
}

/// Operations whose results or inputs do not all grow with a batch.
fn other_operations(batch: usize) -> Vec<OperationIr> {
    let statistics = |id| tensor(id, &[3]);
    let (log_probs, targets) = (tensor(0, &[6, batch, 9]), indices(1, &[batch, 2]));
    let lengths = |id| indices(id, &[batch]);
    let loss = CtcLossOpIr::create(
        log_probs.clone(),
        targets.clone(),
        lengths(2),
        lengths(3),
        0,
        output,
    );
    let loss_gradient = tensor(4, &[batch]);
    let backward = CtcLossBackwardOpIr::create(
        log_probs,
        targets,
        lengths(2),
        lengths(3),
        loss_gradient,
        0,
        output,
    );
    let (x, gradient) = (tensor(0, &[batch, 7]), tensor(1, &[batch, 5]));
    let (table, tokens) = (tensor(0, &[50, 4]), indices(1, &[batch, 3]));
    let of_table = tensor(2, &[batch, 3, 4]);
    vec![
        OperationIr::Module(M::CtcLoss(loss)),
        OperationIr::Module(M::CtcLossBackward(backward)),
        OperationIr::Module(M::LinearWeightBackward(LinearWeightBackwardOpIr::create(
            x, gradient, output,
        ))),
        OperationIr::Module(M::Embedding(EmbeddingOpIr::create(
            table.clone(),
            tokens.clone(),
            output,
        ))),
        OperationIr::Module(M::EmbeddingBackward(EmbeddingBackwardOpIr::create(
            table.clone(),
            of_table,
            tokens,
            output,
        ))),
        OperationIr::BaseFloat(B::Select(SelectOpIr::create(table, 0, lengths(1), output))),
        OperationIr::Module(M::BatchNorm(BatchNormOpIr::create(
            tensor(0, &[batch, 3, 4]),
            statistics(1),
            statistics(2),
            statistics(3),
            statistics(4),
            ScalarIr::Float(1e-5),
            output,
        ))),
        OperationIr::Custom(CustomOpIr::new(
            "scan",
            &[tensor(0, &[batch, 3])],
            &[tensor(1, &[batch])],
        )),
    ]
}

/// All of these, for properties that hold whatever an operation does.
pub(super) fn all_operations(batch: usize) -> Vec<OperationIr> {
    let mut operations = row_operations(batch, 3, 4);
    operations.extend(layer_operations(batch, 2, 6));
    operations.extend(other_operations(batch));
    operations
}
