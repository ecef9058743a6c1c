//! Fills a slice with a region of a random tensor.

use burn::tensor::Distribution;
use fearless_simd::{Level, dispatch};

use super::element::{BlockIndices, CHUNK, RandomElement, consecutive};
use super::error::RandomError;
use super::philox::BLOCKS;
use super::runs::{Pieces, Runs};
use super::stream::Stream;

/// Fills `out` with the elements `first_element ..` of a random tensor, in row-major order.
///
/// The values depend on the stream, the distribution and each element's index only: filling in
/// pieces, in any order and at any alignment, gives the same bits as filling at once.
///
/// | | `f64` `f32` `bf16` `f16` | integers |
/// |---|---|---|
/// | `Default` | `Uniform(0, 1)` | every value of the type, equally likely |
/// | `Bernoulli(p)` | 1 with probability `p`, else 0 | the same |
/// | `Uniform(low, high)` | `low` and up, always below `high` | `low`, ..., `high - 1` |
/// | `Normal(mean, std)` | mean and standard deviation | the same, cut to an integer |
///
/// The bounds of `Uniform` are first rounded to the element type (the nearest float; for integers
/// towards zero), and two bounds that are then equal give that bound. For integers `high` may be
/// one past the largest value of the type, so that every value can be reached. Mean and standard
/// deviation are rounded to `f32` for the floats of up to 32 bits.
///
/// `Normal` on integers cuts the fraction off (towards zero) and stays within the type's range.
/// `Normal` on `f16` is infinite where the value is beyond 65504.
///
/// Takes no memory beyond `out` and time in proportion to its length, with up to two chunks of 64
/// elements to spare when the ends are not aligned. For the most speed, split work at multiples of
/// 64 elements.
///
/// # Errors
/// [`RandomError`] when the distribution's parameters are invalid, or do not fit into `T`, or the
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

/// [`fill()`] with the vector instructions of a level, which this machine has.
pub(super) fn fill_at<T: RandomElement>(
    level: Level,
    stream: &Stream,
    distribution: Distribution,
    first_element: u64,
    out: &mut [T],
) -> Result<(), RandomError> {
    let sampler = T::sampler(distribution)?;
    // The last element's index must fit, not the index after it.
    let after_first = (out.len() as u64).saturating_sub(1);
    if first_element.checked_add(after_first).is_none() {
        return Err(RandomError::RegionTooLong {
            first_element,
            elements: out.len() as u64,
        });
    }

    Filler::new(level, sampler, stream).fill_neighbours(first_element, out);
    Ok(())
}

/// Makes elements of one random tensor, anywhere in it.
#[derive(Debug)]
pub(super) struct Filler<'a, T: RandomElement> {
    level: Level,
    sampler: T::Sampler,
    stream: &'a Stream,
}

impl<'a, T: RandomElement> Filler<'a, T> {
    const BLOCKS_PER_CHUNK: u64 = CHUNK as u64 / T::PER_BLOCK;
    /// The longest piece that is made together with others.
    const SHORT: u64 = CHUNK as u64 / 2;

    pub(super) fn new(level: Level, sampler: T::Sampler, stream: &'a Stream) -> Self {
        Self {
            level,
            sampler,
            stream,
        }
    }

    /// Fills `out` with the pieces that make the elements from `skipped` on of a region.
    ///
    /// The region must have that many elements.
    pub(super) fn fill_region(&self, runs: &Runs, skipped: u64, out: &mut [T]) {
        let pieces = runs.pieces(skipped, out.len());
        if runs.length() <= Self::SHORT {
            return self.fill_short(pieces, out);
        }
        let mut rest = out;
        for piece in pieces {
            let (now, after) = rest.split_at_mut(piece.elements);
            self.fill_neighbours(piece.first_element, now);
            rest = after;
        }
    }

