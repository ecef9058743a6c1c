//! Standard normal values in `f32` arithmetic, by the method of Box and Muller.
//!
//! Source: G. E. P. Box and M. E. Muller, "A Note on the Generation of Random Normal Deviates",
//! Annals of Mathematical Statistics 29, 1958: for independent uniform u and v in (0, 1),
//! `sqrt(-2 ln u) cos(2 pi v)` and `sqrt(-2 ln u) sin(2 pi v)` are independent standard normals.
//!
//! The logarithm, sine and cosine are polynomials of this crate, because the functions of the system's library
//! differ between systems. There is no branch, and explicitly fused multiply-adds
//! are rounded once, at every level of vector instructions.

use fearless_simd::prelude::*;

use super::lanes::{Floats, Words};

/// 2^-32, the width of the interval of one word.
pub(super) const WORD_WIDTH: f32 = f32::from_bits(0x2f80_0000);
/// The bits of sqrt(1/2), rounded down: mantissas are normalized to [sqrt(1/2), sqrt(2)).
pub(super) const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
/// ln 2, with a relative error of 2^-28.4.
pub(super) const LN_2: f32 = f32::from_bits(0x3f31_7218);
/// `(ln(1 + f) - f + f^2 / 2) / f^3` on [sqrt(1/2) - 1, sqrt(2) - 1], constant term first. Remez
/// fit, relative error of the logarithm 2^-27.
pub(super) const LOG: [f32; 8] = [
    f32::from_bits(0x3eaa_aaaa),
    f32::from_bits(0xbe80_0113),
    f32::from_bits(0x3e4c_d003),
    f32::from_bits(0xbe2a_3924),
    f32::from_bits(0x3e11_6d1e),
    f32::from_bits(0xbe06_c2a2),
    f32::from_bits(0x3e02_ad46),
    f32::from_bits(0xbd9c_599a),
];
/// 2 pi / 2^32, the angle of one step of a word.
pub(super) const WORD_ANGLE: f32 = f32::from_bits(0x30c9_0fdb);
/// `(sin(x) - x) / x^3` in powers of `x^2` on |x| <= pi / 4. Remez fit, relative error 2^-28.
pub(super) const SINE: [f32; 3] = [
    f32::from_bits(0xbe2a_aaa3),
    f32::from_bits(0x3c08_839e),
    f32::from_bits(0xb94c_a1f4),
];
/// `(cos(x) - 1 + x^2 / 2) / x^4` in powers of `x^2` on |x| <= pi / 4. Remez fit, relative error
/// of the cosine 2^-33.
pub(super) const COSINE: [f32; 3] = [
    f32::from_bits(0x3d2a_aaa5),
    f32::from_bits(0xbab6_061a),
    f32::from_bits(0x37cc_f5d3),
];

/// Returns two independent standard normal values for each two words. The largest possible is 6.76.
#[inline(always)]
pub(super) fn standard_pairs<S: Simd>(
    radius_words: Words<S>,
    angle_words: Words<S>,
) -> (Floats<S>, Floats<S>) {
    let radius = radius(radius_words);
    let (sine, cosine) = sine_cosine(angle_words);
    (radius * cosine, radius * sine)
}

