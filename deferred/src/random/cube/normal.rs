//! Standard normal values of single precision: the formulas of `normal_f32`, in the same order.
//! CubeCL's CPU runtime has other bits on processors without fused multiply-add, which it does not emulate.

use cubecl::prelude::*;

use super::exact::product;
use crate::random::normal_f32::{COSINE, LN_2, LOG, SINE, SQRT_HALF_BITS, WORD_ANGLE, WORD_WIDTH};

/// Two values.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Pair {
    pub(super) first: f32,
    pub(super) second: f32,
}

/// Returns two independent standard normal values for two words.
#[cube]
pub(super) fn standard_pair(radius_word: u32, angle_word: u32) -> Pair {
    let radius = radius(radius_word);
    let angle = sine_cosine(angle_word);
    Pair {
        first: product::<f32>(radius, angle.second),
        second: product::<f32>(radius, angle.first),
    }
}

#[cube]
fn radius(word: u32) -> f32 {
    let w = fma(
        f32::cast_from(i32::reinterpret(word)),
        WORD_WIDTH.runtime(),
        comptime!(0.5 * WORD_WIDTH).runtime(),
    );
    let u = select(w < 0.0, w + 1.0, w);
    let shifted = u32::reinterpret(u) - SQRT_HALF_BITS;
    let exponent = i32::reinterpret(shifted) >> 23;
    let mantissa = f32::reinterpret((shifted & 0x007f_ffffu32) + SQRT_HALF_BITS);
    let f = select(exponent == 0, w, mantissa - 1.0);

    let mut p = LOG[7].runtime();
    #[unroll]
    for i in 0..7u32 {
        p = fma(p, f, comptime!(LOG[6 - i as usize]).runtime());
    }
    p = fma(p, f, (-0.5f32).runtime());
    let log_mantissa = fma(p, product::<f32>(f, f), f);
    let log = fma(f32::cast_from(exponent), LN_2.runtime(), log_mantissa);
    product::<f32>(log, -2.0).sqrt()
}

/// Returns the sine and the cosine.
#[cube]
fn sine_cosine(word: u32) -> Pair {
    let turned = word + 0x2000_0000u32;
    let remainder = (turned & 0x3fff_ffffu32) - 0x2000_0000u32;
    let x = fma(
        f32::cast_from(i32::reinterpret(remainder)),
        WORD_ANGLE.runtime(),
        comptime!(0.5 * WORD_ANGLE).runtime(),
    );
    let z = product::<f32>(x, x);
    let p = fma(SINE[2].runtime(), z, SINE[1].runtime());
    let p = fma(p, z, SINE[0].runtime());
    let sine = fma(p, product::<f32>(x, z), x);
    let q = fma(COSINE[2].runtime(), z, COSINE[1].runtime());
    let q = fma(q, z, COSINE[0].runtime());
    let q = fma(q, z, (-0.5f32).runtime());
    let cosine = fma(q, z, 1.0f32.runtime());
    // Odd quadrants swap the two; sine is negative in quadrants 2 and 3, cosine in 1 and 2.
    let is_odd = (turned & 0x4000_0000u32) != 0;
    let s = select(is_odd, cosine, sine);
    let c = select(is_odd, sine, cosine);
    let sine_sign = turned & 0x8000_0000u32;
    let cosine_sign = (turned + 0x4000_0000u32) & 0x8000_0000u32;
    Pair {
        first: f32::reinterpret(u32::reinterpret(s) ^ sine_sign),
        second: f32::reinterpret(u32::reinterpret(c) ^ cosine_sign),
    }
}
