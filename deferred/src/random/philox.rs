//! Philox 4x32-10: a counter-based generator.
//!
//! Source: J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel Random Numbers: As Easy
//! as 1, 2, 3", SC 2011. The constants are from the paper and from its library, Random123.

use fearless_simd::prelude::*;

use super::lanes::VECTORS;

/// Vectors of 32-bit words that one call of [`blocks`] generates for each lane.
pub(super) const VECTORS_OF_BLOCKS: usize = VECTORS / 2;

/// The words of one block for each element of [`VECTORS_OF_BLOCKS`] vectors: `words[lane][vector]`.
pub(super) type Words<S> = [[<S as Simd>::u32s; VECTORS_OF_BLOCKS]; 4];

pub(super) const ROUNDS: u32 = 10;
pub(super) const MULTIPLIER_0: u32 = 0xd251_1f53;
pub(super) const MULTIPLIER_1: u32 = 0xcd9e_8d57;
/// The golden ratio, as a fraction of 2^32.
pub(super) const KEY_STEP_0: u32 = 0x9e37_79b9;
/// The square root of 3, less 1, as a fraction of 2^32.
pub(super) const KEY_STEP_1: u32 = 0xbb67_ae85;

/// Returns one block: four random words for a counter and a key. The reference for [`blocks`].
#[cfg(test)]
pub(super) fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let p0 = u64::from(c0) * u64::from(MULTIPLIER_0);
        let p1 = u64::from(c2) * u64::from(MULTIPLIER_1);
        c0 = (p1 >> 32) as u32 ^ c1 ^ k0;
        c1 = p1 as u32;
        c2 = (p0 >> 32) as u32 ^ c3 ^ k1;
        c3 = p0 as u32;
        k0 = k0.wrapping_add(KEY_STEP_0);
        k1 = k1.wrapping_add(KEY_STEP_1);
    }
    [c0, c1, c2, c3]
}

/// Returns the blocks of these indices, for the counters whose high words are `high`.
///
/// A word is in the lower half of 64 bits, in which the product of two is computed. The contents of the upper half
/// do not matter, so it is not cleared.
#[inline(always)]
pub(super) fn blocks<S: Simd>(
    simd: S,
    indices: [S::u64s; VECTORS],
    high: [u32; 2],
    key: [u32; 2],
) -> Words<S> {
    let lower_half = S::u64s::splat(simd, u64::from(u32::MAX));
    let splat = |word| S::u64s::splat(simd, u64::from(word));
    let zero = S::u64s::splat(simd, 0);
    let mut c = [[zero, zero, splat(high[0]), splat(high[1])]; VECTORS];
    for (c, indices) in c.iter_mut().zip(indices) {
        c[0] = indices;
        c[1] = indices >> 32;
    }
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        // All vectors in lockstep, see `lanes`.
        for c in &mut c {
            let p0 = (c[0] & lower_half) * u64::from(MULTIPLIER_0);
            let p1 = (c[2] & lower_half) * u64::from(MULTIPLIER_1);
            *c = [
                (p1 >> 32) ^ c[1] ^ S::u64s::splat(simd, u64::from(k0)),
                p1,
                (p0 >> 32) ^ c[3] ^ S::u64s::splat(simd, u64::from(k1)),
                p0,
            ];
        }
        k0 = k0.wrapping_add(KEY_STEP_0);
        k1 = k1.wrapping_add(KEY_STEP_1);
    }
    let mut words = [[S::u32s::splat(simd, 0); VECTORS_OF_BLOCKS]; 4];
    for (lane, words) in words.iter_mut().enumerate() {
        for (word, c) in words.iter_mut().zip(c.as_chunks::<2>().0) {
            let halves: [S::u32s; 2] = [c[0][lane].bitcast(), c[1][lane].bitcast()];
            *word = match cfg!(target_endian = "little") {
                true => halves[0].unzip_low(halves[1]),
                false => halves[0].unzip_high(halves[1]),
            };
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use fearless_simd::dispatch;

    use super::*;
    use crate::random::tests::levels;

    /// The `philox4x32 10` lines of Random123's `kat_vectors`: counter, key, result.
    #[test]
    fn known_answers() {
        let check = |counter, key, expected| {
            assert_eq!(philox4x32_10(counter, key), expected, "{counter:08x?}");
        };
        check(
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        );
        check(
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        );
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    /// The blocks of one call.
    #[inline(always)]
    fn made<S: Simd>(simd: S, indices: &[u64], high: [u32; 2], key: [u32; 2]) -> Vec<[u32; 4]> {
        let count = VECTORS_OF_BLOCKS * S::u32s::LEN;
        let vectors = std::array::from_fn(|i| {
            S::u64s::from_slice(simd, &indices[i * S::u64s::LEN..(i + 1) * S::u64s::LEN])
        });
        let words = blocks(simd, vectors, high, key);
        let word = |lane: usize, i: usize| words[lane][i / S::u32s::LEN][i % S::u32s::LEN];
        (0..count)
            .map(|i| [word(0, i), word(1, i), word(2, i), word(3, i)])
            .collect()
    }

    #[test]
    fn many_blocks_are_the_single_blocks_also_beyond_32_bits() {
        let (high, key) = ([7, 9], [0x1234_5678, 0x9abc_def0]);
        for first in [0, 1, (1 << 32) - 5, u64::MAX - 3] {
            let indices: Vec<u64> = (0..64).map(|i| first.wrapping_add(i * i)).collect();
            for level in levels() {
                let made = dispatch!(level, simd => made(simd, &indices, high, key));
                for (block, words) in indices.iter().zip(&made) {
                    let counter = [*block as u32, (block >> 32) as u32, high[0], high[1]];
                    let single = philox4x32_10(counter, key);
                    assert_eq!(words, &single, "block {block} with {level:?}");
                }
            }
        }
    }
}
