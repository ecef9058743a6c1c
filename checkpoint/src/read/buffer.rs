//! Memory that becomes a tensor without a copy.

use burn::tensor::{Bytes, DType, TensorData};
use bytemuck::cast_slice_mut;

/// Zeros, in memory that is aligned as the elements need it: Burn copies bytes that are not.
#[derive(Debug)]
pub(super) enum Buffer {
    One(Vec<u8>),
    Two(Vec<u16>),
    Four(Vec<u32>),
    Eight(Vec<u64>),
}

impl Buffer {
    /// Memory for elements of a type; `None` where an ordinary allocation would end the process.
    pub(super) fn zeroed(elements: u64, dtype: DType) -> Option<Self> {
        let elements = usize::try_from(elements).ok()?;
        Some(match dtype.size() {
            2 => Self::Two(tinderbox_pages::try_zeroed(elements)?),
            4 => Self::Four(tinderbox_pages::try_zeroed(elements)?),
            8 => Self::Eight(tinderbox_pages::try_zeroed(elements)?),
            size => Self::One(tinderbox_pages::try_zeroed(elements.checked_mul(size)?)?),
        })
    }

    /// All of it.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::One(elements) => elements,
            Self::Two(elements) => cast_slice_mut(elements),
            Self::Four(elements) => cast_slice_mut(elements),
            Self::Eight(elements) => cast_slice_mut(elements),
        }
    }

    /// The tensor of these elements.
    pub(super) fn into_data(self, shape: Vec<usize>, dtype: DType) -> TensorData {
        let bytes = match self {
            Self::One(elements) => Bytes::from_elems(elements),
            Self::Two(elements) => Bytes::from_elems(elements),
            Self::Four(elements) => Bytes::from_elems(elements),
            Self::Eight(elements) => Bytes::from_elems(elements),
        };
        TensorData::from_bytes(bytes, shape, dtype)
    }
}
