//! The operations and memory that a tensor needs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_fake::{Graph, Node, NodeId, ValueId};

use crate::error::lines;
use crate::program::{is_elementwise, is_row_major, is_view};

/// The result of an operation that is not sliceable, though only a part of it is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Display)]
#[display("not sliceable, computed whole: {operation} {shape:?}, {bytes} bytes")]
pub struct NotSliceable {
    /// The operation, such as `Float.Matmul`.
    pub operation: String,
    /// Size per dimension of its result.
    pub shape: Vec<u64>,
    /// Bytes of its result.
    pub bytes: u64,
}

/// The operations and memory that a tensor needs, known before anything is computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Display)]
#[display(
    "{operations} operations, {bytes} bytes, {peak_bytes} bytes at the peak{}",
    lines(not_sliceable)
)]
pub struct RecipePlan {
    /// Number of operations.
    pub operations: usize,
    /// Bytes of the result.
    pub bytes: u64,
    /// Bytes at the peak, including the result: views need no bytes, and an elementwise operation
    /// reuses the memory of an input that nothing else reads. Temporary memory inside of operations is not known. A value
    /// that shares the bytes of a constant counts as if it did not.
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

/// Returns the peak of the allocated bytes, when every value is freed at its last use.
fn peak_bytes(graph: &Graph, output: ValueId) -> u64 {
    let mut last: HashMap<ValueId, NodeId> = HashMap::new();
    for id in graph.node_ids() {
        for input in graph.node(id).inputs() {
            last.insert(*input, id);
        }
    }
    let mut memory = Memory::default();
    for value in graph.value_ids().filter(|value| graph.is_constant(*value)) {
        memory.hold(value, graph.value(value).bytes(), None);
        memory.row_major.insert(value);
    }
    let mut peak = memory.bytes;
    for id in graph.node_ids() {
        let node = graph.node(id);
        let inputs = node.inputs().iter().copied();
        let is_dying = |input: &ValueId| last[input] == id && *input != output;
        let dying: BTreeSet<ValueId> = inputs.clone().filter(is_dying).collect();
        let are_row_major = inputs.map(|input| memory.row_major.contains(&input));
        if is_row_major(&node.operation, are_row_major.collect::<Vec<_>>()) {
            memory.row_major.extend(node.outputs());
        }
        let mut shared = memory.shared(graph, node, &dying);
        for out in node.outputs() {
            memory.hold(*out, graph.value(*out).bytes(), shared.take());
        }
        peak = peak.max(memory.bytes);
        let unread = |out: &ValueId| !last.contains_key(out) && *out != output;
        let unread = node.outputs().iter().copied().filter(unread);
        for value in dying.into_iter().chain(unread) {
            memory.free(value);
        }
    }
    peak
}

/// The bytes of an allocated buffer. It is alive while a value in it is: views share the buffer of their input.
type Buffer = Rc<u64>;

/// The values in memory.
#[derive(Default)]
struct Memory {
    bytes: u64,
    buffers: HashMap<ValueId, Buffer>,
    row_major: HashSet<ValueId>,
}

impl Memory {
    fn hold(&mut self, value: ValueId, bytes: u64, shared: Option<Buffer>) {
        let buffer = shared.unwrap_or_else(|| {
            self.bytes += bytes;
            Rc::new(bytes)
        });
        self.buffers.insert(value, buffer);
    }

    fn free(&mut self, value: ValueId) {
        let buffer = self.buffers.remove(&value).expect("a value has a buffer");
        // Nothing is freed unless it was the last value in its buffer.
        self.bytes -= Rc::into_inner(buffer).unwrap_or(0);
    }

    /// Returns the buffer of an input that the result of a node reuses or shares.
    fn shared(&self, graph: &Graph, node: &Node, dying: &BTreeSet<ValueId>) -> Option<Buffer> {
        let [out] = node.outputs() else { return None };
        let is_row_major = |value| self.row_major.contains(value);
        if is_view(&node.operation) {
            let input = node.inputs().first()?;
            // A value in another order is copied when it is reshaped.
            let copied = is_row_major(out) && !is_row_major(input);
            return (!copied).then(|| self.buffers[input].clone());
        }
        let made = graph.value(*out);
        let mut inputs = node.inputs().iter().filter(|input| dying.contains(input));
        let reused = inputs.find(|input| {
            let buffer = &self.buffers[*input];
            is_elementwise(&node.operation)
                && graph.value(**input).dtype == made.dtype
                && is_row_major(input)
                && **buffer == made.bytes()
                && Rc::strong_count(buffer) == 1
        });
        reused.map(|input| self.buffers[input].clone())
    }
}
