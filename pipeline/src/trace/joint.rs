//! One recording of initialization, forward and Burn's own backward.

use burn::tensor::{DType, Tensor};
use burn_autodiff::Autodiff;
use burn_backend::AutodiffBackend;
use burn_capture::CaptureBackend;
use burn_dispatch::{DispatchKindConversion, DispatchTensor};
use burn_ir::TensorId;
use tinderbox_deferred::{
    ParameterPath, ParameterTable, RandomKey, RandomKeys, initialization_keys, is_random,
    random::Domain,
};
use tinderbox_fake::{
    DynTensor, Graph, Mode, NodeId, RecordError, RecordOptions, Recording, ValueId, record,
};

use super::{Outputs, ProgramKey, Run};
use crate::TraceError;
use crate::batch::{Batch, BatchMapper, Leaf};

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

/// Forward, loss and gradients of a model in one graph, for one mode and one batch shape.
#[derive(Clone, Debug)]
pub struct JointGraph {
    key: ProgramKey,
    graph: Graph,
    parameters: Vec<ValueId>,
    inputs: Vec<TracedInput>,
    weight: ValueId,
    loss: Option<ValueId>,
    outputs: Vec<(String, ValueId)>,
    gradients: Vec<Option<ValueId>>,
    forward_start: usize,
    backward_start: usize,
    keys: RandomKeys,
    marks: Vec<ValueId>,
}

impl JointGraph {
    /// Mode and batch shapes.
    pub fn key(&self) -> &ProgramKey {
        &self.key
    }

    /// All operations: initialization, forward, backward.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The value of each parameter, in the order of the table.
    pub fn parameters(&self) -> &[ValueId] {
        &self.parameters
    }

    /// The tensors of the batch.
    pub fn inputs(&self) -> &[TracedInput] {
        &self.inputs
    }

    /// The weight of the micro-batch, one f32: the gradients are those of `loss * weight`.
    pub fn weight(&self) -> ValueId {
        self.weight
    }

    /// The loss, not weighted.
    pub fn loss(&self) -> Option<ValueId> {
        self.loss
    }

    /// The named outputs.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.outputs
    }

    /// The gradient of each parameter, in the order of the table; `None` where there is none.
    pub fn gradients(&self) -> &[Option<ValueId>] {
        &self.gradients
    }

    /// Whether a node belongs to the initialization: it makes parameters or fields of the model.
    pub fn is_initialization(&self, node: NodeId) -> bool {
        node.index() < self.forward_start
    }

    /// Whether a node belongs to the backward pass.
    pub fn is_backward(&self, node: NodeId) -> bool {
        node.index() >= self.backward_start
    }

    /// The values at which the forward's author marked a cut, in order.
    pub fn marks(&self) -> &[ValueId] {
        &self.marks
    }

    /// Keys of all random operations.
    pub fn keys(&self) -> &RandomKeys {
        &self.keys
    }
}

/// What the closure under recording hands out: ids of capture tensors.
struct Captured {
    parameters: Vec<(ParameterPath, Option<TensorId>)>,
    inputs: Vec<Option<TensorId>>,
    weight: Option<TensorId>,
    loss: Option<TensorId>,
    /// `loss * weight`, the last operation of the forward.
    objective: Option<TensorId>,
    outputs: Vec<(String, Option<TensorId>)>,
    gradients: Vec<Option<TensorId>>,
    loss_elements: Option<usize>,
    untracked_loss: bool,
}

pub(super) fn record_joint<B: Batch>(
    run: &Run<B>,
    table: &ParameterTable,
    options: RecordOptions,
    compute: Option<DType>,
    key: ProgramKey,
    example: &B,
) -> Result<JointGraph, TraceError> {
    let mode = key.mode;
    let result = record(&options, |device| {
        let mut inputs = Vec::new();
        let mut weight = None;
        let (parameters, outputs) = run(device, &mut || {
            // The weight is the first operation after the initialization.
            weight = Some(Tensor::<1>::zeros([1], (device, DType::F32)));
            example
                .clone()
                .map_tensors(&mut BatchMapper::new(&mut |_, tensor| {
                    let fake = DynTensor::zeros(tensor.shape(), tensor.dtype(), device);
                    inputs.push(fake.captured_id());
                    match compute {
                        Some(dtype) => fake.cast_float(dtype),
                        None => fake,
                    }
                }))
        });
        let weight = weight.expect("the closure asks for a batch");
        differentiate(mode, parameters, outputs, inputs, weight)
    });
    let (captured, recording) = result.map_err(|source| explain(source, table))?;
    if let Some(elements) = captured.loss_elements.filter(|elements| *elements != 1) {
        return Err(TraceError::LossShape { elements });
    }
    if mode == Mode::Training && captured.loss_elements.is_none() {
        return Err(TraceError::NoLoss);
    }
    if captured.untracked_loss {
        return Err(TraceError::NoGradients);
    }
    assemble(key, table, compute, captured, recording)
}

