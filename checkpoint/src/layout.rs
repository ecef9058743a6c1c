//! Locations of elements: pure functions on boxes.

use tinderbox_fake::Region;

use crate::LayoutError;

/// Maximum number of chunks of one tensor; it bounds the time of the check.
pub(crate) const MAX_CHUNKS: usize = 65_536;

/// Maximum number of comparisons of the check: a fraction of a second, enough for about ten thousand chunks that do not form a
/// grid.
const MAX_WORK: usize = 1 << 27;

/// Checks that chunks tile a tensor of this shape: every element is in exactly one chunk.
///
/// An empty tensor has exactly one chunk, which is the whole tensor; no other chunk is empty.
///
/// Time: dominated by a sort if the chunks form a grid or can be separated recursively; otherwise quadratic
/// in the number of chunks, up to a limit.
///
/// # Errors
///
/// Returns an error if an element is in no chunk or in two, or if a chunk extends outside the tensor or is
/// empty.
pub fn check_tiling(shape: &[u64], chunks: &[&Region]) -> Result<(), LayoutError> {
    let (found, limit) = (chunks.len(), MAX_CHUNKS);
    if found > limit {
        return Err(LayoutError::TooManyChunks { found, limit });
    }
    let elements = Region::whole(shape)?.num_elements();
    for chunk in chunks {
        check_chunk(shape, chunk)?;
    }
    // Disjoint boxes inside the tensor hold at most its elements, and exactly its elements only if none is
    // missing.
    let covered: u128 = chunks.iter().map(|c| u128::from(c.num_elements())).sum();
    if covered < u128::from(elements) || chunks.is_empty() {
        return Err(LayoutError::Gap {
            // A lower bound: some elements may be counted twice.
            missing: elements - covered as u64,
            elements,
        });
    }
    check_disjoint(shape, chunks)
}

/// Checks that a chunk is inside of a tensor of this shape, and is not an empty part of it.
pub(crate) fn check_chunk(shape: &[u64], chunk: &Region) -> Result<(), LayoutError> {
    chunk.check_inside(shape)?;
    match chunk.num_elements() == 0 && !chunk.is_whole(shape) {
        true => Err(LayoutError::Empty {
            region: chunk.clone(),
        }),
        false => Ok(()),
    }
}

/// Rejects two chunks that share an element. Splits groups of chunks wherever no chunk crosses; compares the
/// chunks of an indivisible group pairwise.
fn check_disjoint(shape: &[u64], chunks: &[&Region]) -> Result<(), LayoutError> {
    let overlap = |a: usize, b: usize| {
        let shared = chunks[a].intersection(chunks[b]);
        LayoutError::Overlap {
            first: a.min(b),
            second: a.max(b),
            region: shared.unwrap_or_else(|| chunks[a].clone()),
        }
    };
    if shape.contains(&0) && chunks.len() > 1 {
        return Err(overlap(0, 1));
    }
    let mut work = MAX_WORK;
    let mut groups: Vec<Vec<usize>> = vec![(0..chunks.len()).collect()];
    while let Some(mut group) = groups.pop() {
        let mut spend = |steps: usize| -> Result<(), LayoutError> {
            let (left, chunks) = (work.checked_sub(steps), chunks.len());
            work = left.ok_or(LayoutError::Tangled { chunks })?;
            Ok(())
        };
        if group.len() < 2 {
            continue;
        }
        spend(group.len() * shape.len())?;
        let parts = (0..shape.len()).find_map(|d| cut_apart(&mut group, chunks, d));
        if let Some(parts) = parts {
            groups.extend(parts);
            continue;
        }
        spend(group.len() * group.len())?;
        for (position, a) in group.iter().enumerate() {
            let mut others = group[position + 1..].iter();
            if let Some(b) = others.find(|b| meet(chunks[*a], chunks[**b])) {
                return Err(overlap(*a, *b));
            }
        }
    }
    Ok(())
}

/// Splits the chunks into groups that are consecutive along a dimension; returns `None` if there is only one group.
fn cut_apart(group: &mut [usize], chunks: &[&Region], d: usize) -> Option<Vec<Vec<usize>>> {
    let span = |i: &usize| {
        let range = chunks[*i].range(d);
        (range.start, range.end)
    };
    group.sort_by_key(|i| (span(i), *i));
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut end = 0;
    for i in group.iter() {
        let (from, to) = span(i);
        match parts.last_mut() {
            Some(part) if from < end => part.push(*i),
            _ => parts.push(vec![*i]),
        }
        end = end.max(to);
    }
    (parts.len() > 1).then_some(parts)
}

