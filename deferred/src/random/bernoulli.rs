//! One with a given probability, else zero: an integer comparison.

/// 1 for a word below a threshold: the probability is `floor(p * 2^bits) / 2^bits`.
///
/// The error of the probability is below 2^-32 for elements of one word and below 2^-64 for
/// elements of two. A probability of 1 needs the threshold 2^bits, which the word's type cannot
/// hold; `always` stands for it, so that the comparison stays as narrow as the word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold<W> {
    pub(super) below: W,
    pub(super) always: bool,
}

impl Threshold<u32> {
    /// `probability` lies within 0 to 1.
    pub(super) fn new(probability: f64) -> Self {
        // Multiplying by a power of two is exact, and the conversion cuts off: this is the floor.
        let below = (probability * (1u64 << 32) as f64) as u64;
        Self {
            below: below as u32,
            always: below >> 32 != 0,
        }
    }

    #[inline(always)]
    pub(super) fn accepts(&self, word: u32) -> bool {
        self.always | (word < self.below)
    }
}

impl Threshold<u64> {
    /// `probability` lies within 0 to 1.
    pub(super) fn new(probability: f64) -> Self {
        let below = (probability * (1u128 << 64) as f64) as u128;
        Self {
            below: below as u64,
            always: below >> 64 != 0,
        }
    }

    #[inline(always)]
    pub(super) fn accepts(&self, word: u64) -> bool {
        self.always | (word < self.below)
    }
}

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
