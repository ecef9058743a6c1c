//! The float types.

use burn::tensor::Distribution;
use fearless_simd::Simd;
use half::{bf16, f16};

use super::distribution::{FloatRange, Threshold, check};
use super::element::{CHUNK, Chunk, Sample, Sampler, sample_each};
use super::error::RandomError;

/// The sampler of floats of at most 32 bits, all computed in `f32`.
pub type NarrowSampler = Sampler<FloatRange<f32>, u32, f32>;

/// Returns the bits of the largest value below a finite value of a 16-bit float, given as bits. The arithmetic is the
/// same for all formats of sign, exponent and mantissa.
const fn next_down(bits: u16) -> u16 {
    match bits {
        0 | 0x8000 => 0x8001,
        0x0001..=0x7fff => bits - 1,
        0x8001.. => bits + 1,
    }
}

/// Returns the sampler of a float type of at most 32 bits, given its value that is nearest to an `f32`, and its largest value
/// below one of its values.
fn narrow_sampler(
    distribution: Distribution,
    element: &'static str,
    nearest: fn(f32) -> f32,
    below: fn(f32) -> f32,
) -> Result<NarrowSampler, RandomError> {
    // To the nearest, always through `f32`, because libraries disagree on the direct conversion from `f64` to 16 bits.
    let rounded = |parameter, value: f64| match nearest(value as f32) {
        rounded if rounded.is_finite() => Ok(rounded),
        _ => Err(RandomError::OutOfRange {
            parameter,
            value,
            element,
        }),
    };
    check(distribution)?;
    let (low, high) = match distribution {
        Distribution::Default => (0.0, 1.0),
        Distribution::Uniform(low, high) => (low, high),
        Distribution::Bernoulli(p) => return Ok(Sampler::Bernoulli(Threshold::<u32>::new(p))),
        Distribution::Normal(mean, std) => {
            // Both must be in the range of the element, and are used as `f32`.
            rounded("mean", mean)?;
            rounded("standard deviation", std)?;
            let (mean, std) = (mean as f32, std as f32);
            return Ok(Sampler::Normal { mean, std });
        }
    };
    let (low, high) = (rounded("low", low)?, rounded("high", high)?);
    FloatRange::<f32>::new(low, high, below(high)).map(Sampler::Uniform)
}

impl Sample for f32 {
    type Sampler = NarrowSampler;

    const PER_BLOCK: u64 = 4;

    fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError> {
        narrow_sampler(distribution, "f32", |x| x, f32::next_down)
    }

    #[inline(always)]
    fn sample<S: Simd>(sampler: &Self::Sampler, chunk: Chunk<'_, S>, out: &mut [Self; CHUNK]) {
        chunk.apart(
            #[inline(always)]
            |chunk| match *sampler {
                Sampler::Uniform(range) => {
                    for (out, word) in out.iter_mut().zip(chunk.words_from(0)) {
                        *out = range.sample(word);
                    }
                }
                Sampler::Bernoulli(threshold) => {
                    for (out, word) in out.iter_mut().zip(chunk.words_from(0)) {
                        *out = if threshold.accepts(word) { 1.0 } else { 0.0 };
                    }
                }
                Sampler::Normal { mean, std } => chunk.normals(mean, std, out),
            },
        );
    }
}

/// Returns the bits of a value rounded to `bf16`, to the nearest, ties to even.
///
/// For all values but NaN, which no sampler generates. A value above the midpoint between the largest `bf16` and
/// the next power of two carries into the exponent and correctly becomes infinite.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let last_kept = (bits >> 16) & 1;
    ((bits + (0x7fff + last_kept)) >> 16) as u16
}

/// Returns the bits of a value rounded to `f16`, to the nearest, ties to even, for all but NaN.
///
/// Integer operations and one addition, without a branch, so that they vectorize on every
/// machine; the conversion instruction of some machines has the same bits.
#[inline(always)]
fn f16_bits(value: f32) -> u16 {
    /// The smallest magnitude that is infinite after rounding is 65520; only from 65536 on does
    /// the exponent not fit in an `f16`.
    const TOO_LARGE: u32 = 65536f32.to_bits();
    const SMALLEST_NORMAL: u32 = 6.103_515_6e-5f32.to_bits();
    /// A value whose last digit has the step of the subnormal `f16`s, 2^-24.
    const SUBNORMAL_SHIFT: f32 = 0.5;
    const INFINITE: u32 = 0x7c00;

    let sign = value.to_bits() & 0x8000_0000;
    let magnitude = value.to_bits() ^ sign;
    let last_kept = (magnitude >> 13) & 1;
    // The exponent's bias changes from 127 to 15; a carry out of the mantissa is correct.
    let rebiased = magnitude.wrapping_sub((127 - 15) << 23);
    let normal = rebiased.wrapping_add(0xfff + last_kept) >> 13;
    let shifted = f32::from_bits(magnitude) + SUBNORMAL_SHIFT;
    let subnormal = shifted.to_bits().wrapping_sub(SUBNORMAL_SHIFT.to_bits());
    let is_normal = magnitude >= SMALLEST_NORMAL;
    let finite = if is_normal { normal } else { subnormal };
    let is_finite = magnitude < TOO_LARGE;
    let rounded = if is_finite { finite } else { INFINITE };
    (rounded | sign >> 16) as u16
}

