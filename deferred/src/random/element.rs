//! Element types, and the assignment of a chunk's words to its elements.

use burn::tensor::Distribution;
use bytemuck::Pod;
use fearless_simd::prelude::*;

use super::distribution::Threshold;
use super::error::RandomError;
use super::lanes::{VECTORS, Words, store_interleaved};
use super::philox::{self, VECTORS_OF_BLOCKS};
use super::stream::Stream;
use super::{normal_f32, normal_f64};

/// Blocks generated at once: a multiple of the blocks of one step with the widest supported vectors, which have
/// 16 lanes of 32 bits.
pub(super) const BLOCKS: usize = 16 * VECTORS_OF_BLOCKS;

/// Elements generated at once, however many are requested.
pub(super) const CHUNK: usize = 4 * BLOCKS;

/// The blocks of a chunk: [`BLOCKS`] for elements of one word, twice that number for elements of two.
#[derive(Debug, Clone, Copy)]
pub enum Blocks<'a> {
    /// Consecutive blocks from this one on; a chunk may have unused blocks after the last one that is read.
    From(u64),
    /// These blocks.
    Listed(&'a [u64; 2 * BLOCKS]),
}

/// The elements of a chunk that are generated, with the vector instructions of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a, S> {
    pub(super) simd: S,
    pub(super) stream: &'a Stream,
    pub(super) blocks: Blocks<'a>,
}

impl<S: Simd> Chunk<'_, S> {
    /// Calls a function that does not depend on the element type. Because this is not inlined, the function is compiled once
    /// for each level of vector instructions, and not for each of the twelve element types too.
    #[inline(never)]
    pub(super) fn apart<R>(self, make: impl FnOnce(Self) -> R) -> R {
        self.simd.vectorize(
            #[inline(always)]
            || make(self),
        )
    }

    /// The number of blocks that one step generates with these vectors.
    const STEP: usize = VECTORS_OF_BLOCKS * S::u32s::LEN;

    /// Returns the words of the blocks of one step, from the `skipped`-th on.
    #[inline(always)]
    fn step(self, skipped: usize) -> philox::Words<S> {
        const COUNT: [u64; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        const { assert!(BLOCKS.is_multiple_of(Self::STEP)) };
        let mut indices = [S::u64s::splat(self.simd, 0); VECTORS];
        for (i, vector) in indices.iter_mut().enumerate() {
            let skipped = skipped + i * S::u64s::LEN;
            *vector = match self.blocks {
                Blocks::From(first) => {
                    let first = first.wrapping_add(skipped as u64);
                    S::u64s::from_slice(self.simd, &COUNT[..S::u64s::LEN]) + first
                }
                Blocks::Listed(indices) => {
                    S::u64s::from_slice(self.simd, &indices[skipped..skipped + S::u64s::LEN])
                }
            };
        }
        let Stream { key, high } = *self.stream;
        philox::blocks(self.simd, indices, high, key)
    }

    /// Returns the word of every element of a chunk of one-word elements.
    #[inline(always)]
    pub(super) fn words(self) -> [u32; CHUNK] {
        self.apart(
            #[inline(always)]
            |chunk| chunk.words_from(0),
        )
    }

    /// Returns the words of [`BLOCKS`] blocks, from the `skipped`-th on, one block after the other.
    #[inline(always)]
    pub(super) fn words_from(self, skipped: usize) -> [u32; 4 * BLOCKS] {
        let mut words = [0; 4 * BLOCKS];
        for (i, words) in words.chunks_exact_mut(4 * Self::STEP).enumerate() {
            store_interleaved(self.step(skipped + i * Self::STEP), words);
        }
        words
    }

    /// Fills a chunk of one-word elements with normal values: words 0 and 1 of a block give elements 0
    /// and 1, words 2 and 3 elements 2 and 3.
    #[inline(always)]
    pub(super) fn normals(self, mean: f32, std: f32, out: &mut [f32; CHUNK]) {
        for (i, out) in out.chunks_exact_mut(4 * Self::STEP).enumerate() {
            let [a, b, c, d] = self.step(i * Self::STEP);
            let radius_words = Words::new(self.simd, [a[0], a[1], c[0], c[1]]);
            let angle_words = Words::new(self.simd, [b[0], b[1], d[0], d[1]]);
            let (even, odd) = normal_f32::standard_pairs(radius_words, angle_words);
            let [a0, a1, c0, c1] = even.scale(std, mean).vectors;
            let [b0, b1, d0, d1] = odd.scale(std, mean).vectors;
            store_interleaved([[a0, a1], [b0, b1], [c0, c1], [d0, d1]], out);
        }
    }

    /// Returns standard normal values for a chunk of one-word elements.
    #[inline(always)]
    pub(super) fn standard_normals(self) -> [f32; CHUNK] {
        let mut values = [0.0; CHUNK];
        self.apart(
            #[inline(always)]
            |chunk| chunk.normals(0.0, 1.0, &mut values),
        );
        values
    }

    /// Returns the word of every element of a chunk of two-word elements, in two rounds of blocks, as each block
    /// has two elements.
    #[inline(always)]
    pub(super) fn wide_words(self) -> [u64; CHUNK] {
        let mut wide = [0; CHUNK];
        self.apart(
            #[inline(always)]
            |chunk| {
                for (round, wide) in wide.chunks_exact_mut(CHUNK / 2).enumerate() {
                    let words = chunk.words_from(round * BLOCKS);
                    for (wide, word) in wide.iter_mut().zip(words.as_chunks::<2>().0) {
                        *wide = u64::from(word[0]) | u64::from(word[1]) << 32;
                    }
                }
            },
        );
        wide
    }

    /// Returns standard normal values for a chunk of two-word elements.
    ///
    /// In three passes, because the compiler vectorizes each of them, but not a single one.
    #[inline(always)]
    pub(super) fn wide_normals(self) -> [f64; CHUNK] {
        let words = self.wide_words();
        let mut values = [0.0; CHUNK];
        self.apart(
            #[inline(always)]
            |_| {
                let pairs = words.as_chunks::<2>().0;
                let mut radii = [0.0; CHUNK / 2];
                for (radius, word) in radii.iter_mut().zip(pairs) {
                    *radius = normal_f64::radius(word[0]);
                }
                let (mut sines, mut cosines) = ([0.0; CHUNK / 2], [0.0; CHUNK / 2]);
                for i in 0..CHUNK / 2 {
                    (sines[i], cosines[i]) = normal_f64::sine_cosine(pairs[i][1]);
                }
                for i in 0..CHUNK / 2 {
                    values[2 * i] = radii[i] * cosines[i];
                    values[2 * i + 1] = radii[i] * sines[i];
                }
            },
        );
        values
    }
}

