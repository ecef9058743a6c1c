//! Pseudorandom batches that are the same on every machine.

use burn::tensor::{Device, Int, Tensor, TensorData};

/// Returns numbers between -1 and 1, which depend on `number`.
pub fn noise(count: usize, number: u64) -> Vec<f32> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns a float tensor of [`noise`].
pub fn floats<const D: usize>(shape: [usize; D], number: u64, device: &Device) -> Tensor<D> {
    let values = noise(shape.iter().product(), number);
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Returns integers from 0 on, all less than `below`.
pub fn tokens<const D: usize>(
    shape: [usize; D],
    below: usize,
    number: u64,
    device: &Device,
) -> Tensor<D, Int> {
    let values = noise(shape.iter().product(), number).into_iter();
    let token = |x: f32| (((x + 1.0) / 2.0 * below as f32) as i32).min(below as i32 - 1);
    let values: Vec<i32> = values.map(token).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}
