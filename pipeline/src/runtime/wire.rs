//! Tensors in the frames of processes.
//!
//! A view is sent as a view: Burn's sums add the elements of some views in the order of their memory, so a copy in row-major
//! order has another sum. A view has up to twice the bytes of its elements, and predictions count the elements.

use std::ops::Range;

use burn::tensor::{Bytes as TensorBytes, DType, Device, TensorData};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{DynTensor, FakeError, HostLayout};
use tinderbox_world::Buffer;

/// The dtype and the shape of a tensor. The tensor is one piece of a frame, little-endian: its elements in row-major order, or
/// memory with a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorType {
    dtype: DType,
    shape: Vec<usize>,
    view: Option<View>,
}

/// The positions of the elements of a view in the memory of a piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct View {
    layout: HostLayout,
    /// The number of elements of the memory.
    elements: usize,
}

impl TensorType {
    /// The type of the elements in row-major order.
    pub(crate) fn of(tensor: &DynTensor) -> Self {
        Self {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            view: None,
        }
    }

    /// The bytes of the piece; `None` if their number overflows.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let mut sizes = self.shape.iter();
        let elements = match &self.view {
            Some(view) => Some(view.elements),
            None => sizes.try_fold(1, |all: usize, size| all.checked_mul(*size)),
        };
        elements?.checked_mul(self.dtype.size())
    }

    /// Returns the tensor of a piece, in the memory in which it arrived; `None` if it has another number of bytes.
    pub(crate) fn tensor(&self, piece: Buffer) -> Option<DynTensor> {
        let (length, dtype) = (self.bytes()?, self.dtype);
        // Quantized tensors have no elements of a fixed size, and no model here has them.
        if length != piece.len() || matches!(dtype, DType::QFloat(_)) {
            return None;
        }
        let mut bytes = TensorBytes::from_elems(piece.into_words());
        if bytes.len() != length {
            bytes = TensorBytes::from_bytes_vec(bytes[..length].to_vec());
        }
        match &self.view {
            None => {
                let data = TensorData::from_bytes(bytes, self.shape.clone(), dtype);
                Some(DynTensor::from_data(data, &Device::flex()))
            }
            Some(View { layout, elements }) => {
                let memory = TensorData::from_bytes(bytes, [*elements], dtype);
                DynTensor::from_host_memory(memory, &self.shape, layout)
            }
        }
    }
}

/// A tensor that lends a part of its memory to a frame.
struct Lent(DynTensor, Range<usize>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // It was checked when it was lent.
        let memory = self.0.host_memory();
        memory.map_or(&[], |(_, bytes)| &bytes[self.1.clone()])
    }
}

/// Returns the types and the bytes of tensors. The memory of a tensor on the CPU is not copied, unless a view reads less than
/// half of it.
///
/// # Errors
///
/// When a device can't be read.
pub(crate) fn lend(tensors: Vec<DynTensor>) -> Result<(Vec<TensorType>, Vec<Bytes>), FakeError> {
    let lent = tensors.into_iter().map(|tensor| lend_one(tensor, 2));
    lent.collect()
}

/// Does the same as [`lend`] for one tensor, but copies a view that does not read all of its memory.
///
/// # Errors
///
/// When the device can't be read.
pub(crate) fn lend_compact(tensor: DynTensor) -> Result<(TensorType, Bytes), FakeError> {
    lend_one(tensor, 1)
}

/// Copies a view of the CPU that does not read all of its memory to its own memory, as the same kind of view. Returns other
/// tensors unchanged.
///
/// # Errors
///
/// When the tensor can't be read.
pub(crate) fn compact(tensor: DynTensor) -> Result<DynTensor, FakeError> {
    match tensor.host_memory() {
        Some((_, memory)) if memory.len() as u64 > tensor.bytes() => {
            let (kind, piece) = lend_compact(tensor.clone())?;
            Ok(kind.tensor(Buffer::from(&piece[..])).unwrap_or(tensor))
        }
        _ => Ok(tensor),
    }
}

/// Returns the bytes of tensors in row-major order. The bytes of a tensor on the CPU that is not a view are not copied.
///
/// # Errors
///
/// When a device can't be read.
pub(crate) fn lend_row_major(tensors: Vec<DynTensor>) -> Result<Vec<Bytes>, FakeError> {
    let rows = tensors.into_iter().map(|tensor| {
        Ok(match tensor.host_bytes() {
            Some(_) => tensor,
            None => DynTensor::from_data(tensor.to_data()?, &Device::flex()),
        })
    });
    Ok(lend(rows.collect::<Result<_, FakeError>>()?)?.1)
}

