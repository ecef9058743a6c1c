//! The distributions: their checks, and their values for the bits of the generator. Uniform values are between two floats
//! or in a range of integers. Bernoulli values are one with a given probability, otherwise zero, by an integer comparison.

use burn::tensor::Distribution;

use super::error::RandomError;

/// Checks the parameters, as far as that does not depend on the element type.
pub(super) fn check(distribution: Distribution) -> Result<(), RandomError> {
    let finite = |one: f64, other: f64| one.is_finite() && other.is_finite();
    let reason = match distribution {
        Distribution::Bernoulli(p) if !(0.0..=1.0).contains(&p) => {
            "the probability must be within 0 to 1"
        }
        Distribution::Uniform(low, high) if !finite(low, high) => "both bounds must be finite",
        Distribution::Uniform(low, high) if low > high => "the first bound must not be larger",
        Distribution::Normal(mean, std) if !finite(mean, std) => {
            "mean and standard deviation must be finite"
        }
        Distribution::Normal(_, std) if std < 0.0 => "the standard deviation must not be negative",
        _ => return Ok(()),
    };
    Err(RandomError::Parameters {
        distribution,
        reason,
    })
}

/// The threshold below which a word gives 1: the probability is `floor(p * 2^bits) / 2^bits`.
///
/// The error of the probability is below 2^-32 for elements of one word and below 2^-64 for
/// elements of two. A probability of 1 needs the threshold 2^bits, which the word's type cannot
/// represent; `always` is set instead, so that the comparison stays as narrow as the word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold<W> {
    pub(super) below: W,
    pub(super) always: bool,
}

/// 2^-24, the step between the positions within a range of `f32`.
pub(super) const STEP_F32: f32 = f32::from_bits(0x3380_0000);
/// 2^-53, the step between the positions within a range of `f64`.
pub(super) const STEP_F64: f64 = f64::from_bits(0x3ca0_0000_0000_0000);

/// Values from `low` up, never above `limit`, which is the largest value below the upper bound.
///
/// `low + (high - low) * u` can round to the upper bound or even beyond it. A selection against
/// `limit` prevents that without a branch. It changes values of `f32` and `f64` by at most one step, which is no more
/// than rounding would have; for `bf16` and `f16`, `random.md` has the bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FloatRange<F> {
    pub(super) low: F,
    pub(super) width: F,
    pub(super) limit: F,
}

/// The types of a float range: its word, the conversion of a position, and the bits of the word that are not used.
macro_rules! float_range {
    ($float:ident, $word:ident as $signed:ident >> $dropped:literal, $step:ident) => {
        impl FloatRange<$float> {
            /// `low <= high` are values of the element type, and `below_high` the largest of its values
            /// below `high`. For `bf16` and `f16` a value is limited before it is rounded: rounding to
            /// nearest is monotonic and keeps `below_high`, so the result is never `high`.
            ///
            /// # Errors
            /// [`RandomError::WidthOverflow`] when `high - low` is not finite.
            pub(super) fn new(
                low: $float,
                high: $float,
                below_high: $float,
            ) -> Result<Self, RandomError> {
                let width = high - low;
                if !width.is_finite() {
                    return Err(RandomError::WidthOverflow {
                        low: low.into(),
                        high: high.into(),
                        arithmetic: stringify!($float),
                    });
                }
                let limit = if low < high { below_high } else { low };
                Ok(Self { low, width, limit })
            }

            /// Returns the value for a word. Its upper bits are the position within the range; their number is
            /// the type's precision.
            #[inline(always)]
            pub(super) fn sample(&self, word: $word) -> $float {
                // The position has fewer bits than the word, and the conversion from a signed integer is
                // the fast one.
                let position = (word >> $dropped) as $signed as $float * $step;
                let value = position * self.width + self.low;
                let is_below = value < self.limit;
                if is_below { value } else { self.limit }
            }
        }
    };
}

float_range!(f32, u32 as i32 >> 8, STEP_F32);
float_range!(f64, u64 as i64 >> 11, STEP_F64);

