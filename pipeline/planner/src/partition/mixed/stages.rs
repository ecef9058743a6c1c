//! Forms stages of the blocks on each rank: as few as can run one after the other.

use std::collections::{BTreeMap, BTreeSet};

use super::super::graph::Graph;
use crate::RankModel;

/// Stages on ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::partition) struct Staged {
    /// The stage of each node.
    pub stage_of: Vec<usize>,
    /// The rank of each stage.
    pub rank_of: Vec<usize>,
}

impl Staged {
    /// Renames equal ranks so that lower ones come first in the flow, to match the placement of a named
    /// schedule where possible.
    fn in_order_of_use(mut self, ranks: &[RankModel]) -> Self {
        let mut names: BTreeMap<usize, usize> = BTreeMap::new();
        for rank in &self.rank_of {
            if !names.contains_key(rank) {
                let is_free = |other: &usize| !names.values().any(|known| known == other);
                let mut free = (0..ranks.len()).filter(is_free);
                let name = free.find(|other| ranks.get(*other) == ranks.get(*rank));
                names.insert(*rank, name.unwrap_or(*rank));
            }
        }
        for rank in &mut self.rank_of {
            *rank = names[rank];
        }
        self
    }
}

/// Forms stages of the nodes on each rank: the [`fewest`], and before them their [`divided`] form, both with equal ranks
/// in order of use. Empty if the fewest are more than `most`.
pub(in crate::partition) fn staged(
    graph: &Graph,
    rank_of: &[usize],
    ranks: &[RankModel],
    most: usize,
) -> Vec<Staged> {
    let fewest = fewest(graph, rank_of, ranks.len(), most);
    let whole = fewest.as_ref();
    let divided = whole.and_then(|whole| divided(graph, whole, most));
    let both = divided.into_iter().chain(fewest);
    both.map(|staged| staged.in_order_of_use(ranks)).collect()
}

/// The rule that selects the rank of the next stage.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// The rank that can run the most work.
    MostTime,
    /// The rank that can run the most nodes.
    MostNodes,
    /// The next rank.
    Next,
}

/// Returns stages in the order of the flow. A stage contains all nodes that one rank can run after the stages
/// before it, so no stage can be merged with the previous stage of the same rank. Three rules
/// select the next rank, and the result with the fewest stages is kept: a heuristic, since the optimum
/// is a shortest common supersequence. `None` if there would be more than `most`. At most nodes
/// times ranks times stages.
fn fewest(graph: &Graph, rank_of: &[usize], ranks: usize, most: usize) -> Option<Staged> {
    let turns = [Turn::MostTime, Turn::MostNodes, Turn::Next];
    let found = turns.map(|turn| along(graph, rank_of, ranks, most, turn));
    let found = found.into_iter().flatten();
    found.min_by_key(|staged| staged.rank_of.len())
}

fn along(
    graph: &Graph,
    rank_of: &[usize],
    ranks: usize,
    most: usize,
    turn: Turn,
) -> Option<Staged> {
    let mut waits: Vec<usize> = graph.before.iter().map(Vec::len).collect();
    let mut staged = Staged {
        stage_of: vec![usize::MAX; waits.len()],
        rank_of: Vec::new(),
    };
    // Nodes of each rank that wait for no other node.
    let mut ready = vec![Vec::new(); ranks];
    for node in (0..waits.len()).filter(|node| waits[*node] == 0) {
        ready[rank_of[node]].push(node);
    }
    let mut last = ranks.saturating_sub(1);
    loop {
        let open = (0..ranks).filter(|rank| !ready[*rank].is_empty());
        let stages = open.map(|rank| {
            let nodes = closure(graph, rank_of, &waits, &ready[rank]);
            let size = match turn {
                Turn::MostTime => nodes.iter().map(|node| graph.nodes[*node].time()).sum(),
                Turn::MostNodes => nodes.len() as u64,
                // After the last rank, the first is next.
                Turn::Next => (ranks - 1 - (rank + ranks - 1 - last) % ranks) as u64,
            };
            (size, std::cmp::Reverse(rank), nodes)
        });
        let Some((_, std::cmp::Reverse(rank), nodes)) = stages.max() else {
            return Some(staged);
        };
        if staged.rank_of.len() == most {
            return None;
        }
        for node in &nodes {
            staged.stage_of[*node] = staged.rank_of.len();
            for later in &graph.after[*node] {
                waits[*later] -= 1;
                if waits[*later] == 0 && rank_of[*later] != rank {
                    ready[rank_of[*later]].push(*later);
                }
            }
        }
        ready[rank].clear();
        staged.rank_of.push(rank);
        last = rank;
    }
}

/// Returns all nodes that a rank can run, starting with these, without another rank.
fn closure(graph: &Graph, rank_of: &[usize], waits: &[usize], ready: &[usize]) -> Vec<usize> {
    let mut nodes = ready.to_vec();
    let mut met = BTreeMap::new();
    let mut at = 0;
    while let Some(node) = nodes.get(at).copied() {
        at += 1;
        for later in &graph.after[node] {
            if rank_of[*later] != rank_of[node] {
                continue;
            }
            let left = met.entry(*later).or_insert(waits[*later]);
            *left -= 1;
            if *left == 0 {
                nodes.push(*later);
            }
        }
    }
    nodes
}

