//! Philox 4x32-10: a counter-based generator.
//!
//! Source: J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel Random Numbers: As Easy
//! as 1, 2, 3", SC 2011. The constants are those of the paper and of its library, Random123.

/// How many blocks one call of [`blocks`] makes: enough independent work to fill the widest vector
/// registers in use (16 lanes of 32 bits), and little enough to stay in the first-level cache.
pub(super) const BLOCKS: usize = 16;

/// Words of [`BLOCKS`] blocks: `words[lane][block]`. The lane comes first so that a loop
/// over the blocks reads and writes consecutive memory, which the compiler turns into vector code.
pub(super) type Words = [[u32; BLOCKS]; 4];

const ROUNDS: u32 = 10;
const MULTIPLIER_0: u32 = 0xd251_1f53;
const MULTIPLIER_1: u32 = 0xcd9e_8d57;
/// The golden ratio, as a fraction of 2^32.
const KEY_STEP_0: u32 = 0x9e37_79b9;
/// The square root of 3, less 1, as a fraction of 2^32.
const KEY_STEP_1: u32 = 0xbb67_ae85;

/// One block: four random words for a counter and a key.
#[inline(always)]
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

/// The blocks of these indices, for the counters whose high words are `high`.
#[inline(always)]
pub(super) fn blocks(indices: &[u64; BLOCKS], high: [u32; 2], key: [u32; 2]) -> Words {
    let mut words = [[0; BLOCKS]; 4];
    for (i, &block) in indices.iter().enumerate() {
        let counter = [block as u32, (block >> 32) as u32, high[0], high[1]];
        let [w0, w1, w2, w3] = philox4x32_10(counter, key);
        words[0][i] = w0;
        words[1][i] = w1;
        words[2][i] = w2;
        words[3][i] = w3;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `philox4x32 10` lines of Random123's `kat_vectors`: counter, key, answer.
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

    #[test]
    fn many_blocks_are_the_single_blocks_also_beyond_32_bits() {
        let (high, key) = ([7, 9], [0x1234_5678, 0x9abc_def0]);
        for first in [0, 1, (1 << 32) - 5, u64::MAX - 3] {
            let indices = std::array::from_fn(|i| first.wrapping_add((i * i) as u64));
            let words = blocks(&indices, high, key);
            for (i, block) in indices.into_iter().enumerate() {
                let counter = [block as u32, (block >> 32) as u32, high[0], high[1]];
                let single = philox4x32_10(counter, key);
                assert_eq!(words.map(|lane| lane[i]), single, "block {block}");
            }
        }
    }
}
