//! The float types.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::bernoulli::Threshold;
use burn::tensor::Distribution;

use super::distribution::check;
use super::element::{
    BlockIndices, CHUNK, RandomElement, Sample, Sampler, each_normal, each_wide_pair, each_word,
};
use super::error::RandomError;
use super::normal_f64;
use super::stream::Stream;
use super::uniform::FloatRange;

/// The sampler of floats of at most 32 bits, all computed in `f32`.
pub type NarrowSampler = Sampler<FloatRange<f32>, u32, f32>;

/// Rounds a parameter to the nearest value of a narrow float type. It goes through `f32` for every
/// type, since libraries disagree on the direct way from `f64` to 16 bits.
fn round<T>(
    parameter: &'static str,
    value: f64,
    element: &'static str,
    round: impl Fn(f32) -> T,
    widen: impl Fn(T) -> f32,
) -> Result<f32, RandomError> {
    let rounded = widen(round(value as f32));
    if rounded.is_finite() {
        Ok(rounded)
    } else {
        Err(RandomError::OutOfRange {
            parameter,
            value,
            element,
        })
    }
}

/// The bits of the largest value below a finite value of a 16-bit float, given as bits. All formats
/// of sign, exponent and mantissa count the same way.
const fn next_down(bits: u16) -> u16 {
    match bits {
        0 | 0x8000 => 0x8001,
        0x0001..=0x7fff => bits - 1,
        0x8001.. => bits + 1,
    }
}

/// Makes a chunk of one-word floats in `f32`.
#[inline(always)]
fn sample_f32(
    sampler: &NarrowSampler,
    stream: &Stream,
    blocks: &BlockIndices,
    out: &mut [f32; CHUNK],
) {
    match *sampler {
        Sampler::Uniform(range) => each_word(stream, blocks, |i, word| {
            out[i] = range.sample(word);
        }),
        Sampler::Bernoulli(threshold) => each_word(stream, blocks, |i, word| {
            out[i] = if threshold.accepts(word) { 1.0 } else { 0.0 };
        }),
        Sampler::Normal { mean, std } => each_normal(stream, blocks, |i, z| {
            out[i] = z * std + mean;
        }),
    }
}

/// The sampler of a float type of at most 32 bits.
macro_rules! narrow_float_sampler {
    ($type:ty, $round:expr, $widen:expr, $next_down:expr) => {
        type Sampler = NarrowSampler;

        const PER_BLOCK: u64 = 4;

        fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError> {
            const NAME: &str = stringify!($type);
            check(distribution)?;
            let bounds = match distribution {
                Distribution::Default => (0.0, 1.0),
                Distribution::Uniform(low, high) => (low, high),
                Distribution::Bernoulli(probability) => {
                    return Ok(Sampler::Bernoulli(Threshold::<u32>::new(probability)));
                }
                Distribution::Normal(mean, std) => {
                    // Both must fit into the element, and are used as `f32`.
                    round("mean", mean, NAME, $round, $widen)?;
                    round("standard deviation", std, NAME, $round, $widen)?;
                    let (mean, std) = (mean as f32, std as f32);
                    return Ok(Sampler::Normal { mean, std });
                }
            };
            let low = round("low", bounds.0, NAME, $round, $widen)?;
            let high = round("high", bounds.1, NAME, $round, $widen)?;
            let below_high = $widen($next_down($round(high)));
            FloatRange::<f32>::new(low, high, below_high).map(Sampler::Uniform)
        }
    };
}

impl RandomElement for f32 {}

impl Sample for f32 {
    narrow_float_sampler!(f32, |x: f32| x, |x: f32| x, f32::next_down);

    #[inline(always)]
    fn sample(
        sampler: &Self::Sampler,
        stream: &Stream,
        blocks: &BlockIndices,
        out: &mut [Self; CHUNK],
    ) {
        sample_f32(sampler, stream, blocks, out);
    }
}

/// Floats of 16 bits: computed in `f32`, then rounded to the nearest, ties to even.
macro_rules! half_float {
    ($($type:ident),*) => {$(
        impl RandomElement for $type {}

        impl Sample for $type {
            narrow_float_sampler!(
                $type,
                $type::from_f32,
                $type::to_f32,
                |x: $type| $type::from_bits(next_down(x.to_bits()))
            );

            #[inline(always)]
            fn sample(
                sampler: &Self::Sampler,
                stream: &Stream,
                blocks: &BlockIndices,
                out: &mut [Self; CHUNK],
            ) {
                let mut values = [0f32; CHUNK];
                sample_f32(sampler, stream, blocks, &mut values);
                // Rounding a whole slice uses the machine's instruction where there is one.
                out.convert_from_f32_slice(&values);
            }
        }
    )*};
}

half_float!(f16, bf16);

impl RandomElement for f64 {}

impl Sample for f64 {
    type Sampler = Sampler<FloatRange<f64>, u64, f64>;

    const PER_BLOCK: u64 = 2;

    fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError> {
        check(distribution)?;
        match distribution {
            Distribution::Default => FloatRange::<f64>::new(0.0, 1.0).map(Sampler::Uniform),
            Distribution::Uniform(low, high) => {
                FloatRange::<f64>::new(low, high).map(Sampler::Uniform)
            }
            Distribution::Bernoulli(probability) => {
                Ok(Sampler::Bernoulli(Threshold::<u64>::new(probability)))
            }
            Distribution::Normal(mean, std) => Ok(Sampler::Normal { mean, std }),
        }
    }

    #[inline(always)]
    fn sample(
        sampler: &Self::Sampler,
        stream: &Stream,
        blocks: &BlockIndices,
        out: &mut [Self; CHUNK],
    ) {
        match *sampler {
            Sampler::Uniform(range) => each_wide_pair(stream, blocks, |i, a, b| {
                out[i] = range.sample(a);
                out[i + 1] = range.sample(b);
            }),
            Sampler::Bernoulli(threshold) => each_wide_pair(stream, blocks, |i, a, b| {
                out[i] = if threshold.accepts(a) { 1.0 } else { 0.0 };
                out[i + 1] = if threshold.accepts(b) { 1.0 } else { 0.0 };
            }),
            Sampler::Normal { mean, std } => each_wide_pair(stream, blocks, |i, a, b| {
                let (z0, z1) = normal_f64::standard_pair(a, b);
                out[i] = z0 * std + mean;
                out[i + 1] = z1 * std + mean;
            }),
        }
    }
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
            // Nothing lies between: the middle rounds to one of the two.
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

    #[test]
    fn parameters_beyond_the_element_type_are_refused() {
        fn check<T: Sample>(distribution: Distribution, expected: &str) {
            let error = T::sampler(distribution).err().expect("out of range");
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
