//! Records initialization, forward and Burn's own backward in one graph.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, Device, Tensor};
use burn_autodiff::Autodiff;
use burn_backend::AutodiffBackend;
use burn_capture::CaptureBackend;
use burn_dispatch::{DispatchKindConversion, DispatchTensor};
use burn_ir::TensorId;
use tinderbox_deferred::{
    Parameter, ParameterPath, ParameterTable, RandomKey, RandomKeys, TrainingLayer, is_random,
    random::Domain,
};
use tinderbox_fake::{
    DynTensor, Graph, Mode, NodeId, RecordError, RecordOptions, Recording, Retyped, TensorKind,
    ValueId, record,
};

use super::carried::new_values;
use super::checks::check_fields;
use super::roles::roles_of;
use super::{Calls, ForwardFn, ForwardOperations, LossOver, Outputs, ProgramKey, Role};
use crate::batch::{Batch, BatchMapper, Leaf, LeafName, carried_names};
use crate::{StateFault, TraceError};

/// Burn's autodiff over the recording backend: its backward pass records itself.
type Tracked = Autodiff<CaptureBackend>;

/// One tensor of the batch, in the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedInput {
    /// Name, shape and dtype.
    pub leaf: Leaf,
    /// Its value.
    pub value: ValueId,
}

/// A value that no operation of a program computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// The parameter at a position of the table; of clones, which share a value, the first.
    Parameter(usize),
    /// The tensor at a position of the batch.
    Input(usize),
    /// The weight of the micro-batch.
    Weight,
}

/// Forward, loss and gradients of a model in one graph, for one mode and one batch shape.
#[derive(Clone, Debug)]
pub struct JointGraph {
    key: ProgramKey,
    table: Arc<ParameterTable>,
    graph: Graph,
    given: HashMap<ValueId, Given>,
    parameters: Vec<ValueId>,
    inputs: Vec<TracedInput>,
    weight: ValueId,
    loss: Option<ValueId>,
    loss_over: LossOver<ValueId>,
    outputs: Vec<(String, ValueId)>,
    gradients: Vec<Option<ValueId>>,
    forward_start: usize,
    backward_start: usize,
    keys: RandomKeys,
    marks: Vec<ValueId>,
    running: BTreeSet<usize>,
    own_states: BTreeSet<usize>,
    updates: BTreeMap<usize, ValueId>,
    carried: BTreeMap<usize, ValueId>,
    roles: OnceLock<Vec<Role>>,
    pub(super) forward: OnceLock<ForwardOperations>,
}

impl JointGraph {
    /// Returns the mode and the batch shapes.
    pub fn key(&self) -> &ProgramKey {
        &self.key
    }

    /// Returns the parameters of the model.
    pub fn table(&self) -> &ParameterTable {
        &self.table
    }

    /// The parameter at a position of the table.
    pub(crate) fn parameter(&self, position: usize) -> &Parameter {
        parameter(&self.table, position)
    }

    /// The bytes of a parameter in the dtype in which the forward reads it, if that is not its own.
    pub(crate) fn cast_bytes(&self, position: usize) -> u64 {
        let read = self.graph.value(self.parameters[position]);
        match read.dtype == self.parameter(position).dtype {
            true => 0,
            false => read.bytes(),
        }
    }

    /// Returns all operations: initialization, forward, backward.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the value of each parameter, in the order of the table: a placeholder without data that
    /// no operation of the constructor computes. Clones of a parameter share theirs.
    pub fn parameters(&self) -> &[ValueId] {
        &self.parameters
    }

    /// Returns the tensors of the batch.
    pub fn inputs(&self) -> &[TracedInput] {
        &self.inputs
    }

    /// Returns the weight of the micro-batch, one f32, or one f64 if the loss is f64: the gradients are
    /// the gradients of `loss * weight`.
    pub fn weight(&self) -> ValueId {
        self.weight
    }