/// Splits stages whose parts exchange no values into separate stages. `None` if there would be more
/// than `most`, or if no stage is split.
fn divided(graph: &Graph, staged: &Staged, most: usize) -> Option<Staged> {
    let part_of = components(graph, &staged.stage_of);
    let parts = part_of.iter().map(|part| (staged.stage_of[*part], *part));
    let parts: BTreeSet<(usize, usize)> = parts.collect();
    let parts: Vec<(usize, usize)> = parts.into_iter().collect();
    if parts.len() > most || parts.len() == staged.rank_of.len() {
        return None;
    }
    let of = |part: &usize| {
        let found = parts.binary_search(&(staged.stage_of[*part], *part));
        found.unwrap_or(0)
    };
    let ranks = parts.iter().map(|(stage, _)| staged.rank_of[*stage]);
    Some(Staged {
        stage_of: part_of.iter().map(of).collect(),
        rank_of: ranks.collect(),
    })
}

/// The connected components within sets of nodes: for each node, the lowest node of its component. Linear in edges.
fn components(graph: &Graph, set_of: &[usize]) -> Vec<usize> {
    let mut lowest = vec![usize::MAX; set_of.len()];
    for first in 0..set_of.len() {
        let mut open = vec![first];
        while let Some(node) = open.pop() {
            if lowest[node] == usize::MAX {
                lowest[node] = first;
                let others = graph.before[node].iter().chain(&graph.after[node]);
                open.extend(others.filter(|other| set_of[**other] == set_of[node]));
            }
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tinderbox_schedule::ScheduleKind;

    use super::*;
    use crate::partition::tests::works::{self, Random, random_graph};
    use crate::{Block, Step, Work};

    /// The minimum number of stages, by breadth-first search over sets of nodes that are done.
    fn fewest_of_all(graph: &Graph, rank_of: &[usize], ranks: usize) -> usize {
        let all = graph.nodes.len();
        let mut reached: BTreeSet<BTreeSet<usize>> = [BTreeSet::new()].into();
        let mut stages = 0;
        while !reached.iter().any(|done| done.len() == all) {
            stages += 1;
            let next = reached.iter().flat_map(|done| {
                (0..ranks).map(|rank| {
                    let mut done = done.clone();
                    for node in graph.order() {
                        let mut before = graph.before[node].iter();
                        if rank_of[node] == rank && before.all(|other| done.contains(other)) {
                            done.insert(node);
                        }
                    }
                    done
                })
            });
            reached = next.collect();
        }
        stages
    }

    #[test]
    fn stages_can_run_and_are_few() {
        let step = Step::new(ScheduleKind::OneFOneB, 4);
        let (mut found, mut least) = (0, 0);
        for seed in 0..60 {
            let graph = Graph::of_work(&random_graph(12, seed), &step);
            let mut random = Random::new(seed);
            let rank_of: Vec<usize> = (0..12).map(|_| random.below(3) as usize).collect();
            let staged = fewest(&graph, &rank_of, 3, usize::MAX).unwrap();
            for staged in divided(&graph, &staged, usize::MAX).iter().chain([&staged]) {
                for (node, stage) in staged.stage_of.iter().enumerate() {
                    assert_eq!(staged.rank_of[*stage], rank_of[node]);
                    let mut before = graph.before[node].iter();
                    assert!(before.all(|other| staged.stage_of[*other] <= *stage));
                }
            }
            let best = fewest_of_all(&graph, &rank_of, 3);
            assert!(staged.rank_of.len() >= best);
            assert_eq!(fewest(&graph, &rank_of, 3, best - 1), None);
            found += staged.rank_of.len();
            least += best;
        }
        // Within a tenth of the optimum on average.
        assert!(found * 10 <= least * 11, "{found} {least}");
    }

    #[test]
    fn ranks_are_named_in_order_of_use() {
        let staged = Staged {
            stage_of: vec![0, 1, 2],
            rank_of: vec![2, 0, 2, 1],
        };
        let equal = [RankModel::default(); 3];
        let found = staged.clone().in_order_of_use(&equal);
        assert_eq!(found.rank_of, [0, 1, 0, 2]);
        let mut uneven = equal;
        uneven[2].speed_permille = 2000;
        let found = staged.in_order_of_use(&uneven);
        assert_eq!(found.rank_of, [2, 0, 2, 1]);
    }

    #[test]
    fn parts_are_connected() {
        let edges = [(0, 1), (1, 2), (3, 4), (0, 4), (3, 5)];
        let values = edges.map(|(maker, reader)| works::value(maker, &[reader], 1));
        let work = Work {
            blocks: vec![Block::default(); 6],
            values: values.to_vec(),
            ..Work::default()
        };
        let graph = Graph::of_work(&work, &Step::new(ScheduleKind::GPipe, 1));
        assert_eq!(components(&graph, &[0, 0, 1, 1, 1, 1]), [0, 0, 2, 3, 3, 3]);
    }
}