/// Returns `sqrt(-2 ln u)` for `u = (word + 1/2) / 2^32`.
///
/// The word is read as a signed number, which gives `w`: u itself in the lower half of the unit
/// interval and u - 1 in the upper half. Both are precise where they are small, so both the tail
/// (u near 0) and the centre (u near 1) are precise. With u as a float, the centre would lose all digits of
/// the logarithm, and the value would be exactly zero once in 2^25 pairs.
#[inline(always)]
pub(super) fn radius<S: Simd>(word: Words<S>) -> Floats<S> {
    let w = word.signed_to_floats().scale(WORD_WIDTH, 0.5 * WORD_WIDTH);
    let u = w.if_negative(w + 1.0, w);
    let shifted = u.to_bits() - SQRT_HALF_BITS;
    let exponent = shifted.signed_shift_right(23);
    let mantissa = ((shifted & 0x007f_ffff) + SQRT_HALF_BITS).as_floats();
    // An exponent of zero means that u is at least sqrt(1/2), so w is exactly u - 1.
    let f = exponent.if_zero(w, mantissa - 1.0);
    let exponent = exponent.signed_to_floats();

    let mut p = Floats::splat(word.simd, LOG[7]);
    for coefficient in LOG[..7].iter().rev() {
        p = p.mul_add_constant(f, *coefficient);
    }
    p = p.mul_add_constant(f, -0.5);
    let log_mantissa = p.mul_add(f * f, f);
    let log = exponent.mul_add(Floats::splat(word.simd, LN_2), log_mantissa);
    (log * -2.0).sqrt()
}

/// Returns sine and cosine of `2 pi v` for `v = (word + 1/2) / 2^32`.
///
/// The two upper bits, after rounding, are the quadrant; the rest is an angle within pi / 4 of
/// it, computed from the integer and therefore without cancellation.
#[inline(always)]
fn sine_cosine<S: Simd>(word: Words<S>) -> (Floats<S>, Floats<S>) {
    let turned = word + 0x2000_0000;
    let remainder = (turned & 0x3fff_ffff) - 0x2000_0000;
    let x = remainder.signed_to_floats();
    let x = x.scale(WORD_ANGLE, 0.5 * WORD_ANGLE);

    let z = x * x;
    let p = Floats::splat(word.simd, SINE[2])
        .mul_add_constant(z, SINE[1])
        .mul_add_constant(z, SINE[0]);
    let sine = p.mul_add(x * z, x);
    let cosine = Floats::splat(word.simd, COSINE[2])
        .mul_add_constant(z, COSINE[1])
        .mul_add_constant(z, COSINE[0])
        .mul_add_constant(z, -0.5)
        .mul_add_constant(z, 1.0);

    // Odd quadrants swap the two; sine is negative in quadrants 2 and 3, cosine in 1 and 2.
    let odd = turned & 0x4000_0000;
    let (sine, cosine) = (odd.if_zero(sine, cosine), odd.if_zero(cosine, sine));
    let sine_sign = turned & 0x8000_0000;
    let cosine_sign = (turned + 0x4000_0000) & 0x8000_0000;
    let sine = (sine.to_bits() ^ sine_sign).as_floats();
    let cosine = (cosine.to_bits() ^ cosine_sign).as_floats();
    (sine, cosine)
}

#[cfg(test)]
mod tests {
    use fearless_simd::dispatch;

    use super::*;
    use crate::random::lanes::VECTORS;
    use crate::random::tests::{levels, scalar};

    /// Words at the ends, around every quadrant, and evenly over the whole range.
    fn words() -> impl Iterator<Item = u32> {
        let edges = (0..=8u32)
            .flat_map(|eighth| {
                (0..64u32).map(move |i| (eighth << 29).wrapping_add(i * i) ^ i << 31)
            })
            .chain((0..32).flat_map(|bit| [1u32 << bit, (1u32 << bit).wrapping_neg(), !0 >> bit]));
        edges.chain((0..400_000u32).map(|i| i.wrapping_mul(10_737).wrapping_mul(0x9e37_79b9)))
    }

    /// `-2 ln((word + 1/2) / 2^32)` in `f64`, precise at both ends.
    fn exact_radius(word: u32) -> f64 {
        let below_one = (f64::from(!word) + 0.5) / 2f64.powi(32);
        let log = if below_one < 0.5 {
            (-below_one).ln_1p()
        } else {
            ((f64::from(word) + 0.5) / 2f64.powi(32)).ln()
        };
        (-2.0 * log).sqrt()
    }

