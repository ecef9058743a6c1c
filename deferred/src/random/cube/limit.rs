//! The generator without its writes, to measure the limit of its integer arithmetic.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::philox::{Draw, DrawLaunch, block};

/// Several blocks a unit; keeps one word of them.
#[cube(launch)]
fn blocks_only(out: &mut [u32], draw: Draw, blocks: u32) {
    if ABSOLUTE_POS < out.len() {
        let first = ABSOLUTE_POS as u64 * blocks as u64;
        let mut left = 0u32.runtime();
        for i in 0..blocks {
            let words = block(first + i as u64, &draw);
            left ^= words.a ^ words.b ^ words.c ^ words.d;
        }
        out[ABSOLUTE_POS] = left;
    }
}

/// Returns one word for each unit: the exclusive or of all words of its blocks.
pub fn blocks_on(device: &CubeDevice, units: usize, blocks_per_unit: u32) -> CubeTensor {
    let client = device.client();
    let shape = Shape::from([units]);
    let out = empty_device_contiguous_dtype(client.clone(), device.clone(), shape, DType::U32);
    let dim = CubeDim::new(&client, units);
    let count = cubecl::calculate_cube_count_elemwise(&client, units, dim);
    let buffer = out.clone().into_buffer_arg();
    let draw = DrawLaunch::new(1, 2, 3, 4);
    blocks_only::launch(&client, count, dim, buffer, draw, blocks_per_unit);
    out
}
