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
            let mut pins: BTreeMap<usize, (bool, bool)> = BTreeMap::new();
            for reader in &value.readers {
                pins.entry(*reader).or_default().0 = true;
            }
            for keeper in &value.keepers {
                pins.entry(*keeper).or_default().1 = true;
            }
            let maker_keeps = pins.remove(&value.maker).is_some_and(|(_, keeps)| keeps);
            Net {
                bytes: value.bytes.min(cap),
                gradient_bytes: value.gradient_bytes.min(cap),
                maker: value.maker,
                maker_keeps,
                pins: listed(pins),
            }
        });
        // The gradient of a shared parameter goes to its first reader, whose stage owns it.
        let gradients = work.parameters.iter().filter(|known| known.is_trainable);
        let gradients = gradients.filter_map(|parameter| {
            let (first, others) = parameter.readers.split_first()?;
            let pins = others.iter().map(|node| (*node, (true, false)));
            Some(Net {
                bytes: 0,
                gradient_bytes: parameter.gradient_bytes().min(cap),
                maker: *first,
                maker_keeps: false,
                pins: listed(pins.collect()),
            })
        });
        let nets = nets.chain(gradients);
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
        Self::of_parts(nodes.collect(), nets.collect(), shared.collect())
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
        let nets = self.nets.iter().map(|net| {
            let maker = group_of[net.maker];
            let mut maker_keeps = net.maker_keeps;
            let mut pins: BTreeMap<usize, (bool, bool)> = BTreeMap::new();
            for pin in &net.pins {
                match group_of[pin.node] {
                    inside if inside == maker => maker_keeps |= pin.keeps,
                    outside => {
                        let (reads, keeps) = pins.entry(outside).or_default();
                        *reads |= pin.reads;
                        *keeps |= pin.keeps;
                    }
                }
            }
            Net {
                maker,
                maker_keeps,
                pins: listed(pins),
                ..*net
            }
        });
        let shared = self.shared.iter().map(|shared| {
            let readers = shared.readers.iter().map(|node| group_of[*node]);
            let readers: BTreeSet<usize> = readers.collect();
            Shared {
                owner: group_of[shared.owner],
                readers: readers.into_iter().collect(),
                ..*shared
            }
        });
        let (nets, shared) = (nets.collect(), shared.collect());
        Self::of_parts(nodes, nets, shared)
    }

    /// Adds nets and parameters of a single node to that node, and merges nets with the same ends.
    fn of_parts(mut nodes: Vec<Node>, nets: Vec<Net>, shared: Vec<Shared>) -> Self {
        let mut joined: BTreeMap<(usize, bool, Vec<Pin>), (u64, u64)> = BTreeMap::new();
        for net in nets {
            if net.pins.is_empty() {
                if net.maker_keeps {
                    nodes[net.maker].kept += net.bytes;
                }
                continue;
            }
            let ends = (net.maker, net.maker_keeps, net.pins);
            let (bytes, gradient_bytes) = joined.entry(ends).or_default();
            *bytes += net.bytes;
            *gradient_bytes += net.gradient_bytes;
        }
        let nets = joined.into_iter().map(|(ends, bytes)| Net {
            bytes: bytes.0,
            gradient_bytes: bytes.1,
            maker: ends.0,
            maker_keeps: ends.1,
            pins: ends.2,
        });
        let (alone, shared): (Vec<_>, Vec<_>) =
            shared.into_iter().partition(|one| one.readers.len() == 1);
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

/// The pins of nodes that read and keep a value.
fn listed(pins: BTreeMap<usize, (bool, bool)>) -> Vec<Pin> {
    let pins = pins.into_iter();
    pins.map(|(node, (reads, keeps))| Pin { node, reads, keeps })
        .collect()
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