/// A type that [`fill`](super::fill()) can generate: `f64`, `f32`, `f16`, `bf16` and the integers of 8 to
/// 64 bits, signed and unsigned.
///
/// Types of up to 32 bits use one word of 32 bits per element, so a block has four elements: element `e`
/// is word `e % 4` of block `e / 4`. Types of 64 bits use two, so a block has two elements:
/// element `e` is words `2 (e % 2)` (low) and `2 (e % 2) + 1` (high) of block `e / 2`.
///
/// The trait is sealed: the values of a type are part of a format, which a new type would extend.
pub trait RandomElement: Sample {}

impl<T: Sample> RandomElement for T {}

/// The methods of [`RandomElement`], hidden from other crates.
pub trait Sample: Copy + Default + Pod {
    /// The parameters of a distribution, checked and converted for the inner loops.
    type Sampler: std::fmt::Debug + Sync;

    /// The number of elements of a block of four words.
    const PER_BLOCK: u64;

    /// Checks and prepares a distribution.
    fn sampler(distribution: Distribution) -> Result<Self::Sampler, RandomError>;

    /// Generates all elements of the given blocks, in the order of the blocks.
    fn sample<S: Simd>(sampler: &Self::Sampler, chunk: Chunk<'_, S>, out: &mut [Self; CHUNK]);
}

/// The conversion of each word; chosen once per chunk, outside of the loops.
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

/// Implements [`Sample::sample`] for a type whose elements are computed one by one. `$words` generates the word of each
/// element, `$normals` standard normal values, which are scaled in `f64`, so that a large mean keeps its units.
macro_rules! sample_each {
    ($words:ident, $normals:ident) => {
        #[inline(always)]
        fn sample<S: Simd>(sampler: &Self::Sampler, chunk: Chunk<'_, S>, out: &mut [Self; CHUNK]) {
            match *sampler {
                Sampler::Uniform(range) => {
                    for (out, word) in out.iter_mut().zip(chunk.$words()) {
                        *out = range.sample(word) as Self;
                    }
                }
                Sampler::Bernoulli(threshold) => {
                    for (out, word) in out.iter_mut().zip(chunk.$words()) {
                        let is_one = threshold.accepts(word);
                        *out = if is_one { 1 as Self } else { 0 as Self };
                    }
                }
                Sampler::Normal { mean, std } => {
                    for (out, z) in out.iter_mut().zip(chunk.$normals()) {
                        // The conversion to an integer truncates towards zero and saturates.
                        *out = (f64::from(z) * std + mean) as Self;
                    }
                }
            }
        }
    };
}

pub(super) use sample_each;
