//! Operations that make each element of the result from one element of each input.
//!
//! One FLOP per element of the result, and two for [`clamp`], which compares with two bounds. A
//! function of the mathematical library (`exp`, `log`, `erf`, `tanh`, `atan2`, `pow`, `hypot`)
//! counts one like an addition. That is a convention: how many instructions one takes depends on the
//! processor and on the precision, and a count of shapes has to be the same everywhere.

use burn_backend::DType;
use burn_ir::{
    BinaryOpIr, BoolOperationIr, CastOpIr, ClampOpIr, CrossOpIr, DequantizeOpIr, FloatOperationIr,
    IntOperationIr, QuantizeOpIr, ScalarOpIr, TensorIr, UnaryOpIr,
};

use super::count::{Count, OperationCost};
use super::creation;
use super::size::elements;

/// Some FLOPs per element of `out`, with each input read and `out` written.
pub(super) fn per_element<const N: usize>(
    inputs: [&TensorIr; N],
    out: &TensorIr,
    flops_per_element: u64,
) -> OperationCost {
    OperationCost::of_flops(elements(out).saturating_mul(flops_per_element))
        .reads(inputs)
        .writes([out])
}

/// One input.
pub(super) fn unary(operation: &UnaryOpIr, flops_per_element: u64) -> OperationCost {
    per_element([&operation.input], &operation.out, flops_per_element)
}

/// Two inputs, broadcast to the shape of the result. A broadcast input is read at its own size.
pub(super) fn binary(operation: &BinaryOpIr, flops_per_element: u64) -> OperationCost {
    per_element(
        [&operation.lhs, &operation.rhs],
        &operation.out,
        flops_per_element,
    )
}

/// One input and a number.
pub(super) fn scalar(operation: &ScalarOpIr, flops_per_element: u64) -> OperationCost {
    per_element([&operation.lhs], &operation.out, flops_per_element)
}

/// One per element: a conversion. To the dtype that the tensor has, it is a view.
pub(super) fn cast(operation: &CastOpIr) -> OperationCost {
    if operation.input.dtype == operation.out.dtype {
        return OperationCost::default();
    }
    per_element([&operation.input], &operation.out, 1)
}

/// Two per element: a comparison with each bound.
pub(super) fn clamp(operation: &ClampOpIr) -> OperationCost {
    per_element([&operation.tensor], &operation.out, 2)
}

/// Operations on float tensors alone.
pub(super) fn float(operation: &FloatOperationIr) -> OperationCost {
    use FloatOperationIr as F;
    match operation {
        F::Exp(op) | F::Log(op) | F::Log1p(op) | F::Erf(op) | F::Sqrt(op) => unary(op, 1),
        F::Cos(op) | F::Cosh(op) | F::Sin(op) | F::Sinh(op) => unary(op, 1),
        F::Tan(op) | F::Tanh(op) | F::ArcCos(op) | F::ArcCosh(op) => unary(op, 1),
        F::ArcSin(op) | F::ArcSinh(op) | F::ArcTan(op) | F::ArcTanh(op) => unary(op, 1),
        F::Round(op) | F::Floor(op) | F::Ceil(op) | F::Trunc(op) => unary(op, 1),
        F::Recip(op) | F::IsNan(op) | F::IsInf(op) => unary(op, 1),
        F::ArcTan2(op) | F::Powf(op) | F::Hypot(op) => binary(op, 1),
        F::PowfScalar(op) => scalar(op, 1),
        F::IntoInt(op) => cast(op),
        F::Matmul(op) => op.count(),
        F::Cross(op) => op.count(),
        F::Random(op) => creation::random(op),
        F::Quantize(op) => op.count(),
        F::Dequantize(op) => op.count(),
        F::GridSample2d(op) => op.count(),
    }
}

/// Operations on int tensors alone: they count like those on floats.
pub(super) fn int(operation: &IntOperationIr) -> OperationCost {
    use IntOperationIr as I;
    match operation {
        I::IntoFloat(op) => cast(op),
        I::BitwiseAnd(op) | I::BitwiseOr(op) | I::BitwiseXor(op) => binary(op, 1),
        I::BitwiseLeftShift(op) | I::BitwiseRightShift(op) => binary(op, 1),
        I::BitwiseAndScalar(op) | I::BitwiseOrScalar(op) | I::BitwiseXorScalar(op) => scalar(op, 1),
        I::BitwiseLeftShiftScalar(op) | I::BitwiseRightShiftScalar(op) => scalar(op, 1),
        I::BitwiseNot(op) => unary(op, 1),
        I::Matmul(op) => op.count(),
    }
}

/// Operations on bool tensors alone: one per boolean.
pub(super) fn bool(operation: &BoolOperationIr) -> OperationCost {
    use BoolOperationIr as B;
    match operation {
        B::IntoFloat(op) | B::IntoInt(op) => cast(op),
        B::Not(op) => unary(op, 1),
        B::And(op) | B::Or(op) | B::Xor(op) => binary(op, 1),
    }
}

/// Each component of a cross product is two products and a difference.
impl Count for CrossOpIr {
    fn count(&self) -> OperationCost {
        const FLOPS_PER_COMPONENT: u64 = 3;
        per_element([&self.lhs, &self.rhs], &self.out, FLOPS_PER_COMPONENT)
    }
}

