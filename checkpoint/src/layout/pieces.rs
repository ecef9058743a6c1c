//! Division of a region into consecutive pieces.

use tinderbox_fake::Region;

/// Divides a region into boxes of at most `limit` elements (at least one each), whose concatenated elements
/// are the elements of the region in row-major order.
pub(crate) fn pieces(region: &Region, limit: u64) -> Vec<Region> {
    let mut all = Vec::new();
    cut(region.offset(), region.size(), 0, limit.max(1), &mut all);
    all
}

/// Cuts a box along a dimension; all earlier dimensions have size 1.
fn cut(offset: &[u64], size: &[u64], at: usize, limit: u64, all: &mut Vec<Region>) {
    let elements: u64 = size.iter().product();
    if elements <= limit || at == size.len() {
        if elements > 0 {
            all.extend(Region::new(offset.to_vec(), size.to_vec()));
        }
        return;
    }
    // The region is not empty, so no size is 0.
    let rows = (limit / (elements / size[at])).max(1);
    for start in (0..size[at]).step_by(usize::try_from(rows).unwrap_or(usize::MAX)) {
        let (mut offset, mut size) = (offset.to_vec(), size.to_vec());
        offset[at] += start;
        size[at] = rows.min(size[at] - start);
        let next = if size[at] == 1 { at + 1 } else { size.len() };
        cut(&offset, &size, next, limit, all);
    }
}

#[cfg(test)]
mod tests {
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
