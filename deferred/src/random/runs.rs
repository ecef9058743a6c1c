//! The positions of a region's elements in the whole tensor.

use burn::tensor::Shape;
use tinderbox_fake::{Region, RegionError};

/// The elements of a region in row-major order, as runs of elements that are consecutive in the whole.
///
/// Trailing dimensions that the region covers completely are part of the run of the dimension before them, so the
/// whole of a tensor is one run, and so are several complete rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Runs {
    /// Index in the whole of the region's first element.
    pub(super) first: u64,
    /// Elements of a run.
    pub(super) length: u64,
    /// The dimensions over which the runs are counted, the innermost first.
    pub(super) axes: Vec<Axis>,
}

/// A dimension of the region, outside of its runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) size: u64,
    /// Elements of the whole from one index to the next.
    pub(super) stride: u64,
}

/// A part of a run: elements that are consecutive both in the region and in the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Index of its first element in the whole.
    pub(super) first_element: u64,
    /// Number of elements; never zero.
    pub(super) elements: usize,
}

impl Runs {
    /// Returns the runs of a region of a tensor of this shape.
    ///
    /// # Errors
    /// When the region is not inside the tensor, or the whole has more than 2^64 - 1 elements.
    pub(super) fn new(whole: &Shape, region: &Region) -> Result<Self, RegionError> {
        let shape: Vec<u64> = whole.as_slice().iter().map(|d| *d as u64).collect();
        region.check_inside(&shape)?;
        Region::whole(&shape)?;

        let mut runs = Self {
            first: 0,
            length: 1,
            axes: Vec::new(),
        };
        if region.num_elements() == 0 {
            runs.length = 0;
            return Ok(runs);
        }
        let mut stride = 1;
        // So far, a run is the whole of the dimensions seen.
        let mut joined = true;
        for d in (0..shape.len()).rev() {
            let (offset, size) = (region.offset()[d], region.size()[d]);
            runs.first += offset * stride;
            if joined {
                runs.length *= size;
                joined = size == shape[d];
            } else if size != 1 {
                runs.axes.push(Axis { size, stride });
            }
            stride *= shape[d];
        }
        Ok(runs)
    }

    /// Returns the elements of a run.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the same runs, counted in groups of this many consecutive elements, if every group is completely in a
    /// run and begins at a multiple of its size.
    #[cfg(feature = "cubecl")]
    pub(super) fn in_groups(&self, of: u64) -> Option<Self> {
        let fits = |count: u64| count.is_multiple_of(of);
        let all_fit =
            fits(self.first) && fits(self.length) && self.axes.iter().all(|axis| fits(axis.stride));
        let axis = |axis: &Axis| Axis {
            size: axis.size,
            stride: axis.stride / of,
        };
        all_fit.then(|| Self {
            first: self.first / of,
            length: self.length / of,
            axes: self.axes.iter().map(axis).collect(),
        })
    }

    /// Returns the pieces of the elements `skipped .. skipped + elements` of the region.
    ///
    /// Both must be inside the region.
    pub(super) fn pieces(&self, skipped: u64, elements: usize) -> Pieces<'_> {
        let mut pieces = Pieces {
            runs: self,
            indices: vec![0; self.axes.len()],
            run_start: self.first,
            inside_run: 0,
            rest: elements,
        };
        if elements != 0 {
            let mut run = skipped / self.length;
            pieces.inside_run = skipped % self.length;
            for (axis, index) in self.axes.iter().zip(&mut pieces.indices) {
                *index = run % axis.size;
                run /= axis.size;
                pieces.run_start += *index * axis.stride;
            }
        }
        pieces
    }
}

/// The iterator that [`Runs::pieces`] returns.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    runs: &'a Runs,
    /// The index along each axis of the next run.
    indices: Vec<u64>,
    run_start: u64,
    /// Number of skipped elements of that run.
    inside_run: u64,
    rest: usize,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        if self.rest == 0 {
            return None;
        }
        let left_in_run = self.runs.length - self.inside_run;
        let piece = Piece {
            first_element: self.run_start + self.inside_run,
            elements: left_in_run.min(self.rest as u64) as usize,
        };
        self.rest -= piece.elements;
        self.inside_run = 0;
        // Increments the innermost axis first; an axis that is complete restarts at zero.
        for (axis, index) in self.runs.axes.iter().zip(&mut self.indices) {
            *index += 1;
            if *index < axis.size {
                self.run_start += axis.stride;
                break;
            }
            *index = 0;
            self.run_start -= (axis.size - 1) * axis.stride;
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(whole: &[usize], offset: &[u64], size: &[u64]) -> Result<Runs, RegionError> {
        let region = Region::new(offset.to_vec(), size.to_vec())?;
        Runs::new(&Shape::from(whole.to_vec()), &region)
    }

    #[test]
    fn trailing_dimensions_join_the_run() {
        let check = |whole: &[usize], offset: &[u64], size: &[u64], length, starts: &[u64]| {
            let runs = runs(whole, offset, size).expect("it is inside");
            assert_eq!(runs.length(), length, "{whole:?} {offset:?} {size:?}");
            let elements = size.iter().product::<u64>() as usize;
            let pieces: Vec<u64> = runs
                .pieces(0, elements)
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
        let pieces: Vec<_> = runs.pieces(3, 9).collect();
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
