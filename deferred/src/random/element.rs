//! What an element type is, and how the words of a chunk reach its elements.

use super::bernoulli::Threshold;
use super::error::RandomError;
use super::philox::BLOCKS;
use super::stream::Stream;
use super::{normal_f32, normal_f64};
use burn::tensor::Distribution;
use bytemuck::Zeroable;

/// Elements made at once. Whatever is asked for, this many are computed together.
pub(super) const CHUNK: usize = 4 * BLOCKS;

/// The indices of the blocks that a chunk is made of: one round of [`BLOCKS`] for elements of one
/// word, which leave the second round alone, and two for elements of two.
pub type BlockIndices = [[u64; BLOCKS]; 2];

/// The blocks from one on. The index wraps at 2^64, so a chunk may begin before the last block and
/// hold blocks after it that nobody reads.
#[inline(always)]
pub(super) fn consecutive(first_block: u64) -> BlockIndices {
    std::array::from_fn(|round| {
        std::array::from_fn(|i| first_block.wrapping_add((round * BLOCKS + i) as u64))
    })
}

/// A type that [`fill`](super::fill()) can make: `f64`, `f32`, `f16`, `bf16` and the integers of 8 to
/// 64 bits, signed and unsigned.
///
/// Types of up to 32 bits take one word of 32 bits an element, so a block holds four: element `e`
/// is word `e % 4` of block `e / 4`. Types of 64 bits take two, so a block holds two elements:
/// element `e` is words `2 (e % 2)` (low) and `2 (e % 2) + 1` (high) of block `e / 2`.
///
/// The trait is sealed: the values of a type are part of a format, which a new type would extend.
pub trait RandomElement: Sample {}

/// What [`RandomElement`] does, out of reach of other crates.
pub trait Sample: Copy + Default + Zeroable {
    /// The parameters of a distribution, checked and brought into the form that the loops use.
    type Sampler: std::fmt::Debug + Sync;

    /// How many elements a block of four words holds.
    const PER_BLOCK: u64;

    /// Checks and prepares a distribution.
    fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError>;

    /// Makes all elements of the blocks given: those of the first block first.
    fn sample(
        sampler: &Self::Sampler,
        stream: &Stream,
        blocks: &BlockIndices,
        out: &mut [Self; CHUNK],
    );
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
pub(super) fn each_word(stream: &Stream, blocks: &BlockIndices, mut set: impl FnMut(usize, u32)) {
    let words = stream.words(&blocks[0]);
    for block in 0..BLOCKS {
        for (lane, words) in words.iter().enumerate() {
            set(4 * block + lane, words[block]);
        }
    }
}

/// Calls `set(element, value)` with standard normal values for every element of a chunk of one-word
/// elements: words 0 and 1 of a block make elements 0 and 1, words 2 and 3 elements 2 and 3.
///
/// In passes, each of which the compiler turns into vector code.
#[inline(always)]
pub(super) fn each_normal(stream: &Stream, blocks: &BlockIndices, mut set: impl FnMut(usize, f32)) {
    let words = stream.words(&blocks[0]);
    let mut values = [[0.0; BLOCKS]; 4];
    for pair in [0, 2] {
        for block in 0..BLOCKS {
            let (first, second) =
                normal_f32::standard_pair(words[pair][block], words[pair + 1][block]);
            values[pair][block] = first;
            values[pair + 1][block] = second;
        }
    }
    for block in 0..BLOCKS {
        for (lane, values) in values.iter().enumerate() {
            set(4 * block + lane, values[block]);
        }
    }
}

/// Calls `set(element, word, word)` for every pair of neighbours in a chunk of two-word elements,
/// with the index of the first. A chunk takes two rounds of blocks, as each block holds two
/// elements.
#[expect(
    clippy::needless_range_loop,
    reason = "the loop runs over the second index"
)]
#[inline(always)]
pub(super) fn each_wide_pair(
    stream: &Stream,
    blocks: &BlockIndices,
    mut set: impl FnMut(usize, u64, u64),
) {
    for (round, indices) in blocks.iter().enumerate() {
        let words = stream.words(indices);
        for block in 0..BLOCKS {
            let low = u64::from(words[0][block]) | u64::from(words[1][block]) << 32;
            let high = u64::from(words[2][block]) | u64::from(words[3][block]) << 32;
            set(2 * (round * BLOCKS + block), low, high);
        }
    }
}

/// Calls `set(element, value)` with standard normal values for every element of a chunk of two-word
/// elements.
///
/// In three passes, since the compiler makes vector code of each, and of all at once it does not.
#[inline(always)]
pub(super) fn each_wide_normal(
    stream: &Stream,
    blocks: &BlockIndices,
    mut set: impl FnMut(usize, f64),
) {
    let (mut radius_words, mut angle_words) = ([0; 2 * BLOCKS], [0; 2 * BLOCKS]);
    each_wide_pair(stream, blocks, |i, a, b| {
        radius_words[i / 2] = a;
        angle_words[i / 2] = b;
    });
    let mut radii = [0.0; 2 * BLOCKS];
    for (radius, word) in radii.iter_mut().zip(radius_words) {
        *radius = normal_f64::radius(word);
    }
    let (mut sines, mut cosines) = ([0.0; 2 * BLOCKS], [0.0; 2 * BLOCKS]);
    for i in 0..2 * BLOCKS {
        (sines[i], cosines[i]) = normal_f64::sine_cosine(angle_words[i]);
    }
    for i in 0..2 * BLOCKS {
        set(2 * i, radii[i] * cosines[i]);
        set(2 * i + 1, radii[i] * sines[i]);
    }
}
