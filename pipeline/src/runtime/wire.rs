//! Tensors in the frames of processes.

use burn::tensor::{Bytes as TensorBytes, DType, Device, TensorData};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{DynTensor, FakeError};
use tinderbox_world::Buffer;

/// The dtype and the shape of a tensor, which is one piece of a frame: its elements in row-major order, little-endian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TensorType {
    dtype: DType,
    shape: Vec<usize>,
}

impl TensorType {
    pub(super) fn of(tensor: &DynTensor) -> Self {
        Self {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
        }
    }

    /// The bytes of its elements; `None` if they are more than there can be.
    pub(super) fn bytes(&self) -> Option<usize> {
        let mut sizes = self.shape.iter();
        let elements = sizes.try_fold(1, |all: usize, size| all.checked_mul(*size))?;
        elements.checked_mul(self.dtype.size())
    }
}

/// A tensor that lends its memory to a frame.
struct Lent(DynTensor);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // It was checked when it was lent.
        self.0.host_bytes().unwrap_or_default()
    }
}

/// Returns the types and the bytes of tensors. The bytes of a tensor on the CPU that is not a view are not copied.
///
/// # Errors
///
/// When a device can't be read.
pub(super) fn lend(tensors: Vec<DynTensor>) -> Result<(Vec<TensorType>, Vec<Bytes>), FakeError> {
    let types = tensors.iter().map(TensorType::of).collect();
    let pieces = tensors.into_iter().map(|tensor| {
        let tensor = match tensor.host_bytes() {
            Some(_) => tensor,
            None => DynTensor::from_data(tensor.to_data()?, &Device::flex()),
        };
        Ok(match tensor.bytes() {
            0 => Bytes::new(),
            _ => Bytes::from_owner(Lent(tensor)),
        })
    });
    Ok((types, pieces.collect::<Result<_, FakeError>>()?))
}

/// Returns the tensors of a frame, in the memory in which they arrived; `None` if there are other numbers of pieces or
/// bytes than the types say.
pub(super) fn tensors(types: Vec<TensorType>, pieces: Vec<Buffer>) -> Option<Vec<DynTensor>> {
    if types.len() != pieces.len() {
        return None;
    }
    let tensors = types.into_iter().zip(pieces).map(|(kind, piece)| {
        let length = kind.bytes()?;
        let TensorType { dtype, shape } = kind;
        // Quantized tensors have no elements of a fixed size, and no model here has them.
        if length != piece.len() || matches!(dtype, DType::QFloat(_)) {
            return None;
        }
        let mut bytes = TensorBytes::from_elems(piece.into_words());
        if bytes.len() != length {
            bytes = TensorBytes::from_bytes_vec(bytes[..length].to_vec());
        }
        let data = TensorData::from_bytes(bytes, shape, dtype);
        Some(DynTensor::from_data(data, &Device::flex()))
    });
    tensors.collect()
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Int, Tensor};

    use super::*;

    #[test]
    fn tensors_are_read_back_bit_by_bit() {
        let device = Device::flex();
        let whole = Tensor::<2>::from_floats([[1.0, -0.0, f32::NAN], [4.0, 5.0, 1e-40]], &device);
        let view = whole.clone().transpose();
        let given = [
            DynTensor::from(whole),
            DynTensor::from(view),
            DynTensor::from(Tensor::<1, Int>::from_ints([7, -8, 9], &device)),
            DynTensor::from(Tensor::<3>::zeros([2, 0, 4], &device)),
            DynTensor::from(Tensor::<1>::from_floats([3.0], &device)),
        ];
        let (types, pieces) = lend(given.to_vec()).unwrap();
        // The memory of a whole tensor is lent.
        assert_eq!(pieces[0].as_ptr(), given[0].host_bytes().unwrap().as_ptr());
        let buffers = pieces
            .iter()
            .map(|piece| Buffer::from(&piece[..]))
            .collect();
        let found = tensors(types.clone(), buffers).unwrap();
        for (given, found) in given.iter().zip(&found) {
            let (given, found) = (given.to_data().unwrap(), found.to_data().unwrap());
            assert_eq!(
                (given.dtype(), given.shape()),
                (found.dtype(), found.shape())
            );
            assert_eq!(given.as_bytes(), found.as_bytes());
        }
        // Other lengths, and other numbers of pieces.
        let short = |cut: usize| {
            let buffers = pieces
                .iter()
                .map(|piece| Buffer::from(&piece[piece.len().min(cut)..]));
            tensors(types.clone(), buffers.collect())
        };
        assert!(short(0).is_some() && short(1).is_none() && short(4).is_none());
        assert!(tensors(types[1..].to_vec(), Vec::new()).is_none());
        let huge = TensorType {
            dtype: DType::F64,
            shape: vec![usize::MAX, 2],
        };
        assert!(tensors(vec![huge], vec![Buffer::default()]).is_none());
    }
}
