//! Creates a plan from a trace and a partition of its work.

use std::collections::HashSet;
use std::sync::Arc;

use tinderbox_deferred::{Parameter, ParameterTable};
use tinderbox_fake::{Operation, dtype_name, hex_digest};
use tinderbox_planner::{
    Boundary, Choice, Machine, PLAN_VERSION, Partition, PartitionCosts, Plan, PlanParameter,
    PlanStage, Rates, StageBytes, Step, TieGroup, Work, lower_bound, predict_costs,
};

use super::text;
use crate::cut::{Cutting, Layout, StagePrograms};
use crate::schedule::{Compute, Dependencies, StageCosts, StageIndex};
use crate::work::{OperationGroups, parameter_positions, work_of};
use crate::{Batch, JointGraph, OperationTimes, PlanError, Trace};

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
fn model_digest(table: &ParameterTable) -> String {
    let texts = table.iter().map(|one| {
        let (path, shape, dtype) = (&one.path, &one.shape, one.dtype);
        format!("{path}\n{shape:?}\n{dtype:?}\n")
    });
    hex_digest(texts.collect::<String>().as_bytes())
}

/// A digest of a program without its initialization: operations, shapes and operands.
pub fn graph_digest(joint: &JointGraph) -> String {
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
    hex_digest(text.as_bytes())
}

/// A trace, prepared for planning.
#[derive(Debug)]
pub struct Planning {
    pub joint: Arc<JointGraph>,
    /// The samples of its micro-batch, if it has any.
    samples: Option<usize>,
    groups: OperationGroups,
    /// The given or estimated times of operations.
    pub times: OperationTimes,
    /// The work that partitioners divide.
    pub(super) work: Work,
}

/// A trace that was cut by a partition.
#[derive(Debug)]
pub struct Divided {
    layout: Layout,
    pub programs: Vec<StagePrograms>,
}

impl Planning {
    /// Prepares the program of the micro-batch of a trace, with another number of samples if one is given. Times are
    /// estimated from shapes, or are the times of the traced micro-batch, scaled to the number of samples.
    pub fn new<B: Batch>(
        trace: &Trace<B>,
        samples: Option<usize>,
        rates: &Rates,
        times: Option<&OperationTimes>,
    ) -> Result<Self, PlanError> {
        let traced = trace.example_program()?;
        let joint = match samples.filter(|samples| Some(*samples) != trace.micro_batch_samples()) {
            Some(samples) => trace.program_of_samples(samples)?,
            None => traced.clone(),
        };
        let times = match times {
            Some(times) if Arc::ptr_eq(&traced, &joint) => times.clone(),
            Some(times) => times.scaled(&traced, &joint, rates),
            None => OperationTimes::analytic(&joint, rates),
        };
        let groups = OperationGroups::new(&joint);
        Ok(Self {
            samples: samples.or(trace.micro_batch_samples()),
            work: work_of(&joint, &groups, &times)?,
            groups,
            times,
            joint,
        })
    }

    /// Converts a partition of the work's blocks to a partition of the forward's operations.
    pub fn of_operations(&self, partition: Partition) -> Partition {
        Partition {
            stage_of: self.groups.spread(&partition.stage_of),
            ..partition
        }
    }

    /// Cuts the program by a partition of the forward's operations.
    pub fn divide(&self, partition: &Partition) -> Result<Divided, PlanError> {
        let joint = &self.joint;
        let mut layout = self.layout(partition)?;
        let cutting = Cutting::new(joint, &layout)?;
        layout.copies = cutting.copies(joint, &layout);
        let programs = StagePrograms::of_stages(joint, &cutting, &layout)?;
        Ok(Divided { layout, programs })
    }

    /// The plan of a partition, with the costs of its programs.
    pub(super) fn plan(
        &self,
        machine: &Machine,
        step: &Step,
        partition: &Partition,
        choice: Choice,
        with_programs: bool,
    ) -> Result<Plan, PlanError> {
        let (joint, table) = (&*self.joint, self.joint.table());
        let divided = self.divide(partition)?;
        let (mut stages, mut bytes) = (Vec::new(), Vec::new());
        for stage in divided.layout.stages() {
            let (costs, held) = self.costs(machine, step, &divided, stage);
            stages.push(self.stage(stage, partition, &divided, costs));
            bytes.push(held);
        }
        let boundaries = boundaries(joint, &divided.programs);
        let messages = boundaries.iter().map(|one| (one.edge, one.bytes));
        let edges = boundaries.iter().map(|one| one.edge);
        let dependencies = Dependencies::new(stages.len(), edges, divided.layout.ties());
        let costs = stages.iter().map(|stage| stage.costs).collect();
        let costs = PartitionCosts {
            dependencies: step.with_replicas(dependencies),
            costs: machine.costs(costs, messages.collect(), step.replicas),
            bytes,
        };
        let bound = lower_bound(&self.work, machine, step);
        let predicted = predict_costs(machine, step, &partition.stage_to_rank, costs, bound)?;
        text::add_values(&mut stages, joint, &divided.programs);
        if with_programs {
            text::add(&mut stages, joint, &divided.programs);
        }
        // For few micro-batches, the planner may choose another schedule.
        let named = step.lists(&partition.stage_to_rank).is_some();
        let plan = Plan {
            version: PLAN_VERSION,
            model: model_digest(table),
            graph: graph_digest(joint),
            structure: joint.forward().structure().to_owned(),
            samples: self.samples,
            program: joint.key().to_string(),
            choice,
            strategy: None,
            machine: machine.clone(),
            step: step.clone(),
            lists: (!named).then(|| predicted.schedule.to_string()),
            prediction: predicted.prediction,
            parameters: plan_parameters(table),
            forward: text::forward(joint),
            ties: self.ties(&divided.layout),
            boundaries,
            stages,
        };
        plan.check_ranks()?;
        Ok(plan)
    }