fn differentiate(
    mode: Mode,
    parameters: Vec<(ParameterPath, DynTensor)>,
    outputs: Outputs,
    inputs: Vec<Option<TensorId>>,
    weight: Tensor<1>,
) -> Captured {
    let id = |tensor: &DynTensor| tensor.captured_id();
    let mut captured = Captured {
        parameters: parameters
            .iter()
            .map(|(path, value)| (path.clone(), id(value)))
            .collect(),
        inputs,
        weight: id(&weight.clone().into()),
        loss: outputs
            .loss
            .as_ref()
            .and_then(|loss| id(&loss.clone().into())),
        objective: None,
        outputs: outputs
            .named
            .iter()
            .map(|(name, t)| (name.clone(), id(t)))
            .collect(),
        gradients: vec![None; parameters.len()],
        loss_elements: outputs
            .loss
            .as_ref()
            .map(|loss| loss.shape().num_elements()),
        untracked_loss: false,
    };
    let Some(loss) = outputs.loss.filter(|_| mode == Mode::Training) else {
        return captured;
    };
    if captured.loss_elements != Some(1) {
        return captured;
    }
    // A weight is no multiple of a power of two: it is not rounded to 16 bits.
    let objective = DynTensor::from(match loss.dtype() {
        DType::F64 => loss * weight.cast(DType::F64),
        DType::F32 => loss * weight,
        _ => loss.cast(DType::F32) * weight,
    });
    captured.objective = id(&objective);
    let Some(objective) = tracked(objective) else {
        captured.untracked_loss = true;
        return captured;
    };
    let gradients = Tracked::backward(objective);
    captured.gradients = parameters
        .into_iter()
        .map(|(_, value)| Some(Tracked::grad(&tracked(value)?, &gradients)?.id()))
        .collect();
    captured.untracked_loss = captured.gradients.iter().all(Option::is_none);
    captured
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
    table: &ParameterTable,
    compute: Option<DType>,
    captured: Captured,
    recording: Recording,
) -> Result<JointGraph, TraceError> {
    let value = |id: Option<TensorId>| id.and_then(|id| recording.value_of(id));
    let mut parameters = Vec::with_capacity(table.len());
    let mut traced = captured.parameters.into_iter();
    for parameter in table {
        let found = traced.next().filter(|(path, _)| *path == parameter.path);
        let Some(value) = found.and_then(|(_, id)| value(id)) else {
            return Err(TraceError::Unstable {
                path: parameter.path.clone(),
            });
        };
        let shape: Vec<u64> = recording
            .graph()
            .value(value)
            .shape
            .iter()
            .map(|d| *d as u64)
            .collect();
        let dtype = recording.graph().value(value).dtype;
        let cast = compute == Some(dtype) && parameter.dtype.is_float();
        if shape != parameter.shape || !(dtype == parameter.dtype || cast) {
            return Err(TraceError::Unstable {
                path: parameter.path.clone(),
            });
        }
        parameters.push(value);
    }
    if let Some((path, _)) = traced.next() {
        return Err(TraceError::Unstable { path });
    }

    let made = "the recording made it";
    let inputs: Vec<TracedInput> = key
        .leaves
        .iter()
        .zip(captured.inputs)
        .map(|(leaf, id)| TracedInput {
            leaf: leaf.clone(),
            value: value(id).expect(made),
        })
        .collect();
    let mut outputs = Vec::new();
    for (name, id) in captured.outputs {
        let value = value(id).ok_or_else(|| TraceError::ForeignOutput { name: name.clone() })?;
        outputs.push((name, value));
    }
    let gradients = captured.gradients.into_iter().map(value).collect();
    let graph = recording.graph();
    let backward_start = match value(captured.objective) {
        Some(objective) => {
            graph
                .value(objective)
                .producer
                .map_or(0, |node| node.index())
                + 1
        }
        None => graph.nodes().len(),
    };
    let weight = value(captured.weight).expect(made);
    let loss = value(captured.loss);
    let forward_start = graph.value(weight).producer.map_or(0, |node| node.index());
    let paths = table
        .iter()
        .map(|p| p.path.as_str())
        .zip(parameters.iter().copied());
    let mut keys = initialization_keys(graph, paths);
    let forward = graph
        .node_ids()
        .filter(|node| node.index() >= forward_start && is_random(graph.node(*node)));
    for (ordinal, node) in forward.enumerate() {
        let owner = ordinal.to_string();
        keys.insert(
            node,
            RandomKey {
                domain: Domain::Forward,
                owner,
                draw: 0,
            },
        );
    }
    Ok(JointGraph {
        key,
        parameters,
        inputs,
        weight,
        loss,
        outputs,
        gradients,
        forward_start,
        backward_start,
        keys,
        marks: recording.marks(),
        graph: recording.into_graph(),
    })
}

/// Names what in Burn is known to fail so: batch norm moves its running statistics between devices,
/// and some losses read their arguments.
fn explain(source: RecordError, table: &ParameterTable) -> TraceError {
    let batch_norm = table
        .iter()
        .find(|parameter| parameter.owner() == "BatchNorm");
    match (&source, batch_norm) {
        (RecordError::Moved { .. }, Some(parameter)) => TraceError::BatchNorm {
            path: parameter.path.module().to_owned(),
            source,
        },
        (RecordError::DataRead { .. }, _) => TraceError::DataRead { source },
        _ => TraceError::Record { source },
    }
}
