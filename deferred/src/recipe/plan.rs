//! The operations and memory that a tensor needs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use tinderbox_fake::{Graph, Node, NodeId, ValueId};

use super::layout::is_row_major;
use crate::program::is_view;

/// A result of which a part is needed, but which is not sliceable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotSliceable {
    /// The operation, such as `Float.Matmul`.
    pub operation: String,
    /// Size per dimension of its result.
    pub shape: Vec<u64>,
    /// Bytes of its result.
    pub bytes: u64,
}

/// The operations and memory that a tensor needs, known before anything is computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipePlan {
    /// Number of operations.
    pub operations: usize,
    /// Bytes of the result.
    pub bytes: u64,
    /// Bytes at the peak, the result included: views need none, and an elementwise operation
    /// reuses the memory of an input that nothing else reads.
    pub peak_bytes: u64,
    /// Results that are not sliceable, and are computed whole though only a part of them is needed.
    #[serde(rename = "made_whole")]
    pub not_sliceable: Vec<NotSliceable>,
}

impl RecipePlan {
    pub(super) fn of(graph: &Graph, output: ValueId, not_sliceable: &[NotSliceable]) -> Self {
        Self {
            operations: graph.nodes().len(),
            bytes: graph.value(output).bytes(),
            peak_bytes: peak_bytes(graph, output).max(graph.value(output).bytes()),
            not_sliceable: not_sliceable.to_vec(),
        }
    }
}

impl fmt::Display for RecipePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {} bytes, {} bytes at the peak",
            self.operations, self.bytes, self.peak_bytes
        )?;
        for whole in &self.not_sliceable {
            write!(
                f,
                "\n  not sliceable, computed whole: {} {:?}, {} bytes",
                whole.operation, whole.shape, whole.bytes
            )?;
        }
        Ok(())
    }
}

/// Returns the peak of the allocated bytes, when every value is freed at its last use.
fn peak_bytes(graph: &Graph, output: ValueId) -> u64 {
    let mut last: HashMap<ValueId, NodeId> = HashMap::new();
    for id in graph.node_ids() {
        for input in graph.node(id).inputs() {
            last.insert(*input, id);
        }
    }
    // A buffer is alive while a value in it is: views share the buffer of their input.
    let mut buffers: BTreeMap<ValueId, Buffer> = BTreeMap::new();
    let mut buffer_of: HashMap<ValueId, ValueId> = HashMap::new();
    let mut row_major: HashSet<ValueId> = HashSet::new();
    let given = graph.value_ids();
    for value in given.filter(|value| graph.is_constant(*value)) {
        buffers.insert(value, Buffer::of(graph, value));
        buffer_of.insert(value, value);
        row_major.insert(value);
    }
    let mut peak = alive(&buffers);
    for id in graph.node_ids() {
        let node = graph.node(id);
        let dying: BTreeSet<ValueId> = node
            .inputs()
            .iter()
            .copied()
            .filter(|input| last[input] == id && *input != output)
            .collect();
        let inputs = node.inputs().iter().map(|input| row_major.contains(input));
        if is_row_major(&node.operation, inputs) {
            row_major.extend(node.outputs());
        }
        let shared = shared_buffer(graph, node, &dying, &buffers, &buffer_of, &row_major);
        for out in node.outputs() {
            let buffer = shared.unwrap_or(*out);
            buffer_of.insert(*out, buffer);
            buffers
                .entry(buffer)
                .or_insert_with(|| Buffer::of(graph, *out))
                .values
                .insert(*out);
        }
        peak = peak.max(alive(&buffers));
        let unread = node.outputs().iter().copied();
        let unread = unread.filter(|out| !last.contains_key(out) && *out != output);
        for value in dying.iter().copied().chain(unread) {
            let buffer = buffer_of[&value];
            let held = buffers.get_mut(&buffer).expect("a value has a buffer");
            held.values.remove(&value);
            if held.values.is_empty() {
                buffers.remove(&buffer);
            }
        }
    }
    peak
}

struct Buffer {
    bytes: u64,
    values: BTreeSet<ValueId>,
}

impl Buffer {
    fn of(graph: &Graph, value: ValueId) -> Self {
        Self {
            bytes: graph.value(value).bytes(),
            values: BTreeSet::from([value]),
        }
    }
}

fn alive(buffers: &BTreeMap<ValueId, Buffer>) -> u64 {
    buffers.values().map(|buffer| buffer.bytes).sum()
}

/// Returns the buffer of an input that the result of a node reuses or shares.
fn shared_buffer(
    graph: &Graph,
    node: &Node,
    dying: &BTreeSet<ValueId>,
    buffers: &BTreeMap<ValueId, Buffer>,
    buffer_of: &HashMap<ValueId, ValueId>,
    row_major: &HashSet<ValueId>,
) -> Option<ValueId> {
    let [out] = node.outputs() else { return None };
    if is_view(&node.operation) {
        let input = node.inputs().first()?;
        // A value in another order is copied when it is reshaped.
        let copied = row_major.contains(out) && !row_major.contains(input);
        return (!copied).then(|| buffer_of[input]);
    }
    let bytes = graph.value(*out).bytes();
    let same_dtype = |input: &ValueId| graph.value(*input).dtype == graph.value(*out).dtype;
    let mut inputs = node.inputs().iter().filter(|input| dying.contains(input));
    inputs
        .find(|input| {
            let buffer = &buffers[&buffer_of[input]];
            super::rules::is_elementwise(&node.operation)
                && same_dtype(input)
                && row_major.contains(input)
                && buffer.bytes == bytes
                && buffer.values.len() == 1
        })
        .map(|input| buffer_of[input])
}
