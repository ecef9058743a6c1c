//! The integer types.

use super::bernoulli::Threshold;
use burn::tensor::Distribution;

use super::distribution::check;
use super::element::{
    BlockIndices, CHUNK, RandomElement, Sample, Sampler, each_normal, each_wide_normal,
    each_wide_pair, each_word,
};
use super::error::RandomError;
use super::stream::Stream;
use super::uniform::IntegerRange;

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
                blocks: &BlockIndices,
                out: &mut [Self; CHUNK],
            ) {
                match *sampler {
                    Sampler::Uniform(range) => each_word(stream, blocks, |i, word| {
                        out[i] = range.sample(word) as $type;
                    }),
                    Sampler::Bernoulli(threshold) => each_word(stream, blocks, |i, word| {
                        out[i] = <$type>::from(threshold.accepts(word));
                    }),
                    Sampler::Normal { mean, std } => each_normal(stream, blocks, |i, z| {
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
                blocks: &BlockIndices,
                out: &mut [Self; CHUNK],
            ) {
                match *sampler {
                    Sampler::Uniform(range) => each_wide_pair(stream, blocks, |i, a, b| {
                        out[i] = range.sample(a) as $type;
                        out[i + 1] = range.sample(b) as $type;
                    }),
                    Sampler::Bernoulli(threshold) => {
                        each_wide_pair(stream, blocks, |i, a, b| {
                            out[i] = <$type>::from(threshold.accepts(a));
                            out[i + 1] = <$type>::from(threshold.accepts(b));
                        });
                    }
                    Sampler::Normal { mean, std } => {
                        each_wide_normal(stream, blocks, |i, z| {
                            out[i] = (z * std + mean) as $type;
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
    fn parameters_beyond_the_element_type_are_refused() {
        fn check<T: Sample>(distribution: Distribution, expected: &str) {
            let Err(error) = T::sampler(distribution) else {
                panic!("{distribution:?} is out of range")
            };
            assert_eq!(error.to_string(), expected);
        }
        check::<i8>(
            Distribution::Uniform(-129.0, 0.0),
            "low -129 of the random distribution is out of the range of i8",
        );
        check::<u16>(
            Distribution::Bernoulli(2.0),
            "probability 2 of the bernoulli distribution is not within 0 to 1",
        );
        assert!(i8::sampler(Distribution::Uniform(-128.0, 128.0)).is_ok());
    }
}