    /// Returns the unweighted loss.
    pub fn loss(&self) -> Option<ValueId> {
        self.loss
    }

    /// Returns what the loss is a mean or a sum over; a count is a value of the graph.
    pub fn loss_over(&self) -> &LossOver<ValueId> {
        &self.loss_over
    }

    /// Returns the named outputs.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.outputs
    }

    /// Returns the gradient of each parameter, in the order of the table; `None` for a parameter
    /// without one.
    pub fn gradients(&self) -> &[Option<ValueId>] {
        &self.gradients
    }

    /// Returns whether a node belongs to the initialization, which computes parameters or fields of the
    /// model.
    pub fn is_initialization(&self, node: NodeId) -> bool {
        node.index() < self.forward_start
    }

    /// Returns whether a node belongs to the backward pass.
    pub fn is_backward(&self, node: NodeId) -> bool {
        node.index() >= self.backward_start
    }

    /// Returns the values at which the author of the forward marked cuts, in order.
    pub fn marks(&self) -> &[ValueId] {
        &self.marks
    }

    /// Returns the new value of each running state that the forward updates, such as the statistics of batch
    /// norm, by its position in the table. Of clones, which share a state, the first has it.
    pub fn updates(&self) -> &BTreeMap<usize, ValueId> {
        &self.updates
    }

    /// Returns the new value of each carried tensor of the batch, by its position in the batch; of a program that
    /// trains, none.
    pub fn carried(&self) -> &BTreeMap<usize, ValueId> {
        &self.carried
    }

    /// The positions of all running states.
    pub(crate) fn running(&self) -> &BTreeSet<usize> {
        &self.running
    }

    /// The positions of the running states that do not belong to Burn's batch norms.
    pub(super) fn own_states(&self) -> &BTreeSet<usize> {
        &self.own_states
    }

    /// Sets the new values of running states, before anything depends on them.
    pub(super) fn set_updates(&mut self, updates: BTreeMap<usize, ValueId>) {
        self.updates = updates;
    }

    /// Replaces the graph by one with the same values, and more operations.
    pub(super) fn retype(&mut self, retyped: Retyped) {
        let count = retyped.graph.nodes().len();
        let index = |old: usize| retyped.nodes.get(old).map_or(count, |node| node.index());
        self.forward_start = index(self.forward_start);
        self.backward_start = index(self.backward_start);
        let keys = std::mem::take(&mut self.keys).into_iter();
        let keys = keys.map(|(node, key)| (retyped.nodes[node.index()], key));
        self.keys = keys.collect();
        self.graph = retyped.graph;
    }

    /// Where a value comes from that no operation of a program computes.
    pub(crate) fn given(&self, value: ValueId) -> Option<Given> {
        self.given.get(&value).copied()
    }

    /// The role of a node; the roles of all are computed on first use.
    pub(crate) fn role(&self, node: NodeId) -> Role {
        self.roles.get_or_init(|| roles_of(self))[node.index()]
    }

    /// Returns the keys of all random operations.
    pub fn keys(&self) -> &RandomKeys {
        &self.keys
    }

    /// Returns a copy with other operations or keys, for tests.
    #[cfg(test)]
    pub(crate) fn with(&self, graph: Graph, keys: RandomKeys) -> Self {
        Self {
            graph,
            keys,
            roles: OnceLock::new(),
            forward: OnceLock::new(),
            ..self.clone()
        }
    }
}

/// The outputs of the closure under recording: ids of captured tensors.
struct Captured {
    parameters: Vec<Option<TensorId>>,
    inputs: Vec<Option<TensorId>>,
    weight: Option<TensorId>,
    loss: Option<TensorId>,
    loss_over: LossOver<Option<TensorId>>,
    /// `loss * weight`, the last operation of the forward.
    objective: Option<TensorId>,
    outputs: Vec<(String, Option<TensorId>)>,
    gradients: Vec<Option<TensorId>>,
    fields: Box<dyn Fn() -> Fields>,
    running: BTreeSet<usize>,
    own_states: BTreeSet<usize>,
    /// The new values of running states.
    updated: Vec<(usize, Option<TensorId>)>,
    /// The new values of carried tensors.
    carried: Vec<(usize, Option<TensorId>)>,
}

