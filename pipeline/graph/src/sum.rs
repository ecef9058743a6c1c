//! The order in which the gradients of micro-batches are added.
//!
//! The bits of a sum of floats depend on its order, so a setting alone defines the order. It never depends on the number of
//! ranks, replicas or stages, or on the order in which messages arrive.

use std::ops::Range;

use derive_more::Display;
use serde::{Deserialize, Serialize};

/// The order in which the gradients of the micro-batches of a step are added.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Serialize, Deserialize)]
pub enum GradientSum {
    /// One after the other, with the bits of plain Burn that accumulates the gradients of micro-batches. For one replica.
    #[default]
    #[display("sequential")]
    Sequential,
    /// The micro-batches are divided into this number of groups, a power of two, in order and as equal as possible. Each
    /// group is added one after the other, then neighbouring groups are joined by a binary tree.
    ///
    /// A step has the same bits with any number of replicas that divides the number of groups, one replica included.
    ///
    /// Memory of each rank: at most `log2(groups / replicas) + 1` gradients of its stages, instead of one.
    #[display("tree of {_0} groups")]
    Tree(usize),
}

impl GradientSum {
    /// Returns the default for a number of replicas: [`Sequential`](Self::Sequential) for one, else a tree of 8 groups, or of
    /// one for each replica if there are more.
    pub fn of_replicas(replicas: usize) -> Self {
        match replicas {
            0 | 1 => Self::Sequential,
            _ => Self::Tree(replicas.max(8)),
        }
    }

    /// Returns the number of groups.
    pub const fn groups(self) -> usize {
        match self {
            Self::Sequential => 1,
            Self::Tree(groups) => groups,
        }
    }
}

/// The micro-batches of a step, in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    pub micro_batches: usize,
    /// At least 1.
    pub groups: usize,
}

impl Groups {
    /// The first micro-batch of a group; the number of micro-batches for the group after the last.
    fn start(self, group: usize) -> usize {
        // No file or user gives numbers whose product overflows 128 bits.
        (group as u128 * self.micro_batches as u128 / self.groups as u128) as usize
    }

    /// The group of a micro-batch.
    pub fn of(self, micro_batch: usize) -> usize {
        let after = (micro_batch as u128 + 1) * self.groups as u128;
        (after.div_ceil(self.micro_batches.max(1) as u128) - 1) as usize
    }

    /// The micro-batches of a replica: the micro-batches of its share of the groups.
    pub fn of_replica(self, replica: usize, replicas: usize) -> Range<usize> {
        let first = |replica: usize| self.start(replica * self.groups / replicas);
        first(replica)..first(replica + 1)
    }
}

/// A sum of a binary tree in progress: the sums of its complete subtrees, in the order of their leaves.
#[derive(Clone, Debug)]
pub struct TreeSum<T> {
    /// A sum, and the last leaf in it.
    sums: Vec<(usize, T)>,
}

impl<T> Default for TreeSum<T> {
    fn default() -> Self {
        Self { sums: Vec::new() }
    }
}

/// The height of the smallest subtree with two leaves.
const fn height(a: usize, b: usize) -> u32 {
    usize::BITS - (a ^ b).leading_zeros()
}

impl<T> TreeSum<T> {
    /// Adds a value to a leaf, which is the last one or a later one. A leaf adds its values one after the other. Leaves may be
    /// missing: a subtree without leaves adds nothing.
    pub fn add(&mut self, leaf: usize, value: T, plus: impl Fn(T, T) -> T) {
        match self.sums.pop_if(|(last, _)| *last == leaf) {
            Some((_, sum)) => self.sums.push((leaf, plus(sum, value))),
            None => {
                // The subtree of the last two sums is complete if the new leaf is outside of it.
                while let [.., (first, _), (second, _)] = self.sums[..]
                    && height(first, second) < height(second, leaf)
                {
                    self.join(&plus);
                }
                self.sums.push((leaf, value));
            }
        }
    }

    /// Joins the last two sums.
    fn join(&mut self, plus: impl Fn(T, T) -> T) {
        if let (Some((leaf, second)), Some((_, first))) = (self.sums.pop(), self.sums.pop()) {
            self.sums.push((leaf, plus(first, second)));
        }
    }

