//! Standard normal values in `f64` arithmetic. This is the method of `normal_f32`, with words of 64
//! bits, a division in the logarithm instead of a longer polynomial, and more terms.
//! It is not optimized, as `normal_f32` is.

/// 2^-64, the width of the interval of one word.
pub(super) const WORD_WIDTH: f64 = f64::from_bits(0x3bf0_0000_0000_0000);
/// The bits of sqrt(1/2): mantissas are normalized to [sqrt(1/2), sqrt(2)).
pub(super) const SQRT_HALF_BITS: u64 = 0x3fe6_a09e_667f_3bcd;
/// ln 2 with zero bits at the end, so that its product with any exponent here is exact.
pub(super) const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
/// The difference of ln 2 and `LN_2_HIGH`.
pub(super) const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
/// `(2 atanh(s) - 2 s) / s^3` in powers of `s^2` for `s = f / (2 + f)` and f as in `normal_f32`:
/// `ln(1 + f) = 2 atanh(s)`. Remez fit, relative error of the logarithm 2^-59.
pub(super) const LOG: [f64; 7] = [
    f64::from_bits(0x3fe5_5555_5555_5592),
    f64::from_bits(0x3fd9_9999_9997_feef),
    f64::from_bits(0x3fd2_4924_941e_06a2),
    f64::from_bits(0x3fcc_71c5_2169_54e8),
    f64::from_bits(0x3fc7_4663_c447_bbe3),
    f64::from_bits(0x3fc3_9a1f_d230_b5e9),
    f64::from_bits(0x3fc2_f02d_621a_1328),
];
/// 2 pi / 2^64, the angle of one step of a word.
pub(super) const WORD_ANGLE: f64 = f64::from_bits(0x3c19_21fb_5444_2d18);
/// `(sin(x) - x) / x^3` in powers of `x^2` on |x| <= pi / 4. Remez fit, relative error 2^-57.
pub(super) const SINE: [f64; 6] = [
    f64::from_bits(0xbfc5_5555_5555_5548),
    f64::from_bits(0x3f81_1111_1110_f7d0),
    f64::from_bits(0xbf2a_01a0_19bf_df6e),
    f64::from_bits(0x3ec7_1de3_567d_c15b),
    f64::from_bits(0xbe5a_e5e5_a996_255f),
    f64::from_bits(0x3de5_d8fd_4218_8f15),
];
/// `(cos(x) - 1 + x^2 / 2) / x^4` in powers of `x^2` on |x| <= pi / 4. Remez fit, relative error
/// of the cosine 2^-63.
pub(super) const COSINE: [f64; 6] = [
    f64::from_bits(0x3fa5_5555_5555_554b),
    f64::from_bits(0xbf56_c16c_16c1_4f92),
    f64::from_bits(0x3efa_01a0_19c8_4566),
    f64::from_bits(0xbe92_7e4f_7eac_9861),
    f64::from_bits(0x3e21_ee9d_7b81_0816),
    f64::from_bits(0xbda8_fa49_bac4_5b49),
];

/// Returns `sqrt(-2 ln u)` for `u = (word + 1/2) / 2^64`; see `normal_f32` for the signed word. The largest
/// possible value is 9.49.
#[inline(always)]
pub(super) fn radius(word: u64) -> f64 {
    let w = (word as i64 as f64 + 0.5) * WORD_WIDTH;
    let u = if w < 0.0 { 1.0 + w } else { w };
    let shifted = u.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let exponent = (shifted as i64) >> 52;
    let mantissa = f64::from_bits((shifted & 0x000f_ffff_ffff_ffff) + SQRT_HALF_BITS);
    let f = if exponent == 0 { w } else { mantissa - 1.0 };
    let exponent = exponent as f64;

    let s = f / (2.0 + f);
    let z = s * s;
    let mut log = (s * z) * polynomial(&LOG, z);
    log += exponent * LN_2_LOW;
    log += 2.0 * s;
    log += exponent * LN_2_HIGH;
    (-2.0 * log).sqrt()
}

