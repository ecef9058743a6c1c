//! Bernoulli values: one with a given probability, else zero, by an integer comparison.

/// 1 for a word below a threshold: the probability is `floor(p * 2^bits) / 2^bits`.
///
/// The error of the probability is below 2^-32 for elements of one word and below 2^-64 for
/// elements of two. A probability of 1 needs the threshold 2^bits, which the word's type cannot
/// represent; `always` is set instead, so that the comparison stays as narrow as the word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold<W> {
    pub(super) below: W,
    pub(super) always: bool,
}

/// The threshold of a word, and an integer that can represent 2^bits.
macro_rules! threshold {
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
    };
}

threshold!(u32, u64);
threshold!(u64, u128);

#[cfg(test)]
mod tests {
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
