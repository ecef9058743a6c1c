//! Fills a slice with a region of a random tensor.

use super::element::{CHUNK, RandomElement};
use super::error::RandomError;
use super::stream::Stream;
use burn::tensor::Distribution;

/// Fills `out` with the elements `first_element ..` of a random tensor, in row-major order.
///
/// The values depend on the stream, the distribution and each element's index only: filling in
/// pieces, in any order and at any alignment, gives the same bits as filling at once.
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
/// # use h_random::random;
/// use random::{Distribution, Domain, Seed, Stream, fill};
///
/// let stream = Stream::new(Seed::new(42), Domain::Init, "encoder.weight", 0);
/// let mut whole = [0f32; 100];
/// fill(&stream, Distribution::Normal(0.0, 0.02), 0, &mut whole)?;
/// let mut part = [0f32; 10];
/// fill(&stream, Distribution::Normal(0.0, 0.02), 37, &mut part)?;
/// assert_eq!(part, whole[37..47]);
/// # Ok::<(), random::RandomError>(())
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

    let block = first_element / T::PER_BLOCK;
    let skipped = (first_element % T::PER_BLOCK) as usize;
    let blocks_per_chunk = CHUNK as u64 / T::PER_BLOCK;
    let mut chunk = [T::default(); CHUNK];

    // Chunks may begin at any block, so that at most the first one is cut at its start.
    let (head, rest, block) = if skipped == 0 {
        let (head, rest) = out.split_at_mut(0);
        (head, rest, block)
    } else {
        let (head, rest) = out.split_at_mut(out.len().min(CHUNK - skipped));
        (head, rest, block.wrapping_add(blocks_per_chunk))
    };
    if !head.is_empty() {
        let first_block = block.wrapping_sub(blocks_per_chunk);
        T::sample(&sampler, stream, first_block, &mut chunk);
        head.copy_from_slice(&chunk[skipped..skipped + head.len()]);
    }

    let (whole, tail) = rest.as_chunks_mut::<CHUNK>();
    let mut block = block;
    for piece in whole {
        T::sample(&sampler, stream, block, piece);
        block = block.wrapping_add(blocks_per_chunk);
    }
    if !tail.is_empty() {
        T::sample(&sampler, stream, block, &mut chunk);
        tail.copy_from_slice(&chunk[..tail.len()]);
    }
    Ok(())
}
