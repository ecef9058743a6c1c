//! The memory of rounds whose parameters come and go, beside these.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use burn::tensor::DType;
use burn_ir::{FloatOperationIr, OperationIr, TensorIr};
use tinderbox_deferred::rows_read;
use tinderbox_fake::{NodeId, TensorKind, ValueId};

use super::values::Activation;
use crate::cut::{Binding, Phase, StagePrograms, Takes};
use crate::kept::Kept;
use crate::lists::StepLists;
use crate::schedule::{Action, Compute, Edge, MicroBatchIndex, RankIndex, StageIndex, Task};
use crate::trace::{Given, JointGraph};

/// What the programs of a micro-batch read and hold.
#[derive(Debug, Default)]
pub(crate) struct CutBytes {
    stages: Vec<StageBytes>,
    /// Bytes of the tensors of a micro-batch that are not carried.
    inputs: u64,
}

/// What the programs of one stage read and hold.
#[derive(Debug)]
struct StageBytes {
    /// Bytes of its constants, which are computed again for each visit.
    constants: u64,
    programs: BTreeMap<Compute, ProgramBytes>,
    /// The loss and the named outputs, which stay until the end of the round.
    reported: Vec<ValueId>,
    sends: BTreeMap<Edge, Vec<ValueId>>,
    received: BTreeMap<ValueId, Takes>,
}

/// What a program reads and holds.
#[derive(Debug)]
struct ProgramBytes {
    /// The parameters, by position in the table, with the dtype in which the program reads them.
    parameters: BTreeMap<usize, DType>,
    /// The parameters of which it reads few rows, by position in the table, with their dtype and the number of rows.
    rows: BTreeMap<usize, (DType, u64)>,
    /// The values that other programs computed.
    read: Vec<ValueId>,
    /// Bytes of what it computes for itself.
    transient: u64,
    /// The values for other programs.
    made: Vec<(ValueId, u64, Takes)>,
    /// Bytes of the gradients that it computes.
    gradients: u64,
    /// Bytes of the new values of running states, which stay until the update.
    states: u64,
    /// Bytes of the new values of carried tensors, which stay.
    carried: u64,
}

impl CutBytes {
    /// Cost: linear in the graph.
    pub(in crate::runtime) fn of(joint: &JointGraph, stages: &[StagePrograms]) -> Self {
        let stage = |programs: &StagePrograms| {
            let phases = Compute::ALL.into_iter();
            let phases = phases.filter_map(|compute| Some((compute, programs.phase(compute)?)));
            StageBytes {
                constants: programs.constants.output_bytes(),
                programs: phases
                    .map(|(compute, phase)| (compute, ProgramBytes::of(joint, phase)))
                    .collect(),
                reported: {
                    let named = programs.outputs.iter().map(|(_, value)| value);
                    named.chain(&programs.loss).copied().collect()
                },
                sends: programs.sends.clone(),
                received: programs.received.clone(),
            }
        };
        let inputs = joint.inputs().iter().enumerate();
        // Of carried tensors, the new values are counted.
        let inputs = inputs.filter(|(position, _)| !joint.carried().contains_key(position));
        let inputs = inputs.map(|(_, input)| joint.graph().value(input.value).bytes());
        Self {
            stages: stages.iter().map(stage).collect(),
            inputs: inputs.sum(),
        }
    }

    fn program(&self, task: Task) -> Option<&ProgramBytes> {
        let stage = self.stages.get(task.stage.index())?;
        stage.programs.get(&task.compute)
    }

    fn carried(&self) -> u64 {
        let programs = self.stages.iter().flat_map(|stage| stage.programs.values());
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
        let read = phase.inputs.iter().filter_map(|binding| match binding {
            Binding::Value(value) => Some(*value),
            _ => None,
        });
        let inside = phase.nodes.iter().map(|node| inside_bytes(joint, *node));
        let gradients = phase.gradients.iter();
        let gradients = gradients.filter_map(|position| joint.gradients()[*position]);
        Self {
            parameters,
            rows,
            read: read.collect(),
            transient: phase.transient_bytes(joint) + inside.max().unwrap_or(0),
            made: phase
                .outputs
                .iter()
                .map(|(value, takes)| (*value, bytes(value), *takes))
                .collect(),
            gradients: gradients.map(|value| bytes(&value)).sum(),
            states: phase
                .updates
                .iter()
                .map(|position| bytes(&joint.updates()[position]))
                .sum(),
            carried: phase
                .carried
                .iter()
                .map(|input| bytes(&joint.carried()[input]))
                .sum(),
        }
    }
}

