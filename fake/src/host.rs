//! The memory of tensors on the CPU.

use burn::tensor::{Device, Shape, TensorData};
use burn_dispatch::{BackendTensor, DispatchTensor, DispatchTensorKind};
use burn_flex::{FlexTensor, Layout};
use serde::{Deserialize, Serialize};

use crate::DynTensor;

/// The positions of a CPU tensor's elements in its memory, counted in elements. A view, such as a transposed tensor,
/// shares the memory of another tensor. Burn's sums add the elements of some views in the order of the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLayout {
    /// The distance between neighbours, per dimension; 0 where all are the same element.
    pub strides: Vec<isize>,
    /// The first element.
    pub offset: usize,
}

impl HostLayout {
    /// Returns the range of elements that a tensor of a shape reads; `None` if the range is empty or begins before the
    /// first element.
    pub fn range(&self, shape: &[usize]) -> Option<std::ops::Range<usize>> {
        if shape.len() != self.strides.len() || shape.contains(&0) {
            return None;
        }
        let (mut first, mut last) = (self.offset, self.offset);
        for (size, stride) in shape.iter().zip(&self.strides) {
            let reach = stride.unsigned_abs().checked_mul(size - 1)?;
            match *stride < 0 {
                true => first = first.checked_sub(reach)?,
                false => last = last.checked_add(reach)?,
            }
        }
        Some(first..last.checked_add(1)?)
    }

    /// Returns whether the elements of a tensor of a shape are in row-major order without gaps.
    pub fn is_row_major(&self, shape: &[usize]) -> bool {
        self.layout(shape).is_contiguous()
    }

    fn layout(&self, shape: &[usize]) -> Layout {
        Layout::new(Shape::from(shape), self.strides.clone(), self.offset)
    }
}

impl DynTensor {
    fn flex(&self) -> Option<&FlexTensor> {
        match &self.0.kind {
            DispatchTensorKind::Flex(
                BackendTensor::Float(t) | BackendTensor::Int(t) | BackendTensor::Bool(t),
            ) => Some(t),
            DispatchTensorKind::Flex(BackendTensor::Autodiff(t)) => Some(t.primitive()),
            _ => None,
        }
    }

    /// Returns the memory of a tensor on the CPU, which a view shares with its original, and the positions of the elements
    /// in it. `None` on other devices.
    pub fn host_memory(&self) -> Option<(HostLayout, &[u8])> {
        let tensor = self.flex()?;
        let layout = tensor.layout();
        let (strides, offset) = (layout.strides().to_vec(), layout.start_offset());
        Some((HostLayout { strides, offset }, tensor.bytes()))
    }

    /// Returns the bytes of the elements in row-major order, without a copy, of a tensor on the CPU that is not a view.
    /// `None` for other tensors, whose data [`to_data`](Self::to_data) copies.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        let tensor = self.flex()?;
        let row_major = tensor.is_contiguous() && tensor.layout().start_offset() == 0;
        let bytes = tensor.bytes();
        (row_major && bytes.len() as u64 == self.bytes()).then_some(bytes)
    }

    /// Creates a tensor on the CPU from memory and the positions of the elements in it. `None` if a position is outside
    /// of the memory.
    pub fn from_host_memory(memory: TensorData, shape: &[usize], at: &HostLayout) -> Option<Self> {
        let range = at.range(shape)?;
        if range.end > memory.num_elements() {
            return None;
        }
        let mut tensor: DispatchTensor = Self::from_data(memory, &Device::flex()).into();
        if let DispatchTensorKind::Flex(
            BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor),
        ) = &mut tensor.kind
        {
            *tensor = tensor.clone().with_layout(at.layout(shape));
        }
        Some(tensor.into())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tensor;

    use super::*;

    #[test]
    fn data_without_another_handle_is_not_copied() {
        let tensor = Tensor::<1>::from_floats([1.0, 2.0], &Device::flex());
        let other = DynTensor::from(tensor.clone());
        let at = |bytes: &[u8]| bytes.as_ptr() as usize;
        let memory = at(other.host_bytes().unwrap());
        let copied = DynTensor::from(tensor).into_data().unwrap();
        assert_ne!(at(copied.as_bytes()), memory);
        let moved = other.into_data().unwrap();
        assert_eq!((at(moved.as_bytes()), &moved), (memory, &copied));
    }

    #[test]
    fn views_are_recreated() {
        let whole = Tensor::<1>::from_floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &Device::flex());
        let matrix = whole.reshape([2, 3]);
        for view in [
            matrix.clone(),
            matrix.clone().transpose(),
            matrix.clone().narrow(1, 1, 2),
            matrix.clone().flip([0, 1]),
            matrix.narrow(0, 1, 1).expand([4, 3]),
        ] {
            let view = DynTensor::from(view);
            let (layout, bytes) = view.host_memory().unwrap();
            let floats: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
            let memory = || TensorData::new(floats.clone(), [floats.len()]);
            let shape = view.shape().to_vec();
            let again = DynTensor::from_host_memory(memory(), &shape, &layout).unwrap();
            assert_eq!(again.host_memory(), view.host_memory());
            assert_eq!(again.to_data().unwrap(), view.to_data().unwrap());
            // Elements beyond the memory, and before it.
            let mut outside = layout.clone();
            outside.offset += floats.len();
            assert!(DynTensor::from_host_memory(memory(), &shape, &outside).is_none());
            let before = HostLayout {
                strides: vec![-1, -7],
                offset: 6,
            };
            assert!(DynTensor::from_host_memory(memory(), &[2, 2], &before).is_none());
        }
    }
}
