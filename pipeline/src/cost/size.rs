//! How many elements and bytes a tensor has, for any shape at all.
//!
//! Shapes may come from a file, so nothing here panics: every product saturates at [`u64::MAX`], and
//! a dimension of zero gives zero wherever it stands. A dimension that a shape does not have counts
//! as one, as in Burn's broadcasting.

use burn_backend::DType;
use burn_backend::quantization::{BlockSize, QuantScheme, ScaleDtype};
use burn_ir::TensorIr;

const BITS_PER_BYTE: u128 = 8;

/// A product that stops at [`u64::MAX`], and is zero if any factor is.
pub(super) fn product(factors: impl IntoIterator<Item = u64>) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// Elements of a tensor.
pub(super) fn elements(tensor: &TensorIr) -> u64 {
    product(dimensions(tensor))
}

/// The dimensions, outermost first.
pub(super) fn dimensions(tensor: &TensorIr) -> impl DoubleEndedIterator<Item = u64> {
    tensor.shape.as_slice().iter().map(|length| *length as u64)
}

/// The length of an axis.
pub(super) fn axis_length(tensor: &TensorIr, axis: usize) -> u64 {
    let length = tensor.shape.as_slice().get(axis);
    length.map_or(1, |length| *length as u64)
}

/// The length of the axis that is `offset` axes before the innermost one.
pub(super) fn length_from_end(tensor: &TensorIr, offset: usize) -> u64 {
    dimensions(tensor).rev().nth(offset).unwrap_or(1)
}

/// The number of rows along an axis: the product of all other dimensions.
pub(super) fn rows_along(tensor: &TensorIr, axis: usize) -> u64 {
    let others = dimensions(tensor).enumerate();
    product(others.filter_map(|(index, length)| (index != axis).then_some(length)))
}

/// The number of rows along the innermost axis.
pub(super) fn rows(tensor: &TensorIr) -> u64 {
    product(dimensions(tensor).rev().skip(1))
}

/// Bytes that a tensor takes in memory; those of a quantized one include its scales.
pub(super) fn bytes(tensor: &TensorIr) -> u64 {
    let values = bytes_of(elements(tensor), tensor.dtype);
    match tensor.dtype {
        DType::QFloat(scheme) => values.saturating_add(scale_bytes(tensor, &scheme)),
        _ => values,
    }
}

/// Bytes of some elements of a dtype, without the scales of a quantized one.
///
/// [`DType::size`] says nothing for quantized values of less than a byte, and the size of a packed
/// word, not of a value, for others; so the words are counted here.
pub(super) fn bytes_of(elements: u64, dtype: DType) -> u64 {
    let DType::QFloat(scheme) = dtype else {
        return elements.saturating_mul(dtype.size() as u64);
    };
    let word_bits = scheme.size_bits_stored() as u128;
    let values_per_word = scheme.num_quants().max(1) as u128;
    let bits = u128::from(elements).div_ceil(values_per_word) * word_bits;
    u64::try_from(bits.div_ceil(BITS_PER_BYTE)).unwrap_or(u64::MAX)
}

/// Bytes of the scales: one per block, one for the whole tensor, or both.
fn scale_bytes(tensor: &TensorIr, scheme: &QuantScheme) -> u64 {
    let of_blocks = scheme.block_scale().map_or(0, |block| {
        blocks(tensor, &block.size).saturating_mul(scale_size(block.dtype))
    });
    let of_tensor = scheme.tensor_scale().map_or(0, scale_size);
    of_blocks.saturating_add(of_tensor)
}

/// The number of blocks that cover a tensor.
///
/// Burn's own count divides by the extents as they are, and a damaged file may say zero.
fn blocks(tensor: &TensorIr, size: &BlockSize) -> u64 {
    let extents = size.to_dim_vec(tensor.shape.as_slice().len().min(BlockSize::MAX_DIMS));
    let extents = extents.iter().rev().map(|extent| u64::from(*extent).max(1));
    // Outer dimensions beyond the extents are not divided.
    let extents = extents.chain(std::iter::repeat(1));
    let lengths = dimensions(tensor).rev().zip(extents);
    product(lengths.map(|(length, extent)| length.div_ceil(extent)))
}

