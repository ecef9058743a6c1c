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
        let bytes = elements.checked_mul(dtype.size())?;
        // The trial is given back untouched, and the real one comes zeroed from the system, without a pass
        // over it.
        Vec::<u8>::new().try_reserve_exact(bytes).ok()?;
        Some(match dtype.size() {
            2 => Self::Two(tinderbox_pages::zeroed(elements)),
            4 => Self::Four(tinderbox_pages::zeroed(elements)),
            8 => Self::Eight(tinderbox_pages::zeroed(elements)),
            _ => Self::One(tinderbox_pages::zeroed(bytes)),
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
