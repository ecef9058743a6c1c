//! Assignment of writers to replicated tensors. Pure.

use std::{cmp::Reverse, collections::BTreeMap};

/// Assigns a writer to each item, so that each is written once: returns, for each rank, the indices of the items in its list
/// that it writes.
///
/// An item has a key, which is the same on every rank that holds it, and a size in bytes. An item on one rank is written by
/// this rank. The largest replicated item is assigned first, each to the rank with the fewest bytes so far, or to the lowest of
/// several.
///
/// Deterministic: every rank computes the same result from the same lists, without communication.
pub fn assign_writers<K: Ord>(ranks: &[Vec<(K, u64)>]) -> Vec<Vec<usize>> {
    let mut holders: BTreeMap<&K, Vec<(usize, usize)>> = BTreeMap::new();
    for (rank, held) in ranks.iter().enumerate() {
        for (position, (key, _)) in held.iter().enumerate() {
            holders.entry(key).or_default().push((rank, position));
        }
    }
    let bytes = |(rank, position): (usize, usize)| ranks[rank][position].1;
    let mut order: Vec<_> = holders.into_values().collect();
    // Items on one rank first, because they have no alternative.
    order.sort_by_key(|holders| (holders.len() > 1, Reverse(bytes(holders[0]))));
    let mut load = vec![0u64; ranks.len()];
    let mut writes: Vec<Vec<usize>> = vec![Vec::new(); ranks.len()];
    for holders in order {
        let key = |(rank, _): &(usize, usize)| (load[*rank], *rank);
        let least = holders.into_iter().min_by_key(key);
        let (rank, position) = least.expect("some rank holds it");
        load[rank] += bytes((rank, position));
        writes[rank].push(position);
    }
    writes
        .iter_mut()
        .for_each(|written| written.sort_unstable());
    writes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(name: &str, bytes: u64) -> (String, u64) {
        (name.to_owned(), bytes)
    }

    #[test]
    fn the_rank_with_the_fewest_bytes_writes_a_shared_item() {
        let ranks = [
            vec![held("embed", 50), held("first", 40)],
            vec![held("second", 60)],
            vec![held("embed", 50), held("norm", 1), held("norm2", 2)],
        ];
        assert_eq!(assign_writers(&ranks), [vec![1], vec![0], vec![0, 1, 2]]);
        // The largest first; the lowest rank if several are equal.
        let all = vec![held("a", 5), held("b", 9), held("c", 4)];
        assert_eq!(assign_writers(&[all.clone(), all]), [vec![1], vec![0, 2]]);
        assert_eq!(assign_writers::<String>(&[]), [[0usize; 0]; 0]);
    }

    proptest! {
        #[test]
        fn everything_is_written_once(
            ranks in prop::collection::vec(prop::collection::btree_map(0u8..20, 0u64..99, 0..12), 0..5),
        ) {
            // Equal names have equal sizes.
            let ranks: Vec<Vec<(String, u64)>> = ranks.iter().map(|held_by| {
                held_by.keys().map(|name| held(&name.to_string(), u64::from(*name) * 7 % 30)).collect()
            }).collect();
            let writes = assign_writers(&ranks);
            let written = writes.iter().zip(&ranks).flat_map(|(positions, held)| {
                positions.iter().map(|position| &held[*position])
            });
            let mut written: Vec<_> = written.collect();
            written.sort();
            let mut all: Vec<_> = ranks.iter().flatten().collect();
            all.sort();
            all.dedup();
            prop_assert_eq!(written, all);
        }
    }
}
