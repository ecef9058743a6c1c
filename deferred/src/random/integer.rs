//! The integer types.

use burn::tensor::Distribution;
use fearless_simd::Simd;

use super::distribution::{IntegerRange, Threshold, check};
use super::element::{CHUNK, Chunk, Sample, Sampler, sample_each};
use super::error::RandomError;

/// The integer types with words of one type, and what generates them, as in [`sample_each`].
macro_rules! integers {
    ($word:ident, $per_block:literal, $words:ident, $normals:ident: $($type:ty),*) => {$(
        impl Sample for $type {
            type Sampler = Sampler<IntegerRange<$word>, $word, f64>;

            const PER_BLOCK: u64 = $per_block;

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

            sample_each!($words, $normals);
        }
    )*};
}

integers!(u32, 4, words, standard_normals: i32, i16, i8, u32, u16, u8);
integers!(u64, 2, wide_words, wide_normals: i64, u64);

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
            "no values can be drawn from Bernoulli(2.0): the probability must be within 0 to 1",
        );
        assert!(i8::sampler(Distribution::Uniform(-128.0, 128.0)).is_ok());
    }
}
