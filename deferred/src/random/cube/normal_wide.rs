//! Standard normal values of double precision: the formulas of `normal_f64`, in the same order.

use cubecl::prelude::*;

use super::exact::product;
use crate::random::normal_f64::{
    COSINE, LN_2_HIGH, LN_2_LOW, LOG, SINE, SQRT_HALF_BITS, WORD_ANGLE, WORD_WIDTH,
};

/// Two values.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Pair {
    pub(super) first: f64,
    pub(super) second: f64,
}

/// Returns two independent standard normal values for two words.
#[cube]
pub(super) fn standard_pair(radius_word: u64, angle_word: u64) -> Pair {
    let radius = radius(radius_word);
    let angle = sine_cosine(angle_word);
    Pair {
        first: product::<f64>(radius, angle.second),
        second: product::<f64>(radius, angle.first),
    }
}

#[cube]
fn radius(word: u64) -> f64 {
    let w = product::<f64>(
        f64::cast_from(i64::reinterpret(word)) + 0.5,
        WORD_WIDTH.runtime(),
    );
    let u = select(w < 0.0, w + 1.0, w);
    let shifted = u64::reinterpret(u) - SQRT_HALF_BITS;
    let exponent = i64::reinterpret(shifted) >> 52;
    let mantissa = f64::reinterpret((shifted & 0x000f_ffff_ffff_ffffu64) + SQRT_HALF_BITS);
    let f = select(exponent == 0, w, mantissa - 1.0);
    let exponent = f64::cast_from(exponent);

    let s = f / (f + 2.0);
    let z = product::<f64>(s, s);
    let mut p = LOG[6].runtime();
    #[unroll]
    for i in 0..6u32 {
        p = product::<f64>(p, z) + comptime!(LOG[5 - i as usize]).runtime();
    }
    let mut log = product::<f64>(product::<f64>(s, z), p);
    log += product::<f64>(exponent, LN_2_LOW.runtime());
    log += product::<f64>(s, 2.0);
    log += product::<f64>(exponent, LN_2_HIGH.runtime());
    product::<f64>(log, -2.0).sqrt()
}

/// Returns the sine and the cosine.
#[cube]
fn sine_cosine(word: u64) -> Pair {
    let turned = word + 0x2000_0000_0000_0000u64;
    let remainder = i64::reinterpret(turned & 0x3fff_ffff_ffff_ffffu64) - 0x2000_0000_0000_0000i64;
    let x = product::<f64>(f64::cast_from(remainder) + 0.5, WORD_ANGLE.runtime());
    let z = product::<f64>(x, x);
    let mut p = SINE[5].runtime();
    let mut q = COSINE[5].runtime();
    #[unroll]
    for i in 0..5u32 {
        p = product::<f64>(p, z) + comptime!(SINE[4 - i as usize]).runtime();
        q = product::<f64>(q, z) + comptime!(COSINE[4 - i as usize]).runtime();
    }
    let sine = product::<f64>(product::<f64>(x, z), p) + x;
    let cosine = (product::<f64>(product::<f64>(z, z), q) - product::<f64>(z, 0.5)) + 1.0;
    let is_odd = (turned & 0x4000_0000_0000_0000u64) != 0;
    let s = select(is_odd, cosine, sine);
    let c = select(is_odd, sine, cosine);
    let sine_sign = turned & 0x8000_0000_0000_0000u64;
    let cosine_sign = (turned + 0x4000_0000_0000_0000u64) & 0x8000_0000_0000_0000u64;
    Pair {
        first: f64::reinterpret(u64::reinterpret(s) ^ sine_sign),
        second: f64::reinterpret(u64::reinterpret(c) ^ cosine_sign),
    }
}