    /// The properties that the other tests check one value at a time hold in every lane of every vector.
    #[test]
    fn every_level_makes_the_bits_of_one_value_at_a_time() {
        let radius_words: Vec<u32> = words().step_by(3).collect();
        let angle_words: Vec<u32> = words().skip(1).step_by(3).collect();
        let pairs = radius_words.iter().zip(&angle_words);
        let expected: Vec<(f32, f32)> = pairs
            .map(|(radius, angle)| scalar::standard_pair(*radius, *angle))
            .collect();
        for level in levels() {
            let made = dispatch!(level, simd => vector_pairs(simd, &radius_words, &angle_words));
            let same = made.iter().zip(&expected).all(|(made, expected)| {
                made.0.to_bits() == expected.0.to_bits() && made.1.to_bits() == expected.1.to_bits()
            });
            assert!(
                same && made.len() > 130_000,
                "{level:?}: {} pairs",
                made.len()
            );
        }
    }

    #[inline(always)]
    fn vector_pairs<S: Simd>(
        simd: S,
        radius_words: &[u32],
        angle_words: &[u32],
    ) -> Vec<(f32, f32)> {
        let length = S::u32s::LEN;
        let load = |words: &[u32]| {
            let vectors = std::array::from_fn(|i| {
                S::u32s::from_slice(simd, &words[i * length..(i + 1) * length])
            });
            Words::new(simd, vectors)
        };
        let radii = radius_words.chunks_exact(VECTORS * length);
        let mut pairs = Vec::new();
        for (radii, angles) in radii.zip(angle_words.chunks_exact(VECTORS * length)) {
            let (first, second) = standard_pairs(load(radii), load(angles));
            let vectors = first.vectors.into_iter().zip(second.vectors);
            for (first, second) in vectors {
                pairs.extend((0..length).map(|lane| (first[lane], second[lane])));
            }
        }
        pairs
    }

    #[test]
    fn the_radius_is_precise() {
        let mut worst = 0f64;
        for word in words() {
            let exact = exact_radius(word);
            let error = (f64::from(scalar::radius(word)) - exact).abs() / exact;
            worst = worst.max(error);
        }
        assert!(worst < 3.0 * 2f64.powi(-24), "relative error {worst:e}");
        assert!(worst > 2f64.powi(-26), "the test lost its grip: {worst:e}");
    }

    #[test]
    fn sine_and_cosine_are_precise_also_near_zero() {
        let mut worst = 0f64;
        for word in words() {
            let quadrant = f64::from(word.wrapping_add(1 << 29) >> 30);
            let rest = f64::from(word.wrapping_sub((quadrant as u32) << 30) as i32) + 0.5;
            let angle = rest * (std::f64::consts::TAU / 2f64.powi(32));
            let (sine, cosine) = match quadrant as u32 {
                0 => (angle.sin(), angle.cos()),
                1 => (angle.cos(), -angle.sin()),
                2 => (-angle.sin(), -angle.cos()),
                _ => (-angle.cos(), angle.sin()),
            };
            let (got_sine, got_cosine) = scalar::sine_cosine(word);
            worst = worst.max((f64::from(got_sine) - sine).abs() / sine.abs());
            worst = worst.max((f64::from(got_cosine) - cosine).abs() / cosine.abs());
        }
        assert!(worst < 4.0 * 2f64.powi(-24), "relative error {worst:e}");
        assert!(worst > 2f64.powi(-26), "the test lost its grip: {worst:e}");
    }

    #[test]
    fn the_tails_reach_beyond_six_and_a_half_and_the_centre_is_never_zero() {
        let check = |word: u32, expected: f64| {
            let got = f64::from(scalar::radius(word));
            assert!((got - expected).abs() < 1e-6 * expected, "{word:#x}: {got}");
        };
        check(0, (2.0 * 33.0 * std::f64::consts::LN_2).sqrt());
        check(u32::MAX, 2f64.powi(-16));
        check(1 << 31, (2.0 * std::f64::consts::LN_2).sqrt());
        let (along, across) = scalar::standard_pair(0, 0);
        assert!(
            along > 6.76 && across > 0.0 && across < 1e-8,
            "{along} {across}"
        );
    }
}