/// What the debug text of a model shows, for errors.
pub(super) struct Fields {
    /// The fields that are tensors.
    pub(super) tensors: Vec<String>,
    /// The fields that are parameters.
    pub(super) skipped: Vec<String>,
    /// The layers that act in training only.
    pub(super) layers: Vec<TrainingLayer>,
}

/// The result of a model's forward under recording.
pub(super) struct ForwardRun {
    /// The placeholder of each parameter of the table.
    pub(super) parameters: Vec<DynTensor>,
    /// The value that the constructor computed for each parameter, if any.
    pub(super) constructed: Vec<Option<DynTensor>>,
    /// The positions of running states.
    pub(super) running: Vec<usize>,
    /// Those that are not of Burn's batch norms.
    pub(super) own_states: BTreeSet<usize>,
    /// The running states that the forward has updated, with their new values.
    pub(super) updated: Vec<(usize, DynTensor)>,
    /// The path of a running state with an update that can't be known: of the constructor, or in a field that no
    /// visitor sees.
    pub(super) unknown_state: Option<String>,
    /// The outputs of the forward.
    pub(super) outputs: Outputs,
    /// The fields that no visitor sees.
    pub(super) fields: Box<dyn Fn() -> Fields>,
}

/// The parameter at a position of a table.
fn parameter(table: &ParameterTable, position: usize) -> &Parameter {
    &table.iter().as_slice()[position]
}

pub(super) fn record_joint<B: Batch>(
    run: &ForwardFn<B>,
    table: &Arc<ParameterTable>,
    options: RecordOptions,
    compute: Option<DType>,
    key: ProgramKey,
    example: &B,
    is_moving: bool,
) -> Result<JointGraph, TraceError> {
    let mode = key.mode;
    let calls = Calls {
        is_twice: false,
        is_moving,
        without: None,
    };
    let result = record(&options, |device| {
        let mut inputs = Vec::new();
        let forward = run(device, calls, &mut || {
            let mut made = |input| inputs.push(input);
            fake_batch(example, device, compute, is_moving, &mut made)
        });
        let forward = forward.map_err(|path| TraceError::Unstable { path })?;
        let carried = carried_names(example);
        let carried = new_values(&key.leaves, &carried, &forward.outputs.carried)?;
        capture(device, mode, table, inputs, forward, carried)
    });
    let (captured, recording) = result.map_err(|source| explain(source, table))?;
    assemble(key, table, captured?, recording, compute)
}