/// Returns whether two non-empty boxes share an element.
fn meet(a: &Region, b: &Region) -> bool {
    let mut ranges = (0..a.rank()).map(|d| (a.range(d), b.range(d)));
    ranges.all(|(a, b)| a.start < b.end && b.start < a.end)
}

/// Divides items into consecutive groups, at least one. An item starts another group if `is_full` returns true for the bytes of
/// the group before it, the position of the first item of this group, and the position of the item.
pub(crate) fn groups<T>(
    items: &[T],
    bytes: impl Fn(&T) -> u64,
    is_full: impl Fn(u64, usize, usize) -> bool,
) -> Vec<&[T]> {
    let mut groups = Vec::new();
    let (mut first, mut held) = (0, 0u64);
    for (at, item) in items.iter().enumerate() {
        if at > first && is_full(held, first, at) {
            groups.push(&items[first..at]);
            (first, held) = (at, 0);
        }
        held = held.saturating_add(bytes(item));
    }
    groups.push(&items[first..]);
    groups
}

/// Divides a region into boxes of at most `limit` elements (at least one each), whose concatenated elements are the elements of
/// the region in row-major order.
pub(crate) fn pieces(region: &Region, limit: u64) -> Vec<Region> {
    let mut all = Vec::new();
    cut(region, 0, limit.max(1), &mut all);
    all
}

/// Cuts a box along a dimension; all earlier dimensions have size 1.
fn cut(part: &Region, at: usize, limit: u64, all: &mut Vec<Region>) {
    let elements = part.num_elements();
    if elements <= limit || at == part.rank() {
        if elements > 0 {
            all.push(part.clone());
        }
        return;
    }
    // The region is not empty, so no size is 0.
    let rows = (limit / (elements / part.size()[at])).max(1);
    let step = usize::try_from(rows).unwrap_or(usize::MAX);
    let range = part.range(at);
    for start in range.clone().step_by(step) {
        let size = rows.min(range.end - start);
        let next = if size == 1 { at + 1 } else { part.rank() };
        cut(&part.with_range(at, start..start + size), next, limit, all);
    }
}

#[cfg(test)]
mod tests_of_tiling {
    use proptest::prelude::*;

    use super::*;

    fn region(offset: &[u64], size: &[u64]) -> Region {
        Region::new(offset.to_vec(), size.to_vec()).unwrap()
    }

    fn check(shape: &[u64], chunks: &[Region], expected: &str) {
        let found = check_tiling(shape, &chunks.iter().collect::<Vec<_>>());
        let text = found.map_or_else(|e| e.to_string(), |()| "tiles".to_owned());
        assert!(text.contains(expected), "{shape:?} {chunks:?}: {text}");
    }

    #[test]
    fn cases() {
        check(&[], &[region(&[], &[])], "tiles");
        check(&[], &[], "no chunk");
        check(&[], &[region(&[], &[]), region(&[], &[])], "twice");
        check(&[0, 3], &[region(&[0, 0], &[0, 3])], "tiles");
        check(&[0, 3], &[], "no chunk");
        check(&[0, 3], &[region(&[0, 0], &[0, 1])], "is empty");
        let empty = region(&[0, 0], &[0, 3]);
        check(&[0, 3], &[empty.clone(), empty], "twice");
        check(&[4], &[region(&[0], &[2]), region(&[2], &[2])], "tiles");
        check(&[4], &[region(&[2], &[2]), region(&[0], &[2])], "tiles");
        check(&[4], &[region(&[0], &[2]), region(&[3], &[1])], "no chunk");
        check(&[4], &[region(&[0], &[3]), region(&[2], &[2])], "twice");
        check(&[4], &[region(&[0], &[4]), region(&[2], &[0])], "is empty");
        check(&[4], &[region(&[0], &[5])], "past the shape");
        check(&[4], &[region(&[0, 0], &[4, 1])], "2 dimension(s)");
        // The same number of elements as the tensor, but an invalid tiling.
        check(
            &[2, 2],
            &[region(&[0, 0], &[2, 1]), region(&[0, 0], &[1, 2])],
            "twice",
        );
        check(&[1 << 40, 1 << 40], &[], "overflows");
        let many = vec![region(&[0], &[1]); 65_537];
        check(&[65_537], &many, "at most");
    }