/// Floats of 16 bits: computed in `f32`, then rounded to the nearest, ties to even.
macro_rules! half_float {
    ($($type:ident: $bits:ident),*) => {$(
        impl Sample for $type {
            type Sampler = NarrowSampler;

            const PER_BLOCK: u64 = 4;

            fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError> {
                let nearest = |x| $type::from_f32(x).to_f32();
                let below = |x| $type::from_bits(next_down($type::from_f32(x).to_bits())).to_f32();
                narrow_sampler(distribution, stringify!($type), nearest, below)
            }

            #[inline(always)]
            fn sample<S: Simd>(
                sampler: &Self::Sampler,
                chunk: Chunk<'_, S>,
                out: &mut [Self; CHUNK],
            ) {
                let mut values = [0f32; CHUNK];
                f32::sample(sampler, chunk, &mut values);
                for (out, value) in out.iter_mut().zip(values) {
                    *out = $type::from_bits($bits(value));
                }
            }
        }
    )*};
}

half_float!(f16: f16_bits, bf16: bf16_bits);

impl Sample for f64 {
    type Sampler = Sampler<FloatRange<f64>, u64, f64>;

    const PER_BLOCK: u64 = 2;

    fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError> {
        check(distribution)?;
        let uniform = |low, high: f64| {
            FloatRange::<f64>::new(low, high, high.next_down()).map(Sampler::Uniform)
        };
        match distribution {
            Distribution::Default => uniform(0.0, 1.0),
            Distribution::Uniform(low, high) => uniform(low, high),
            Distribution::Bernoulli(p) => Ok(Sampler::Bernoulli(Threshold::<u64>::new(p))),
            Distribution::Normal(mean, std) => Ok(Sampler::Normal { mean, std }),
        }
    }

    sample_each!(wide_words, wide_normals);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_down_is_the_neighbour_in_every_16_bit_float() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits);
            if !value.is_finite() || value == f16::MIN {
                continue;
            }
            let down = f16::from_bits(next_down(bits));
            assert!(down < value, "{value}");
            // There is no value between: the midpoint rounds to one of the two.
            let middle = f16::from_f32((f32::from(value) + f32::from(down)) / 2.0);
            assert!(middle == value || middle == down, "{value}");
        }
        assert_eq!(
            f16::from_bits(next_down(f16::MIN.to_bits())),
            f16::NEG_INFINITY
        );
        assert_eq!(next_down(0x0000), 0x8001);
        assert_eq!(next_down(0x8000), 0x8001);
    }

    /// The result of rounding changes only at values of the narrow type and at the midpoints between two,
    /// so only these values and their neighbours are tested.
    #[test]
    fn rounding_to_16_bits_is_to_the_nearest_even() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            let next = f16::from_bits(bits.wrapping_add(1));
            let brain = bf16::from_bits(bits);
            let next_brain = bf16::from_bits(bits.wrapping_add(1));
            let middle = (f32::from(half) + f32::from(next)) / 2.0;
            let middle_brain = f32::from_bits(u32::from(bits) << 16 | 0x8000);
            let values = [
                half.into(),
                middle,
                brain.into(),
                middle_brain,
                next_brain.into(),
            ];
            for value in values {
                for value in [value, value.next_down(), value.next_up()] {
                    if !value.is_nan() {
                        assert_eq!(f16_bits(value), f16::from_f32(value).to_bits(), "{value:e}");
                        assert_eq!(
                            bf16_bits(value),
                            bf16::from_f32(value).to_bits(),
                            "{value:e}"
                        );
                    }
                }
            }
        }
        // Beyond the largest values, where the exponents of the two types end.
        for value in [
            65504.0,
            65519.996,
            65520.0,
            65535.996,
            65536.0,
            1e9,
            f32::MAX,
        ] {
            assert_eq!(f16_bits(value), f16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(
                f16_bits(-value),
                f16::from_f32(-value).to_bits(),
                "{value:e}"
            );
        }
    }

    #[test]
    fn parameters_beyond_the_element_type_are_refused() {
        fn check<T: Sample>(distribution: Distribution, expected: &str) {
            let Err(error) = T::sampler(distribution) else {
                panic!("{distribution:?} is out of range")
            };
            assert_eq!(error.to_string(), expected);
        }
        check::<f16>(
            Distribution::Uniform(0.0, 65520.0),
            "high 65520 of the random distribution is out of the range of f16",
        );
        check::<bf16>(
            Distribution::Normal(3.4e38, 1.0),
            &format!(
                "mean {} of the random distribution is out of the range of bf16",
                3.4e38
            ),
        );
        check::<f32>(
            Distribution::Normal(0.0, 1e39),
            &format!(
                "standard deviation {} of the random distribution is out of the range of f32",
                1e39
            ),
        );
        assert!(f16::sampler(Distribution::Uniform(-65504.0, 65504.0)).is_ok());
        assert!(f16::sampler(Distribution::Normal(65519.0, 1.0)).is_ok());
    }
}
