//! The kernels, and the choice of the kernel for a region.

use burn::tensor::{DType, Distribution, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::UIntKind;
use cubecl::prelude::*;
use tinderbox_fake::Region;

use super::narrow::narrow;
use super::philox::{Draw, DrawLaunch};
use super::task::Task;
use super::values::{Parameters, ParametersLaunch, Values};
use super::wide::wide;
use crate::random::element::Sample;
use crate::random::runs::runs_of;
use crate::random::{RandomError, Stream};

/// One of the dimensions over which the runs of a region are counted.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Axis {
    size: u64,
    stride: u64,
}

/// The position of a region in the whole, counted in blocks or in elements: as [`Runs`](tinderbox_fake::Runs).
#[derive(CubeType, CubeLaunch)]
struct Places {
    first: u64,
    length: u64,
    /// The innermost first.
    axes: Sequence<Axis>,
}

#[cube]
impl Places {
    /// Returns the position in the whole of a position in the region.
    fn in_the_whole(&self, position: u64) -> u64 {
        let count = self.axes.len();
        if comptime!(count == 0) {
            self.first + position
        } else {
            let mut place = self.first + position % self.length;
            let mut run = position / self.length;
            #[unroll]
            for i in 0..count {
                let axis = self.axes.index(i);
                place += (run % axis.size) * axis.stride;
                run /= axis.size;
            }
            place
        }
    }
}

/// The arguments of every kernel.
#[derive(CubeType, CubeLaunch)]
struct Args {
    places: Places,
    draw: Draw,
    parameters: Parameters,
}

/// One block of four elements a unit.
#[cube(launch, address_type = "dynamic")]
fn narrow_blocks<U: Int, N: Size>(
    out: &mut [Vector<U, N>],
    args: Args,
    #[comptime] values: Values,
    #[define(U)] _unit: ElemType,
) {
    if ABSOLUTE_POS < out.len() {
        let block = args.places.in_the_whole(ABSOLUTE_POS as u64);
        let words = narrow(block, &args.draw, &args.parameters, values);
        let mut vector = Vector::<U, N>::empty();
        vector.insert(0usize, U::cast_from(words.a));
        vector.insert(1usize, U::cast_from(words.b));
        vector.insert(2usize, U::cast_from(words.c));
        vector.insert(3usize, U::cast_from(words.d));
        out[ABSOLUTE_POS] = vector;
    }
}

/// One element a unit, at any position in its block: at most four times the work.
#[cube(launch, address_type = "dynamic")]
fn narrow_elements<U: Int>(
    out: &mut [U],
    args: Args,
    #[comptime] values: Values,
    #[define(U)] _unit: ElemType,
) {
    if ABSOLUTE_POS < out.len() {
        let element = args.places.in_the_whole(ABSOLUTE_POS as u64);
        let words = narrow(element >> 2u64, &args.draw, &args.parameters, values);
        let lane = element & 3u64;
        let low = select(lane == 0u64, words.a, words.b);
        let high = select(lane == 2u64, words.c, words.d);
        out[ABSOLUTE_POS] = U::cast_from(select(lane < 2u64, low, high));
    }
}

/// One block of two elements a unit.
#[cube(launch, address_type = "dynamic")]
fn wide_blocks<N: Size>(out: &mut [Vector<u64, N>], args: Args, #[comptime] values: Values) {
    if ABSOLUTE_POS < out.len() {
        let block = args.places.in_the_whole(ABSOLUTE_POS as u64);
        let words = wide(block, &args.draw, &args.parameters, values);
        let mut vector = Vector::<u64, N>::empty();
        vector.insert(0usize, words.first);
        vector.insert(1usize, words.second);
        out[ABSOLUTE_POS] = vector;
    }
}

