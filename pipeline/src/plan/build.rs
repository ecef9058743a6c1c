//! Creates a plan from a trace and a partition of its work.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tinderbox_deferred::{Parameter, ParameterPath, ParameterTable};
use tinderbox_fake::{ValueId, dtype_name};
use tinderbox_planner::{
    Boundary, Choice, Machine, PLAN_VERSION, Partition, PartitionCosts, PlanFile, PlanParameter,
    PlanStage, Rates, StageBytes, Step, TieGroup, Work, lower_bound, predict_costs,
};
use twox_hash::XxHash3_128;

use super::Plan;
use super::{text, values};
use crate::PlanError;
use crate::batch::Batch;
use crate::cost::product_flops;
use crate::cut::{Cutting, Holding, Layout, Operations, Phase, Sharing, StagePrograms};
use crate::partition::Chain;
use crate::schedule::{Compute, Costs, Dependencies, Edge, StageCosts, StageIndex, Tie};
use crate::trace::{JointGraph, Roles, Trace};
use crate::work::{
    OperationGroups, OperationTimes, cast_bytes_by_path, parameter_positions, work_of,
};

/// The parameters of a model in the form of the plan file.
pub(super) fn plan_parameters(table: &ParameterTable) -> Vec<PlanParameter> {
    let parameters = table.iter().map(|parameter| PlanParameter {
        path: parameter.path.clone(),
        shape: parameter.shape.iter().map(|size| *size as usize).collect(),
        dtype: dtype_name(parameter.dtype).to_owned(),
    });
    parameters.collect()
}

/// A digest of the model's parameters: path, shape and dtype of each, in order.
pub(super) fn model_digest(table: &ParameterTable) -> String {
    let mut text = String::new();
    for parameter in table {
        text.push_str(&format!(
            "{}\n{:?}\n{:?}\n",
            parameter.path, parameter.shape, parameter.dtype
        ));
    }
    format!("{:032x}", XxHash3_128::oneshot(text.as_bytes()))
}

/// A digest of a program without its initialization: operations, shapes and operands.
pub(super) fn graph_digest(joint: &JointGraph) -> String {
    let graph = joint.graph();
    let mut text = String::new();
    for id in graph.node_ids().filter(|id| !joint.is_initialization(*id)) {
        let node = graph.node(id);
        text.push_str(&node.name());
        let operands = node.inputs().iter().chain(node.outputs());
        for value in operands {
            let known = graph.value(*value);
            text.push_str(&format!(" {value} {:?} {:?}", known.shape, known.dtype));
        }
        text.push('\n');
    }
    format!("{:032x}", XxHash3_128::oneshot(text.as_bytes()))
}

/// A trace, prepared for planning.
pub(crate) struct Planning<'a> {
    pub(crate) joint: Arc<JointGraph>,
    roles: Roles,
    pub(crate) chain: Chain,
    groups: OperationGroups,
    pub(crate) table: &'a ParameterTable,
    types: BTreeMap<&'a str, &'a str>,
    by_path: BTreeMap<&'a ParameterPath, &'a Parameter>,
    /// Bytes of copies in the dtype of the forward.
    cast_bytes: BTreeMap<ParameterPath, u64>,
    times: OperationTimes,
    work: OnceCell<Work>,
}

/// A trace that was cut by a partition.
pub(crate) struct Divided<'a> {
    partition: &'a Partition,
    layout: Layout,
    cutting: Cutting,
    pub(crate) programs: Vec<StagePrograms>,
}

impl<'a> Planning<'a> {
    /// Prepares a trace; times are estimated from shapes unless they are given.
    pub(crate) fn new<B: Batch>(
        trace: &'a Trace<B>,
        rates: &Rates,
        times: Option<OperationTimes>,
    ) -> Result<Self, PlanError> {
        let table = trace.parameters();
        let joint = trace
            .example_program()
            .map_err(|source| PlanError::Trace { source })?;
        let roles = Roles::of(&joint);
        let chain = Chain::new(&joint, &roles, table);
        let groups = OperationGroups::new(&joint, &chain, table);
        let times = times.unwrap_or_else(|| OperationTimes::analytic(&joint, rates));
        let types = table.iter();
        let types = types.map(|known| (known.path.module(), known.modules.as_str()));
        let cast_bytes = cast_bytes_by_path(&joint, table);
        Ok(Self {
            joint,
            roles,
            chain,
            groups,
            table,
            types: types.collect(),
            by_path: table.iter().map(|known| (&known.path, known)).collect(),
            cast_bytes,
            times,
            work: OnceCell::new(),
        })
    }