/// Symmetric quantization scales, rounds and clamps to two bounds. The scales are inputs, found by
/// other operations before.
impl Count for QuantizeOpIr {
    fn count(&self) -> OperationCost {
        const FLOPS_PER_ELEMENT: u64 = 4;
        let scales = [&self.qparams.scales].into_iter();
        let scales = scales.chain(&self.qparams.global);
        OperationCost::of_flops(elements(&self.out).saturating_mul(FLOPS_PER_ELEMENT))
            .reads([&self.tensor].into_iter().chain(scales))
            .writes([&self.out])
    }
}

/// One product with the scale per element, and one more where blocks have a scale within the
/// tensor's.
impl Count for DequantizeOpIr {
    fn count(&self) -> OperationCost {
        let levels = match self.input.dtype {
            DType::QFloat(scheme) => scheme.num_levels() as u64,
            _ => 1,
        };
        per_element([&self.input], &self.out, levels)
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::BoolStore;
    use burn_backend::quantization::{QuantScheme, QuantStore, ScaleDtype};
    use burn_ir::{NumericOperationIr, OperationIr, QuantizationParametersIr, ScalarIr};

    use super::*;
    use crate::cost::fixture::{check, indices, output, tensor, tensor_of};

    fn float_operation(operation: FloatOperationIr) -> OperationIr {
        OperationIr::Float(DType::F32, operation)
    }

    #[test]
    fn a_broadcast_input_is_read_at_its_own_size() {
        let add = BinaryOpIr::create(tensor(0, &[4, 1]), tensor(1, &[1, 5]), output);
        let operation = OperationIr::NumericFloat(DType::F32, NumericOperationIr::Add(add));
        check(operation, (20, (4 + 5) * 4, 80));
    }

    #[test]
    fn a_square_reads_its_input_once() {
        let x = tensor(0, &[3, 5]);
        let square = BinaryOpIr::create(x.clone(), x, output);
        let operation = OperationIr::NumericFloat(DType::F32, NumericOperationIr::Mul(square));
        check(operation, (15, 60, 60));
    }

    #[test]
    fn a_function_counts_one() {
        let exp = UnaryOpIr::create(tensor(0, &[6]), output);
        check(float_operation(FloatOperationIr::Exp(exp)), (6, 24, 24));
    }

    #[test]
    fn a_comparison_writes_truth_values() {
        let bool_dtype = DType::Bool(BoolStore::Native);
        let compare =
            ScalarOpIr::create_comparison(indices(0, &[6]), ScalarIr::Int(3), bool_dtype, output);
        let operation =
            OperationIr::NumericInt(DType::I64, NumericOperationIr::GreaterElem(compare));
        check(operation, (6, 48, 6));
        let x = tensor_of(0, &[6], bool_dtype);
        let not = UnaryOpIr::create(x, output);
        check(OperationIr::Bool(BoolOperationIr::Not(not)), (6, 6, 6));
    }

    #[test]
    fn a_clamp_compares_twice() {
        let bounds = (ScalarIr::Float(0.0), ScalarIr::Float(1.0));
        let clamp = ClampOpIr::create(tensor(0, &[7]), bounds.0, bounds.1, output);
        let operation = OperationIr::NumericFloat(DType::F32, NumericOperationIr::Clamp(clamp));
        check(operation, (14, 28, 28));
    }

    #[test]
    fn a_cast_reads_one_dtype_and_writes_the_other() {
        let cast = |to| CastOpIr::create(tensor(0, &[10]), to, output);
        let half = burn_ir::BaseOperationIr::Cast(cast(DType::BF16));
        check(OperationIr::BaseFloat(half), (10, 40, 20));
        let same = burn_ir::BaseOperationIr::Cast(cast(DType::F32));
        check(OperationIr::BaseFloat(same), (0, 0, 0));
        let whole = FloatOperationIr::IntoInt(cast(DType::I64));
        check(float_operation(whole), (10, 40, 80));
    }

    #[test]
    fn bits_count_like_numbers() {
        let and = BinaryOpIr::create(indices(0, &[5]), indices(1, &[5]), output);
        check(
            OperationIr::Int(IntOperationIr::BitwiseAnd(and)),
            (5, 80, 40),
        );
    }

    #[test]
    fn a_cross_product_is_nine_flops() {
        let cross = CrossOpIr::create(tensor(0, &[2, 3]), tensor(1, &[2, 3]), 1, output);
        check(
            float_operation(FloatOperationIr::Cross(cross)),
            (18, 48, 24),
        );
    }

    #[test]
    fn quantization_writes_bytes() {
        let scheme = QuantScheme::default()
            .with_store(QuantStore::Native)
            .per_block([8], ScaleDtype::F32)
            .per_tensor(ScaleDtype::F32);
        let scales = QuantizationParametersIr {
            scales: tensor(1, &[8]),
            global: Some(tensor(2, &[1])),
        };
        let quantize = QuantizeOpIr::create(tensor(0, &[64]), scales, scheme, output);
        let quantized = quantize.out.clone();
        // 64 values of a byte, eight scales of blocks and one of the tensor.
        let stored = 64 + 8 * 4 + 4;
        let read = 64 * 4 + 8 * 4 + 4;
        check(
            float_operation(FloatOperationIr::Quantize(quantize)),
            (256, read, stored),
        );
        let restore = DequantizeOpIr::create(quantized, DType::F32, || burn_ir::TensorId::new(3));
        check(
            float_operation(FloatOperationIr::Dequantize(restore)),
            (128, stored, 256),
        );
    }
}
