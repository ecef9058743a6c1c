//! The work as a weighted graph that can be contracted, level by level.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Step, Work};

/// One block, or several that stay together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Node {
    /// The lowest of its blocks, which breaks ties.
    pub first: usize,
    /// Nanoseconds of `F` at speed 1.
    pub forward: u64,
    /// Nanoseconds of `B`, or of `I` and `W`, at speed 1.
    pub backward: u64,
    /// Bytes that `I` leaves for `W`, per micro-batch.
    pub weight_gradient_bytes: u64,
    /// The maximum transient bytes of one of its programs.
    pub transient: u64,
    /// Bytes that it keeps per micro-batch, of values that no other node uses.
    pub kept: u64,
    /// Bytes of parameters that no other node reads, with their gradients and optimizer state.
    pub resident: u64,
}

impl Node {
    /// Returns the nanoseconds of a micro-batch, forward and backward.
    pub const fn time(&self) -> u64 {
        self.forward + self.backward
    }
}

/// The use of a value or a parameter by a node that does not make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pin {
    pub node: usize,
    /// Whether its forward reads the value.
    pub reads: bool,
    /// Whether its backward reads the value.
    pub keeps: bool,
}

/// A value that at least two nodes use, or a parameter that they read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Net {
    pub bytes: u64,
    pub gradient_bytes: u64,
    /// Bytes of a parameter, on each stage that reads it.
    pub copy: u64,
    /// Bytes of the gradient and of the optimizer state of a parameter, which only its owner holds.
    pub own: u64,
    /// The node that makes the value, or the owner of the parameter: its first reader, to which the gradient goes.
    pub maker: usize,
    /// Whether the backward of the maker reads the value.
    pub maker_keeps: bool,
    /// Whether a value or a gradient flows between the nodes; false for a parameter that is not trained.
    pub flows: bool,
    /// The other nodes, ascending.
    pub pins: Vec<Pin>,
}

/// Nodes, the values between them, and the order that these require. It has no cycles.
#[derive(Debug, Clone)]
pub(super) struct Graph {
    pub nodes: Vec<Node>,
    pub nets: Vec<Net>,
    /// The nets of each node, with its uses; `None` for nets that it makes.
    pub incident: Vec<Vec<(usize, Option<Pin>)>>,
    /// Nodes that must not be on a later stage, ascending.
    pub before: Vec<Vec<usize>>,
    /// Nodes that must not be on an earlier stage, ascending.
    pub after: Vec<Vec<usize>>,
}

impl Graph {
    /// Creates the graph of valid work, one node per block. Times and bytes are capped so that no sum of them
    /// overflows `u64`; with thousands of blocks, the cap is some days per block.
    pub fn of_work(work: &Work, step: &Step) -> Self {
        let cap = cap(work);
        let nodes = work.blocks.iter().enumerate().map(|(first, block)| {
            let halves = block.input_gradient.saturating_add(block.weight_gradient);
            let splits = step.schedule.splits_backward();
            let backward = if splits { halves } else { block.backward };
            Node {
                first,
                forward: block.forward.min(cap),
                backward: backward.min(cap),
                weight_gradient_bytes: block.weight_gradient_bytes.min(cap),
                transient: block.transient_bytes.min(cap),
                ..Node::default()
            }
        });
        let values = work.values.iter().map(|value| {
            let keepers = pins(&value.keepers, false);
            Net {
                bytes: value.bytes.min(cap),
                gradient_bytes: value.gradient_bytes.min(cap),
                maker: value.maker,
                flows: true,
                pins: pins(&value.readers, true).chain(keepers).collect(),
                ..Net::default()
            }
        });
        let parameters = work.parameters.iter().filter_map(|parameter| {
            let (owner, others) = parameter.readers.split_first()?;
            let states = step.optimizer_states.saturating_add(1);
            let held = Net {
                copy: parameter.held_bytes().min(cap),
                maker: *owner,
                pins: pins(others, true).collect(),
                ..Net::default()
            };
            Some(match parameter.is_trainable {
                true => Net {
                    gradient_bytes: parameter.gradient_bytes().min(cap),
                    own: parameter.bytes.saturating_mul(states).min(cap),
                    flows: true,
                    ..held
                },
                false => held,
            })
        });
        Self::of_parts(nodes.collect(), values.chain(parameters), |node| node)
    }