    /// Fills `out` with the elements from `first_element` on.
    fn fill_neighbours(&self, first_element: u64, out: &mut [T]) {
        let mut block = first_element / T::PER_BLOCK;
        let skipped = (first_element % T::PER_BLOCK) as usize;
        let mut chunk = [[T::default(); CHUNK]];
        let mut rest = out;

        // A chunk may begin at any block, so only the first one can be cut at its start.
        if skipped != 0 {
            let head_length = rest.len().min(CHUNK - skipped);
            let (head, after) = rest.split_at_mut(head_length);
            self.make_chunks(&consecutive(block), &mut chunk);
            head.copy_from_slice(&chunk[0][skipped..skipped + head_length]);
            block = block.wrapping_add(Self::BLOCKS_PER_CHUNK);
            rest = after;
        }
        let (whole, tail) = rest.as_chunks_mut::<CHUNK>();
        self.make_chunks(&consecutive(block), whole);
        if !tail.is_empty() {
            let made = (whole.len() as u64).wrapping_mul(Self::BLOCKS_PER_CHUNK);
            self.make_chunks(&consecutive(block.wrapping_add(made)), &mut chunk);
            tail.copy_from_slice(&chunk[0][..tail.len()]);
        }
    }

    /// Fills `out` with short pieces, one after the other. A chunk for each would mostly be thrown
    /// away, so a chunk is made of the blocks of many pieces.
    fn fill_short(&self, pieces: Pieces, out: &mut [T]) {
        let mut rest = out;
        let mut wanted = Wanted::default();
        for piece in pieces {
            let mut block = piece.first_element / T::PER_BLOCK;
            let mut skipped = (piece.first_element % T::PER_BLOCK) as usize;
            let mut left = piece.elements;
            while left != 0 {
                let elements = left.min(T::PER_BLOCK as usize - skipped);
                wanted.push(block, skipped, elements);
                if wanted.blocks as u64 == Self::BLOCKS_PER_CHUNK {
                    rest = self.make_wanted(&mut wanted, rest);
                }
                block += 1;
                skipped = 0;
                left -= elements;
            }
        }
        self.make_wanted(&mut wanted, rest);
    }

    /// Makes the blocks that are wanted, takes the elements out of them, and returns what is left of
    /// the place for them.
    fn make_wanted<'b>(&self, wanted: &mut Wanted, out: &'b mut [T]) -> &'b mut [T] {
        let mut chunk = [[T::default(); CHUNK]];
        self.make_chunks(&wanted.indices, &mut chunk);
        let blocks = chunk[0].chunks_exact(T::PER_BLOCK as usize);
        let mut rest = out;
        for (block, &(skipped, elements)) in blocks.zip(&wanted.parts[..wanted.blocks]) {
            let (now, after) = rest.split_at_mut(elements);
            now.copy_from_slice(&block[skipped..skipped + elements]);
            rest = after;
        }
        wanted.blocks = 0;
        rest
    }

    /// Makes whole chunks: the first one of these blocks, each one after it of the blocks as many
    /// further on as a chunk has.
    fn make_chunks(&self, first: &BlockIndices, out: &mut [[T; CHUNK]]) {
        dispatch!(self.level, _level => sample_chunks(&self.sampler, self.stream, first, out));
    }
}

/// The blocks of the next chunk of short pieces.
#[derive(Debug, Default)]
struct Wanted {
    indices: BlockIndices,
    /// Of each block, how many elements to skip, and how many to take.
    parts: [(usize, usize); 2 * BLOCKS],
    blocks: usize,
}

impl Wanted {
    fn push(&mut self, block: u64, skipped: usize, elements: usize) {
        self.indices[self.blocks / BLOCKS][self.blocks % BLOCKS] = block;
        self.parts[self.blocks] = (skipped, elements);
        self.blocks += 1;
    }
}

/// All that is compiled once for each level of vector instructions. Everything below here is inlined
/// into it, so that the whole computation is compiled for them. The bits are the same at every level:
/// the compiler neither fuses nor reorders float operations by itself.
#[inline(always)]
fn sample_chunks<T: RandomElement>(
    sampler: &T::Sampler,
    stream: &Stream,
    first: &BlockIndices,
    out: &mut [[T; CHUNK]],
) {
    let mut blocks = *first;
    for chunk in out {
        T::sample(sampler, stream, &blocks, chunk);
        for index in blocks.as_flattened_mut() {
            *index = index.wrapping_add(CHUNK as u64 / T::PER_BLOCK);
        }
    }
}
