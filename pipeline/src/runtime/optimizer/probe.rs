//! Properties of optimizers, found by trying them on small parameters.

use std::ops::Range;

use burn::optim::{DynOptimizer, StateSink};
use burn::tensor::{DType, Device, TensorData};
use burn_pack::Scalar;
use tinderbox_fake::DynTensor;

use super::saved::{PREFIX, flattened};
use crate::runtime::caught::guarded;
use crate::runtime::clip::any_rank;

/// Returns the bytes of the state for an element of a parameter of this rank and dtype, after an update. Tries one element.
pub(crate) fn bytes_per_element(optimizer: &dyn DynOptimizer, rank: usize, dtype: DType) -> u64 {
    let state = after_one_step(optimizer, rank, dtype);
    let tensors = state.tensors.iter();
    tensors.map(|(_, data)| data.dtype().size() as u64).sum()
}

/// The state for a parameter of one element after a step. It is empty if the optimizer does not support the rank: then its
/// first step fails.
fn after_one_step(optimizer: &dyn DynOptimizer, rank: usize, dtype: DType) -> StateSink {
    let one = || {
        let data = TensorData::ones::<f32, _>(vec![1; rank]).convert_dtype(dtype);
        any_rank(DynTensor::from_data(data, &Device::flex())).into_bridge()
    };
    let tried = guarded(|| {
        let (_, state) = optimizer.step_dyn(rank, 0.0, one(), one(), None);
        flattened(optimizer, PREFIX, state.as_ref())
    });
    tried.unwrap_or_default()
}

/// Returns whether the optimizer has a state to save after it updated a parameter of this rank. Tries one element.
pub(crate) fn keeps_state(optimizer: &dyn DynOptimizer, rank: usize) -> bool {
    let state = after_one_step(optimizer, rank, DType::F32);
    !state.tensors.is_empty() || !state.scalars.is_empty()
}

/// Returns whether the optimizer updates each row of a parameter of this rank by itself, so that parts of the rows have the
/// bits of the whole. Tries two steps on a few rows. The state must consist of tensors of the parameter's shape and numbers.
pub(crate) fn works_by_row(optimizer: &dyn DynOptimizer, rank: usize) -> bool {
    const ROWS: usize = 4;
    let shape = |rows| {
        let mut shape = vec![3; rank];
        shape[0] = rows;
        shape
    };
    let numbers = |seed: f32, rows: Range<usize>| {
        let row: usize = shape(1).iter().product();
        let numbers = rows.start * row..rows.end * row;
        let numbers = numbers.map(|k| ((k as f32 + seed) * 12.9898).sin() * (1.0 + k as f32));
        let data = TensorData::new(numbers.collect::<Vec<f32>>(), shape(rows.len()));
        DynTensor::from_data(data, &Device::flex())
    };
    // The tensors of the state and the value after the steps, then the numbers of the state.
    let after = |rows: Range<usize>| {
        let mut state = None;
        let mut value = numbers(0.5, rows.clone());
        for step in [1.0, 2.0] {
            let gradient = any_rank(numbers(step, rows.clone())).into_bridge();
            let stepped =
                optimizer.step_dyn(rank, 0.1, any_rank(value).into_bridge(), gradient, state);
            (value, state) = (stepped.0.into(), stepped.1);
        }
        let sink = flattened(optimizer, PREFIX, state.as_ref());
        let mut tensors: Vec<TensorData> = sink.tensors.into_iter().map(|(_, data)| data).collect();
        tensors.push(any_rank(value).into_data());
        (tensors, sink.scalars)
    };
    let tried = guarded(|| {
        let (whole, first, second) = (after(0..ROWS), after(0..1), after(1..ROWS));
        let is_joined = |((whole, first), second): ((&TensorData, &TensorData), &TensorData)| {
            let joined = [first.as_bytes(), second.as_bytes()].concat();
            whole.shape().to_vec() == shape(ROWS) && whole.as_bytes() == joined
        };
        let tensors = whole.0.iter().zip(&first.0).zip(&second.0);
        let scalars = |saved: &[(String, Scalar)]| format!("{saved:?}");
        whole.0.len() == first.0.len()
            && { tensors }.all(is_joined)
            && scalars(&whole.1) == scalars(&first.1)
            && scalars(&whole.1) == scalars(&second.1)
    });
    tried.unwrap_or(false)
}
