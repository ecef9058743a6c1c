//! Fills a slice with a region of a random tensor.

use std::ops::Range;

use burn::tensor::Distribution;
use fearless_simd::{Level, Simd, dispatch};
use tinderbox_fake::Runs;

use super::element::{BLOCKS, Blocks, CHUNK, Chunk, RandomElement};
use super::error::RandomError;
use super::runs::{Piece, pieces};
use super::stream::Stream;

/// Fills `out` with the elements `first_element ..` of a random tensor, in row-major order.
///
/// The values depend only on the stream, the distribution and each element's index: filling in
/// pieces, in any order and at any alignment, generates the same bits as filling at once.
///
/// | | `f64` `f32` `bf16` `f16` | integers |
/// |---|---|---|
/// | `Default` | `Uniform(0, 1)` | every value of the type, equally likely |
/// | `Bernoulli(p)` | 1 with probability `p`, else 0 | the same |
/// | `Uniform(low, high)` | from `low` up, always below `high` | `low`, ..., `high - 1` |
/// | `Normal(mean, std)` | mean and standard deviation | the same, truncated to an integer |
///
/// The bounds of `Uniform` are first rounded to the element type (the nearest float, through `f32` for
/// floats of 16 bits; for integers towards zero), and if they are then equal, every value is that bound. For integers
/// `high` may be one more than the largest value of the type, so that every value can be generated. Mean and standard
/// deviation are rounded to `f32` for the floats of up to 32 bits.
///
/// `Normal` on integers truncates the fraction (towards zero) and saturates at the type's range.
/// `Normal` on a float type is infinite where the value is beyond its range: in `f16`, from 65520 on.
///
/// Runs on this thread, with the widest vector instructions of the machine. Needs no memory
/// beyond `out` and time in proportion to its length, plus the time of up to two chunks of 128 elements
/// if the ends are not aligned. For the highest speed, split work at multiples of 128 elements.
///
/// # Errors
/// [`RandomError`] when the distribution's parameters are invalid or out of the range of `T`, or the
/// region ends after element 2^64 - 1. `out` is then unchanged.
///
/// ```
/// use burn::tensor::Distribution;
/// use tinderbox_deferred::random::{Domain, RandomError, Seed, Stream, fill};
///
/// let stream = Stream::new(Seed::new(42), Domain::Init, "encoder.weight", 0);
/// let mut whole = [0f32; 100];
/// fill(&stream, Distribution::Normal(0.0, 0.02), 0, &mut whole)?;
/// let mut part = [0f32; 10];
/// fill(&stream, Distribution::Normal(0.0, 0.02), 37, &mut part)?;
/// assert_eq!(part, whole[37..47]);
/// # Ok::<(), RandomError>(())
/// ```
pub fn fill<T: RandomElement>(
    stream: &Stream,
    distribution: Distribution,
    first_element: u64,
    out: &mut [T],
) -> Result<(), RandomError> {
    fill_at(Level::new(), stream, distribution, first_element, out)
}

/// [`fill()`] with the vector instructions of a level, which this machine must support.
pub(super) fn fill_at<T: RandomElement>(
    level: Level,
    stream: &Stream,
    distribution: Distribution,
    first_element: u64,
    out: &mut [T],
) -> Result<(), RandomError> {
    let sampler = T::sampler(distribution)?;
    // The last element's index must be representable, not the index after it.
    let after_first = (out.len() as u64).saturating_sub(1);
    if first_element.checked_add(after_first).is_none() {
        return Err(RandomError::RegionTooLong {
            first_element,
            elements: out.len() as u64,
        });
    }

    let filler = Filler::<T> {
        level,
        sampler,
        stream,
    };
    filler.fill_neighbours(first_element, out);
    Ok(())
}

/// Generates elements of one random tensor, at any position.
#[derive(Debug)]
pub(super) struct Filler<'a, T: RandomElement> {
    pub(super) level: Level,
    pub(super) sampler: T::Sampler,
    pub(super) stream: &'a Stream,
}

