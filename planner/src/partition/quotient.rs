//! The quotient graph: what stages hand to each other.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_schedule::StageIndex;

use crate::{CycleError, Handover, Work};

/// Which stages hand values to which, under an assignment of blocks to stages.
///
/// A stage hands a value to another one if a block of the first makes it and the forward or the
/// backward of a block of the other reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quotient {
    stages: usize,
    /// A value of each edge, with the block that reads it.
    edges: BTreeMap<(usize, usize), (usize, usize)>,
}

impl Quotient {
    /// The quotient of a work. Blocks beyond the end of `stage_of` belong to stage 0. Linear in the
    /// readers of values, but for a logarithm.
    #[must_use]
    pub fn of(work: &Work, stage_of: &[usize]) -> Self {
        let stage = |block: usize| stage_of.get(block).copied().unwrap_or(0);
        let mut edges = BTreeMap::new();
        for (index, value) in work.values.iter().enumerate() {
            let from = stage(value.maker);
            for block in value.readers.iter().chain(&value.keepers) {
                let to = stage(*block);
                if from != to {
                    edges.entry((from, to)).or_insert((index, *block));
                }
            }
        }
        let ends = edges.keys().map(|(from, to)| *from.max(to));
        let last = ends.chain(stage_of.iter().copied()).max();
        Self {
            stages: last.map_or(0, |last| last.saturating_add(1)),
            edges,
        }
    }

    /// Pairs of stages of which the first hands something to the second, ascending.
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.edges.keys().copied()
    }

    /// Whether values go from lower to higher stages only, as a [`Partition`](crate::Partition) asks.
    #[must_use]
    pub fn is_numbered(&self) -> bool {
        self.edges.keys().all(|(from, to)| from < to)
    }

    /// The number that each stage gets so that values go from lower to higher ones only; stages that
    /// do not wait for each other keep their order.
    ///
    /// # Errors
    ///
    /// Names stages that wait for each other in a circle, and the blocks that make them.
    pub fn numbering(&self, work: &Work) -> Result<Vec<usize>, CycleError> {
        let mut waits = vec![0_usize; self.stages];
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); self.stages];
        for (from, to) in self.edges.keys() {
            waits[*to] += 1;
            after[*from].push(*to);
        }
        let ready = (0..self.stages).filter(|stage| waits[*stage] == 0);
        let mut ready: BTreeSet<usize> = ready.collect();
        let mut numbers = vec![usize::MAX; self.stages];
        let mut next = 0;
        while let Some(stage) = ready.pop_first() {
            numbers[stage] = next;
            next += 1;
            for later in &after[stage] {
                waits[*later] -= 1;
                if waits[*later] == 0 {
                    ready.insert(*later);
                }
            }
        }
        if next == self.stages {
            Ok(numbers)
        } else {
            Err(self.cycle(work, &numbers))
        }
    }

    /// A circle among the stages that got no number: each of them waits for another of them.
    fn cycle(&self, work: &Work, numbers: &[usize]) -> CycleError {
        let is_left = |stage: usize| numbers[stage] == usize::MAX;
        let mut waits_for = BTreeMap::new();
        for (from, to) in self.edges.keys().filter(|(from, _)| is_left(*from)) {
            waits_for.entry(*to).or_insert(*from);
        }
        let mut stage = (0..self.stages).find(|stage| is_left(*stage)).unwrap_or(0);
        let mut seen = Vec::new();
        while !seen.contains(&stage) {
            seen.push(stage);
            stage = waits_for.get(&stage).copied().unwrap_or(stage);
        }
        let circle = seen.iter().position(|other| *other == stage).unwrap_or(0);
        let mut circle = seen.split_off(circle);
        // Found against the flow; told along it, from the lowest.
        circle.reverse();
        let lowest = circle.iter().enumerate().min_by_key(|(_, stage)| **stage);
        let lowest = lowest.map_or(0, |(at, _)| at);
        circle.rotate_left(lowest);
        let next = circle.iter().cycle().skip(1);
        let pairs = circle.iter().zip(next);
        let name = |block: usize| match work.blocks.get(block) {
            Some(block) => block.name.clone(),
            None => format!("block {block}"),
        };
        let handovers = pairs.filter_map(|(from, to)| {
            let (value, reader) = self.edges.get(&(*from, *to))?;
            Some(Handover {
                from: StageIndex::new(*from),
                to: StageIndex::new(*to),
                maker: name(work.values.get(*value)?.maker),
                reader: name(*reader),
            })
        });
        CycleError {
            handovers: handovers.collect(),
        }
    }
}

