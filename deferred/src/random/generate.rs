//! Tensors of random values and regions of them, on all cores.

use burn::tensor::{DType, Distribution, Element, Shape, TensorData};
use fearless_simd::Level;
use half::{bf16, f16};
use rayon::prelude::*;
use tinderbox_fake::{Region, Runs};
use tinderbox_memory::Memory;

use super::fill::Filler;
use super::runs::runs_of;
use super::{RandomElement, RandomError, Stream};

/// The dtypes for which random values are supported. `Flex32` is `F32` here.
pub const DTYPES: [DType; 12] = {
    use DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    [F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8]
};

/// Minimum elements of a task: enough to amortize its cost, and to populate huge pages if there are many tasks.
const LEAST_OF_TASK: usize = 1 << 16;
const MOST_OF_TASK: usize = 1 << 20;
/// Number of tasks that balance the threads.
const TASKS: usize = 64;

/// Generates random values of a stream for a tensor of this shape and dtype.
///
/// Runs in the current rayon pool. Every element depends only on the stream and its own index.
///
/// # Errors
///
/// When the distribution's parameters are invalid, or random values of this dtype are not supported.
pub fn generate(
    stream: &Stream,
    distribution: Distribution,
    shape: Shape,
    dtype: DType,
) -> Result<TensorData, RandomError> {
    let whole = Region::of_shape(shape.as_slice());
    generate_region(stream, distribution, &shape, &whole, dtype)
}

/// Generates random values of a stream for a region of a tensor of this shape and dtype: the same bits as that
/// region of [`generate`], in row-major order, without the rest.
///
/// Runs in the current rayon pool. Needs no memory beyond the region, and time in proportion to it.
/// Blocks of four consecutive elements (two, for elements of 64 bits) are always generated whole, so an element of a
/// column costs several times more than an element of a row.
///
/// # Errors
///
/// When the distribution's parameters are invalid, random values of this dtype are not supported, the
/// region is not inside the tensor, or the tensor has more than 2^64 - 1 elements.
pub fn generate_region(
    stream: &Stream,
    distribution: Distribution,
    whole: &Shape,
    region: &Region,
    dtype: DType,
) -> Result<TensorData, RandomError> {
    let make = match dtype {
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
        DType::Bool(_) | DType::QFloat(_) => return Err(RandomError::Unsupported { dtype }),
    };
    let runs = runs_of(whole, region).map_err(|source| RandomError::Region { source })?;
    let shape: Vec<usize> = region.size().iter().map(|size| *size as usize).collect();
    make(stream, distribution, &runs, Shape::from(shape))
}

fn tensor<T: RandomElement + Element + Send>(
    stream: &Stream,
    distribution: Distribution,
    runs: &Runs,
    shape: Shape,
) -> Result<TensorData, RandomError> {
    let filler = Filler::<T> {
        level: Level::new(),
        sampler: T::sampler(distribution)?,
        stream,
    };
    let elements = shape.num_elements();
    let task_elements = (elements / TASKS).clamp(LEAST_OF_TASK, MOST_OF_TASK);
    if elements <= LEAST_OF_TASK {
        // One task, which runs on this thread.
        let mut values = vec![T::zeroed(); elements];
        filler.fill_region(runs, 0, &mut values);
        return Ok(TensorData::new(values, shape));
    }
    let memory = elements.checked_mul(size_of::<T>());
    let memory = memory.and_then(|bytes| Memory::new(bytes, align_of::<T>()));
    let mut memory = memory.unwrap_or_else(|| panic!("no memory for {elements} random values"));
    let tasks = memory.parts().chunks(task_elements * size_of::<T>());
    tasks.into_par_iter().enumerate().for_each(|(task, out)| {
        let out = bytemuck::cast_slice_mut(out.ready());
        filler.fill_region(runs, (task * task_elements) as u64, out);
    });
    let bytes = memory.into_bytes();
    Ok(TensorData::from_bytes(bytes, shape, T::dtype()))
}