/// The integers `low ..= low + last`.
///
/// A word is scaled by multiplication, as in D. Lemire, "Fast Random Integer Generation in an
/// Interval", ACM TOMACS 29, 2019, without its rejection step, because each element has exactly one
/// word. The error of the probability of any sub-range is less than 2^-32 for elements of one word, and
/// 2^-64 for elements of two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntegerRange<W> {
    /// The lowest value, as the two's complement bits of the word.
    pub(super) low: W,
    pub(super) last: W,
}

/// Truncates the bounds to integers and checks them against the element type's `min` and `max`. Returns
/// the lowest value and the distance to the highest.
fn integer_bounds(
    (low, high): (f64, f64),
    (min, max): (i128, i128),
    element: &'static str,
) -> Result<(i128, u128), RandomError> {
    // The conversion truncates the fraction and saturates far outside of every element type.
    let (lowest, end) = (low as i128, high as i128);
    let out_of_range = |parameter, value| RandomError::OutOfRange {
        parameter,
        value,
        element,
    };
    if lowest < min || lowest > max {
        return Err(out_of_range("low", low));
    }
    if end > max + 1 {
        return Err(out_of_range("high", high));
    }
    // If the range is empty, every value is its lower bound.
    let last = (end - 1).max(lowest);
    Ok((lowest, last.abs_diff(lowest)))
}

/// A word, and an integer that can represent a product of two.
macro_rules! word {
    ($word:ident, $wider:ident) => {
        impl Threshold<$word> {
            /// `probability` must be within 0 to 1.
            pub(super) fn new(probability: f64) -> Self {
                // Multiplying by a power of two is exact, and the conversion truncates: this is the floor.
                let words = ((1 as $wider) << $word::BITS) as f64;
                let below = (probability * words) as $wider;
                Self {
                    below: below as $word,
                    always: below >> $word::BITS != 0,
                }
            }

            #[inline(always)]
            pub(super) fn accepts(&self, word: $word) -> bool {
                self.always | (word < self.below)
            }
        }

        impl IntegerRange<$word> {
            /// The integers of `bounds.0 .. bounds.1` for an element type of at most the word's width.
            ///
            /// # Errors
            /// [`RandomError::OutOfRange`] when a bound is not in the range of the element type.
            pub(super) fn new(
                bounds: (f64, f64),
                limits: (i128, i128),
                element: &'static str,
            ) -> Result<Self, RandomError> {
                let (low, last) = integer_bounds(bounds, limits, element)?;
                let (low, last) = (low as $word, last as $word);
                Ok(Self { low, last })
            }

            /// Returns the value for a word, as the two's complement bits of the element.
            #[inline(always)]
            pub(super) fn sample(&self, word: $word) -> $word {
                // word * (last + 1), in a form that is also correct when last + 1 is 2^bits.
                let scaled = $wider::from(word) * $wider::from(self.last) + $wider::from(word);
                self.low.wrapping_add((scaled >> $word::BITS) as $word)
            }
        }
    };
}

