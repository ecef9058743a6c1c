//! Inputs of a forward, and access to their float tensors.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use tinderbox::Batch;

/// The arguments of a forward.
pub trait Inputs: Batch {
    /// Replaces the elements of every float tensor, in order; keeps the shapes.
    fn map_floats(self, change: &mut dyn FnMut(Tensor<1>) -> Tensor<1>) -> Self;

    /// Returns the number of elements of every float tensor, in order.
    fn float_sizes(self) -> Vec<usize> {
        let mut sizes = Vec::new();
        self.map_floats(&mut |tensor| {
            sizes.push(tensor.dims()[0]);
            tensor
        });
        sizes
    }
}

impl<const D: usize> Inputs for Tensor<D> {
    fn map_floats(self, change: &mut dyn FnMut(Tensor<1>) -> Tensor<1>) -> Self {
        let shape = self.shape();
        let elements = shape.num_elements();
        change(self.reshape([elements])).reshape(shape)
    }
}

impl<const D: usize> Inputs for Tensor<D, Int> {
    fn map_floats(self, _: &mut dyn FnMut(Tensor<1>) -> Tensor<1>) -> Self {
        self
    }
}

impl<const D: usize> Inputs for Tensor<D, Bool> {
    fn map_floats(self, _: &mut dyn FnMut(Tensor<1>) -> Tensor<1>) -> Self {
        self
    }
}

impl<I: Inputs> Inputs for Option<I> {
    fn map_floats(self, change: &mut dyn FnMut(Tensor<1>) -> Tensor<1>) -> Self {
        self.map(|value| value.map_floats(change))
    }
}

macro_rules! tuple {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Inputs),*> Inputs for ($($name,)*) {
            fn map_floats(self, change: &mut dyn FnMut(Tensor<1>) -> Tensor<1>) -> Self {
                ($(self.$index.map_floats(change),)*)
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

/// Returns numbers between 0 and 1, distinct within a small tensor; another `number` results in other values.
fn fractions(count: usize, number: u32) -> impl Iterator<Item = f32> {
    let mut state = number.wrapping_mul(0x9e37_79b9).wrapping_add(0x7f4a_7c15);
    (0..count).map(move |_| {
        // The quick generator of Numerical Recipes; its high bits are sufficient for test data.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32
    })
}

/// Returns a float tensor with elements between `low` and `high`.
pub fn between<const D: usize>(
    [low, high]: [f32; 2],
    shape: [usize; D],
    number: u32,
    device: &Device,
) -> Tensor<D> {
    let values: Vec<f32> = fractions(shape.iter().product(), number)
        .map(|x| low + x * (high - low))
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Returns a float tensor with elements between -2 and 2.
pub fn floats<const D: usize>(shape: [usize; D], number: u32, device: &Device) -> Tensor<D> {
    between([-2.0, 2.0], shape, number, device)
}

/// Returns a float tensor of -1 and 1.
pub fn signs<const D: usize>(shape: [usize; D], number: u32, device: &Device) -> Tensor<D> {
    let values: Vec<f32> = fractions(shape.iter().product(), number)
        .map(|x| if x < 0.5 { -1.0 } else { 1.0 })
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Returns an int tensor with elements from `from` to `below`, exclusive.
pub fn ints<const D: usize>(
    [from, below]: [i32; 2],
    shape: [usize; D],
    number: u32,
    device: &Device,
) -> Tensor<D, Int> {
    let values: Vec<i32> = fractions(shape.iter().product(), number)
        .map(|x| from + ((x * (below - from) as f32) as i32).min(below - from - 1))
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Returns an int tensor of these elements.
pub fn these<const N: usize>(values: [i32; N], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [N]), device)
}

/// Returns a mask of which a third is true, but never the first element of a row.
pub fn mask<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D, Bool> {
    let row = shape[D - 1];
    let values: Vec<bool> = (0..shape.iter().product())
        .map(|index: usize| !index.is_multiple_of(row) && (index * 7).is_multiple_of(3))
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}