/// Lends a tensor. A view is copied first if its memory has more than `most` times as many elements.
fn lend_one(tensor: DynTensor, most: usize) -> Result<(TensorType, Bytes), FakeError> {
    let kind = TensorType::of(&tensor);
    if tensor.bytes() == 0 {
        return Ok((kind, Bytes::new()));
    }
    let Some((layout, memory)) = tensor.host_memory() else {
        let tensor = DynTensor::from_data(tensor.to_data()?, &Device::flex());
        return lend_one(tensor, most);
    };
    let size = kind.dtype.size();
    let (elements, in_memory) = (tensor.shape().num_elements(), memory.len() / size);
    let range = layout.range(&kind.shape);
    let mut range = range.expect("a tensor reads its own memory");
    let is_row_major = layout.is_row_major(&kind.shape);
    if !is_row_major && range.len() > most.saturating_mul(elements) {
        let (data, layout) = packed(&tensor, &kind.shape, &layout)?;
        let packed = DynTensor::from_host_memory(data, &kind.shape, &layout);
        // The copy has gaps in the place of larger gaps of the view.
        return lend_one(packed.expect("it was made for this layout"), usize::MAX);
    }
    // Burn adds the elements of a view of all its memory in another order than the elements of other views.
    if !is_row_major && range.len() == elements && in_memory > elements {
        match range.end < in_memory {
            true => range.end += 1,
            false => range.start -= 1,
        }
    }
    let view = (!is_row_major).then(|| View {
        layout: HostLayout {
            offset: layout.offset - range.start,
            ..layout
        },
        elements: range.len(),
    });
    let bytes = Bytes::from_owner(Lent(tensor, range.start * size..range.end * size));
    Ok((TensorType { view, ..kind }, bytes))
}

/// Copies a view of a small part of its memory, with gaps of one element in the place of larger gaps, so that it stays the same
/// kind of view.
fn packed(
    tensor: &DynTensor,
    shape: &[usize],
    layout: &HostLayout,
) -> Result<(TensorData, HostLayout), FakeError> {
    let mut by_stride: Vec<usize> = (0..shape.len()).collect();
    by_stride.sort_by_key(|dim| layout.strides[*dim].unsigned_abs());
    let mut strides = vec![0; shape.len()];
    // The elements from the first to the last so far, in the view and in the copy.
    let (mut extent, mut packed) = (1, 1);
    let mut offset = 0;
    for dim in by_stride {
        let (size, stride) = (shape[dim], layout.strides[dim]);
        let distance = stride.unsigned_abs();
        let own = match distance {
            0 => 0,
            _ if distance > extent && size > 1 => packed + 1,
            _ => packed,
        };
        extent += (size - 1) * distance;
        packed += (size - 1) * own;
        strides[dim] = own as isize * stride.signum();
        if stride < 0 {
            offset += (size - 1) * own;
        }
    }
    let data = tensor.to_data()?;
    let size = data.dtype().size();
    let mut memory = vec![0; (packed + 1) * size];
    let mut place = vec![0; shape.len()];
    for element in data.as_bytes().chunks_exact(size) {
        let at = place.iter().zip(&strides);
        let at: isize = at.map(|(index, stride)| *index as isize * stride).sum();
        let at = offset.wrapping_add_signed(at) * size;
        memory[at..at + size].copy_from_slice(element);
        for (index, size) in place.iter_mut().zip(shape).rev() {
            *index += 1;
            if *index < *size {
                break;
            }
            *index = 0;
        }
    }
    let memory = TensorData::from_bytes_vec(memory, [packed + 1], data.dtype());
    Ok((memory, HostLayout { strides, offset }))
}

/// Returns the tensors of a frame, in the memory in which they arrived; `None` if the numbers of pieces or bytes do not match
/// the types.
pub(crate) fn tensors(types: Vec<TensorType>, pieces: Vec<Buffer>) -> Option<Vec<DynTensor>> {
    if types.len() != pieces.len() {
        return None;
    }
    let tensors = types.iter().zip(pieces);
    tensors.map(|(kind, piece)| kind.tensor(piece)).collect()
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
        let large = Tensor::<1, Int>::arange(0..600, &device).reshape([20, 30]);
        let given = [
            DynTensor::from(whole.clone()),
            DynTensor::from(view.clone()),
            // All elements of some rows, some of each row, and few of all.
            DynTensor::from(view.clone().narrow(1, 1, 1)),
            DynTensor::from(whole.clone().narrow(0, 1, 1)),
            DynTensor::from(large.clone().narrow(0, 3, 4).transpose()),
            DynTensor::from(large.clone().narrow(1, 3, 4).flip([0])),
            DynTensor::from(large.clone().narrow(1, 7, 1).flip([1]).transpose()),
            DynTensor::from(whole.narrow(0, 1, 1).expand([9, 3])),
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
        // Each is the same kind of view, of little more memory than it has elements.
        for (given, found) in given.iter().zip(&found) {
            let kind = |tensor: &DynTensor| {
                let shape = tensor.shape().to_vec();
                let (layout, memory) = tensor.host_memory().unwrap();
                let elements = memory.len() / tensor.dtype().size();
                let is_whole = elements == tensor.shape().num_elements();
                let signs: Vec<isize> = layout.strides.iter().map(|one| one.signum()).collect();
                (layout.is_row_major(&shape), is_whole, signs)
            };
            let [(rows, whole, signs), other] = [kind(given), kind(found)];
            assert_eq!(rows, other.0);
            assert!(rows || (whole, signs) == (other.1, other.2), "{given:?}");
            let (_, memory) = found.host_memory().unwrap();
            assert!(memory.len() as u64 <= 2 * found.bytes() + 8);
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
            view: None,
        };
        assert!(tensors(vec![huge.clone()], vec![Buffer::default()]).is_none());
        // A view of more memory than there is.
        let outside = TensorType {
            shape: vec![2, 2],
            view: Some(View {
                layout: HostLayout {
                    strides: vec![1, isize::MAX],
                    offset: 0,
                },
                elements: 4,
            }),
            ..huge
        };
        assert!(tensors(vec![outside], vec![Buffer::from(&[0; 32][..])]).is_none());
    }
}