word!(u32, u64);
word!(u64, u128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_parameters_pass() {
        for distribution in [
            Distribution::Default,
            Distribution::Bernoulli(0.0),
            Distribution::Bernoulli(1.0),
            Distribution::Uniform(2.0, 2.0),
            Distribution::Uniform(f64::MIN, f64::MAX),
            Distribution::Normal(-1.0, 0.0),
        ] {
            assert_eq!(check(distribution), Ok(()), "{distribution:?}");
        }
    }

    #[test]
    fn bad_parameters_are_named() {
        let check_message = |distribution, expected: &str| {
            let error = check(distribution).expect_err("the parameters are invalid");
            assert_eq!(error.to_string(), expected);
        };
        check_message(
            Distribution::Bernoulli(f64::NAN),
            "no values can be drawn from Bernoulli(NaN): the probability must be within 0 to 1",
        );
        check_message(
            Distribution::Bernoulli(1.5),
            "no values can be drawn from Bernoulli(1.5): the probability must be within 0 to 1",
        );
        check_message(
            Distribution::Bernoulli(-0.1),
            "no values can be drawn from Bernoulli(-0.1): the probability must be within 0 to 1",
        );
        check_message(
            Distribution::Uniform(f64::NAN, 1.0),
            "no values can be drawn from Uniform(NaN, 1.0): both bounds must be finite",
        );
        check_message(
            Distribution::Uniform(0.0, f64::INFINITY),
            "no values can be drawn from Uniform(0.0, inf): both bounds must be finite",
        );
        check_message(
            Distribution::Uniform(1.0, 0.5),
            "no values can be drawn from Uniform(1.0, 0.5): the first bound must not be larger",
        );
        check_message(
            Distribution::Normal(f64::NEG_INFINITY, 1.0),
            "no values can be drawn from Normal(-inf, 1.0): mean and standard deviation must be finite",
        );
        check_message(
            Distribution::Normal(0.0, f64::NAN),
            "no values can be drawn from Normal(0.0, NaN): mean and standard deviation must be finite",
        );
        check_message(
            Distribution::Normal(0.0, -1.0),
            "no values can be drawn from Normal(0.0, -1.0): the standard deviation must not be negative",
        );
    }
}

#[cfg(test)]
mod bernoulli_tests {
    use super::*;

    #[test]
    fn thresholds_are_exact_at_the_ends_and_inside() {
        let check = |probability, word: u32, expected| {
            let accepts = Threshold::<u32>::new(probability).accepts(word);
            assert_eq!(accepts, expected, "p {probability}, word {word:#x}");
        };
        check(0.0, 0, false);
        check(1.0, 0, true);
        check(1.0, u32::MAX, true);
        check(0.5, 0x7fff_ffff, true);
        check(0.5, 0x8000_0000, false);
        check(2f64.powi(-32), 0, true);
        check(2f64.powi(-32), 1, false);
        check(2f64.powi(-33), 0, false);
        check(1.0 - 2f64.powi(-53), u32::MAX, false);
        check(1.0 - 2f64.powi(-53), u32::MAX - 1, true);
    }

    #[test]
    fn wide_thresholds_are_exact_at_the_ends_and_inside() {
        let check = |probability, word: u64, expected| {
            let accepts = Threshold::<u64>::new(probability).accepts(word);
            assert_eq!(accepts, expected, "p {probability}, word {word:#x}");
        };
        check(0.0, 0, false);
        check(1.0, 0, true);
        check(1.0, u64::MAX, true);
        check(0.25, (1 << 62) - 1, true);
        check(0.25, 1 << 62, false);
        check(2f64.powi(-64), 0, true);
        check(2f64.powi(-64), 1, false);
        check(1.0 - 2f64.powi(-53), u64::MAX - (1 << 11), true);
        check(1.0 - 2f64.powi(-53), u64::MAX - (1 << 11) + 1, false);
    }
}

#[cfg(test)]
mod uniform_tests {
    use proptest::prelude::*;

    use super::*;

    fn f32_range(low: f32, high: f32) -> FloatRange<f32> {
        FloatRange::<f32>::new(low, high, high.next_down()).expect("the width is finite")
    }

    #[test]
    fn float_ranges_hold_their_lower_bound_and_not_their_upper() {
        let check = |low: f32, high: f32, last: f32| {
            let range = f32_range(low, high);
            assert_eq!(range.sample(0), low);
            assert_eq!(range.sample(u32::MAX), last, "{low} to {high}");
        };
        check(0.0, 1.0, 1.0 - 2f32.powi(-24));
        // Here low + width * (1 - 2^-24) rounds to high.
        check(1.0, 2.0, 2f32.next_down());
        check(-1.0, 0.0, -(2f32.powi(-24)));
        check(100.0, 100.25, 100.25f32.next_down());
        check(3.0, 3.0, 3.0);
    }

