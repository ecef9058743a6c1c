//! Groups of blocks that stay together: merged pair by pair, each merge checked for cycles.
//!
//! The rules and their order are FTPipe's (Eliad, Hakimi, De Jagger, Silberstein and Schuster,
//! *Fine-tuning giant neural networks on commodity hardware with automatic pipeline model parallelism*,
//! USENIX ATC 2021): blocks of one module, values too large to send, blocks without time, the worst
//! ratio of communication to computation, and last the smallest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tinderbox_schedule::LinkCosts;
use tinderbox_schedule::arithmetic::scaled;

use super::super::graph::{Graph, Node};
use crate::{Machine, Work};

/// Two groups in the order in which they run, and the bytes that they exchange.
type Edge = (usize, usize, u64);

/// Groups of the nodes of a graph, and an order in which they can run.
#[derive(Debug, Clone)]
struct Groups {
    /// The group of each node, named by the lowest node in it.
    of: Vec<usize>,
    /// The bytes that each group exchanges with others, in both directions.
    exchanged: Vec<BTreeMap<usize, u64>>,
    time: Vec<u64>,
    order: Vec<usize>,
    /// The index of each group in the order.
    position: Vec<usize>,
    /// The innermost module that contains all blocks of a group.
    scope: Vec<String>,
}

/// The numbers of groups per rank that are tried. They descend, since merges accumulate.
const PER_RANK: [usize; 8] = [16, 12, 8, 6, 4, 3, 2, 1];

/// The group of each block, and the graph of the groups.
pub(super) type Level = (Vec<usize>, Graph);

/// Merges blocks to at most each number of groups per rank. Numbers of groups above the number of blocks are skipped,
/// except one group per rank.
pub(super) fn levels(work: &Work, graph: &Graph, machine: &Machine) -> Vec<Level> {
    let mut groups = Groups::new(work, graph);
    let (ranks, nodes) = (machine.ranks(), graph.nodes.len());
    let total: u64 = graph.nodes.iter().map(Node::time).sum();
    let counts = PER_RANK.iter().map(|each| ranks.saturating_mul(*each));
    let counts = counts.filter(|count| *count <= nodes || *count <= ranks);
    let level = counts.map(|count| {
        groups.merge_to(count, total / count as u64, machine.link);
        let group_of = groups.numbers();
        let coarse = graph.contract(&group_of, groups.len());
        (group_of, coarse)
    });
    level.collect()
}

impl Groups {
    /// Makes every block a group.
    pub fn new(work: &Work, graph: &Graph) -> Self {
        let nodes = graph.nodes.len();
        let mut groups = Self {
            of: (0..nodes).collect(),
            exchanged: vec![BTreeMap::new(); nodes],
            time: graph.nodes.iter().map(|node| node.time()).collect(),
            order: graph.order(),
            position: vec![0; nodes],
            scope: work.blocks.iter().map(|block| block.name.clone()).collect(),
        };
        for net in graph.nets.iter().filter(|net| net.flows) {
            let bytes = net.bytes + net.gradient_bytes;
            for pin in &net.pins {
                groups.exchange(net.maker, pin.node, bytes);
            }
        }
        groups.renumber(0);
        groups
    }

    fn exchange(&mut self, a: usize, b: usize, bytes: u64) {
        *self.exchanged[a].entry(b).or_default() += bytes;
        *self.exchanged[b].entry(a).or_default() += bytes;
    }