    /// Returns the sum of all leaves; `None` without any.
    pub fn finish(&mut self, plus: impl Fn(T, T) -> T) -> Option<T> {
        while self.sums.len() > 1 {
            self.join(&plus);
        }
        self.sums.pop().map(|(_, sum)| sum)
    }

    /// The sums that are held.
    pub fn held(&self) -> impl Iterator<Item = &T> {
        self.sums.iter().map(|(_, sum)| sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of a sum as text: the sum of a subtree of this height above the leaves.
    fn defined(height: u32, first: usize, leaves: &[Option<String>]) -> Option<String> {
        if height == 0 {
            return leaves[first].clone();
        }
        let half = 1 << (height - 1);
        let left = defined(height - 1, first, leaves);
        let right = defined(height - 1, first + half, leaves);
        match (left, right) {
            (Some(left), Some(right)) => Some(format!("({left}+{right})")),
            (left, right) => left.or(right),
        }
    }

    fn plus(a: String, b: String) -> String {
        format!("({a}+{b})")
    }

    #[test]
    fn every_set_of_leaves_is_added_as_defined() {
        for height in 0..=4 {
            let leaves = 1_usize << height;
            for present in 0_u32..1 << leaves {
                let is_there = |leaf: usize| present & (1 << leaf) != 0;
                let of = |leaf: usize| is_there(leaf).then(|| format!("{leaf}a+{leaf}b"));
                let mut sum = TreeSum::default();
                for leaf in (0..leaves).filter(|leaf| is_there(*leaf)) {
                    let plain = |a: String, b: String| match a.len() == b.len() && a.ends_with('a')
                    {
                        true => format!("{a}+{b}"),
                        false => plus(a, b),
                    };
                    sum.add(leaf, format!("{leaf}a"), plain);
                    sum.add(leaf, format!("{leaf}b"), plain);
                    assert!(sum.sums.len() <= height as usize + 1);
                }
                let all: Vec<Option<String>> = (0..leaves).map(of).collect();
                assert_eq!(sum.finish(plus), defined(height, 0, &all), "{present:b}");
            }
        }
    }

    /// Replicas add their subtrees, and the tree of the replicas joins them.
    #[test]
    fn replicas_have_the_sum_of_one() {
        for (micro_batches, groups) in [0, 1, 2, 3, 5, 8, 13, 64]
            .into_iter()
            .flat_map(|m| [1, 2, 4, 8, 16].map(|groups| (m, groups)))
        {
            let all = Groups {
                micro_batches,
                groups,
            };
            let sum_of = |part: Range<usize>| {
                let mut sum = TreeSum::default();
                for k in part {
                    sum.add(all.of(k), k.to_string(), plus);
                }
                sum.finish(plus)
            };
            let alone = sum_of(0..micro_batches);
            for replicas in [1, 2, 4, 8, 16].into_iter().filter(|d| groups % d == 0) {
                let mut joined = TreeSum::default();
                let mut next = 0;
                for replica in 0..replicas {
                    let part = all.of_replica(replica, replicas);
                    assert_eq!(part.start, next);
                    next = part.end;
                    let length = part.len();
                    assert!(length <= micro_batches.div_ceil(replicas));
                    assert!(length >= micro_batches / replicas);
                    if let Some(sum) = sum_of(part) {
                        joined.add(replica, sum, plus);
                    }
                }
                assert_eq!(next, micro_batches);
                assert_eq!(
                    joined.finish(plus),
                    alone,
                    "{micro_batches} {groups} {replicas}"
                );
            }
        }
    }

    #[test]
    fn a_micro_batch_is_in_the_group_that_contains_it() {
        for (micro_batches, groups) in (1..20).flat_map(|m| [1, 2, 8, 16].map(|groups| (m, groups)))
        {
            let all = Groups {
                micro_batches,
                groups,
            };
            for k in 0..micro_batches {
                let group = all.of(k);
                assert!(
                    (all.start(group)..all.start(group + 1)).contains(&k),
                    "{all:?} {k}"
                );
            }
        }
    }

    #[test]
    fn the_default_depends_on_the_replicas() {
        let defaults = [0, 1, 2, 8, 16].map(GradientSum::of_replicas);
        use GradientSum::{Sequential, Tree};
        assert_eq!(
            defaults,
            [Sequential, Sequential, Tree(8), Tree(8), Tree(16)]
        );
        assert_eq!(Tree(8).to_string(), "tree of 8 groups");
    }
}