    #[test]
    fn a_width_beyond_the_arithmetic_is_refused() {
        let error = FloatRange::<f32>::new(f32::MIN, f32::MAX, f32::MAX.next_down());
        assert_eq!(
            error.expect_err("the width is infinite").to_string(),
            "the distance from low -340282346638528860000000000000000000000 to high \
             340282346638528860000000000000000000000 overflows f32, split the range in two"
        );
        let wide = |low, high: f64| FloatRange::<f64>::new(low, high, high.next_down());
        assert!(wide(f64::MIN, f64::MAX).is_err());
        assert!(wide(0.0, f64::MAX).is_ok());
    }

    #[test]
    fn integer_ranges_hold_both_their_ends() {
        let check = |bounds, limits: (i128, i128), first: i32, last: i32| {
            let range = IntegerRange::<u32>::new(bounds, limits, "test").expect("valid bounds");
            assert_eq!(range.sample(0) as i32, first, "{bounds:?}");
            assert_eq!(range.sample(u32::MAX) as i32, last, "{bounds:?}");
        };
        let i32_limits = (i128::from(i32::MIN), i128::from(i32::MAX));
        check((0.0, 10.0), i32_limits, 0, 9);
        check((-3.9, 3.9), i32_limits, -3, 2);
        check((5.0, 5.0), i32_limits, 5, 5);
        check(
            (-2147483648.0, 2147483648.0),
            i32_limits,
            i32::MIN,
            i32::MAX,
        );
        check((0.0, 256.0), (0, 255), 0, 255);
        check((-0.5, 2.0), (0, 255), 0, 1);

        let limits = (i128::from(i64::MIN), i128::from(i64::MAX));
        let range = IntegerRange::<u64>::new((-9.3e18, 9.2e18), limits, "i64");
        assert!(range.is_err(), "-9.3e18 is below the smallest i64");
        let bounds = (i64::MIN as f64, -(i64::MIN as f64));
        let range = IntegerRange::<u64>::new(bounds, limits, "i64").expect("the whole type");
        assert_eq!(range.sample(0) as i64, i64::MIN);
        assert_eq!(range.sample(u64::MAX) as i64, i64::MAX);
    }

    #[test]
    fn bounds_outside_of_the_element_type_are_refused() {
        let check = |bounds, expected: &str| {
            let error = IntegerRange::<u32>::new(bounds, (0, 255), "u8");
            assert_eq!(error.expect_err("out of range").to_string(), expected);
        };
        check(
            (-1.0, 3.0),
            "low -1 of the random distribution is out of the range of u8",
        );
        check(
            (256.0, 256.0),
            "low 256 of the random distribution is out of the range of u8",
        );
        check(
            (0.0, 257.0),
            "high 257 of the random distribution is out of the range of u8",
        );
        check(
            (0.0, 1e300),
            &format!(
                "high {} of the random distribution is out of the range of u8",
                1e300
            ),
        );
    }

    proptest! {
        #[test]
        fn float_values_stay_within_any_bounds(
            a in -1e30f32..1e30, b in -1e30f32..1e30, word: u32, shrink in 0..40i32
        ) {
            // Rounding matters most where the width is far below the magnitude of the bounds.
            let (a, b) = (a, a + (b - a) * 2f32.powi(-shrink));
            let (low, high) = if a <= b { (a, b) } else { (b, a) };
            let value = f32_range(low, high).sample(word);
            prop_assert!(value >= low);
            prop_assert!(value < high || low == high);
        }

        #[test]
        fn integer_values_are_the_scaled_words(low in -1000i32..1000, count in 1u32.., word: u32) {
            let bounds = (f64::from(low), f64::from(low) + f64::from(count));
            let limits = (i128::from(i64::MIN), i128::from(i64::MAX));
            let range = IntegerRange::<u32>::new(bounds, limits, "test").expect("valid bounds");
            let offset = (u128::from(word) * u128::from(count)) >> 32;
            prop_assert_eq!(range.sample(word), low.wrapping_add(offset as i32) as u32);
        }
    }
}
