//! Philox 4x32-10 in a kernel.

use cubecl::prelude::*;

use crate::random::philox::{KEY_STEP_0, KEY_STEP_1, MULTIPLIER_0, MULTIPLIER_1, ROUNDS};

/// The key and the counter's high words of a stream.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Draw {
    pub(super) key_0: u32,
    pub(super) key_1: u32,
    pub(super) step: u32,
    pub(super) micro_batch: u32,
}

/// Four words.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Words {
    pub(super) a: u32,
    pub(super) b: u32,
    pub(super) c: u32,
    pub(super) d: u32,
}

/// Returns the words of a block.
#[cube]
pub(super) fn block(index: u64, draw: &Draw) -> Words {
    let mut c0 = u32::cast_from(index);
    let mut c1 = u32::cast_from(index >> 32u64);
    let mut c2 = draw.step;
    let mut c3 = draw.micro_batch;
    let mut k0 = draw.key_0;
    let mut k1 = draw.key_1;
    #[unroll]
    for _ in 0..ROUNDS {
        let p0 = u64::cast_from(c0) * comptime!(MULTIPLIER_0 as u64);
        let p1 = u64::cast_from(c2) * comptime!(MULTIPLIER_1 as u64);
        c0 = u32::cast_from(p1 >> 32u64) ^ c1 ^ k0;
        c1 = u32::cast_from(p1);
        c2 = u32::cast_from(p0 >> 32u64) ^ c3 ^ k1;
        c3 = u32::cast_from(p0);
        k0 += KEY_STEP_0;
        k1 += KEY_STEP_1;
    }
    Words {
        a: c0,
        b: c1,
        c: c2,
        d: c3,
    }
}
