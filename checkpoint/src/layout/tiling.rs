//! Whether boxes tile a tensor.

use std::collections::BTreeSet;

use tinderbox_fake::Region;

use crate::LayoutError;

/// The largest number of chunks of one tensor; it bounds the time of the proof.
const MAX_CHUNKS: usize = 65_536;

/// Proves that chunks tile a tensor of this shape: every element lies in exactly one of them.
///
/// An empty tensor has exactly one chunk, which is the whole of it; no other chunk is empty.
///
/// Time: pairs of chunks that share an index in the dimension with the most distinct offsets; linear
/// but for sorting where shards are slabs.
///
/// # Errors
///
/// When an element lies in no chunk or in two, or a chunk reaches outside or holds no element.
pub fn check_tiling(shape: &[u64], chunks: &[&Region]) -> Result<(), LayoutError> {
    if chunks.len() > MAX_CHUNKS {
        return Err(LayoutError::TooManyChunks {
            found: chunks.len(),
            limit: MAX_CHUNKS,
        });
    }
    let elements = Region::whole(shape)
        .map_err(|source| LayoutError::Region { source })?
        .num_elements();
    for chunk in chunks {
        chunk
            .check_inside(shape)
            .map_err(|source| LayoutError::Region { source })?;
        if chunk.num_elements() == 0 && !chunk.is_whole(shape) {
            return Err(LayoutError::Empty {
                region: (*chunk).clone(),
            });
        }
    }
    check_disjoint(shape, chunks)?;
    // Disjoint boxes inside the tensor hold at most its elements, so the sum can't overflow, and
    // equals the tensor's number only when nothing is left out.
    let covered: u64 = chunks.iter().map(|c| c.num_elements()).sum();
    if covered == elements && !chunks.is_empty() {
        Ok(())
    } else {
        Err(LayoutError::Gap {
            missing: elements - covered,
            elements,
        })
    }
}

/// Refuses two chunks that share an element, by a sweep along the dimension that tells most apart.
fn check_disjoint(shape: &[u64], chunks: &[&Region]) -> Result<(), LayoutError> {
    let overlap = |a: usize, b: usize| LayoutError::Overlap {
        first: a.min(b),
        second: a.max(b),
        region: chunks[a]
            .intersection(chunks[b])
            .unwrap_or_else(|| chunks[a].clone()),
    };
    let sweep = (0..shape.len()).max_by_key(|d| {
        let offsets: BTreeSet<u64> = chunks.iter().map(|c| c.offset()[*d]).collect();
        offsets.len()
    });
    let Some(sweep) = sweep else {
        // A scalar: every chunk is the one element.
        return if chunks.len() > 1 {
            Err(overlap(0, 1))
        } else {
            Ok(())
        };
    };
    if shape.contains(&0) && chunks.len() > 1 {
        return Err(overlap(0, 1));
    }
    let mut order: Vec<usize> = (0..chunks.len()).collect();
    order.sort_by_key(|i| (chunks[*i].offset()[sweep], *i));
    for (position, a) in order.iter().enumerate() {
        let end = chunks[*a].offset()[sweep] + chunks[*a].size()[sweep];
        for b in &order[position + 1..] {
            if chunks[*b].offset()[sweep] >= end {
                break;
            }
            if chunks[*a].intersection(chunks[*b]).is_some() {
                return Err(overlap(*a, *b));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
        check(&[0, 3], &[region(&[0, 0], &[0, 1])], "no element");
        let empty = region(&[0, 0], &[0, 3]);
        check(&[0, 3], &[empty.clone(), empty], "twice");
        check(&[4], &[region(&[0], &[2]), region(&[2], &[2])], "tiles");
        check(&[4], &[region(&[2], &[2]), region(&[0], &[2])], "tiles");
        check(&[4], &[region(&[0], &[2]), region(&[3], &[1])], "no chunk");
        check(&[4], &[region(&[0], &[3]), region(&[2], &[2])], "twice");
        check(
            &[4],
            &[region(&[0], &[4]), region(&[2], &[0])],
            "no element",
        );
        check(&[4], &[region(&[0], &[5])], "past the shape");
        check(&[4], &[region(&[0, 0], &[4, 1])], "2 dimension(s)");
        // As many elements as the tensor has, and still wrong.
        check(
            &[2, 2],
            &[region(&[0, 0], &[2, 1]), region(&[0, 0], &[1, 2])],
            "twice",
        );
        check(&[1 << 40, 1 << 40], &[], "overflows");
        let many = vec![region(&[0], &[1]); 65_537];
        check(&[65_537], &many, "at most");
    }

    /// A tensor cut into boxes by random cuts, in random order.
    pub(super) fn tilings() -> impl Strategy<Value = (Vec<u64>, Vec<Region>)> {
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
            // Every element counted by hand.
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