/// The parameters of which a program reads some rows by index and nothing else, with the most rows that it reads, if these are few.
fn few_rows(joint: &JointGraph, phase: &Phase) -> HashMap<ValueId, u64> {
    /// The part of a table: reads of rows are small ones.
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
    for value in phase.leaving(joint) {
        rows.remove(&value);
    }
    rows.retain(|table, count| {
        let all = joint.graph().value(*table);
        let most = all.shape.first().map_or(0, |all| *all as u64 / FEW);
        *count > 0 && *count <= most && TensorKind::of(all.dtype) == TensorKind::Float
    });
    rows
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

/// A part of a round in which one stage runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) stage: StageIndex,
    /// The parameters that programs read, with the dtype in which they read them.
    pub(super) parameters: BTreeMap<usize, DType>,
    /// The parameters of which they read few rows, with the dtype in which they read them and the most rows.
    pub(super) rows: BTreeMap<usize, (DType, u64)>,
    /// The activations that it makes or reads and that are needed after other visits, with their bytes, if they may be written
    /// meanwhile.
    pub(super) activations: BTreeMap<Activation, u64>,
    /// Whether the parameters of the stage are updated.
    pub(super) is_update: bool,
    /// The maximum bytes of everything else meanwhile.
    pub(super) other_bytes: u64,
}

impl Visit {
    const fn new(stage: StageIndex) -> Self {
        Self {
            stage,
            parameters: BTreeMap::new(),
            rows: BTreeMap::new(),
            activations: BTreeMap::new(),
            is_update: false,
            other_bytes: 0,
        }
    }
}

/// The visits of a round: the longest runs of actions of one stage, in the list of the only rank. Activations that are not
/// needed all the time may be written, or they stay.
///
/// Values that share memory are counted separately, unless stages share them, so the bytes are an upper bound, as far as the memory
/// of operations is known.
pub(super) fn visits(
    lists: &StepLists,
    micro_batches: &[&CutBytes],
    may_write: bool,
) -> Vec<Visit> {
    let mut round = RoundBytes::new(lists, micro_batches, BTreeSet::new());
    let visits = round.visits();
    if !may_write {
        return visits;
    }
    let written = round.idle();
    match written.is_empty() {
        true => visits,
        false => RoundBytes::new(lists, micro_batches, written).visits(),
    }
}

/// The bytes that are in memory while the actions of a round run.
struct RoundBytes<'a> {
    lists: &'a StepLists,
    micro_batches: &'a [&'a CutBytes],
    /// Of the constants of the stage that runs.
    constants: u64,
    /// Of what stays until the end.
    stays: u64,
    kept: Kept<u64>,
    /// How many stages keep a value of a micro-batch: they share its memory.
    holders: HashMap<(MicroBatchIndex, ValueId), usize>,
    kept_bytes: u64,
    /// The visits that need each activation.
    needed: BTreeMap<Activation, BTreeSet<usize>>,
    /// The number of visits that have ended.
    ended: usize,
    /// The activations that are values of their visits.
    written: BTreeSet<Activation>,
    /// Of gradients, and of new running states, by stage, until its update.
    changes: BTreeMap<StageIndex, (u64, u64)>,
}

