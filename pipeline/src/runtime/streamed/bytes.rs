//! The memory of a forward whose parameters come and go, beside these.

use std::collections::BTreeMap;

use burn::tensor::DType;
use burn_ir::{FloatOperationIr, OperationIr, TensorIr};
use tinderbox_fake::{NodeId, ValueId};

use crate::cut::{Binding, StagePrograms, Takes};
use crate::kept::Kept;
use crate::schedule::{Compute, Edge, MicroBatchIndex, StageIndex};
use crate::trace::{Given, JointGraph};

/// What the forward of each stage reads and holds.
#[derive(Debug, Default)]
pub(crate) struct ForwardBytes {
    stages: Vec<StageBytes>,
    /// Bytes of the constants of all stages, which stay.
    constants: u64,
    /// Bytes of the tensors of a micro-batch that are not carried.
    inputs: u64,
}

/// What the forward of one stage reads and holds.
#[derive(Debug)]
struct StageBytes {
    /// The parameters, by position in the table, with the dtype in which the program reads them.
    parameters: BTreeMap<usize, DType>,
    /// The values that other programs computed.
    read: Vec<ValueId>,
    /// Bytes of what it computes for itself.
    transient: u64,
    /// The values for other programs.
    made: Vec<(ValueId, u64, Takes)>,
    /// Bytes of the loss and the named outputs, which stay until the end of the pass.
    reported: u64,
    /// Bytes of the new values of carried tensors, which stay.
    carried: u64,
    sends: BTreeMap<Edge, Vec<ValueId>>,
    received: BTreeMap<ValueId, Takes>,
}

impl ForwardBytes {
    /// Cost: linear in the graph.
    pub(in crate::runtime) fn of(joint: &JointGraph, stages: &[StagePrograms]) -> Self {
        let bytes = |value: &ValueId| joint.graph().value(*value).bytes();
        let forward = stages.iter().filter_map(|programs| {
            let phase = programs.phase(Compute::Forward)?;
            let inputs = phase.inputs.iter().zip(phase.program.input_types());
            let parameters = inputs.filter_map(|(binding, (_, dtype))| match binding {
                Binding::Given(Given::Parameter(position)) => Some((*position, *dtype)),
                _ => None,
            });
            let read = phase.inputs.iter().filter_map(|binding| match binding {
                Binding::Value(value) => Some(*value),
                _ => None,
            });
            let named = programs.outputs.iter().map(|(_, value)| value);
            let reported = named.chain(&programs.loss);
            let inside = phase.nodes.iter().map(|node| inside_bytes(joint, *node));
            Some(StageBytes {
                parameters: parameters.collect(),
                read: read.collect(),
                transient: phase.transient_bytes(joint) + inside.max().unwrap_or(0),
                made: phase
                    .outputs
                    .iter()
                    .map(|(value, takes)| (*value, bytes(value), *takes))
                    .collect(),
                reported: reported.map(bytes).sum(),
                carried: phase
                    .carried
                    .iter()
                    .map(|input| bytes(&joint.carried()[input]))
                    .sum(),
                sends: programs.sends.clone(),
                received: programs.received.clone(),
            })
        });
        let constants = stages
            .iter()
            .map(|programs| programs.constants.output_bytes());
        let inputs = joint.inputs().iter().enumerate();
        // Of carried tensors, the new values are counted.
        let inputs = inputs.filter(|(position, _)| !joint.carried().contains_key(position));
        let inputs = inputs.map(|(_, input)| &input.value);
        Self {
            stages: forward.collect(),
            constants: constants.sum(),
            inputs: inputs.map(bytes).sum(),
        }
    }
}

/// What operations on the CPU allocate beside their outputs, as far as known: a product of 16-bit numbers converts its operands
/// and its result.
fn inside_bytes(joint: &JointGraph, node: NodeId) -> u64 {
    let converted = |tensors: &[&TensorIr]| -> u64 {
        let halves = tensors
            .iter()
            .filter(|tensor| matches!(tensor.dtype, DType::F16 | DType::BF16));
        halves
            .map(|tensor| tensor.shape.num_elements() as u64 * size_of::<f32>() as u64)
            .sum()
    };
    match &joint.graph().node(node).operation {
        OperationIr::Float(_, FloatOperationIr::Matmul(product)) => {
            converted(&[&product.lhs, &product.rhs, &product.out])
        }
        _ => 0,
    }
}

/// One visit of a pass: the forward of a stage, for all micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForwardVisit {
    pub(super) stage: StageIndex,
    /// The parameters that it reads, with the dtype in which it reads them.
    pub(super) parameters: BTreeMap<usize, DType>,
    /// The maximum bytes of everything else meanwhile.
    pub(super) other_bytes: u64,
}

/// The visits of a pass over micro-batches: each stage runs all of them before the next stage does.
///
/// Values that share memory are counted separately, so the bytes are an upper bound, as far as the memory of operations is known.
pub(super) fn forward_visits(micro_batches: &[&ForwardBytes]) -> Vec<ForwardVisit> {
    let constants = micro_batches.iter().map(|micro| micro.constants).max();
    let inputs: u64 = micro_batches.iter().map(|micro| micro.inputs).sum();
    let carried = micro_batches.iter().flat_map(|micro| &micro.stages);
    let carried: u64 = carried.map(|stage| stage.carried).sum();
    let mut stays = constants.unwrap_or(0) + inputs + carried;
    let mut kept: Kept<u64> = Kept::default();
    let mut kept_bytes = 0_u64;
    let stages = micro_batches.iter().map(|micro| micro.stages.len());
    let visits = (0..stages.max().unwrap_or(0)).map(|index| {
        let mut visit = ForwardVisit {
            stage: StageIndex::new(index),
            parameters: BTreeMap::new(),
            other_bytes: 0,
        };
        for (k, micro) in micro_batches.iter().enumerate() {
            let Some(stage) = micro.stages.get(index) else {
                continue;
            };
            visit.parameters.extend(&stage.parameters);
            let made: u64 = stage.made.iter().map(|(_, bytes, _)| bytes).sum();
            // A carried value that is not written in place is copied.
            let leaving = stage.reported.max(made) + stage.carried;
            let during = stays + kept_bytes + stage.transient + leaving;
            visit.other_bytes = visit.other_bytes.max(during);
            // What was reported stays too.
            stays += stage.reported;
            let place = (StageIndex::new(index), MicroBatchIndex::new(k));
            for value in &stage.read {
                if let Some((bytes, true)) = kept.take(place, *value) {
                    kept_bytes -= bytes;
                }
            }
            let bytes: BTreeMap<ValueId, u64> = stage
                .made
                .iter()
                .map(|(value, bytes, _)| (*value, *bytes))
                .collect();
            for (edge, values) in &stage.sends {
                let to = edge.to.stage;
                for value in values {
                    let received = micro.stages[to.index()].received.get(value);
                    let uses = received.map_or(0, |takes| takes.of(false));
                    let bytes = bytes.get(value).copied().unwrap_or(0);
                    if uses > 0 && kept.put((to, place.1), *value, bytes, uses) {
                        kept_bytes += bytes;
                    }
                }
            }
        }
        visit
    });
    visits.collect()
}