/// The connected parts of sets of nodes: of each node the lowest node that it is joined with by
/// edges within its set. Linear in edges, but for a factor that is as good as constant.
pub(super) fn components(
    set_of: &[usize],
    edges: impl Iterator<Item = (usize, usize)>,
) -> Vec<usize> {
    let mut roots: Vec<usize> = (0..set_of.len()).collect();
    for (a, b) in edges {
        if set_of[a] == set_of[b] {
            let (a, b) = (root(&mut roots, a), root(&mut roots, b));
            roots[a.max(b)] = a.min(b);
        }
    }
    (0..set_of.len())
        .map(|node| root(&mut roots, node))
        .collect()
}

/// The root of a node; the way to it is halved on the way.
fn root(roots: &mut [usize], mut node: usize) -> usize {
    while roots[node] != node {
        roots[node] = roots[roots[node]];
        node = roots[node];
    }
    node
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Value};

    /// Blocks `a`, `b`, ... with values from one to the other.
    fn work(blocks: usize, edges: &[(usize, usize)]) -> Work {
        let name = |index: usize| char::from(b'a' + index as u8).to_string();
        let blocks = (0..blocks).map(|index| Block {
            name: name(index),
            ..Block::default()
        });
        let values = edges.iter().map(|(maker, reader)| Value {
            bytes: 1,
            maker: *maker,
            readers: vec![*reader],
            ..Value::default()
        });
        Work {
            blocks: blocks.collect(),
            values: values.collect(),
            ..Work::default()
        }
    }

    #[test]
    fn stages_are_numbered_along_the_flow() {
        let work = work(4, &[(0, 1), (1, 2), (2, 3)]);
        let check = |stage_of: &[usize], expected: &[usize]| {
            let quotient = Quotient::of(&work, stage_of);
            let numbers = quotient.numbering(&work).unwrap();
            assert_eq!(numbers, expected, "{stage_of:?}");
            assert_eq!(quotient.is_numbered(), numbers.is_sorted(), "{stage_of:?}");
        };
        check(&[0, 0, 1, 1], &[0, 1]);
        check(&[1, 1, 0, 0], &[1, 0]);
        check(&[2, 0, 3, 1], &[1, 3, 0, 2]);
        check(&[0, 0, 0, 0], &[0]);
    }

    #[test]
    fn a_circle_is_named() {
        let work = work(4, &[(0, 1), (1, 2), (2, 3)]);
        let text = |stage_of: &[usize]| {
            let error = Quotient::of(&work, stage_of).numbering(&work);
            error.unwrap_err().to_string()
        };
        insta::assert_snapshot!(
            text(&[0, 1, 0, 1]),
            @"stages wait for each other in a circle: stage 0 hands what `a` makes to `b` on stage 1, stage 1 hands what `b` makes to `c` on stage 0: move blocks so that values go one way"
        );
        insta::assert_snapshot!(
            text(&[3, 1, 2, 1]),
            @"stages wait for each other in a circle: stage 1 hands what `b` makes to `c` on stage 2, stage 2 hands what `c` makes to `d` on stage 1: move blocks so that values go one way"
        );
    }

    #[test]
    fn keepers_are_readers_too() {
        let mut work = work(2, &[]);
        work.values.push(Value {
            maker: 0,
            keepers: vec![0, 1],
            ..Value::default()
        });
        let quotient = Quotient::of(&work, &[1, 0]);
        assert_eq!(quotient.edges().collect::<Vec<_>>(), [(1, 0)]);
    }

    #[test]
    fn parts_are_connected() {
        let edges = [(0, 1), (1, 2), (3, 4), (0, 4), (5, 3)];
        let found = components(&[0, 0, 1, 1, 1, 1], edges.into_iter());
        assert_eq!(found, [0, 0, 2, 3, 3, 3]);
    }
}
