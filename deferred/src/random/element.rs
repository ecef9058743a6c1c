//! The element types, and how a chunk of each is made from words.

use half::{bf16, f16};

use super::bernoulli::Threshold;
use burn::tensor::Distribution;

use super::distribution::check;
use super::error::RandomError;
use super::philox::BLOCKS;
use super::stream::Stream;
use super::uniform::{FloatRange, IntegerRange};
use super::{normal_f32, normal_f64};

/// Elements made at once. Whatever is asked for, this many neighbours are computed together.
pub(super) const CHUNK: usize = 4 * BLOCKS;

/// A type that [`fill`](super::fill) can make: `f64`, `f32`, `f16`, `bf16` and the integers of 8 to
/// 64 bits, signed and unsigned.
///
/// Types of up to 32 bits take one word of 32 bits an element, so a block holds four: element `e`
/// is word `e % 4` of block `e / 4`. Types of 64 bits take two, so a block holds two elements:
/// element `e` is words `2 (e % 2)` (low) and `2 (e % 2) + 1` (high) of block `e / 2`.
///
/// The trait is sealed: the values of a type are part of a format, which a new type would extend.
pub trait RandomElement: Sample {}

/// What [`RandomElement`] does, out of reach of other crates.
pub trait Sample: Copy + Default {
    /// The parameters of a distribution, checked and brought into the form that the loops use.
    type Sampler;

    /// How many elements a block of four words holds.
    const PER_BLOCK: u64;

    /// Checks and prepares a distribution.
    fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError>;

    /// Makes the elements of the chunk that begins at a block.
    fn sample(sampler: &Self::Sampler, stream: &Stream, first_block: u64, out: &mut [Self; CHUNK]);
}

/// What to do with each word; chosen once a chunk, outside of the loops.
#[derive(Debug)]
pub enum Sampler<Range, Word, Real> {
    /// Uniform values.
    Uniform(Range),
    /// Zeros and ones.
    Bernoulli(Threshold<Word>),
    /// Normal values.
    Normal {
        /// The mean.
        mean: Real,
        /// The standard deviation.
        std: Real,
    },
}

/// Calls `set(element, word)` for every element of a chunk of one-word elements.
#[inline(always)]
fn each_word(stream: &Stream, first_block: u64, mut set: impl FnMut(usize, u32)) {
    let words = stream.words(first_block);
    for block in 0..BLOCKS {
        for (lane, words) in words.iter().enumerate() {
            set(4 * block + lane, words[block]);
        }
    }
}

/// Calls `set(element, value)` with standard normal values for every element of a chunk of one-word
/// elements: words 0 and 1 of a block make elements 0 and 1, words 2 and 3 elements 2 and 3.
#[inline(always)]
fn each_normal(stream: &Stream, first_block: u64, mut set: impl FnMut(usize, f32)) {
    let words = stream.words(first_block);
    for block in 0..BLOCKS {
        let (z0, z1) = normal_f32::standard_pair(words[0][block], words[1][block]);
        let (z2, z3) = normal_f32::standard_pair(words[2][block], words[3][block]);
        set(4 * block, z0);
        set(4 * block + 1, z1);
        set(4 * block + 2, z2);
        set(4 * block + 3, z3);
    }
}

/// Calls `set(element, word, word)` for every pair of neighbours in a chunk of two-word elements,
/// with the index of the first. A chunk takes two rounds of blocks, as each block holds two
/// elements.
#[inline(always)]
fn each_wide_pair(stream: &Stream, first_block: u64, mut set: impl FnMut(usize, u64, u64)) {
    for first in [0, BLOCKS] {
        let words = stream.words(first_block.wrapping_add(first as u64));
        for block in 0..BLOCKS {
            let low = u64::from(words[0][block]) | u64::from(words[1][block]) << 32;
            let high = u64::from(words[2][block]) | u64::from(words[3][block]) << 32;
            set(2 * (first + block), low, high);
        }
    }
}

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

/// Floats of at most 32 bits: computed in `f32`, then rounded to the nearest, ties to even.
macro_rules! narrow_float {
    ($type:ty, $round:expr, $widen:expr, $next_down:expr) => {
        impl RandomElement for $type {}

        impl Sample for $type {
            type Sampler = Sampler<FloatRange<f32>, u32, f32>;

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

            #[inline(always)]
            fn sample(
                sampler: &Self::Sampler,
                stream: &Stream,
                first_block: u64,
                out: &mut [Self; CHUNK],
            ) {
                match *sampler {
                    Sampler::Uniform(range) => each_word(stream, first_block, |i, word| {
                        out[i] = $round(range.sample(word));
                    }),
                    Sampler::Bernoulli(threshold) => each_word(stream, first_block, |i, word| {
                        out[i] = $round(if threshold.accepts(word) { 1.0 } else { 0.0 });
                    }),
                    Sampler::Normal { mean, std } => each_normal(stream, first_block, |i, z| {
                        out[i] = $round(z * std + mean);
                    }),
                }
            }
        }
    };
}

