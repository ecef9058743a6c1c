//! The part of a tensor that a region in another shape of it needs.
//!
//! A box in a reshaped tensor is in general not a box in the tensor itself. This module computes a
//! pair of boxes, one in each shape, with the same elements, the second around the wanted one,
//! and as small as boxes of consecutive elements allow.

use std::ops::Range;

use tinderbox_fake::Region;

/// A box of a tensor, and the same elements as a box of the tensor in another shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cover {
    /// The box in the original shape.
    pub(super) before: Region,
    /// The box in the new shape, around the wanted one.
    pub(super) after: Region,
}

/// Returns boxes with the same elements in the shapes `before` and `after`, around `wanted` of `after`.
///
/// Dimensions are processed in the smallest groups with equal products; a group of one dimension on each
/// side keeps its range.
pub(super) fn cover(before: &[u64], after: &[u64], wanted: &Region) -> Cover {
    let (mut of_before, mut of_after) = (Vec::new(), Vec::new());
    for (inner, outer) in groups(before, after) {
        let part = region(ranges(wanted).skip(outer.start).take(outer.len()));
        let (b, a) = cover_group(&before[inner], &after[outer], part);
        of_before.extend(ranges(&b));
        of_after.extend(ranges(&a));
    }
    let (before, after) = (region(of_before), region(of_after));
    Cover { before, after }
}

/// Returns the region with these offsets and sizes.
pub(super) fn region(ranges: impl IntoIterator<Item = (u64, u64)>) -> Region {
    let (offset, size) = ranges.into_iter().unzip();
    Region::new(offset, size).expect("a part of a tensor is a region")
}

/// Returns offset and size of each dimension.
pub(super) fn ranges(region: &Region) -> impl Iterator<Item = (u64, u64)> {
    let sizes = region.size().iter().copied();
    region.offset().iter().copied().zip(sizes)
}

/// Returns groups of consecutive dimensions of both shapes with equal numbers of elements, as small as possible.
fn groups(before: &[u64], after: &[u64]) -> Vec<(Range<usize>, Range<usize>)> {
    // 1 after the last dimension.
    let next = |dims: &[u64], at: &mut usize| {
        let size = dims.get(*at).copied();
        *at += usize::from(size.is_some());
        size.unwrap_or(1)
    };
    let mut groups = Vec::new();
    let (mut i, mut o) = (0, 0);
    while i < before.len() || o < after.len() {
        let (from_i, from_o) = (i, o);
        let (mut inner, mut outer) = (next(before, &mut i), next(after, &mut o));
        while inner != outer {
            match (inner < outer && i < before.len()) || o == after.len() {
                true => inner *= next(before, &mut i),
                false => outer *= next(after, &mut o),
            }
        }
        groups.push((from_i..i, from_o..o));
    }
    groups
}

fn cover_group(before: &[u64], after: &[u64], wanted: Region) -> (Region, Region) {
    if before == after {
        return (wanted.clone(), wanted);
    }
    // Each box of consecutive elements is widened to one of the other shape until both agree; at worst
    // both are whole.
    let mut after_box = consecutive(after, span(after, &wanted));
    loop {
        let elements = span(after, &after_box);
        let before_box = consecutive(before, elements.clone());
        let widened = span(before, &before_box);
        if widened == elements {
            return (before_box, after_box);
        }
        after_box = consecutive(after, widened);
    }
}

/// Returns the row-major range of indices of a box.
fn span(shape: &[u64], region: &Region) -> Range<u64> {
    let (mut first, mut last) = (0, 0);
    for (d, size) in shape.iter().enumerate() {
        first = first * size + region.offset()[d];
        last = last * size + region.offset()[d] + region.size()[d] - 1;
    }
    first..last + 1
}

