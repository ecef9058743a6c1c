//! Programs: operations that run together on one device.

mod build;
mod executor;
mod handle;
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

use burn::tensor::{DType, Device, Distribution, Shape, TensorData};
use burn_ir::{
    FloatOperationIr, IrVisitorMut, NumericOperationIr, OperationIr, TensorId, TensorIr,
    TensorStatus,
};
use serde::{Deserialize, Serialize};
use tinderbox_fake::{Node, NodeId, Region, ValueId, dtype_on, is_host};

pub(crate) use build::Generator;
pub use executor::{Executable, Executor, RunContext, ValueObserver};
pub use indices::{check_indices, indices_of};
pub use interpret::{Interpreter, RandomValues};
pub use keys::initialization_keys;
pub(crate) use operation::{base, is_view};
pub use rows::{ProgramInput, Rows, rows_read};
pub use sums::with_ordered_sums;

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

impl Draw {
    /// Returns all elements of a random tensor.
    pub(crate) fn whole(key: RandomKey, shape: &Shape) -> Self {
        Self {
            key,
            whole: shape.clone(),
            region: Region::of_shape(shape),
        }
    }

    /// Returns a part of these elements.
    pub(crate) fn part(&self, region: &Region) -> Self {
        let offsets = self.region.offset().iter().zip(region.offset());
        let offset = offsets.map(|(outer, inner)| outer + inner).collect();
        let region = Region::new(offset, region.size().to_vec());
        Self {
            region: region.expect("a part of a part is inside the whole"),
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
    /// Operations that do not depend on each other, and are worth a thread each.
    Together(Box<Together>),
    /// Frees a value.
    Free(Box<TensorIr>),
    /// Generates random values with the counter-based generator, in place of the backend's.
    Random(Box<RandomStep>),
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

/// Sets the dtypes that tensors have on a device.
struct Dtypes<'a>(&'a Device);

impl IrVisitorMut for Dtypes<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        tensor.dtype = dtype_on(tensor.dtype, self.0);
    }
}

/// Marks the values that an operation reads for the last time.
struct LastUses<'a>(&'a [TensorId]);

impl IrVisitorMut for LastUses<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.status == TensorStatus::ReadOnly && self.0.contains(&tensor.id) {
            tensor.status = TensorStatus::ReadWrite;
        }
    }
}

impl Program {
    /// Returns the program with the dtypes that its tensors have on a device. The dtypes of its operations are looked up
    /// when they run.
    fn for_device(mut self: Arc<Self>, device: &Device) -> Arc<Self> {
        if is_host(device) {
            return self;
        }
        let mut dtypes = Dtypes(device);
        let program = Arc::make_mut(&mut self);
        for step in &mut program.steps {
            match step {
                Step::Operation { .. } | Step::Together(_) => {}
                Step::Free(value) => dtypes.visit_tensor_mut(value),
                Step::Random(random) => dtypes.visit_tensor_mut(&mut random.out),
            }
        }
        for (_, dtype) in &mut program.input_types {
            *dtype = dtype_on(*dtype, device);
        }
        for out in &mut program.outputs {
            dtypes.visit_tensor_mut(out);
        }
        self
    }

    /// Returns the values that a step reads for the last time.
    fn last_uses(&self, range: &Range<u32>) -> &[TensorId] {
        &self.last_uses[range.start as usize..range.end as usize]
    }

    /// Returns a node's operation as a step runs it, with marks of what it may modify in place.
    fn operation(&self, node: NodeId, last_uses: &Range<u32>) -> OperationIr {
        let mut operation = self.nodes[node.index()].operation.clone();
        let last_uses = self.last_uses(last_uses);
        if !last_uses.is_empty() {
            operation.visit_mut(&mut LastUses(last_uses));
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

    /// Returns the bytes of all outputs, counting those that share memory separately.
    pub fn output_bytes(&self) -> u64 {
        let bytes = |out: &TensorIr| (out.shape.num_elements() * out.dtype.size()) as u64;
        self.outputs.iter().map(bytes).sum()
    }

    /// Returns the number of operations, without those that only free a value.
    pub fn len(&self) -> usize {
        let operations = self.steps.iter().map(|step| match step {
            Step::Operation { .. } | Step::Random(_) => 1,
            Step::Together(together) => together.operations.len(),
            Step::Free(_) => 0,
        });
        operations.sum()
    }

    /// Returns whether the program runs no operation.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn tensor_id(value: ValueId) -> TensorId {
    TensorId::new(value.index() as u64)
}

/// Returns whether a node draws random values.
pub fn is_random(node: &Node) -> bool {
    random(&node.operation).is_some()
}

/// Returns the result and the distribution of an operation that draws random values.
pub(crate) fn random(operation: &OperationIr) -> Option<(&TensorIr, Distribution)> {
    match operation {
        OperationIr::Float(_, FloatOperationIr::Random(random))
        | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(random)) => {
            Some((&random.out, random.distribution))
        }
        _ => None,
    }
}