impl<'a> RoundBytes<'a> {
    fn new(
        lists: &'a StepLists,
        micro_batches: &'a [&'a CutBytes],
        written: BTreeSet<Activation>,
    ) -> Self {
        let each = micro_batches
            .iter()
            .map(|micro| micro.inputs + micro.carried());
        Self {
            constants: 0,
            stays: each.sum(),
            lists,
            micro_batches,
            kept: Kept::default(),
            holders: HashMap::new(),
            kept_bytes: 0,
            needed: BTreeMap::new(),
            ended: 0,
            written,
            changes: BTreeMap::new(),
        }
    }

    fn visits(&mut self) -> Vec<Visit> {
        let mut visits: Vec<Visit> = Vec::new();
        for action in self.lists.schedule.actions(RankIndex::new(0)) {
            let stage = action.stage();
            if visits.last().is_none_or(|visit| visit.stage != stage) {
                self.ended = visits.len();
                visits.push(Visit::new(stage));
                self.constants = self.constants_of(stage);
            }
            let visit = visits.last_mut().expect("there is a visit now");
            for task in action.tasks() {
                self.run(*task, visit);
            }
            if let Action::Update { .. } = action {
                visit.is_update = true;
                self.update(stage, visit);
            }
        }
        for visit in &mut visits {
            let whole = &visit.parameters;
            visit
                .rows
                .retain(|position, _| !whole.contains_key(position));
        }
        visits
    }

    /// Bytes of the constants of a stage, for each kind of micro-batches.
    fn constants_of(&self, stage: StageIndex) -> u64 {
        let mut counted: Vec<*const CutBytes> = Vec::new();
        let mut bytes = 0;
        for micro in self.micro_batches {
            let same = std::ptr::from_ref(*micro);
            if !counted.contains(&same) {
                counted.push(same);
                let of_stage = micro.stages.get(stage.index());
                bytes += of_stage.map_or(0, |of_stage| of_stage.constants);
            }
        }
        bytes
    }

    /// The activations that are not needed in one of the visits between those that need them.
    fn idle(&self) -> BTreeSet<Activation> {
        let idle = self.needed.iter().filter(|(_, visits)| {
            let between = visits.iter().zip(visits.iter().skip(1));
            between.into_iter().any(|(visit, next)| next - visit > 1)
        });
        idle.map(|(activation, _)| *activation).collect()
    }

    fn held(&self) -> u64 {
        let changes = self.changes.values();
        let changes = changes.map(|(gradients, states)| gradients + states);
        self.constants + self.stays + self.kept_bytes + changes.sum::<u64>()
    }

    fn run(&mut self, task: Task, visit: &mut Visit) {
        let (stage, k) = (task.stage, task.micro_batch);
        let micro = self.micro_batches[k.index()];
        let Some(program) = micro.program(task) else {
            return;
        };
        visit.parameters.extend(&program.parameters);
        for (position, (dtype, count)) in &program.rows {
            let (_, most) = visit.rows.entry(*position).or_insert((*dtype, 0));
            *most = (*most).max(*count);
        }
        let made = program.made.iter();
        let made = made.filter(|(value, ..)| !self.written.contains(&(k, *value)));
        let made: u64 = made.map(|(_, bytes, _)| bytes).sum();
        // A carried value that is not written in place is copied.
        let leaving = made + program.gradients + program.states + program.carried;
        let during = self.held() + program.transient + leaving;
        visit.other_bytes = visit.other_bytes.max(during);
        for value in &program.read {
            let bytes = self.take(stage, k, *value);
            self.need(visit, (k, *value), bytes);
        }
        let is_split = self.lists.is_split(stage, k.index());
        for (value, bytes, takes) in &program.made {
            self.put(stage, k, *value, *bytes, takes.of(is_split));
            self.need(visit, (k, *value), *bytes);
        }
        let (gradients, states) = self.changes.entry(stage).or_default();
        // Sums are in the dtype of the parameters, which may be the wider one.
        *gradients = (*gradients).max(2 * program.gradients);
        // The forward of each micro-batch replaces them.
        *states = (*states).max(program.states);
        let of_stage = &micro.stages[stage.index()];
        if task.compute == Compute::Forward {
            for value in &of_stage.reported {
                // It is kept by the report from now on.
                self.stays += self.take(stage, k, *value);
            }
        }
        for (edge, values) in &of_stage.sends {
            if !edge.from.is_run_by(&task) {
                continue;
            }
            let to = edge.to.stage;
            let is_split = self.lists.is_split(to, k.index());
            for value in values {
                let bytes = self.take(stage, k, *value);
                self.need(visit, (k, *value), bytes);
                let received = micro.stages[to.index()].received.get(value);
                let uses = received.map_or(0, |takes| takes.of(is_split));
                self.put(to, k, *value, bytes, uses);
            }
        }
    }

    /// The parameters of a stage get new values, one after the other.
    fn update(&mut self, stage: StageIndex, visit: &mut Visit) {
        visit.other_bytes = visit.other_bytes.max(self.held());
        self.changes.remove(&stage);
    }

    /// A visit has an activation.
    fn need(&mut self, visit: &mut Visit, activation: Activation, bytes: u64) {
        self.needed
            .entry(activation)
            .or_default()
            .insert(self.ended);
        if self.written.contains(&activation) {
            visit.activations.insert(activation, bytes);
        }
    }

    fn put(
        &mut self,
        stage: StageIndex,
        k: MicroBatchIndex,
        value: ValueId,
        bytes: u64,
        uses: usize,
    ) {
        if uses > 0 && self.kept.put((stage, k), value, bytes, uses) {
            let holders = self.holders.entry((k, value)).or_default();
            *holders += 1;
            if *holders == 1 && !self.written.contains(&(k, value)) {
                self.kept_bytes += bytes;
            }
        }
    }

    /// Uses a value once; returns its bytes.
    fn take(&mut self, stage: StageIndex, k: MicroBatchIndex, value: ValueId) -> u64 {
        let Some((bytes, is_last)) = self.kept.take((stage, k), value) else {
            return 0;
        };
        if is_last {
            let holders = self.holders.entry((k, value)).or_default();
            *holders -= 1;
            if *holders == 0 && !self.written.contains(&(k, value)) {
                self.kept_bytes -= bytes;
            }
        }
        bytes
    }
}
