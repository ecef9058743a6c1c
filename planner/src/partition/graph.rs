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

/// How a node uses a value of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pin {
    pub node: usize,
    /// Whether its forward reads the value.
    pub reads: bool,
    /// Whether its backward reads the value.
    pub keeps: bool,
}

/// A value that at least two nodes use, or the gradient of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Net {
    pub bytes: u64,
    pub gradient_bytes: u64,
    pub maker: usize,
    /// Whether the backward of the maker reads the value.
    pub maker_keeps: bool,
    /// The other nodes, ascending.
    pub pins: Vec<Pin>,
}

/// A parameter that at least two nodes read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shared {
    /// Bytes of each copy.
    pub copy: u64,
    /// Bytes of the gradient and of the optimizer state, which only the owner holds.
    pub own: u64,
    /// The node of the first reader.
    pub owner: usize,
    /// All nodes that read it, the owner included, ascending.
    pub readers: Vec<usize>,
}

/// Nodes, the values between them, and the order that these require. It has no cycles.
#[derive(Debug, Clone)]
pub(super) struct Graph {
    pub nodes: Vec<Node>,
    pub nets: Vec<Net>,
    pub shared: Vec<Shared>,
    /// The nets of each node, with how it uses them; `None` for those that it makes.
    pub incident: Vec<Vec<(usize, Option<Pin>)>>,
    /// The shared parameters of each node.
    pub reads: Vec<Vec<usize>>,
    /// Nodes that must not be on a later stage, ascending.
    pub before: Vec<Vec<usize>>,
    /// Nodes that must not be on an earlier stage, ascending.
    pub after: Vec<Vec<usize>>,
}

impl Graph {
    /// Creates the graph of valid work, one node per block. Times and bytes are capped so that no sum of them
    /// overflows `u64`: at some days per block where there are thousands.
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
        let nets = work.values.iter().map(|value| {
            let keepers = pins(&value.keepers, false);
            Net {
                bytes: value.bytes.min(cap),
                gradient_bytes: value.gradient_bytes.min(cap),
                maker: value.maker,
                maker_keeps: false,
                pins: pins(&value.readers, true).chain(keepers).collect(),
            }
        });
        // The gradient of a shared parameter goes to its first reader, whose stage owns it.
        let gradients = work.parameters.iter().filter(|known| known.is_trainable);
        let gradients = gradients.filter_map(|parameter| {
            let (first, others) = parameter.readers.split_first()?;
            Some(Net {
                bytes: 0,
                gradient_bytes: parameter.gradient_bytes().min(cap),
                maker: *first,
                maker_keeps: false,
                pins: pins(others, true).collect(),
            })
        });
        let shared = work.parameters.iter().map(|parameter| {
            let states = step.optimizer_states.saturating_add(1);
            let states = if parameter.is_trainable { states } else { 0 };
            let own = parameter.bytes.saturating_mul(states);
            Shared {
                copy: parameter.held_bytes().min(cap),
                own: own.min(cap),
                owner: parameter.readers.first().copied().unwrap_or(0),
                readers: parameter.readers.clone(),
            }
        });
        Self::of_parts(nodes.collect(), nets.chain(gradients), shared, |node| node)
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
        let (nets, shared) = (self.nets.iter().cloned(), self.shared.iter().cloned());
        Self::of_parts(nodes, nets, shared, |node| group_of[node])
    }

    /// Puts the ends of nets and the readers of parameters into groups, adds those of a single group to its node, and merges
    /// nets with the same ends.
    fn of_parts(
        mut nodes: Vec<Node>,
        nets: impl Iterator<Item = Net>,
        shared: impl Iterator<Item = Shared>,
        group_of: impl Fn(usize) -> usize,
    ) -> Self {
        let mut joined: BTreeMap<(usize, bool, Vec<Pin>), (u64, u64)> = BTreeMap::new();
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
            if !pins.is_empty() {
                let ends = (maker, maker_keeps, pins.into_values().collect());
                let (bytes, gradient_bytes) = joined.entry(ends).or_default();
                *bytes += net.bytes;
                *gradient_bytes += net.gradient_bytes;
            } else if maker_keeps {
                nodes[maker].kept += net.bytes;
            }
        }
        let nets = joined.into_iter().map(|(ends, bytes)| Net {
            bytes: bytes.0,
            gradient_bytes: bytes.1,
            maker: ends.0,
            maker_keeps: ends.1,
            pins: ends.2,
        });
        let shared = shared.map(|one| {
            let readers = one.readers.iter().map(|node| group_of(*node));
            let readers: BTreeSet<usize> = readers.collect();
            Shared {
                owner: group_of(one.owner),
                readers: readers.into_iter().collect(),
                ..one
            }
        });
        let (alone, shared): (Vec<_>, Vec<_>) = shared.partition(|one| one.readers.len() == 1);
        for one in alone {
            nodes[one.owner].resident += one.copy + one.own;
        }
        let lists = vec![Vec::new(); nodes.len()];
        let mut graph = Self {
            incident: vec![Vec::new(); nodes.len()],
            reads: lists.clone(),
            before: lists.clone(),
            after: lists,
            nodes,
            nets: nets.collect(),
            shared,
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
                self.before[pin.node].push(net.maker);
                self.after[net.maker].push(pin.node);
            }
        }
        for (index, shared) in self.shared.iter().enumerate() {
            for node in &shared.readers {
                self.reads[*node].push(index);
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

/// The pins of nodes whose forward reads a value, or else of those whose backward does.
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