/// Evaluates a polynomial with these coefficients, the constant term's first.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: &[f64; N], z: f64) -> f64 {
    let lower = coefficients[..N - 1].iter().rev();
    lower.fold(coefficients[N - 1], |sum, c| sum * z + c)
}

/// Returns sine and cosine of `2 pi v` for `v = (word + 1/2) / 2^64`.
#[inline(always)]
pub(super) fn sine_cosine(word: u64) -> (f64, f64) {
    let turned = word.wrapping_add(1 << 61);
    let remainder = (turned & ((1 << 62) - 1)) as i64 - (1 << 61);
    let x = (remainder as f64 + 0.5) * WORD_ANGLE;

    let z = x * x;
    let sine = (x * z) * polynomial(&SINE, z) + x;
    let cosine = ((z * z) * polynomial(&COSINE, z) - 0.5 * z) + 1.0;

    // Odd quadrants swap the two; sine is negative in quadrants 2 and 3, cosine in 1 and 2.
    let odd = turned & (1 << 62) != 0;
    let (sine, cosine) = if odd { (cosine, sine) } else { (sine, cosine) };
    let sine_sign = turned & (1 << 63);
    let cosine_sign = turned.wrapping_add(1 << 62) & (1 << 63);
    let sine = f64::from_bits(sine.to_bits() ^ sine_sign);
    let cosine = f64::from_bits(cosine.to_bits() ^ cosine_sign);
    (sine, cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words at the ends, around every quadrant, and evenly over the whole range.
    fn words() -> impl Iterator<Item = u64> {
        let edges = (0..=8u64)
            .flat_map(|eighth| {
                (0..64u64).map(move |i| (eighth << 61).wrapping_add(i * i) ^ i << 63)
            })
            .chain((0..64).flat_map(|bit| [1u64 << bit, (1u64 << bit).wrapping_neg(), !0 >> bit]));
        edges.chain((0..200_000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// The reference is the system's `f64` library, itself within about 1 ulp, so the bound is
    /// looser than the error by that much.
    #[test]
    fn radius_is_close_to_the_system_library() {
        let mut worst = 0f64;
        for word in words() {
            let below_one = (!word as f64 + 0.5) / 2f64.powi(64);
            let log = if below_one < 0.5 {
                (-below_one).ln_1p()
            } else {
                ((word as f64 + 0.5) / 2f64.powi(64)).ln()
            };
            let exact = (-2.0 * log).sqrt();
            worst = worst.max((radius(word) - exact).abs() / exact);
        }
        assert!(worst < 2f64.powi(-51), "relative error {worst:e}");
        assert!(worst > 2f64.powi(-56), "the test lost its grip: {worst:e}");
    }

    #[test]
    fn sine_and_cosine_are_close_to_the_system_library() {
        let mut worst = 0f64;
        for word in words() {
            let quadrant = word.wrapping_add(1 << 61) >> 62;
            let rest = word.wrapping_sub(quadrant << 62) as i64 as f64 + 0.5;
            let angle = rest * (std::f64::consts::TAU / 2f64.powi(64));
            let (sine, cosine) = match quadrant {
                0 => (angle.sin(), angle.cos()),
                1 => (angle.cos(), -angle.sin()),
                2 => (-angle.sin(), -angle.cos()),
                _ => (-angle.cos(), angle.sin()),
            };
            let (got_sine, got_cosine) = sine_cosine(word);
            worst = worst.max((got_sine - sine).abs() / sine.abs());
            worst = worst.max((got_cosine - cosine).abs() / cosine.abs());
        }
        assert!(worst < 2f64.powi(-51), "relative error {worst:e}");
        assert!(worst > 2f64.powi(-56), "the test lost its grip: {worst:e}");
    }

    #[test]
    fn the_tails_reach_beyond_nine_and_the_centre_is_never_zero() {
        let check = |word: u64, expected: f64| {
            let got = radius(word);
            assert!(
                (got - expected).abs() < 1e-14 * expected,
                "{word:#x}: {got}"
            );
        };
        check(0, (2.0 * 65.0 * std::f64::consts::LN_2).sqrt());
        check(u64::MAX, 2f64.powi(-32));
        check(1 << 63, (2.0 * std::f64::consts::LN_2).sqrt());
    }
}