narrow_float!(f32, |x: f32| x, |x: f32| x, f32::next_down);
narrow_float!(f16, f16::from_f32, f16::to_f32, |x: f16| f16::from_bits(
    next_down(x.to_bits())
));
narrow_float!(bf16, bf16::from_f32, bf16::to_f32, |x: bf16| {
    bf16::from_bits(next_down(x.to_bits()))
});

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
    fn sample(sampler: &Self::Sampler, stream: &Stream, first_block: u64, out: &mut [Self; CHUNK]) {
        match *sampler {
            Sampler::Uniform(range) => each_wide_pair(stream, first_block, |i, a, b| {
                out[i] = range.sample(a);
                out[i + 1] = range.sample(b);
            }),
            Sampler::Bernoulli(threshold) => each_wide_pair(stream, first_block, |i, a, b| {
                out[i] = if threshold.accepts(a) { 1.0 } else { 0.0 };
                out[i + 1] = if threshold.accepts(b) { 1.0 } else { 0.0 };
            }),
            Sampler::Normal { mean, std } => each_wide_pair(stream, first_block, |i, a, b| {
                let (z0, z1) = normal_f64::standard_pair(a, b);
                out[i] = z0 * std + mean;
                out[i + 1] = z1 * std + mean;
            }),
        }
    }
}

/// The sampler of an integer type, whose word is `$word`.
macro_rules! integer_sampler {
    ($type:ty, $word:ty) => {
        fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError> {
            check(distribution)?;
            let limits = (i128::from(<$type>::MIN), i128::from(<$type>::MAX));
            let bounds = match distribution {
                // Both are exact: powers of two, or zero.
                Distribution::Default => (limits.0 as f64, (limits.1 + 1) as f64),
                Distribution::Uniform(low, high) => (low, high),
                Distribution::Bernoulli(probability) => {
                    return Ok(Sampler::Bernoulli(Threshold::<$word>::new(probability)));
                }
                Distribution::Normal(mean, std) => return Ok(Sampler::Normal { mean, std }),
            };
            IntegerRange::<$word>::new(bounds, limits, stringify!($type)).map(Sampler::Uniform)
        }
    };
}

/// Integers of at most 32 bits. Normal values are `f32` deviates, scaled in `f64`, so that a large
/// mean keeps its units.
macro_rules! narrow_integer {
    ($($type:ty),*) => {$(
        impl RandomElement for $type {}

        impl Sample for $type {
            type Sampler = Sampler<IntegerRange<u32>, u32, f64>;

            const PER_BLOCK: u64 = 4;

            integer_sampler!($type, u32);

            #[inline(always)]
            fn sample(
                sampler: &Self::Sampler,
                stream: &Stream,
                first_block: u64,
                out: &mut [Self; CHUNK],
            ) {
                match *sampler {
                    Sampler::Uniform(range) => each_word(stream, first_block, |i, word| {
                        out[i] = range.sample(word) as $type;
                    }),
                    Sampler::Bernoulli(threshold) => each_word(stream, first_block, |i, word| {
                        out[i] = <$type>::from(threshold.accepts(word));
                    }),
                    Sampler::Normal { mean, std } => each_normal(stream, first_block, |i, z| {
                        // The conversion cuts towards zero and saturates.
                        out[i] = (f64::from(z) * std + mean) as $type;
                    }),
                }
            }
        }
    )*};
}

narrow_integer!(i32, i16, i8, u32, u16, u8);

/// Integers of 64 bits.
macro_rules! wide_integer {
    ($($type:ty),*) => {$(
        impl RandomElement for $type {}

        impl Sample for $type {
            type Sampler = Sampler<IntegerRange<u64>, u64, f64>;

            const PER_BLOCK: u64 = 2;

            integer_sampler!($type, u64);

            #[inline(always)]
            fn sample(
                sampler: &Self::Sampler,
                stream: &Stream,
                first_block: u64,
                out: &mut [Self; CHUNK],
            ) {
                match *sampler {
                    Sampler::Uniform(range) => each_wide_pair(stream, first_block, |i, a, b| {
                        out[i] = range.sample(a) as $type;
                        out[i + 1] = range.sample(b) as $type;
                    }),
                    Sampler::Bernoulli(threshold) => {
                        each_wide_pair(stream, first_block, |i, a, b| {
                            out[i] = <$type>::from(threshold.accepts(a));
                            out[i + 1] = <$type>::from(threshold.accepts(b));
                        });
                    }
                    Sampler::Normal { mean, std } => {
                        each_wide_pair(stream, first_block, |i, a, b| {
                            let (z0, z1) = normal_f64::standard_pair(a, b);
                            out[i] = (z0 * std + mean) as $type;
                            out[i + 1] = (z1 * std + mean) as $type;
                        });
                    }
                }
            }
        }
    )*};
}

wide_integer!(i64, u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_down_is_the_neighbour_in_every_16_bit_float() {
        for bits in 0..=u16::MAX {
            let (value, down) = (f16::from_bits(bits), f16::from_bits(next_down(bits)));
            if value.is_finite() {
                let between = (f32::from(value) + f32::from(down).max(-65520.0)) / 2.0;
                assert!(f32::from(down) < f32::from(value), "{value}");
                let nearest = f16::from_f32(between);
                assert!(nearest == value || nearest == down, "{value}");
            }
        }
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
        check::<i8>(
            Distribution::Uniform(-129.0, 0.0),
            "low -129 of the random distribution is out of the range of i8",
        );
        check::<u16>(
            Distribution::Bernoulli(2.0),
            "probability 2 of the bernoulli distribution is not within 0 to 1",
        );
        assert!(f16::sampler(Distribution::Uniform(-65504.0, 65504.0)).is_ok());
        assert!(f16::sampler(Distribution::Normal(65519.0, 1.0)).is_ok());
    }
}