impl<T: RandomElement> Filler<'_, T> {
    const BLOCKS_PER_CHUNK: usize = CHUNK / T::PER_BLOCK as usize;

    /// Fills `out` with the elements of a region from the `skipped`-th on.
    ///
    /// The region must have that many elements.
    pub(super) fn fill_region(&self, runs: &Runs, skipped: u64, out: &mut [T]) {
        let pieces = pieces(runs, skipped, out.len());
        if runs.peek().is_none_or(|run| run.len < CHUNK as u64) {
            return self.fill_short(pieces, out);
        }
        let mut rest = out;
        for piece in pieces {
            let (now, after) = rest.split_at_mut(piece.elements);
            self.fill_neighbours(piece.first_element, now);
            rest = after;
        }
    }

    /// Fills `out` with the consecutive elements from `first_element` on.
    fn fill_neighbours(&self, first_element: u64, out: &mut [T]) {
        let mut block = first_element / T::PER_BLOCK;
        let skipped = (first_element % T::PER_BLOCK) as usize;
        let mut rest = out;

        // A chunk may begin at any block, so only the first block can be truncated at its start.
        if skipped != 0 {
            let head_length = rest.len().min(CHUNK - skipped);
            let (head, after) = rest.split_at_mut(head_length);
            self.make_part(block, skipped, head);
            block = block.wrapping_add(Self::BLOCKS_PER_CHUNK as u64);
            rest = after;
        }
        let (whole, tail) = rest.as_chunks_mut::<CHUNK>();
        self.make_chunks(Blocks::From(block), whole);
        if !tail.is_empty() {
            let made = (whole.len() * Self::BLOCKS_PER_CHUNK) as u64;
            self.make_part(block.wrapping_add(made), 0, tail);
        }
    }

    /// Generates elements of the chunk of the blocks from this one on.
    fn make_part(&self, first_block: u64, skipped: usize, out: &mut [T]) {
        let mut chunk = [[T::default(); CHUNK]];
        self.make_chunks(Blocks::From(first_block), &mut chunk);
        out.copy_from_slice(&chunk[0][skipped..][..out.len()]);
    }

    /// Fills `out` with short pieces, one after the other. Most of a chunk per piece would be
    /// discarded, so a chunk is generated from the blocks of many pieces.
    fn fill_short(&self, pieces: impl Iterator<Item = Piece>, out: &mut [T]) {
        let per_block = T::PER_BLOCK as usize;
        let mut rest = out;
        let mut wanted = Wanted {
            indices: [0; 2 * BLOCKS],
            blocks: 0,
            parts: Vec::new(),
        };
        for piece in pieces {
            let mut block = piece.first_element / T::PER_BLOCK;
            let mut skipped = (piece.first_element % T::PER_BLOCK) as usize;
            let mut left = piece.elements;
            while left != 0 {
                if wanted.blocks == Self::BLOCKS_PER_CHUNK {
                    rest = self.make_wanted(&mut wanted, rest);
                }
                let free = Self::BLOCKS_PER_CHUNK - wanted.blocks;
                let blocks = free.min((skipped + left).div_ceil(per_block));
                let elements = left.min(blocks * per_block - skipped);
                let begin = wanted.blocks * per_block + skipped;
                wanted.push(block, blocks, begin..begin + elements);
                block += blocks as u64;
                skipped = 0;
                left -= elements;
            }
        }
        self.make_wanted(&mut wanted, rest);
    }

    /// Generates the wanted blocks, copies their elements to `out`, and returns the rest of `out`.
    fn make_wanted<'b>(&self, wanted: &mut Wanted, out: &'b mut [T]) -> &'b mut [T] {
        let mut chunk = [[T::default(); CHUNK]];
        self.make_chunks(Blocks::Listed(&wanted.indices), &mut chunk);
        let mut rest = out;
        for part in wanted.parts.drain(..) {
            let (now, after) = rest.split_at_mut(part.len());
            now.copy_from_slice(&chunk[0][part]);
            rest = after;
        }
        wanted.blocks = 0;
        rest
    }

    /// Generates whole chunks of these blocks: one chunk, if they are a list.
    fn make_chunks(&self, blocks: Blocks<'_>, out: &mut [[T; CHUNK]]) {
        dispatch!(self.level, simd => {
            sample_chunks(simd, self, blocks, out);
        });
    }
}

/// The blocks of the next chunk of short pieces.
#[derive(Debug)]
struct Wanted {
    indices: [u64; 2 * BLOCKS],
    blocks: usize,
    /// The elements to copy from the chunk, in order.
    parts: Vec<Range<usize>>,
}

impl Wanted {
    /// Adds these elements of the chunk, which are in the blocks from `first` on.
    fn push(&mut self, first: u64, blocks: usize, elements: Range<usize>) {
        let indices = &mut self.indices[self.blocks..self.blocks + blocks];
        for (index, block) in indices.iter_mut().zip(first..) {
            *index = block;
        }
        self.blocks += blocks;
        self.parts.push(elements);
    }
}

/// The code that is compiled for each level of vector instructions. What it calls is inlined or compiled for the same level.
/// The bits are the same at every level, because the compiler does not fuse or reorder float operations.
#[inline(always)]
fn sample_chunks<S: Simd, T: RandomElement>(
    simd: S,
    filler: &Filler<'_, T>,
    blocks: Blocks<'_>,
    out: &mut [[T; CHUNK]],
) {
    let skipped = (0..).step_by(CHUNK / T::PER_BLOCK as usize);
    for (out, skipped) in out.iter_mut().zip(skipped) {
        let blocks = match blocks {
            Blocks::From(first) => Blocks::From(first.wrapping_add(skipped)),
            // The blocks of one chunk.
            Blocks::Listed(_) => blocks,
        };
        let chunk = Chunk {
            simd,
            stream: filler.stream,
            blocks,
        };
        T::sample(&filler.sampler, chunk, out);
    }
}