/// One element a unit, at any position in its block: at most twice the work.
#[cube(launch, address_type = "dynamic")]
fn wide_elements(out: &mut [u64], args: Args, #[comptime] values: Values) {
    if ABSOLUTE_POS < out.len() {
        let element = args.places.in_the_whole(ABSOLUTE_POS as u64);
        let words = wide(element >> 1u64, &args.draw, &args.parameters, values);
        out[ABSOLUTE_POS] = select((element & 1u64) == 0u64, words.first, words.second);
    }
}

/// Generates random values of a stream for a region of a tensor on the device: the bits of
/// [`generate_region`](crate::random::generate_region). The kernel is queued on the device's stream, and
/// writes to the new tensor directly; nothing is copied.
///
/// # Errors
///
/// The errors of the CPU's code.
///
/// # Panics
///
/// When the device can't be opened.
pub fn generate_on(
    device: &CubeDevice,
    stream: &Stream,
    distribution: Distribution,
    whole: &Shape,
    region: &Region,
    dtype: DType,
) -> Result<CubeTensor, RandomError> {
    let task = Task::new(distribution, dtype)?;
    let runs = runs_of(whole, region).map_err(|source| RandomError::Region { source })?;
    let shape: Vec<usize> = region.size().iter().map(|size| *size as usize).collect();
    let (client, shape) = (device.client(), Shape::from(shape));
    let out = empty_device_contiguous_dtype(client.clone(), device.clone(), shape, dtype);
    let elements = out.meta.num_elements();
    let Some(first) = runs.peek() else {
        return Ok(out);
    };
    // Elements of 64 bits.
    let is_wide = dtype.size() == 8;
    let per_block = match is_wide {
        true => <u64 as Sample>::PER_BLOCK,
        false => <u32 as Sample>::PER_BLOCK,
    };
    // Whole blocks are generated if every one is completely in a run.
    let strides = runs.axes().iter().map(|axis| axis.source_stride);
    let mut counts = strides.chain([first.source, first.len]);
    let in_blocks = counts.all(|count| count.is_multiple_of(per_block));
    let group = if in_blocks { per_block } else { 1 };
    let units = elements / group as usize;

    let client = &client;
    let dim = CubeDim::new(client, units);
    let count = cubecl::calculate_cube_count_elemwise(client, units, dim);
    let address = AddressType::from_len(elements);
    let mut axes = SequenceArg::new();
    for axis in runs.axes() {
        axes.push(AxisLaunch::new(axis.size, axis.source_stride / group));
    }
    let places = PlacesLaunch::new(first.source / group, first.len / group, axes);
    let [k0, k1] = stream.key();
    let [_, _, step, micro_batch] = stream.counter(0);
    let draw = DrawLaunch::new(k0, k1, step, micro_batch);
    let Task { values, parameters } = task;
    let [a, b, c, d] = parameters;
    let args = ArgsLaunch::new(places, draw, ParametersLaunch::new(a, b, c, d));
    let (unit, vector) = (unit(dtype), per_block as usize);
    let buffer = out.clone().into_buffer_arg();
    match (is_wide, in_blocks) {
        (false, true) => {
            narrow_blocks::launch(
                client, count, dim, address, vector, buffer, args, values, unit,
            );
        }
        (false, false) => {
            narrow_elements::launch(client, count, dim, address, buffer, args, values, unit);
        }
        (true, true) => {
            wide_blocks::launch(client, count, dim, address, vector, buffer, args, values);
        }
        (true, false) => {
            wide_elements::launch(client, count, dim, address, buffer, args, values);
        }
    }
    Ok(out)
}

/// Returns the unsigned integer with the number of bits of an element.
fn unit(dtype: DType) -> ElemType {
    ElemType::UInt(match dtype.size() {
        1 => UIntKind::U8,
        2 => UIntKind::U16,
        4 => UIntKind::U32,
        _ => UIntKind::U64,
    })
}

#[cfg(all(test, feature = "cpu"))]
#[path = "tests/offline.rs"]
pub(super) mod offline;
