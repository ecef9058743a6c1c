//! Mapping of the elements of a chunk to those of a requested region.

use tinderbox_fake::Region;

/// Elements that are consecutive both in a chunk and in a requested region, each in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElementRun {
    /// Index of the first element in the chunk.
    pub(crate) source: u64,
    /// Index of the first element in the requested region.
    pub(crate) target: u64,
    /// Number of elements.
    pub(crate) len: u64,
}

/// The runs of a chunk that overlap a requested region; both indices increase from run to run.
///
/// An iterator, because a column of a large tensor has one run per element.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    // An odometer over the outer dimensions, outermost first.
    index: Vec<u64>,
    outer: Vec<Outer>,
    next: Option<ElementRun>,
}

/// One outer dimension: its size, and its strides in elements.
#[derive(Clone, Copy, Debug)]
struct Outer {
    size: u64,
    source_stride: u64,
    target_stride: u64,
}

/// Returns the runs of elements of `chunk` that are in `wanted`; both are boxes of one tensor.
pub(crate) fn runs(chunk: &Region, wanted: &Region) -> Runs {
    let none = Runs {
        index: Vec::new(),
        outer: Vec::new(),
        next: None,
    };
    let Some(shared) = chunk.intersection(wanted) else {
        return none;
    };
    // From the innermost dimension outwards: a run continues while the shared box fills both boxes.
    let (mut source, mut target, mut len) = (0, 0, 1);
    let (mut source_stride, mut target_stride) = (1, 1);
    let (mut outer, mut joined) = (Vec::new(), true);
    for d in (0..shared.rank()).rev() {
        let size = shared.size()[d];
        source += (shared.offset()[d] - chunk.offset()[d]) * source_stride;
        target += (shared.offset()[d] - wanted.offset()[d]) * target_stride;
        if joined {
            len *= size;
        } else if size > 1 {
            outer.push(Outer {
                size,
                source_stride,
                target_stride,
            });
        }
        joined &= size == chunk.size()[d] && size == wanted.size()[d];
        source_stride *= chunk.size()[d];
        target_stride *= wanted.size()[d];
    }
    outer.reverse();
    Runs {
        index: vec![0; outer.len()],
        outer,
        next: Some(ElementRun {
            source,
            target,
            len,
        }),
    }
}

impl Iterator for Runs {
    type Item = ElementRun;

    fn next(&mut self) -> Option<ElementRun> {
        let current = self.next?;
        let mut following = current;
        self.next = None;
        for (index, outer) in self.index.iter_mut().zip(&self.outer).rev() {
            *index += 1;
            if *index < outer.size {
                following.source += outer.source_stride;
                following.target += outer.target_stride;
                self.next = Some(following);
                break;
            }
            *index = 0;
            following.source -= outer.source_stride * (outer.size - 1);
            following.target -= outer.target_stride * (outer.size - 1);
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
        let found: Vec<_> = runs(&chunk, &wanted)
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
            for run in runs(&chunk, &wanted) {
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
