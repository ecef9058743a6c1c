//! The name of every operation of `burn_ir`, and of a recorded one.

use burn_ir::{
    ActivationOperationIr, BaseOperationIr, BoolOperationIr, DistributedOperationIr,
    FloatOperationIr, IntOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr,
};

trait Variants {
    const NAMES: &'static [&'static str];

    fn variant(&self) -> &'static str;
}

/// The list and the match are generated from one table, and the match has no wildcard: an operation that a
/// later release of Burn adds does not compile until it is listed here, and then needs a row or a gap.
macro_rules! variants {
    ($($operation:ident { $($variant:ident)* })*) => {$(
        impl Variants for $operation {
            const NAMES: &'static [&'static str] = &[$(stringify!($variant)),*];

            fn variant(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => stringify!($variant),)*
                }
            }
        }
    )*};
}

macro_rules! families {
    ($($family:ident($($before:tt)*): $operation:ident)* ; $($alone:ident)*) => {
        /// The name of an operation: its family and its variant, such as `Float.Matmul`.
        pub(crate) fn key(operation: &OperationIr) -> String {
            match operation {
                $(OperationIr::$family($($before)* operation) => {
                    [stringify!($family), operation.variant()].join(".")
                })*
                $(OperationIr::$alone { .. } => stringify!($alone).to_owned(),)*
            }
        }

        /// The names of all operations, in the order of `burn_ir`.
        pub(crate) fn all_keys() -> Vec<String> {
            let mut keys = Vec::new();
            $(for variant in $operation::NAMES {
                keys.push([stringify!($family), variant].join("."));
            })*
            $(keys.push(stringify!($alone).to_owned());)*
            keys
        }
    };
}

families! {
    BaseFloat(): BaseOperationIr
    BaseInt(): BaseOperationIr
    BaseBool(): BaseOperationIr
    NumericFloat(_,): NumericOperationIr
    NumericInt(_,): NumericOperationIr
    Bool(): BoolOperationIr
    Int(): IntOperationIr
    Float(_,): FloatOperationIr
    Module(): ModuleOperationIr
    Distributed(): DistributedOperationIr
    Activation(): ActivationOperationIr
    ;
    Init Custom Drop
}

variants! {
    BaseOperationIr {
        Reshape SwapDims Permute Flip Expand Unfold Slice SliceAssign Select SelectAssign
        MaskWhere MaskFill Gather Scatter ScatterNd GatherNd Equal EqualElem RepeatDim Cat
        Cast Empty Ones Zeros NotEqual NotEqualElem All Any AllDim AnyDim
    }
    NumericOperationIr {
        Add AddScalar Sub SubScalar Div DivScalar Rem RemScalar Mul MulScalar Abs Full
        MeanDim Mean Sum SumDim SumDims Prod ProdDim Greater GreaterElem GreaterEqual
        GreaterEqualElem Lower LowerElem LowerEqual LowerEqualElem ArgMax ArgTopK TopK
        TopKWithIndices ArgMin Max MaxDimWithIndices MinDimWithIndices Min MaxDim MinDim
        MaxAbs MaxAbsDim Clamp IntRandom Powi PowiScalar CumSum CumProd CumMin CumMax Neg
        Sign ClampMin ClampMax Sort SortWithIndices ArgSort Pad
    }
    BoolOperationIr {
        IntoFloat IntoInt Not And Or Xor
    }
    IntOperationIr {
        IntoFloat BitwiseAnd BitwiseAndScalar BitwiseOr BitwiseOrScalar BitwiseXor
        BitwiseXorScalar BitwiseNot BitwiseLeftShift BitwiseLeftShiftScalar
        BitwiseRightShift BitwiseRightShiftScalar Matmul
    }
    FloatOperationIr {
        Exp Log Log1p Erf PowfScalar Sqrt Cos Cosh Sin Sinh Tan Tanh ArcCos ArcCosh ArcSin
        ArcSinh ArcTan ArcTanh ArcTan2 Round Floor Ceil Trunc IntoInt Matmul Cross Random
        Recip IsNan IsInf Quantize Dequantize GridSample2d Powf Hypot
    }
    ModuleOperationIr {
        BatchNorm Embedding EmbeddingBackward Linear LinearXBackward LinearWeightBackward
        LinearBiasBackward Conv1d Conv1dXBackward Conv1dWeightBackward Conv1dBiasBackward
        Conv2d Conv2dXBackward Conv2dWeightBackward Conv2dBiasBackward Conv3d
        Conv3dXBackward Conv3dWeightBackward Conv3dBiasBackward DeformableConv2d
        DeformableConv2dBackward ConvTranspose1d ConvTranspose2d ConvTranspose3d AvgPool1d
        AvgPool2d AvgPool1dBackward AvgPool2dBackward AdaptiveAvgPool1d AdaptiveAvgPool2d
        AdaptiveAvgPool1dBackward AdaptiveAvgPool2dBackward AdaptiveAvgPool3d
        AdaptiveAvgPool3dBackward MaxPool1d MaxPool1dWithIndices
        MaxPool1dWithIndicesBackward MaxPool2d MaxPool2dWithIndices
        MaxPool2dWithIndicesBackward Interpolate InterpolateBackward Attention CtcLoss
        CtcLossBackward LayerNorm Unfold4d ConvTranspose1dWeightBackward
        ConvTranspose1dBiasBackward ConvTranspose2dWeightBackward
        ConvTranspose2dBiasBackward ConvTranspose3dWeightBackward
        ConvTranspose3dBiasBackward
    }
    ActivationOperationIr {
        Relu ReluBackward LeakyRelu PRelu Gelu GeluBackward Sigmoid SigmoidBackward
        HardSigmoid LogSigmoid LogSigmoidBackward Softmax LogSoftmax Softmin
    }
    DistributedOperationIr {
        AllReduce SyncCollective
    }
}