    /// The work that partitioners divide, computed on first use.
    pub(super) fn work(&self) -> Result<&Work, PlanError> {
        if let Some(work) = self.work.get() {
            return Ok(work);
        }
        let (joint, chain, table) = (&self.joint, &self.chain, self.table);
        let work = work_of(joint, &self.roles, chain, &self.groups, table, &self.times)?;
        Ok(self.work.get_or_init(|| work))
    }

    /// Converts a partition of the work's blocks to one of the forward's operations.
    pub(crate) fn of_operations(&self, partition: Partition) -> Partition {
        Partition {
            stage_of: self.groups.spread(&partition.stage_of),
            ..partition
        }
    }

    /// Cuts the program by a partition of the forward's operations.
    pub(crate) fn divide<'p>(&self, partition: &'p Partition) -> Result<Divided<'p>, PlanError> {
        let (joint, table) = (&*self.joint, self.table);
        let layout = self.layout(partition)?;
        let cutting = Cutting::new(joint, &self.roles, &self.chain, table, &layout)?;
        let recompute = partition.recompute.iter().copied();
        let programs = StagePrograms::of_stages(joint, &self.roles, &cutting, recompute)?;
        Ok(Divided {
            partition,
            programs,
            layout,
            cutting,
        })
    }

    /// A digest of the program.
    pub(crate) fn graph_digest(&self) -> String {
        graph_digest(&self.joint)
    }

    /// The types of the modules along a module's path, that of the model first, joined by dots; empty
    /// if the module has no parameters of its own.
    pub(crate) fn types_of(&self, module: &str) -> &'a str {
        self.types.get(module).copied().unwrap_or("")
    }

    /// The given or estimated times of operations.
    pub(crate) const fn times(&self) -> &OperationTimes {
        &self.times
    }

    /// The plan of a partition, with the costs of its own programs.
    pub(super) fn plan(
        &self,
        machine: &Machine,
        step: &Step,
        partition: &Partition,
        choice: Choice,
        with_programs: bool,
    ) -> Result<Plan, PlanError> {
        let (joint, table) = (&*self.joint, self.table);
        let divided = self.divide(partition)?;
        let ties = self.ties(&divided.cutting, &divided.layout);
        let costs = self.costs(machine, step, &divided, &ties);
        let stage_costs = costs.costs.stages.clone();
        let bound = lower_bound(self.work()?, machine, step);
        let predicted = predict_costs(machine, step, &partition.stage_to_rank, costs, bound)?;
        let stages = stage_costs.into_iter().enumerate();
        let stages = stages.map(|(index, costs)| self.stage(index, &divided, costs));
        let mut stages: Vec<PlanStage> = stages.collect();
        values::add(&mut stages, joint, &self.chain, &divided.cutting);
        if with_programs {
            text::add(&mut stages, joint, &self.chain, table, &divided.programs);
        }
        let named = predicted.schedule.name == step.schedule.name();
        let file = PlanFile {
            version: PLAN_VERSION,
            model: model_digest(table),
            graph: graph_digest(joint),
            structure: self.chain.structure().to_owned(),
            program: joint.key().to_string(),
            choice,
            machine: machine.clone(),
            step: step.clone(),
            lists: (!named).then(|| predicted.schedule.to_string()),
            prediction: predicted.prediction,
            parameters: plan_parameters(table),
            forward: text::forward(joint, &self.chain),
            ties,
            boundaries: self.boundaries(&divided.cutting),
            stages,
        };
        file.check_ranks()?;
        Ok(Plan { file })
    }

    /// The lowest stage that reads each parameter: of parallel branches, the one that is recorded first
    /// may be on a later stage.
    fn lowest_readers(&self, partition: &Partition) -> BTreeMap<&'a ParameterPath, usize> {
        let read = self.table.iter().zip(self.joint.parameters());
        let read = read.filter(|(parameter, _)| parameter.clone_of.is_none());
        let path_of: BTreeMap<ValueId, &ParameterPath> = read
            .map(|(parameter, value)| (*value, &parameter.path))
            .collect();
        let mut lowest = BTreeMap::new();
        for (id, stage) in self.chain.nodes().iter().zip(&partition.stage_of) {
            for path in self
                .joint
                .graph()
                .node(*id)
                .inputs()
                .iter()
                .filter_map(|v| path_of.get(v))
            {
                let known = lowest.entry(*path).or_insert(*stage);
                *known = (*known).min(*stage);
            }
        }
        lowest
    }

    /// The owner of each parameter: the first stage that reads it.
    fn layout(&self, partition: &Partition) -> Result<Layout, PlanError> {
        let mut holdings = vec![
            Holding {
                owned: Vec::new(),
                replicas: Vec::new(),
            };
            partition.stages()
        ];
        let positions = parameter_positions(&self.chain, self.table);
        let mut owned: Vec<(usize, &ParameterPath)> = self
            .table
            .iter()
            .zip(positions)
            .filter(|(parameter, _)| parameter.clone_of.is_none())
            .map(|(parameter, position)| (position, &parameter.path))
            .collect();
        // In the order of the forward; parameters of one operation in the order of the table.
        owned.sort_by_key(|(position, _)| *position);
        let lowest = self.lowest_readers(partition);
        for (position, path) in owned {
            let stage = partition.stage_of.get(position).copied().unwrap_or(0);
            let stage = lowest.get(path).copied().unwrap_or(stage);
            holdings[stage].owned.push(path.clone());
        }
        let layout = Layout::new(self.table, holdings, Sharing::Open)?;
        Ok(layout.with_operations(Operations {
            structure: self.chain.structure().to_owned(),
            stages: partition.stage_of.clone(),
        }))
    }

    fn ties(&self, cutting: &Cutting, layout: &Layout) -> Vec<TieGroup> {
        let mut copies: BTreeMap<ParameterPath, Vec<StageIndex>> = BTreeMap::new();
        for stage in (0..layout.stages()).map(StageIndex::new) {
            for path in cutting.replicas(stage) {
                copies.entry(path).or_default().push(stage);
            }
        }
        let parameters = self.table.iter().enumerate();
        let groups = parameters.filter_map(|(index, parameter)| {
            let copies = copies.remove(&parameter.path)?;
            let all = self.table.iter();
            let clones = all.filter(|other| other.clone_of.as_ref() == Some(&parameter.path));
            Some(TieGroup {
                path: parameter.path.clone(),
                clones: clones.map(|other| other.path.clone()).collect(),
                owner: layout.owner(index),
                copies,
            })
        });
        groups.collect()
    }

    fn costs(
        &self,
        machine: &Machine,
        step: &Step,
        divided: &Divided<'_>,
        ties: &[TieGroup],
    ) -> PartitionCosts {
        let Divided {
            partition,
            layout,
            cutting,
            programs,
        } = divided;
        let mut bytes = Vec::new();
        let mut stages = Vec::new();
        for (index, programs) in programs.iter().enumerate() {
            let stage = StageIndex::new(index);
            let rank = machine.rank(partition.stage_to_rank[index]);
            let time = |compute: Compute| {
                let phase = programs.phase(compute);
                rank.time(phase.map_or(0, |phase| self.times.of_all(&phase.nodes, compute)))
            };
            let held = self.held_bytes(step, &cutting.replicas(stage), layout.owned(stage));
            let phases = [
                Compute::Forward,
                Compute::Backward,
                Compute::InputGradient,
                Compute::WeightGradient,
            ];
            let phases = phases
                .into_iter()
                .filter_map(|compute| programs.phase(compute));
            let transient = phases
                .map(|phase| transient_bytes(&self.joint, phase))
                .max();
            let held = StageBytes {
                transient: transient.unwrap_or(0),
                ..held
            };
            let backward = programs.backward.as_ref();
            stages.push(StageCosts {
                forward: time(Compute::Forward),
                backward: time(Compute::Backward),
                input_gradient: time(Compute::InputGradient),
                weight_gradient: time(Compute::WeightGradient),
                update: rank.time(self.update_ns(machine, step, layout.owned(stage))),
                activation_bytes: backward.map_or(0, |b| b.activation_bytes),
                weight_gradient_bytes: backward.map_or(0, |b| b.weight_gradient_bytes),
                resident_bytes: held.resident(),
                transient_bytes: held.transient,
            });
            bytes.push(held);
        }
        let mut costs = Costs::of_stages(stages);
        costs.link = machine.link;
        costs.overhead = machine.action_ns;
        let sent = programs.iter().flat_map(|programs| &programs.sent_bytes);
        costs.message_bytes = sent.map(|(edge, bytes)| (*edge, *bytes)).collect();
        let edges: Vec<Edge> = costs.message_bytes.keys().copied().collect();
        let ties = ties.iter().flat_map(|tie| {
            let owner = tie.owner;
            let copies = tie.copies.iter();
            copies.map(move |replica| Tie {
                owner,
                replica: *replica,
            })
        });
        PartitionCosts {
            dependencies: Dependencies::new(programs.len(), edges, ties),
            costs,
            bytes,
        }
    }

    /// The time of a stage's optimizer.
    fn update_ns(&self, machine: &Machine, step: &Step, owned: &[ParameterPath]) -> u64 {
        let owned = owned.iter().filter_map(|path| self.by_path.get(path));
        let trained = owned.filter(|parameter| parameter.trainable);
        let bytes = trained.map(|parameter| parameter.bytes).sum();
        machine.rates.update_ns(bytes, step.optimizer_states)
    }

    /// The bytes that a stage holds all the time for its parameters.
    fn held_bytes(
        &self,
        step: &Step,
        replicas: &[ParameterPath],
        owned: &[ParameterPath],
    ) -> StageBytes {
        let mut held = StageBytes::default();
        for (paths, is_owner) in [(owned, true), (replicas, false)] {
            for path in paths {
                let Some(parameter) = self.by_path.get(path) else {
                    continue;
                };
                held.parameters +=
                    parameter.bytes + self.cast_bytes.get(path).copied().unwrap_or(0);
                // The parts of a shared gradient are summed on the owner, micro-batch by micro-batch.
                if parameter.trainable && is_owner {
                    held.gradients += parameter.bytes;
                    held.optimizer += parameter.bytes.saturating_mul(step.optimizer_states);
                }
            }
        }
        held
    }

    fn stage(&self, index: usize, divided: &Divided<'_>, costs: StageCosts) -> PlanStage {
        let (partition, programs) = (divided.partition, &divided.programs[index]);
        let stage = StageIndex::new(index);
        let bytes_of = |paths: &[ParameterPath]| -> u64 {
            let held = paths.iter().filter_map(|path| self.by_path.get(path));
            held.map(|known| known.bytes).sum()
        };
        let owned = divided.layout.owned(stage).to_vec();
        let replicas = divided.cutting.replicas(stage);
        let mut modules: Vec<String> = Vec::new();
        let mut seen = BTreeSet::new();
        for path in &owned {
            let module = path.module();
            if seen.insert(module.to_owned()) {
                modules.push(module.to_owned());
            }
        }
        let flops = |phase: Option<&Phase>| -> u64 {
            let nodes = phase.map(|phase| phase.nodes.iter());
            let nodes = nodes.into_iter().flatten();
            let operations = nodes.map(|id| &self.joint.graph().node(*id).operation);
            operations.filter_map(product_flops).sum()
        };
        PlanStage {
            stage,
            rank: partition.stage_to_rank[index],
            modules,
            parameter_bytes: bytes_of(&owned),
            replica_bytes: bytes_of(&replicas),
            parameters: owned,
            replicas,
            forward_flops: flops(Some(&programs.forward)),
            backward_flops: flops(programs.phase(Compute::Backward)),
            boundary_bytes: programs.sent_bytes.values().sum(),
            recompute: partition.recompute[index],
            operations: ranges(&partition.stage_of, index),
            costs,
            live_in: Vec::new(),
            live_out: Vec::new(),
            bypassing: Vec::new(),
            programs: Vec::new(),
        }
    }

    fn boundaries(&self, cutting: &Cutting) -> Vec<Boundary> {
        let bytes = |value: &ValueId| self.joint.graph().value(*value).bytes();
        let edges = cutting.edges().iter();
        edges
            .map(|(edge, values)| Boundary {
                edge: *edge,
                values: values.len(),
                bytes: values.iter().map(bytes).sum(),
            })
            .collect()
    }
}

