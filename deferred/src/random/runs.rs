//! The positions of a region's elements in the whole tensor.

use burn::tensor::Shape;
use tinderbox_fake::{Region, RegionError, Runs};

/// Returns the runs of the elements of a region in a tensor of this shape: of consecutive elements of the whole, and,
/// because the region is the target, of all elements of the region in their order.
///
/// # Errors
/// When the region is not inside the tensor, or the whole has more than 2^64 - 1 elements.
pub(super) fn runs_of(whole: &Shape, region: &Region) -> Result<Runs, RegionError> {
    let shape: Vec<u64> = whole.as_slice().iter().map(|d| *d as u64).collect();
    region.check_inside(&shape)?;
    Ok(Region::whole(&shape)?.runs(region))
}

/// A part of a run: elements that are consecutive both in the region and in the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Index of its first element in the whole.
    pub(super) first_element: u64,
    /// Number of elements; never zero.
    pub(super) elements: usize,
}

/// Returns the pieces of the elements `skip .. skip + count` of the region.
///
/// Both must be inside the region.
pub(super) fn pieces(runs: &Runs, skip: u64, count: usize) -> impl Iterator<Item = Piece> + use<> {
    let first = runs.peek().filter(|_| count != 0);
    let mut inside_run = first.map_or(0, |run| skip % run.len);
    let runs = first.map(|run| runs.clone().skip_runs(skip / run.len));
    let mut rest = count;
    runs.into_iter().flatten().map_while(move |run| {
        let left_in_run = run.len - inside_run;
        let piece = Piece {
            first_element: run.source + inside_run,
            elements: left_in_run.min(rest as u64) as usize,
        };
        rest -= piece.elements;
        inside_run = 0;
        (piece.elements != 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(whole: &[usize], offset: &[u64], size: &[u64]) -> Result<Runs, RegionError> {
        let region = Region::new(offset.to_vec(), size.to_vec())?;
        runs_of(&Shape::from(whole.to_vec()), &region)
    }

    #[test]
    fn trailing_dimensions_join_the_run() {
        let check = |whole: &[usize], offset: &[u64], size: &[u64], length, starts: &[u64]| {
            let runs = runs(whole, offset, size).expect("it is inside");
            let found = runs.peek().map_or(0, |run| run.len);
            assert_eq!(found, length, "{whole:?} {offset:?} {size:?}");
            let elements = size.iter().product::<u64>() as usize;
            let pieces: Vec<u64> = pieces(&runs, 0, elements)
                .map(|piece| {
                    assert_eq!(piece.elements as u64, length);
                    piece.first_element
                })
                .collect();
            assert_eq!(pieces, starts, "{whole:?} {offset:?} {size:?}");
        };
        check(&[], &[], &[], 1, &[0]);
        check(&[7], &[2], &[3], 3, &[2]);
        check(&[4, 5, 6], &[0, 0, 0], &[4, 5, 6], 120, &[0]);
        check(&[4, 5, 6], &[1, 0, 0], &[2, 5, 6], 60, &[30]);
        check(&[4, 5, 6], &[1, 3, 0], &[2, 2, 6], 12, &[48, 78]);
        check(&[4, 5, 6], &[2, 1, 4], &[1, 3, 1], 1, &[70, 76, 82]);
        check(&[3, 2, 2], &[1, 0, 1], &[2, 2, 1], 1, &[5, 7, 9, 11]);
        check(&[3, 0, 2], &[1, 0, 1], &[2, 0, 1], 0, &[]);
        let wide = 1usize << 40;
        check(
            &[3, wide],
            &[1, 5],
            &[2, 1],
            1,
            &[(1 << 40) + 5, (2 << 40) + 5],
        );
    }

    #[test]
    fn pieces_begin_and_end_inside_of_runs() {
        let runs = runs(&[4, 10], &[1, 2], &[3, 5]).expect("it is inside");
        let pieces: Vec<_> = pieces(&runs, 3, 9).collect();
        let piece = |first_element, elements| Piece {
            first_element,
            elements,
        };
        assert_eq!(pieces, [piece(15, 2), piece(22, 5), piece(32, 2)]);
    }

    #[test]
    fn regions_outside_are_rejected() {
        let check = |whole: &[usize], offset: &[u64], size: &[u64], expected: &str| {
            let error = runs(whole, offset, size).expect_err("it is refused");
            assert_eq!(error.to_string(), expected);
        };
        check(
            &[2, 3],
            &[1, 1],
            &[1, 3],
            "region [1..2, 1..4] reaches past the shape [2, 3]",
        );
        check(
            &[2, 3],
            &[1],
            &[1],
            "region [1..2] has 1 dimension(s), the shape [2, 3] has 2: give a range for each",
        );
        check(
            &[1 << 40, 1 << 40],
            &[0, 0],
            &[1, 1],
            "region [0, 0]+[1099511627776, 1099511627776] overflows 64 bits",
        );
    }
}
