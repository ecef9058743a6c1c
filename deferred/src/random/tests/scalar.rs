//! The normal values of `random.md`, one at a time: the reference for the vectors.

use crate::random::normal_f32::{COSINE, LN_2, LOG, SINE, SQRT_HALF_BITS, WORD_ANGLE, WORD_WIDTH};

/// Returns two standard normal values for two words.
pub(in crate::random) fn standard_pair(radius_word: u32, angle_word: u32) -> (f32, f32) {
    let radius = radius(radius_word);
    let (sine, cosine) = sine_cosine(angle_word);
    (radius * cosine, radius * sine)
}

/// Returns `sqrt(-2 ln u)` for `u = (word + 1/2) / 2^32`.
pub(in crate::random) fn radius(word: u32) -> f32 {
    let w = (word as i32 as f32).mul_add(WORD_WIDTH, 0.5 * WORD_WIDTH);
    let u = if w < 0.0 { 1.0 + w } else { w };
    let t = u.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let exponent = (t as i32) >> 23;
    let mantissa = f32::from_bits((t & 0x007f_ffff) + SQRT_HALF_BITS);
    let f = if exponent == 0 { w } else { mantissa - 1.0 };
    let terms = LOG[..7].iter().rev();
    let p = terms.fold(LOG[7], |p, term| p.mul_add(f, *term));
    let log_mantissa = p.mul_add(f, -0.5).mul_add(f * f, f);
    (-2.0 * (exponent as f32).mul_add(LN_2, log_mantissa)).sqrt()
}

/// Returns sine and cosine of `2 pi (word + 1/2) / 2^32`.
pub(in crate::random) fn sine_cosine(word: u32) -> (f32, f32) {
    let turned = word.wrapping_add(0x2000_0000);
    let remainder = (turned & 0x3fff_ffff) as i32 - 0x2000_0000;
    let x = (remainder as f32).mul_add(WORD_ANGLE, 0.5 * WORD_ANGLE);
    let z = x * x;
    let p = SINE[2].mul_add(z, SINE[1]).mul_add(z, SINE[0]);
    let s = p.mul_add(x * z, x);
    let q = COSINE[2].mul_add(z, COSINE[1]).mul_add(z, COSINE[0]);
    let c = q.mul_add(z, -0.5).mul_add(z, 1.0);
    match turned >> 30 {
        0 => (s, c),
        1 => (c, -s),
        2 => (-s, -c),
        _ => (-c, s),
    }
}