    /// Generates a tensor cut into boxes at random, in random order.
    fn tilings() -> impl Strategy<Value = (Vec<u64>, Vec<Region>)> {
        (
            prop::collection::vec(1u64..7, 0..4),
            prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, 1u64..6), 0..8),
        )
            .prop_map(|(shape, cuts)| {
                let mut chunks = vec![Region::whole(&shape).unwrap()];
                for (which, d, at) in cuts {
                    let i = which.index(chunks.len());
                    if d >= shape.len() || at >= chunks[i].size()[d] {
                        continue;
                    }
                    let whole = chunks.swap_remove(i);
                    let (mut offset, mut low, mut high) = (
                        whole.offset().to_vec(),
                        whole.size().to_vec(),
                        whole.size().to_vec(),
                    );
                    low[d] = at;
                    high[d] -= at;
                    chunks.push(Region::new(offset.clone(), low).unwrap());
                    offset[d] += at;
                    chunks.push(Region::new(offset, high).unwrap());
                }
                (shape, chunks)
            })
    }

    proptest! {
        #[test]
        fn agrees_with_counting(
            (shape, mut chunks) in tilings(),
            spoil in prop::option::of((any::<prop::sample::Index>(), 0usize..3, 0usize..3)),
        ) {
            if let Some((which, how, d)) = spoil {
                let i = which.index(chunks.len());
                let (mut offset, mut size) = (chunks[i].offset().to_vec(), chunks[i].size().to_vec());
                match how {
                    0 => { chunks.remove(i); }
                    1 if d < shape.len() => { offset[d] = offset[d].saturating_sub(1); }
                    2 if d < shape.len() => { size[d] += 1; }
                    _ => {}
                }
                if how > 0 {
                    chunks[i] = Region::new(offset, size).unwrap();
                }
            }
            // Counts the occurrences of every element directly.
            let whole = Region::whole(&shape).unwrap();
            let mut index = vec![0; shape.len()];
            let mut exactly_once = chunks.iter().all(|c| c.check_inside(&shape).is_ok());
            for _ in 0..whole.num_elements() {
                let element = Region::new(index.clone(), vec![1; shape.len()]).unwrap();
                let holders = chunks.iter().filter(|c| c.intersection(&element).is_some());
                exactly_once &= holders.count() == 1;
                for d in (0..shape.len()).rev() {
                    index[d] += 1;
                    if index[d] < shape[d] { break; }
                    index[d] = 0;
                }
            }
            let found = check_tiling(&shape, &chunks.iter().collect::<Vec<_>>());
            prop_assert_eq!(found.is_ok(), exactly_once, "{:?}", found);
        }
    }
}

#[cfg(test)]
mod tests_of_pieces {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cases() {
        let of = |size: &[u64], limit| {
            let region = Region::new(vec![1; size.len()], size.to_vec()).unwrap();
            let pieces = pieces(&region, limit);
            pieces.iter().map(|p| p.size().to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(of(&[], 0), [vec![0u64; 0]]);
        assert_eq!(of(&[0, 3], 4), [[0u64; 2]; 0]);
        assert_eq!(of(&[5, 3], 6), [[2, 3], [2, 3], [1, 3]]);
        assert_eq!(of(&[2, 3], 2), [[1, 2], [1, 1], [1, 2], [1, 1]]);
        assert_eq!(of(&[2, 3], 100), [[2, 3]]);
    }

    proptest! {
        #[test]
        fn one_after_the_other_they_are_the_region(
            size in prop::collection::vec(0u64..6, 0..4),
            limit in 0u64..30,
        ) {
            let region = Region::new(vec![2; size.len()], size).unwrap();
            let mut next = 0;
            for piece in pieces(&region, limit) {
                prop_assert!(piece.num_elements() <= limit.max(1));
                let runs: Vec<_> = region.runs(&piece).collect();
                prop_assert_eq!(runs.len(), 1);
                prop_assert_eq!(runs[0].source, next);
                next += runs[0].len;
                prop_assert_eq!(runs[0].len, piece.num_elements());
            }
            prop_assert_eq!(next, region.num_elements());
        }
    }
}
