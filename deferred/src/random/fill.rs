//! Fills a slice with a region of a random tensor.

use burn::tensor::Distribution;

use super::element::{BlockIndices, CHUNK, RandomElement, consecutive};
use super::error::RandomError;
use super::philox::BLOCKS;
use super::runs::Piece;
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
    let sampler = T::sampler(distribution)?;
    // The last element's index must fit, not the index after it.
    let after_first = (out.len() as u64).saturating_sub(1);
    if first_element.checked_add(after_first).is_none() {
        return Err(RandomError::RegionTooLong {
            first_element,
            elements: out.len() as u64,
        });
    }

    fill_neighbours(&sampler, stream, first_element, out);
    Ok(())
}

/// The longest piece that [`fill_pieces`] makes together with others.
const SHORT: usize = CHUNK / 2;

/// Fills `out` with pieces of a random tensor, one after the other.
///
/// The pieces have as many elements as `out`, and lie below element 2^64. All but the first and the
/// last have `length` elements, and those two no more.
#[inline(always)]
pub(super) fn fill_pieces<T: RandomElement>(
    sampler: &T::Sampler,
    stream: &Stream,
    length: u64,
    pieces: impl Iterator<Item = Piece>,
    out: &mut [T],
) {
    if length > SHORT as u64 {
        let mut rest = out;
        for piece in pieces {
            let (now, after) = rest.split_at_mut(piece.elements);
            fill_neighbours(sampler, stream, piece.first_element, now);
            rest = after;
        }
    } else {
        fill_short(sampler, stream, pieces, out);
    }
}

/// Fills `out` with short pieces. A chunk for each would mostly be thrown away, so a chunk is made of
/// the blocks of many pieces.
#[inline(always)]
fn fill_short<T: RandomElement>(
    sampler: &T::Sampler,
    stream: &Stream,
    pieces: impl Iterator<Item = Piece>,
    out: &mut [T],
) {
    /// Which elements of a block go where; all of them are of one piece.
    #[derive(Clone, Copy, Default)]
    struct Taken {
        skipped: usize,
        elements: usize,
    }
    let per_block = T::PER_BLOCK as usize;
    let blocks_per_chunk = CHUNK / per_block;
    let mut indices = BlockIndices::default();
    let mut taken = [Taken::default(); 2 * BLOCKS];
    let mut filled = 0;
    let mut rest = out;
    let mut chunk = [T::default(); CHUNK];

    let mut make = |indices: &BlockIndices, taken: &[Taken]| {
        T::sample(sampler, stream, indices, &mut chunk);
        for (block, taken) in chunk.chunks_exact(per_block).zip(taken) {
            let (now, after) = std::mem::take(&mut rest).split_at_mut(taken.elements);
            now.copy_from_slice(&block[taken.skipped..taken.skipped + taken.elements]);
            rest = after;
        }
    };
    for piece in pieces {
        let mut block = piece.first_element / T::PER_BLOCK;
        let mut skipped = (piece.first_element % T::PER_BLOCK) as usize;
        let mut left = piece.elements;
        while left != 0 {
            let elements = left.min(per_block - skipped);
            indices[filled / BLOCKS][filled % BLOCKS] = block;
            taken[filled] = Taken { skipped, elements };
            filled += 1;
            if filled == blocks_per_chunk {
                make(&indices, &taken);
                filled = 0;
            }
            block += 1;
            skipped = 0;
            left -= elements;
        }
    }
    make(&indices, &taken[..filled]);
}

/// Fills `out` with the elements from `first_element` on.
///
/// Everything below here is inlined, so that a caller compiled for wider vector registers gets the
/// whole computation compiled for them. The bits are the same at every width.
#[inline(always)]
fn fill_neighbours<T: RandomElement>(
    sampler: &T::Sampler,
    stream: &Stream,
    first_element: u64,
    out: &mut [T],
) {
    let mut block = first_element / T::PER_BLOCK;
    let skipped = (first_element % T::PER_BLOCK) as usize;
    let blocks_per_chunk = CHUNK as u64 / T::PER_BLOCK;
    let mut chunk = [T::default(); CHUNK];
    let mut rest = out;

    // A chunk may begin at any block, so only the first one can be cut at its start.
    if skipped != 0 {
        let head_length = rest.len().min(CHUNK - skipped);
        let (head, after) = rest.split_at_mut(head_length);
        T::sample(sampler, stream, &consecutive(block), &mut chunk);
        head.copy_from_slice(&chunk[skipped..skipped + head_length]);
        block = block.wrapping_add(blocks_per_chunk);
        rest = after;
    }
    let (whole, tail) = rest.as_chunks_mut::<CHUNK>();
    for piece in whole {
        T::sample(sampler, stream, &consecutive(block), piece);
        block = block.wrapping_add(blocks_per_chunk);
    }
    if !tail.is_empty() {
        T::sample(sampler, stream, &consecutive(block), &mut chunk);
        tail.copy_from_slice(&chunk[..tail.len()]);
    }
}