fn scale_size(dtype: ScaleDtype) -> u64 {
    match dtype {
        ScaleDtype::F32 => 4,
        ScaleDtype::F16 | ScaleDtype::BF16 => 2,
        ScaleDtype::UE8M0 | ScaleDtype::UE4M3 => 1,
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::BoolStore;
    use burn_backend::quantization::{QuantStore, QuantValue};

    use super::*;
    use crate::cost::fixture::tensor_of;

    fn check_bytes(dims: &[usize], dtype: DType, expected: u64) {
        assert_eq!(bytes(&tensor_of(0, dims, dtype)), expected, "{dtype:?}");
    }

    #[test]
    fn plain_dtypes_take_their_size() {
        for (dtype, size) in [
            (DType::F64, 8),
            (DType::F32, 4),
            (DType::BF16, 2),
            (DType::I64, 8),
            (DType::U8, 1),
            (DType::Bool(BoolStore::Native), 1),
            (DType::Bool(BoolStore::U32), 4),
        ] {
            check_bytes(&[3, 5], dtype, 15 * size);
            check_bytes(&[3, 0], dtype, 0);
            check_bytes(&[], dtype, size);
        }
    }

    #[test]
    fn quantized_values_take_their_words_and_scales() {
        let scheme = QuantScheme::default().with_store(QuantStore::Native);
        // A byte each, and one f32 scale.
        check_bytes(&[4, 16], DType::QFloat(scheme), 64 + 4);
        // Four bits each, packed by eight into words of 32 bits: 65 values take nine.
        let packed = scheme
            .with_value(QuantValue::Q4S)
            .with_store(QuantStore::PackedU32(0));
        check_bytes(&[65], DType::QFloat(packed), 9 * 4 + 4);
        // 4 rows of two blocks of 8, a scale of two bytes each, and no scale of the tensor.
        let blocks = scheme.per_block([8], ScaleDtype::F16);
        check_bytes(&[4, 16], DType::QFloat(blocks), 64 + 4 * 2 * 2);
        // A partial block takes a scale too; both levels count.
        let levels = blocks.per_tensor(ScaleDtype::F32);
        check_bytes(&[4, 17], DType::QFloat(levels), 68 + 4 * 3 * 2 + 4);
    }

    #[test]
    fn values_of_less_than_a_byte_round_up() {
        let scheme = QuantScheme::default()
            .with_value(QuantValue::Q2S)
            .with_store(QuantStore::Native);
        check_bytes(&[9], DType::QFloat(scheme), 3 + 4);
        let pairs = scheme
            .with_value(QuantValue::E2M1)
            .with_store(QuantStore::PackedNative(0));
        check_bytes(&[9], DType::QFloat(pairs), 5 + 4);
    }

    #[test]
    fn gigantic_shapes_saturate_and_zeros_win() {
        const HUGE: usize = usize::MAX;
        check_bytes(&[HUGE, HUGE, HUGE], DType::F32, u64::MAX);
        check_bytes(&[HUGE, HUGE, 0], DType::F32, 0);
        let scheme = QuantScheme::default().per_block([0, 0], ScaleDtype::F32);
        check_bytes(&[HUGE, HUGE], DType::QFloat(scheme), u64::MAX);
    }

    #[test]
    fn rows_leave_one_axis_out() {
        let tensor = tensor_of(0, &[2, 3, 5], DType::F32);
        assert_eq!(rows(&tensor), 6);
        assert_eq!(rows_along(&tensor, 1), 10);
        assert_eq!(rows_along(&tensor, 7), 30);
        assert_eq!(axis_length(&tensor, 1), 3);
        assert_eq!(axis_length(&tensor, 7), 1);
        assert_eq!(length_from_end(&tensor, 0), 5);
        assert_eq!(length_from_end(&tensor, 7), 1);
    }
}