/// Returns the smallest box of consecutive elements that contains a range of row-major indices.
fn consecutive(shape: &[u64], elements: Range<u64>) -> Region {
    let (mut first, mut last) = (elements.start, elements.end - 1);
    let mut stride: u64 = shape.iter().product();
    let mut ranges = Vec::new();
    let mut split = false;
    for d in shape {
        stride /= d;
        let (begin, end) = (first / stride, last / stride);
        (first, last) = (first % stride, last % stride);
        ranges.push(match split {
            true => (0, *d),
            false => (begin, end - begin + 1),
        });
        split |= begin != end;
    }
    region(ranges)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(offset: &[u64], size: &[u64]) -> Region {
        Region::new(offset.to_vec(), size.to_vec()).unwrap()
    }

    #[test]
    fn finds_the_smallest_boxes() {
        type Boxed<'a> = (&'a [u64], &'a [u64]);
        let check = |before: &[u64], after: &[u64], wanted: Boxed, b: Boxed, a: Boxed| {
            let found = cover(before, after, &region(wanted.0, wanted.1));
            let expected = Cover {
                before: region(b.0, b.1),
                after: region(a.0, a.1),
            };
            assert_eq!(found, expected, "{before:?} to {after:?}");
        };
        // Rows of a matrix, from a vector.
        let wanted: Boxed = (&[1, 0], &[2, 4]);
        check(&[12], &[3, 4], wanted, (&[4], &[8]), wanted);
        // Columns of one row.
        let wanted: Boxed = (&[1, 1], &[1, 2]);
        check(&[12], &[3, 4], wanted, (&[5], &[2]), wanted);
        // Columns of several rows need the whole rows.
        let rows: Boxed = (&[1, 0], &[2, 4]);
        check(&[12], &[3, 4], (&[1, 1], &[2, 2]), (&[4], &[8]), rows);
        // A vector from a matrix.
        let rows: Boxed = (&[0, 0], &[2, 4]);
        check(&[3, 4], &[12], (&[3], &[2]), rows, (&[0], &[8]));
        // Dimensions of one element, and unchanged dimensions.
        check(
            &[5, 6],
            &[5, 1, 6],
            (&[2, 0, 1], &[2, 1, 3]),
            (&[2, 1], &[2, 3]),
            (&[2, 0, 1], &[2, 1, 3]),
        );
        check(&[1, 1], &[], (&[], &[]), (&[0, 0], &[1, 1]), (&[], &[]));
        check(&[], &[1], (&[0], &[1]), (&[], &[]), (&[0], &[1]));
    }

    /// A shape of up to 24 elements in up to four dimensions.
    fn shape(elements: u64) -> impl Strategy<Value = Vec<u64>> {
        let divisors: Vec<u64> = (1..=elements)
            .filter(|d| elements.is_multiple_of(*d))
            .collect();
        let one = proptest::sample::select(divisors);
        proptest::collection::vec(one, 0..4).prop_map(move |dims| {
            let mut shape = Vec::new();
            let mut left = elements;
            for d in dims {
                if left.is_multiple_of(d) {
                    shape.push(d);
                    left /= d;
                }
            }
            if left != 1 {
                shape.push(left);
            }
            shape
        })
    }

    fn indices(shape: &[u64], region: &Region) -> Vec<u64> {
        let count: u64 = shape.iter().product();
        let inside = |index: &u64| {
            let mut rest = *index;
            shape.iter().enumerate().rev().all(|(d, size)| {
                let at = rest % size;
                rest /= size;
                (region.offset()[d]..region.offset()[d] + region.size()[d]).contains(&at)
            })
        };
        (0..count).filter(inside).collect()
    }

    proptest! {
        #[test]
        fn both_boxes_hold_the_same_elements_and_the_wanted_ones(
            (before, after) in prop::sample::select(vec![1u64, 6, 12, 16, 24])
                .prop_flat_map(|n| (shape(n), shape(n))),
            seed: u64,
        ) {
            let mut state = seed;
            let mut below = |n: u64| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) % n
            };
            let offset: Vec<u64> = after.iter().map(|d| below(*d)).collect();
            let size = after.iter().zip(&offset).map(|(d, o)| 1 + below(d - o)).collect();
            let wanted = Region::new(offset, size).unwrap();
            let found = cover(&before, &after, &wanted);
            let held = indices(&before, &found.before);
            prop_assert_eq!(&held, &indices(&after, &found.after));
            for index in indices(&after, &wanted) {
                prop_assert!(held.contains(&index));
            }
        }
    }
}