fn capture(
    device: &Device,
    mode: Mode,
    table: &ParameterTable,
    inputs: Vec<Option<TensorId>>,
    forward: ForwardRun,
    carried: Vec<(usize, Option<TensorId>)>,
) -> Result<Captured, TraceError> {
    let id = |tensor: &DynTensor| tensor.captured_id();
    let outputs = forward.outputs;
    if outputs.is_contradictory {
        return Err(TraceError::SumOverCount);
    }
    let elements = outputs
        .loss
        .as_ref()
        .map(|loss| loss.shape().num_elements());
    if let Some(elements) = elements.filter(|elements| *elements != 1) {
        return Err(TraceError::LossShape { elements });
    }
    if let LossOver::Count(count) = &outputs.over {
        let elements = count.shape().num_elements();
        if elements != 1 {
            return Err(TraceError::CountShape { elements });
        }
    }
    // The weight is not a power of two, so it is not rounded to 16 bits.
    let dtype = outputs.loss.as_ref().map(|loss| loss.dtype());
    let weight_dtype = match dtype {
        Some(DType::F64) => DType::F64,
        _ => DType::F32,
    };
    let weight = Tensor::<1>::zeros([1], (device, weight_dtype));
    let mut captured = Captured {
        parameters: forward.parameters.iter().map(id).collect(),
        inputs,
        weight: id(&weight.clone().into()),
        loss: outputs
            .loss
            .as_ref()
            .and_then(|loss| id(&loss.clone().into())),
        loss_over: outputs.over.map(|count| id(&count)),
        objective: None,
        outputs: outputs
            .named
            .iter()
            .map(|(name, t)| (name.clone(), id(t)))
            .collect(),
        gradients: vec![None; forward.parameters.len()],
        fields: forward.fields,
        running: forward.running.into_iter().collect(),
        own_states: forward.own_states,
        updated: forward
            .updated
            .iter()
            .map(|(position, value)| (*position, id(value)))
            .collect(),
        carried: match mode {
            Mode::Inference => carried,
            Mode::Training => Vec::new(),
        },
    };
    if let Some(path) = forward.unknown_state {
        return Err(TraceError::RunningState {
            path: ParameterPath::new(path),
            fault: StateFault::Unknown,
        });
    }
    if mode == Mode::Inference {
        let first = captured
            .updated
            .first()
            .map(|(at, _)| parameter(table, *at));
        return match first {
            Some(state) => Err(TraceError::RunningState {
                path: state.path.clone(),
                fault: StateFault::Evaluation,
            }),
            None => Ok(captured),
        };
    }
    let loss = outputs.loss.ok_or(TraceError::NoLoss)?;
    let objective = match dtype == Some(weight_dtype) {
        true => loss * weight,
        false => loss.cast(weight_dtype) * weight,
    };
    let objective = DynTensor::from(objective);
    captured.objective = id(&objective);
    let gradients = Tracked::backward(tracked(objective).ok_or(TraceError::NoGradients)?);
    let gradient = |value: DynTensor| Some(Tracked::grad(&tracked(value)?, &gradients)?.id());
    captured.gradients = forward.parameters.into_iter().map(gradient).collect();
    if captured.gradients.iter().all(Option::is_none) {
        return Err(TraceError::NoGradients);
    }
    // A field that was computed from a parameter would pass its gradient on to the value of the
    // constructor.
    let constructed = forward.constructed.into_iter().zip(table);
    for (value, parameter) in constructed {
        if value.and_then(gradient).is_some() {
            return Err(TraceError::DerivedField {
                path: parameter.path.clone(),
            });
        }
    }
    Ok(captured)
}

fn tracked(tensor: DynTensor) -> Option<burn_backend::tensor::FloatTensor<Tracked>> {
    let tensor: DispatchTensor = tensor.into();
    match <DispatchTensor as DispatchKindConversion<Tracked>>::try_into_backend(tensor) {
        Ok(burn_dispatch::BackendTensor::Float(tensor)) => Some(tensor),
        _ => None,
    }
}

