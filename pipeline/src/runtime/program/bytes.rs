//! The bytes that programs read and hold.

use std::collections::{BTreeMap, HashMap};

use burn::tensor::DType;
use tinderbox_deferred::rows_read;
use tinderbox_fake::{TensorKind, ValueId};

use crate::cut::{Binding, Phase, StagePrograms};
use crate::schedule::{Compute, StageIndex, Task};
use crate::trace::{Given, JointGraph};

/// The bytes that the programs of a micro-batch read and hold.
#[derive(Debug, Default)]
pub(crate) struct CutBytes {
    stages: Vec<StageBytes>,
    /// Bytes of the tensors of a micro-batch that are not carried.
    pub(crate) inputs: u64,
}

/// The bytes of the constants of a stage, which are computed again for each visit, and the bytes of its programs.
type StageBytes = (u64, BTreeMap<Compute, ProgramBytes>);

/// The bytes that a program reads and holds.
#[derive(Debug)]
pub(crate) struct ProgramBytes {
    /// The parameters, by position in the table, with the dtype in which the program reads them.
    pub(crate) parameters: BTreeMap<usize, DType>,
    /// The parameters of which the program reads few rows, by position in the table, with their dtype and the number of rows.
    pub(crate) rows: BTreeMap<usize, (DType, u64)>,
    /// Bytes of the values that it computes for itself.
    pub(crate) transient: u64,
    /// Bytes of each value for other programs, in the order of its outputs.
    pub(crate) made: Vec<u64>,
    /// Bytes of the gradients that it computes.
    pub(crate) gradients: u64,
    /// Bytes of the new values of running states, which stay until the update.
    pub(crate) states: u64,
    /// Bytes of the new values of carried tensors, which stay.
    pub(crate) carried: u64,
}

impl CutBytes {
    /// Counts the bytes. Cost: linear in the graph.
    pub(crate) fn of(joint: &JointGraph, stages: &[StagePrograms]) -> Self {
        let stage = |programs: &StagePrograms| {
            let phases = Compute::ALL.into_iter();
            let phases = phases.filter_map(|compute| Some((compute, programs.phase(compute)?)));
            let programs_bytes = phases.map(|(of, phase)| (of, ProgramBytes::of(joint, phase)));
            (programs.constants.output_bytes(), programs_bytes.collect())
        };
        let inputs = joint.inputs().iter().enumerate();
        // For a carried tensor, the new value is counted.
        let inputs = inputs.filter(|(position, _)| !joint.carried().contains_key(position));
        let inputs = inputs.map(|(_, input)| joint.graph().value(input.value).bytes());
        let (stages, inputs) = (stages.iter().map(stage).collect(), inputs.sum());
        Self { stages, inputs }
    }

    /// The bytes of the program of a task; `None` if the stage has no such program.
    pub(crate) fn program(&self, task: Task) -> Option<&ProgramBytes> {
        let (_, programs) = self.stages.get(task.stage.index())?;
        programs.get(&task.compute)
    }

    /// The bytes of the constants of a stage.
    pub(crate) fn constants(&self, stage: StageIndex) -> u64 {
        let of_stage = self.stages.get(stage.index());
        of_stage.map_or(0, |(constants, _)| *constants)
    }

    /// The bytes of the new values of all carried tensors.
    pub(crate) fn carried(&self) -> u64 {
        let stages = self.stages.iter();
        let programs = stages.flat_map(|(_, programs)| programs.values());
        programs.map(|program| program.carried).sum()
    }
}

impl ProgramBytes {
    fn of(joint: &JointGraph, phase: &Phase) -> Self {
        let bytes = |value: &ValueId| joint.graph().value(*value).bytes();
        let few = few_rows(joint, phase);
        let (mut parameters, mut rows) = (BTreeMap::new(), BTreeMap::new());
        let types = phase.program.input_types().iter();
        let inputs = phase.inputs.iter().zip(phase.program.inputs()).zip(types);
        for ((binding, value), (_, dtype)) in inputs {
            if let Binding::Given(Given::Parameter(position)) = binding {
                if let Some(count) = few.get(value) {
                    rows.insert(*position, (*dtype, *count));
                } else {
                    parameters.insert(*position, *dtype);
                }
            }
        }
        let nodes = phase.nodes.iter().map(|node| joint.graph().node(*node));
        let inside = nodes.map(|node| node.operation().workspace_bytes());
        let gradients = phase.gradients.iter();
        let gradients = gradients.filter_map(|position| joint.gradients()[*position]);
        let (made, updates, carried) = (&phase.outputs, &phase.updates, &phase.carried);
        Self {
            parameters,
            rows,
            transient: phase.transient_bytes(joint) + inside.max().unwrap_or(0),
            made: made.iter().map(|(value, _)| bytes(value)).collect(),
            gradients: gradients.map(|value| bytes(&value)).sum(),
            states: updates.iter().map(|at| bytes(&joint.updates()[at])).sum(),
            carried: carried.iter().map(|at| bytes(&joint.carried()[at])).sum(),
        }
    }
}

/// The parameters of which a program reads only few rows, by index, with the maximum number of rows that it reads.
fn few_rows(joint: &JointGraph, phase: &Phase) -> HashMap<ValueId, u64> {
    /// A read has few rows if it has at most this part of the table.
    const FEW: u64 = 8;
    let inputs = phase.inputs.iter().zip(phase.program.inputs());
    let parameters = inputs.filter_map(|(binding, value)| match binding {
        Binding::Given(Given::Parameter(_)) => Some((*value, 0)),
        _ => None,
    });
    let mut rows: HashMap<ValueId, u64> = parameters.collect();
    for node in phase.nodes.iter().map(|node| joint.graph().node(*node)) {
        let read = rows_read(node);
        for input in node.inputs() {
            match read.filter(|(table, _)| table == input) {
                Some((_, count)) => {
                    rows.entry(*input).and_modify(|rows| *rows += count as u64);
                }
                None => {
                    rows.remove(input);
                }
            }
        }
    }
    for value in phase.program.outputs() {
        rows.remove(&value);
    }
    rows.retain(|table, count| {
        let all = joint.graph().value(*table);
        let most = all.shape.first().map_or(0, |all| *all as u64 / FEW);
        *count > 0 && *count <= most && TensorKind::of(all.dtype) == TensorKind::Float
    });
    rows
}