    /// Returns the graph whose nodes are groups of this one's. The groups must not form a cycle.
    pub fn contract(&self, group_of: &[usize], groups: usize) -> Self {
        let empty = Node {
            first: usize::MAX,
            ..Node::default()
        };
        let mut nodes = vec![empty; groups];
        for (node, group) in self.nodes.iter().zip(group_of) {
            let whole = &mut nodes[*group];
            whole.first = whole.first.min(node.first);
            whole.forward += node.forward;
            whole.backward += node.backward;
            whole.weight_gradient_bytes += node.weight_gradient_bytes;
            whole.transient = whole.transient.max(node.transient);
            whole.kept += node.kept;
            whole.resident += node.resident;
        }
        Self::of_parts(nodes, self.nets.iter().cloned(), |node| group_of[node])
    }

    /// Puts the ends of nets into groups, adds the nets within one group to its node, and merges nets with the same ends.
    fn of_parts(
        mut nodes: Vec<Node>,
        nets: impl Iterator<Item = Net>,
        group_of: impl Fn(usize) -> usize,
    ) -> Self {
        let mut joined: BTreeMap<(usize, bool, bool, Vec<Pin>), Net> = BTreeMap::new();
        for net in nets {
            let (maker, mut maker_keeps) = (group_of(net.maker), net.maker_keeps);
            let mut pins: BTreeMap<usize, Pin> = BTreeMap::new();
            for pin in net.pins {
                let node = group_of(pin.node);
                if node == maker {
                    maker_keeps |= pin.keeps;
                    continue;
                }
                let whole = pins.entry(node).or_insert(Pin { node, ..pin });
                whole.reads |= pin.reads;
                whole.keeps |= pin.keeps;
            }
            if pins.is_empty() {
                nodes[maker].resident += net.copy + net.own;
                nodes[maker].kept += if maker_keeps { net.bytes } else { 0 };
                continue;
            }
            let ends = (maker, maker_keeps, net.flows, pins.into_values().collect());
            let whole = joined.entry(ends).or_default();
            whole.bytes += net.bytes;
            whole.gradient_bytes += net.gradient_bytes;
            whole.copy += net.copy;
            whole.own += net.own;
        }
        let nets = joined.into_iter();
        let nets = nets.map(|((maker, maker_keeps, flows, pins), sums)| Net {
            maker,
            maker_keeps,
            flows,
            pins,
            ..sums
        });
        let lists = vec![Vec::new(); nodes.len()];
        let mut graph = Self {
            incident: vec![Vec::new(); nodes.len()],
            before: lists.clone(),
            after: lists,
            nodes,
            nets: nets.collect(),
        };
        graph.link();
        graph
    }

    /// Computes the neighbours of each node.
    fn link(&mut self) {
        for (index, net) in self.nets.iter().enumerate() {
            self.incident[net.maker].push((index, None));
            for pin in &net.pins {
                self.incident[pin.node].push((index, Some(*pin)));
                if net.flows {
                    self.before[pin.node].push(net.maker);
                    self.after[net.maker].push(pin.node);
                }
            }
        }
        for list in self.before.iter_mut().chain(&mut self.after) {
            list.sort_unstable();
            list.dedup();
        }
    }

    /// Returns an order in which the nodes can run: always the ready node with the lowest block.
    pub fn order(&self) -> Vec<usize> {
        let mut waits: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let at = |node: usize| (self.nodes[node].first, node);
        let first = (0..waits.len()).filter(|node| waits[*node] == 0);
        let mut ready: BTreeSet<(usize, usize)> = first.map(at).collect();
        let mut order = Vec::with_capacity(waits.len());
        while let Some((_, node)) = ready.pop_first() {
            order.push(node);
            for later in &self.after[node] {
                waits[*later] -= 1;
                if waits[*later] == 0 {
                    ready.insert(at(*later));
                }
            }
        }
        order
    }
}

/// The pins of nodes whose forward reads a value, or without `reads` of nodes whose backward does.
fn pins(nodes: &[usize], reads: bool) -> impl Iterator<Item = Pin> {
    let pin = move |node: &usize| Pin {
        node: *node,
        reads,
        keeps: !reads,
    };
    nodes.iter().map(pin)
}

/// The largest time or size of one item such that no sum over the work overflows `u64`.
fn cap(work: &Work) -> u64 {
    let values = work.values.iter();
    let pins = values.map(|value| 1 + value.readers.len() + value.keepers.len());
    let parameters = work.parameters.iter();
    let readers = parameters.map(|parameter| 1 + parameter.readers.len());
    let items = work.blocks.len() + pins.chain(readers).sum::<usize>();
    u64::MAX / (16 * (items + 1) as u64)
}
