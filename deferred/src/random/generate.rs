//! Whole tensors of random values, on all cores.

use burn::tensor::{DType, Distribution, Shape, TensorData};
use burn_backend::Element;
use half::{bf16, f16};
use rayon::prelude::*;

use super::{RandomElement, RandomError, Stream, fill};

/// Elements that one task makes: large enough to hide the cost of a task, small enough to share out.
const TASK_ELEMENTS: usize = 1 << 16;

/// Random values of a stream for a tensor of this shape and dtype.
///
/// Runs in the current rayon pool. Every element depends on the stream and its own index only.
///
/// # Errors
///
/// When the distribution's parameters are invalid, or there are no random values of this dtype.
pub fn generate(
    stream: &Stream,
    distribution: Distribution,
    shape: Shape,
    dtype: DType,
) -> Result<TensorData, RandomError> {
    let dtype_fill = match dtype {
        DType::F64 => tensor::<f64>,
        DType::F32 | DType::Flex32 => tensor::<f32>,
        DType::F16 => tensor::<f16>,
        DType::BF16 => tensor::<bf16>,
        DType::I64 => tensor::<i64>,
        DType::I32 => tensor::<i32>,
        DType::I16 => tensor::<i16>,
        DType::I8 => tensor::<i8>,
        DType::U64 => tensor::<u64>,
        DType::U32 => tensor::<u32>,
        DType::U16 => tensor::<u16>,
        DType::U8 => tensor::<u8>,
        DType::Bool(_) | DType::QFloat(_) => {
            return Err(RandomError::Unsupported { dtype });
        }
    };
    dtype_fill(stream, distribution, shape)
}

fn tensor<T>(
    stream: &Stream,
    distribution: Distribution,
    shape: Shape,
) -> Result<TensorData, RandomError>
where
    T: RandomElement + Element + Send,
{
    let mut values = vec![T::default(); shape.num_elements()];
    values
        .par_chunks_mut(TASK_ELEMENTS)
        .enumerate()
        .try_for_each(|(task, chunk)| {
            fill(stream, distribution, (task * TASK_ELEMENTS) as u64, chunk)
        })?;
    Ok(TensorData::new(values, shape))
}