    /// The layout in which the lowest stage that reads a parameter owns it. In parallel branches, the branch that
    /// is recorded first may be on a later stage.
    fn layout(&self, partition: &Partition) -> Result<Layout, PlanError> {
        let (joint, table) = (&self.joint, self.joint.table());
        // In the order of the forward; parameters of one operation in the order of the table.
        let positions = parameter_positions(joint).into_iter().zip(0..);
        let mut parameters: Vec<(usize, usize)> = positions.collect();
        parameters.retain(|(_, parameter)| joint.parameter(*parameter).clone_of.is_none());
        parameters.sort_unstable();
        let mut owned = vec![Vec::new(); partition.stages()];
        for (position, parameter) in parameters {
            let readers = joint.reads_of(joint.parameters()[parameter]);
            let lowest = readers.map(|reader| partition.stage_of[reader]).min();
            let first = || partition.stage_of.get(position).copied();
            owned[lowest.or_else(first).unwrap_or(0)].push(parameter);
        }
        let ranks = partition.stage_to_rank.clone();
        let mut layout = Layout::new(table, owned, ranks, partition.recompute.clone())?;
        let structure = joint.forward().structure().to_owned();
        layout.operations = Some((structure, partition.stage_of.clone()));
        Ok(layout)
    }

    fn ties(&self, layout: &Layout) -> Vec<TieGroup> {
        let table = self.joint.table();
        let groups = table.iter().enumerate().map(|(position, parameter)| {
            let copies = layout.stages();
            let copies = copies.filter(|stage| layout.copies(*stage).contains(&position));
            TieGroup {
                path: parameter.path.clone(),
                clones: table.clones(&parameter.path).to_vec(),
                owner: layout.owners[position],
                copies: copies.collect(),
            }
        });
        groups.filter(|group| !group.copies.is_empty()).collect()
    }

    /// The costs of the programs of a stage, and the bytes that it holds in addition to activations.
    fn costs(
        &self,
        machine: &Machine,
        step: &Step,
        divided: &Divided,
        stage: StageIndex,
    ) -> (StageCosts, StageBytes) {
        let (layout, programs) = (&divided.layout, &divided.programs[stage.index()]);
        let time = |compute: Compute| {
            let phase = programs.phase(compute);
            phase.map_or(0, |phase| self.times.of_all(&phase.nodes, compute))
        };
        let phases = programs.phases.iter().flatten();
        let transient = phases.map(|phase| phase.transient_bytes(&self.joint)).max();
        let held = layout.held_bytes(&self.joint, stage, step.optimizer_states);
        // The trained parameters of a stage have the same bytes as their gradients.
        let trained = held.gradients;
        let held = StageBytes {
            gradients: trained.saturating_mul(step.gradients_held()),
            optimizer: held.optimizer / step.replicas.max(1) as u64,
            ..held
        };
        let costs = StageCosts {
            forward: time(Compute::Forward),
            backward: time(Compute::Backward),
            input_gradient: time(Compute::InputGradient),
            weight_gradient: time(Compute::WeightGradient),
            transient_bytes: transient.unwrap_or(0),
            activation_bytes: programs.activation_bytes,
            weight_gradient_bytes: programs.weight_gradient_bytes,
            ..StageCosts::default()
        };
        let rank = layout.ranks[stage.index()];
        (held.complete(costs, trained, machine, step, rank), held)
    }

    fn stage(
        &self,
        stage: StageIndex,
        partition: &Partition,
        divided: &Divided,
        costs: StageCosts,
    ) -> PlanStage {
        let (layout, programs) = (&divided.layout, &divided.programs[stage.index()]);
        let graph = self.joint.graph();
        let held = [layout.owned(stage), layout.copies(stage)];
        let held = held.map(|all| all.iter().map(|at| self.joint.parameter(*at)));
        let [owned, copied] = &held;
        let mut known = HashSet::new();
        let modules = owned.clone().map(|parameter| parameter.path.module());
        let modules = modules.filter(|module| known.insert(*module));
        let path = |parameter: &Parameter| parameter.path.clone();
        let bytes = |parameter: &Parameter| parameter.bytes;
        let flops = |compute| -> u64 {
            let phase = programs.phase(compute).into_iter();
            let nodes = phase.flat_map(|phase| &phase.nodes);
            let operations = nodes.map(|id| graph.node(*id).operation());
            operations.filter_map(Operation::product_flops).sum()
        };
        let sent = programs.sends.values().map(|values| graph.bytes(values));
        PlanStage {
            stage,
            rank: layout.ranks[stage.index()],
            modules: modules.map(str::to_owned).collect(),
            parameter_bytes: owned.clone().map(bytes).sum(),
            copy_bytes: copied.clone().map(bytes).sum(),
            parameters: owned.clone().map(path).collect(),
            copies: copied.clone().map(path).collect(),
            forward_flops: flops(Compute::Forward),
            backward_flops: flops(Compute::Backward),
            boundary_bytes: sent.sum(),
            recompute: layout.recompute[stage.index()],
            operations: ranges(&partition.stage_of, stage.index()),
            costs,
            live_in: Vec::new(),
            live_out: Vec::new(),
            bypassing: Vec::new(),
            programs: Vec::new(),
        }
    }
}

/// The messages that leave each stage.
fn boundaries(joint: &JointGraph, programs: &[StagePrograms]) -> Vec<Boundary> {
    let sends = programs.iter().flat_map(|one| &one.sends);
    let boundaries = sends.map(|(edge, values)| Boundary {
        edge: *edge,
        values: values.len(),
        bytes: joint.graph().bytes(values),
    });
    boundaries.collect()
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