    /// Returns the groups that read from a group, with the bytes that both exchange.
    fn after(&self, group: usize) -> impl Iterator<Item = (usize, u64)> {
        let others = self.exchanged[group].iter();
        let later = others.filter(move |(other, _)| self.position[**other] > self.position[group]);
        later.map(|(other, bytes)| (*other, *bytes))
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the group of each node, numbered along the order.
    pub fn numbers(&self) -> Vec<usize> {
        let number = |group: &usize| self.position[*group];
        self.of.iter().map(number).collect()
    }

    /// Merges groups until at most `count` remain. `most_ns` bounds the time of groups that all rules
    /// but the last create.
    pub fn merge_to(&mut self, count: usize, most_ns: u64, link: LinkCosts) {
        let deepest = self.order.iter().map(|group| depth(&self.scope[*group]));
        for level in (1..=deepest.max().unwrap_or(0)).rev() {
            self.merge_edges(count, |groups, (from, to, _)| {
                let [a, b] = [from, to].map(|group| prefix(&groups.scope[group], level));
                let same = a.is_some() && a == b;
                (same && groups.together(from, to) <= most_ns).then_some(0)
            });
        }
        // Values that take longer to send than their smaller end takes to run.
        self.merge_edges(count, |groups, (from, to, bytes)| {
            let is_expensive = link.transfer(bytes) > groups.smaller(from, to);
            (is_expensive && groups.together(from, to) <= most_ns).then_some(u64::MAX - bytes)
        });
        self.merge_edges(count, |groups, (from, to, bytes)| {
            (groups.smaller(from, to) == 0).then_some(u64::MAX - bytes)
        });
        self.merge_edges(count, |groups, (from, to, bytes)| {
            let ratio = scaled(bytes, 1000, groups.smaller(from, to).max(1));
            (groups.together(from, to) <= most_ns).then_some(u64::MAX - ratio)
        });
        self.merge_smallest(count);
    }

    fn together(&self, a: usize, b: usize) -> u64 {
        self.time[a] + self.time[b]
    }

    fn smaller(&self, a: usize, b: usize) -> u64 {
        self.time[a].min(self.time[b])
    }

    /// Merges along edges to which a rule assigns a priority, the lowest first. The rule is evaluated
    /// again where one of the ends was merged before.
    fn merge_edges(&mut self, count: usize, rule: impl Fn(&Self, Edge) -> Option<u64>) {
        let mut edges = Vec::new();
        for from in &self.order {
            for (to, bytes) in self.after(*from) {
                if let Some(place) = rule(self, (*from, to, bytes)) {
                    edges.push((place, *from, to));
                }
            }
        }
        edges.sort_unstable();
        for (_, from, to) in edges {
            if self.len() <= count {
                return;
            }
            let (from, to) = (self.of[from], self.of[to]);
            if let Some(bytes) = self.exchanged[from].get(&to).copied()
                && rule(self, (from, to, bytes)).is_some()
            {
                self.merge(from, to);
            }
        }
    }

    /// Merges the smallest group with its smallest neighbour repeatedly.
    fn merge_smallest(&mut self, count: usize) {
        while self.len() > count.max(1) {
            let smallest = self.order.iter().min_by_key(|g| (self.time[**g], **g));
            let Some(group) = smallest.copied() else {
                return;
            };
            let others = self.exchanged[group].iter();
            let neighbours =
                others.map(|(other, bytes)| (self.time[*other], Reverse(*bytes), *other));
            let neighbours: BTreeSet<(u64, Reverse<u64>, usize)> = neighbours.collect();
            let merged = neighbours.into_iter().any(|(_, _, other)| {
                match self.position[group] < self.position[other] {
                    true => self.merge(group, other),
                    false => self.merge(other, group),
                }
            });
            if !merged {
                // Neighbours in the order can always be merged.
                let at = self.position[group].min(self.len() - 2);
                self.merge(self.order[at], self.order[at + 1]);
            }
        }
    }

    /// Merges two groups, the first before the other in the order, unless a path between them passes
    /// through a third group. Returns whether they were merged. Linear in the groups between them.
    fn merge(&mut self, first: usize, then: usize) -> bool {
        let (from, to) = (self.position[first], self.position[then]);
        // Groups between them that depend on the first.
        let mut waits = vec![false; to - from + 1];
        waits[0] = true;
        for at in from..to {
            if !waits[at - from] {
                continue;
            }
            for (later, _) in self.after(self.order[at]) {
                let later_at = self.position[later];
                let is_direct = at == from && later == then;
                if later_at <= to && !is_direct {
                    waits[later_at - from] = true;
                }
            }
        }
        if waits[to - from] {
            return false;
        }
        // Groups that depend on the first run after the pair, all others before it.
        let between = self.order[from + 1..to].iter();
        let (later, earlier): (Vec<usize>, Vec<usize>) =
            between.partition(|group| waits[self.position[**group] - from]);
        let (low, high) = (first.min(then), first.max(then));
        let row = [earlier, vec![low], later].concat();
        self.order.splice(from..=to, row);
        self.join(low, high);
        self.renumber(from);
        true
    }

    /// Moves all of one group to another.
    fn join(&mut self, low: usize, high: usize) {
        let moved = self.of.iter_mut().filter(|group| **group == high);
        moved.for_each(|group| *group = low);
        self.time[low] += self.time[high];
        self.scope[low] = shared_scope(&self.scope[low], &self.scope[high]).to_owned();
        for (other, bytes) in std::mem::take(&mut self.exchanged[high]) {
            self.exchanged[other].remove(&high);
            if other != low {
                self.exchange(low, other, bytes);
            }
        }
    }

    fn renumber(&mut self, from: usize) {
        for (at, group) in self.order.iter().enumerate().skip(from) {
            self.position[*group] = at;
        }
    }
}

/// The number of modules in a path.
fn depth(scope: &str) -> usize {
    let modules = scope.split('.');
    modules.filter(|_| !scope.is_empty()).count()
}

/// The first `level` modules of a path, if it has as many.
fn prefix(scope: &str, level: usize) -> Option<&str> {
    let dots = scope.match_indices('.').map(|(at, _)| at);
    let end = dots.chain([scope.len()]).nth(level.checked_sub(1)?)?;
    Some(&scope[..end]).filter(|_| !scope.is_empty())
}

/// The common modules at the start of two paths.
fn shared_scope<'s>(a: &'s str, b: &str) -> &'s str {
    let same = a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b);
    prefix(a, same.count()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Step, Value};

    #[test]
    fn scopes() {
        assert_eq!(shared_scope("a.b.c", "a.b.d"), "a.b");
        assert_eq!(shared_scope("a", "b"), "");
        assert_eq!(shared_scope("a.bc", "a.bd"), "a");
        assert_eq!(shared_scope("a.b", "a.b"), "a.b");
        assert_eq!(prefix("a.b.c", 1), Some("a"));
        assert_eq!(prefix("a.b", 3), None);
        assert_eq!(prefix("a.b", 0), None);
        assert_eq!((depth(""), depth("a.b")), (0, 2));
    }

    fn work(names: &[&str], edges: &[(usize, usize)]) -> Work {
        let blocks = names.iter().map(|name| Block {
            name: (*name).to_owned(),
            forward: 10,
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

    fn groups(work: &Work) -> Groups {
        let step = Step::new(tinderbox_schedule::ScheduleKind::GPipe, 1);
        Groups::new(work, &Graph::of_work(work, &step))
    }

    #[test]
    fn blocks_of_one_module_go_together_first() {
        let names = ["x.a", "x.b", "y.a", "y.b", "y.c"];
        let work = work(&names, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        let mut groups = groups(&work);
        groups.merge_to(2, 30, LinkCosts::default());
        assert_eq!(groups.numbers(), [0, 0, 1, 1, 1]);
    }

    #[test]
    fn a_merge_around_a_third_group_is_refused() {
        let work = work(&["a", "b", "c"], &[(0, 1), (1, 2), (0, 2)]);
        let mut all = groups(&work);
        assert!(!all.merge(0, 2));
        assert_eq!(all.len(), 3);
        assert!(all.merge(0, 1));
        assert_eq!(all.numbers(), [0, 0, 1]);
    }

    /// Groups between the pair go before it unless they depend on it.
    #[test]
    fn merges_keep_a_valid_order() {
        let work = work(&["a", "b", "c", "d"], &[(0, 1), (0, 3), (2, 3)]);
        let mut groups = groups(&work);
        assert!(groups.merge(0, 3));
        assert_eq!(groups.numbers(), [1, 2, 0, 1]);
    }
}
