//! The operations of modules: each has a description of its own, which is counted where its family
//! is.

use burn_ir::ModuleOperationIr;

use super::count::{Count, OperationCost};

/// By the family of the operation.
pub(super) fn module(operation: &ModuleOperationIr) -> OperationCost {
    use ModuleOperationIr as M;
    match operation {
        M::BatchNorm(op) => op.count(),
        M::LayerNorm(op) => op.count(),
        M::Embedding(op) => op.count(),
        M::EmbeddingBackward(op) => op.count(),
        M::Linear(op) => op.count(),
        M::LinearXBackward(op) => op.count(),
        M::LinearWeightBackward(op) => op.count(),
        M::LinearBiasBackward(op) => op.count(),
        M::Conv1d(op) => op.count(),
        M::Conv1dXBackward(op) => op.count(),
        M::Conv1dWeightBackward(op) => op.count(),
        M::Conv1dBiasBackward(op) => op.count(),
        M::Conv2d(op) => op.count(),
        M::Conv2dXBackward(op) => op.count(),
        M::Conv2dWeightBackward(op) => op.count(),
        M::Conv2dBiasBackward(op) => op.count(),
        M::Conv3d(op) => op.count(),
        M::Conv3dXBackward(op) => op.count(),
        M::Conv3dWeightBackward(op) => op.count(),
        M::Conv3dBiasBackward(op) => op.count(),
        M::DeformableConv2d(op) => op.count(),
        M::DeformableConv2dBackward(op) => op.count(),
        M::ConvTranspose1d(op) => op.count(),
        M::ConvTranspose2d(op) => op.count(),
        M::ConvTranspose3d(op) => op.count(),
        M::ConvTranspose1dWeightBackward(op) => op.count(),
        M::ConvTranspose1dBiasBackward(op) => op.count(),
        M::ConvTranspose2dWeightBackward(op) => op.count(),
        M::ConvTranspose2dBiasBackward(op) => op.count(),
        M::ConvTranspose3dWeightBackward(op) => op.count(),
        M::ConvTranspose3dBiasBackward(op) => op.count(),
        M::AvgPool1d(op) => op.count(),
        M::AvgPool2d(op) => op.count(),
        M::AvgPool1dBackward(op) => op.count(),
        M::AvgPool2dBackward(op) => op.count(),
        M::AdaptiveAvgPool1d(op) => op.count(),
        M::AdaptiveAvgPool2d(op) => op.count(),
        M::AdaptiveAvgPool3d(op) => op.count(),
        M::AdaptiveAvgPool1dBackward(op) => op.count(),
        M::AdaptiveAvgPool2dBackward(op) => op.count(),
        M::AdaptiveAvgPool3dBackward(op) => op.count(),
        M::MaxPool1d(op) => op.count(),
        M::MaxPool1dWithIndices(op) => op.count(),
        M::MaxPool1dWithIndicesBackward(op) => op.count(),
        M::MaxPool2d(op) => op.count(),
        M::MaxPool2dWithIndices(op) => op.count(),
        M::MaxPool2dWithIndicesBackward(op) => op.count(),
        M::Unfold4d(op) => op.count(),
        M::Interpolate(op) => op.count(),
        M::InterpolateBackward(op) => op.count(),
        M::Attention(op) => op.count(),
        M::CtcLoss(op) => op.count(),
        M::CtcLossBackward(op) => op.count(),
    }
}
