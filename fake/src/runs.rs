//! Elements that are consecutive in two boxes of a tensor.

use crate::Region;

/// Elements that are consecutive in both boxes, each in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementRun {
    /// Index of the first element in the source.
    pub source: u64,
    /// Index of the first element in the target.
    pub target: u64,
    /// Number of elements.
    pub len: u64,
}

/// The runs of elements that two boxes of one tensor share; both indices increase from run to run.
///
/// An iterator, because a column of a large tensor has one run per element. Trailing dimensions that both boxes cover
/// completely are part of the run of the dimension before them.
#[derive(Clone, Debug)]
pub struct Runs {
    next: Option<ElementRun>,
    /// The number of passed runs along each axis.
    index: Vec<u64>,
    axes: Vec<RunAxis>,
}

/// A dimension over which runs are counted: its size, and the elements from one index to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAxis {
    /// Number of runs along it; never 1.
    pub size: u64,
    /// Elements of the source from one index to the next.
    pub source_stride: u64,
    /// Elements of the target from one index to the next.
    pub target_stride: u64,
}

impl Region {
    /// Returns the runs of the elements that are also in `target`, another box of the tensor.
    pub fn runs(&self, target: &Self) -> Runs {
        let mut axes = Vec::new();
        let next = self.intersection(target).map(|shared| {
            let (mut source, mut target_first, mut len, mut joined) = (0, 0, 1, true);
            let (mut source_stride, mut target_stride) = (1, 1);
            // From the innermost dimension outwards: a run continues while the shared box fills both boxes.
            for d in (0..shared.rank()).rev() {
                let size = shared.size()[d];
                source += (shared.offset()[d] - self.offset()[d]) * source_stride;
                target_first += (shared.offset()[d] - target.offset()[d]) * target_stride;
                if joined {
                    len *= size;
                } else if size > 1 {
                    axes.push(RunAxis {
                        size,
                        source_stride,
                        target_stride,
                    });
                }
                joined &= size == self.size()[d] && size == target.size()[d];
                source_stride *= self.size()[d];
                target_stride *= target.size()[d];
            }
            ElementRun {
                source,
                target: target_first,
                len,
            }
        });
        Runs {
            next,
            index: vec![0; axes.len()],
            axes,
        }
    }
}

impl Runs {
    /// Returns the next run.
    pub fn peek(&self) -> Option<ElementRun> {
        self.next
    }

    /// Returns the dimensions over which the runs are counted, the innermost first.
    pub fn axes(&self) -> &[RunAxis] {
        &self.axes
    }

    /// Skips `count` runs. The iterator must be at its first run, and have more runs than `count`.
    ///
    /// # Panics
    ///
    /// When the iterator has no runs.
    #[must_use]
    pub fn skip_runs(mut self, mut count: u64) -> Self {
        let next = self.next.as_mut();
        let next = next.expect("an iterator with runs is skipped into");
        for (index, axis) in self.index.iter_mut().zip(&self.axes) {
            *index = count % axis.size;
            count /= axis.size;
            next.source += *index * axis.source_stride;
            next.target += *index * axis.target_stride;
        }
        self
    }
}

impl Iterator for Runs {
    type Item = ElementRun;

    #[inline]
    fn next(&mut self) -> Option<ElementRun> {
        let current = self.next.take()?;
        let mut following = current;
        // Increments the innermost axis first; an axis that is complete restarts at zero.
        for (index, axis) in self.index.iter_mut().zip(&self.axes) {
            *index += 1;
            if *index < axis.size {
                following.source += axis.source_stride;
                following.target += axis.target_stride;
                self.next = Some(following);
                break;
            }
            *index = 0;
            following.source -= axis.source_stride * (axis.size - 1);
            following.target -= axis.target_stride * (axis.size - 1);
        }
        Some(current)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(chunk: (&[u64], &[u64]), wanted: (&[u64], &[u64]), expected: &[(u64, u64, u64)]) {
        let [chunk, wanted] =
            [chunk, wanted].map(|(o, s)| Region::new(o.to_vec(), s.to_vec()).unwrap());
        let found: Vec<_> = chunk
            .runs(&wanted)
            .map(|r| (r.source, r.target, r.len))
            .collect();
        assert_eq!(found, expected, "{chunk} {wanted}");
    }

    #[test]
    fn cases() {
        check((&[], &[]), (&[], &[]), &[(0, 0, 1)]);
        check((&[0], &[4]), (&[4], &[4]), &[]);
        check((&[0], &[4]), (&[2], &[4]), &[(2, 0, 2)]);
        // Both are entirely one run.
        check((&[0, 0], &[3, 4]), (&[0, 0], &[3, 4]), &[(0, 0, 12)]);
        // Rows in the middle form one run.
        check((&[0, 0], &[3, 4]), (&[1, 0], &[2, 4]), &[(4, 0, 8)]);
        // A column has one run per element.
        check(
            (&[0, 0], &[2, 3]),
            (&[0, 1], &[2, 1]),
            &[(1, 0, 1), (4, 1, 1)],
        );
        // A chunk of columns is strided in the region.
        check(
            (&[0, 2], &[2, 2]),
            (&[0, 0], &[2, 4]),
            &[(0, 2, 2), (2, 6, 2)],
        );
        check((&[0, 0], &[0, 4]), (&[0, 0], &[0, 4]), &[]);
    }

    /// Generates two boxes of one tensor.
    fn boxes() -> impl Strategy<Value = (Region, Region)> {
        let dimension = (1u64..6).prop_flat_map(|d| [(0..d, 0..d), (0..d, 0..d)]);
        prop::collection::vec(dimension, 0..4).prop_map(|dimensions| {
            let side = |which: usize| {
                let (offset, size) = dimensions
                    .iter()
                    .map(|ends| ends[which])
                    .map(|(a, b)| (a.min(b), a.max(b) - a.min(b) + 1))
                    .unzip();
                Region::new(offset, size).unwrap()
            };
            (side(0), side(1))
        })
    }

    /// Returns the coordinates of a box's elements in row-major order.
    fn coordinates(of: &Region) -> Vec<Vec<u64>> {
        let mut all = vec![Vec::new()];
        for (offset, size) in of.offset().iter().zip(of.size()) {
            all = all
                .iter()
                .flat_map(|head: &Vec<u64>| {
                    (*offset..offset + size).map(move |i| [&head[..], &[i]].concat())
                })
                .collect();
        }
        all
    }

    proptest! {
        #[test]
        fn runs_pair_up_equal_coordinates((chunk, wanted) in boxes()) {
            let (source, target) = (coordinates(&chunk), coordinates(&wanted));
            let mut found = 0;
            let mut last = None;
            for run in chunk.runs(&wanted) {
                prop_assert!(last < Some((run.source, run.target)));
                last = Some((run.source + run.len - 1, run.target + run.len - 1));
                for i in 0..run.len {
                    prop_assert_eq!(&source[(run.source + i) as usize], &target[(run.target + i) as usize]);
                }
                found += run.len;
            }
            let shared = chunk.intersection(&wanted).map_or(0, |r| r.num_elements());
            prop_assert_eq!(found, shared);
        }
    }
}