/// The positions of a stage as ranges.
fn ranges(stage_of: &[usize], stage: usize) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (position, _) in stage_of.iter().enumerate().filter(|(_, of)| **of == stage) {
        match ranges.last_mut() {
            Some((_, end)) if *end == position => *end += 1,
            _ => ranges.push((position, position + 1)),
        }
    }
    ranges
}

/// The maximum bytes that a program holds at a time of values that it computes and does not output.
pub(crate) fn transient_bytes(joint: &JointGraph, phase: &Phase) -> u64 {
    let graph = joint.graph();
    let mut last_use: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (index, id) in phase.nodes.iter().enumerate() {
        let node = graph.node(*id);
        // Values without readers are freed after the operation that computes them.
        for value in node.outputs().iter().chain(node.inputs()) {
            last_use.insert(*value, index);
        }
    }
    let gradients = phase.gradients.iter();
    let gradients = gradients.filter_map(|position| joint.gradients()[*position]);
    let kept = phase
        .outputs
        .iter()
        .map(|(value, _)| *value)
        .chain(gradients);
    for value in kept {
        last_use.remove(&value);
    }
    let (mut held, mut most) = (0_u64, 0);
    let mut freed: BTreeMap<usize, u64> = BTreeMap::new();
    for (index, id) in phase.nodes.iter().enumerate() {
        for value in graph.node(*id).outputs() {
            if let Some(last) = last_use.get(value) {
                let bytes = graph.value(*value).bytes();
                held += bytes;
                *freed.entry(*last).or_default() += bytes;
            }
        }
        most = most.max(held);
        held -= freed.remove(&index).unwrap_or(0);
    }
    most
}
