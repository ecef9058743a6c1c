//! Programs: operations that run together on one device.

mod build;
mod executor;
mod indices;
mod interpret;
mod keys;
mod liveness;
mod operation;
mod rows;
mod stack;
mod sums;
#[cfg(test)]
mod tests;
mod together;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Distribution, Shape, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use serde::{Deserialize, Serialize};
use tinderbox_fake::{Graph, Node, NodeId, Region, ValueId, change_tensors};

pub use executor::{Executable, Executor, RunContext, ValueObserver};
pub use indices::{check_indices, indices_of};
pub use interpret::{Interpreter, RandomValues};
pub use keys::initialization_keys;
pub use operation::is_random;
pub(crate) use operation::{base, family, is_elementwise, is_row_major, is_view};
pub use rows::{ProgramInput, Rows, rows_read};
pub use sums::with_ordered_sums;

use crate::ProgramError;
use crate::random::Domain;

/// The origin of the values of one random operation: together with the seed it is the whole key of its
/// stream, so the values depend on nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RandomKey {
    /// Initialization or forward, which never share a stream.
    pub domain: Domain,
    /// The parameter whose recipe contains it, or the operation's ordinal in the forward.
    pub owner: String,
    /// Index of the random operation among the random operations of its owner.
    pub draw: u64,
}

/// Keys of the random operations of a graph.
pub type RandomKeys = BTreeMap<NodeId, RandomKey>;

/// The elements of a random tensor that an operation generates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Draw {
    pub(crate) key: RandomKey,
    /// Shape of the whole random tensor.
    pub(crate) whole: Shape,
    /// The part of it that the operation generates.
    pub(crate) region: Region,
}

/// Returns the elements that a random operation generates; `None` if it has no key.
pub(crate) type Draws<'a> = &'a dyn Fn(NodeId) -> Option<Draw>;

impl Draw {
    /// Returns all elements of a random tensor of a graph; `None` if it has no key.
    pub(crate) fn of_node(graph: &Graph, node: NodeId, keys: &RandomKeys) -> Option<Self> {
        let key = keys.get(&node)?.clone();
        let whole = graph.value(graph.node(node).outputs()[0]).shape.clone();
        let region = Region::of_shape(&whole);
        Some(Self { key, whole, region })
    }

    /// Returns a part of these elements.
    pub(crate) fn part(&self, region: &Region) -> Self {
        Self {
            region: region.absolute_in(&self.region),
            ..self.clone()
        }
    }
}

/// A step of a program.
#[derive(Clone, Debug)]
enum Step {
    /// The operation of a node.
    Operation {
        node: NodeId,
        /// The range of the values that it reads for the last time, in the program's list.
        last_uses: Range<u32>,
    },
    /// Operations that do not depend on each other, each with enough work for a thread.
    Together(Box<Together>),
    /// Frees a value.
    Free(Box<TensorIr>),
    /// Generates random values with the counter-based generator, in place of the backend's.
    Random(Box<RandomStep>),
}

impl Step {
    /// Returns the nodes of its operations, with the ranges of the values that they read for the last time.
    fn operations(&self) -> impl Iterator<Item = (NodeId, &Range<u32>)> {
        let (one, together) = match self {
            Self::Operation { node, last_uses } => (Some((*node, last_uses)), &[][..]),
            Self::Together(together) => (None, &together.operations[..]),
            Self::Free(_) | Self::Random(_) => (None, &[][..]),
        };
        let together = together.iter().map(|(node, last_uses)| (*node, last_uses));
        one.into_iter().chain(together)
    }
}

#[derive(Clone, Debug)]
struct Together {
    /// Nodes, with the ranges of the values that they read for the last time.
    operations: Vec<(NodeId, Range<u32>)>,
}

#[derive(Clone, Debug)]
struct RandomStep {
    out: TensorIr,
    distribution: Distribution,
    draw: Draw,
}

/// Operations of a graph in order, with inputs and outputs.
///
/// Every value is freed, or its memory reused, at its last use; outputs are kept. Constants of the
/// graph are not inputs. The operations are the graph's, and all of its programs share them: a program needs
/// about 16 bytes for each.
#[derive(Clone, Debug)]
pub struct Program {
    nodes: Arc<Vec<Node>>,
    steps: Vec<Step>,
    /// Values that a step reads for the last time, step by step.
    last_uses: Vec<TensorId>,
    inputs: Vec<ValueId>,
    input_types: Vec<(Shape, DType)>,
    outputs: Vec<TensorIr>,
    constants: Vec<(ValueId, TensorData)>,
}

impl Program {
    fn check_input_count(&self, found: usize) -> Result<(), ProgramError> {
        let expected = self.inputs.len();
        match found == expected {
            true => Ok(()),
            false => Err(ProgramError::InputCount { expected, found }),
        }
    }

    /// Returns the values that a step reads for the last time.
    fn last_uses(&self, range: &Range<u32>) -> &[TensorId] {
        &self.last_uses[range.start as usize..range.end as usize]
    }

    /// Returns a node's operation as a step runs it, with marks on the inputs that it may modify in place.
    fn operation(&self, node: NodeId, last_uses: &Range<u32>) -> OperationIr {
        let mut operation = self.nodes[node.index()].operation.clone();
        let last_uses = self.last_uses(last_uses);
        if !last_uses.is_empty() {
            change_tensors(&mut operation, |tensor| {
                if tensor.status == TensorStatus::ReadOnly && last_uses.contains(&tensor.id) {
                    tensor.status = TensorStatus::ReadWrite;
                }
            });
        }
        operation
    }

    /// Returns the inputs, in order.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// Returns shape and dtype of each input.
    pub fn input_types(&self) -> &[(Shape, DType)] {
        &self.input_types
    }

    /// Returns the values of the outputs, in order.
    pub fn outputs(&self) -> impl Iterator<Item = ValueId> {
        let value = |out| ValueId::of_tensor(out).expect("the ids of a program are ids of a graph");
        self.outputs.iter().map(value)
    }

    /// Returns the bytes of all outputs. Outputs that share memory are counted separately.
    pub fn output_bytes(&self) -> u64 {
        let bytes = |out: &TensorIr| (out.shape.num_elements() * out.dtype.size()) as u64;
        self.outputs.iter().map(bytes).sum()
    }

    /// Returns the number of operations. Steps that only free a value are not counted.
    pub fn len(&self) -> usize {
        let random = |step: &&Step| matches!(step, Step::Random(_));
        let operations = self.steps.iter().flat_map(Step::operations);
        operations.count() + self.steps.iter().filter(random).count()
    }

    /// Returns whether the program runs no operation.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
