//! Seeded random numbers.

/// A sequence of random numbers that a seed decides: SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom
/// Number Generators, OOPSLA 2014). Not for secrets.
#[derive(Clone, Debug, Default)]
pub struct Random(u64);

impl Random {
    /// Begins the sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number, any of 64 bits.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    /// Returns the next number, less than `limit`; 0 if the limit is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        // The high half of the product: of 2^64 numbers, each result has the same count, give or take one.
        ((self.number() as u128 * limit as u128) >> 64) as u64
    }
}

/// Spreads the bits of a number over all bits of another one.
pub(crate) const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation (https://prng.di.unimi.it/splitmix64.c).
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut random = Random::new(1_234_567);
        let numbers = [(); 3].map(|()| random.number());
        let reference = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(numbers, reference);
    }

    #[test]
    fn numbers_below_a_limit_are_evenly_spread() {
        let mut random = Random::new(5);
        let mut counts = [0; 6];
        for _ in 0..6000 {
            counts[random.below(6) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }
}