fn assemble(
    key: ProgramKey,
    table: &Arc<ParameterTable>,
    captured: Captured,
    recording: Recording,
    compute: Option<DType>,
) -> Result<JointGraph, TraceError> {
    let value = |id: Option<TensorId>| id.and_then(|id| recording.value_of(id));
    let made = "it is a value of the recording";
    let all = |ids: Vec<Option<TensorId>>| ids.into_iter().map(|id| value(id).expect(made));
    let parameters: Vec<ValueId> = all(captured.parameters).collect();
    let leaves = key.leaves.iter().cloned();
    let inputs = leaves.zip(all(captured.inputs));
    let inputs = inputs.map(|(leaf, value)| TracedInput { leaf, value });
    let inputs: Vec<TracedInput> = inputs.collect();
    let mut outputs = Vec::new();
    for (name, id) in captured.outputs {
        let value = value(id).ok_or_else(|| TraceError::ForeignOutput { name: name.clone() })?;
        outputs.push((name, value));
    }
    let graph = recording.graph();
    let position = |value: ValueId| graph.value(value).producer.map(|node| node.index());
    let backward_start = value(captured.objective).and_then(position);
    let placeholders = parameters
        .iter()
        .chain(inputs.iter().map(|input| &input.value));
    let forward_start = placeholders.filter_map(|value| position(*value)).min();
    let forward_start = forward_start.unwrap_or(0);
    check_fields(graph, forward_start, || (captured.fields)().tensors)?;
    let weight = value(captured.weight).expect(made);
    let mut given = HashMap::from([(weight, Given::Weight)]);
    let positions = inputs.iter().enumerate();
    given.extend(positions.map(|(position, input)| (input.value, Given::Input(position))));
    // The first of several clones comes last, and is kept.
    let positions = parameters.iter().enumerate().rev();
    given.extend(positions.map(|(position, value)| (*value, Given::Parameter(position))));
    let updated = captured.updated.into_iter();
    let updated: Vec<(usize, Option<ValueId>)> = updated
        .map(|(position, id)| (position, value(id)))
        .collect();
    let carried = captured.carried.into_iter();
    let carried = carried.map(|(position, id)| (position, value(id).expect(made)));
    let mut joint = JointGraph {
        carried: carried.collect(),
        table: table.clone(),
        given,
        weight,
        loss: value(captured.loss),
        loss_over: captured
            .loss_over
            .try_map(|id| value(id).ok_or(TraceError::ForeignCount))?,
        gradients: captured.gradients.into_iter().map(value).collect(),
        forward_start,
        backward_start: backward_start.map_or(graph.nodes().len(), |objective| objective + 1),
        keys: forward_keys(graph, forward_start),
        marks: recording.marks(),
        running: captured.running,
        own_states: captured.own_states,
        updates: BTreeMap::new(),
        roles: OnceLock::new(),
        forward: OnceLock::new(),
        key,
        parameters,
        inputs,
        outputs,
        graph: recording.into_graph(),
    };
    joint.check_count()?;
    joint.find_updates(&updated, compute)?;
    Ok(joint)
}

/// A batch of this shape on a recording device; records the id of each tensor.
pub(super) fn fake_batch<B: Batch>(
    example: &B,
    device: &Device,
    compute: Option<DType>,
    is_moving: bool,
    made: &mut dyn FnMut(Option<TensorId>),
) -> B {
    let mut fake = |_: &LeafName, tensor: DynTensor| {
        let plain = device.clone().without_autodiff();
        let device = match is_moving && tensor.kind() != TensorKind::Float {
            true => &plain,
            false => device,
        };
        let fake = DynTensor::zeros(tensor.shape(), tensor.dtype(), device);
        made(fake.captured_id());
        match compute {
            Some(dtype) => fake.cast_float(dtype),
            None => fake,
        }
    };
    example
        .clone()
        .map_tensors(&mut BatchMapper::new(&mut fake))
}

/// The keys of the random operations of a forward: the ordinal of each.
fn forward_keys(graph: &Graph, start: usize) -> RandomKeys {
    let nodes = graph.node_ids().skip(start);
    let random = nodes.filter(|node| is_random(graph.node(*node)));
    let keys = random.enumerate().map(|(ordinal, node)| {
        let key = RandomKey {
            domain: Domain::Forward,
            owner: ordinal.to_string(),
            draw: 0,
        };
        (node, key)
    });
    keys.collect()
}

/// Batch norm moves its running statistics between devices; other such operations are the forward's
/// own.
fn explain(source: RecordError, table: &ParameterTable) -> TraceError {
    let batch_norm = table
        .iter()
        .find(|parameter| parameter.owner() == "BatchNorm");
    let operation = source.origin().and_then(|origin| origin.operation());
    let is_own = operation.is_some_and(|operation| operation.starts_with("Tensor::"));
    match (&source, batch_norm) {
        (RecordError::Moved { .. }, Some(parameter)) if !is_own => TraceError::BatchNorm {
            path: parameter.path.module().to_owned(),
            source,
        },
        _ => TraceError::Record { source },
    }
}
