//! Records initialization, forward and Burn's own backward in one graph.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, Device, Shape, Tensor};
use tinderbox_deferred::{ParameterPath, ParameterTable, RandomKey, RandomKeys, random::Domain};
use tinderbox_fake::{Backward, DynTensor, Graph, Mode, RecordError, Recording, ValueId};

use super::call::{Calls, ForwardRun, Recorder};
use super::checks::check_fields;
use super::joint::{Result, RunningStates, Values};
use super::states::new_values;
use super::{Given, JointGraph, LossOver, Outputs, ProgramKey, TracedInput};
use crate::batch::{Batch, carried_names};
use crate::{StateFault, TraceError};

/// The content of a recording, as fake tensors. Their values in the graph are known when the recording ends.
struct Recorded {
    forward: ForwardRun,
    inputs: Vec<DynTensor>,
    weight: DynTensor,
    /// `loss * weight`, the last operation of the forward.
    objective: Option<DynTensor>,
    gradients: Vec<Option<DynTensor>>,
    /// The new values of carried tensors.
    carried: Vec<(usize, DynTensor)>,
}

/// Records the program of a key.
pub(super) fn record_joint<B: Batch>(
    recorder: &Recorder<'_, B>,
    table: &Arc<ParameterTable>,
    key: &ProgramKey,
) -> Result<JointGraph> {
    let carried = carried_names(recorder.example);
    let recorded = recorder.record(
        Calls::Once,
        |device, inputs, forward| {
            let carried = new_values(&key.leaves, &carried, &forward.outputs.carried)?;
            let weight = weight_of(device, &forward.outputs)?;
            check_states(&forward, key.mode, table)?;
            let mut recorded = Recorded {
                gradients: vec![None; forward.parameters.len()],
                objective: None,
                weight: weight.clone().into(),
                inputs,
                carried,
                forward,
            };
            if key.mode == Mode::Training {
                recorded.carried.clear();
                recorded.differentiate(weight, table)?;
            }
            Ok(recorded)
        },
        |recorded, recording| {
            recorded.assemble(key.clone(), table.clone(), recording, recorder.compute)
        },
    );
    recorded.map_err(|error| match error {
        TraceError::Record { source } => explain(source, table),
        error => error,
    })
}

/// The weight of the micro-batch of a forward with these outputs.
fn weight_of(device: &Device, outputs: &Outputs) -> Result<Tensor<1>> {
    if outputs.is_contradictory {
        return Err(TraceError::SumOverCount);
    }
    let several = |shape: Shape| Some(shape.num_elements()).filter(|elements| *elements != 1);
    let loss = outputs.loss.as_ref();
    if let Some(elements) = loss.and_then(|loss| several(loss.shape())) {
        return Err(TraceError::LossShape { elements });
    }
    if let LossOver::Count(count) = &outputs.over
        && let Some(elements) = several(count.shape())
    {
        return Err(TraceError::CountShape { elements });
    }
    // The weight is not a power of two, so it is not rounded to 16 bits.
    let dtype = match loss.map(Tensor::dtype) {
        Some(DType::F64) => DType::F64,
        _ => DType::F32,
    };
    Ok(Tensor::zeros([1], (device, dtype)))
}

/// Refuses updates of running states that can't be recorded.
fn check_states(forward: &ForwardRun, mode: Mode, table: &ParameterTable) -> Result<()> {
    let refused = |path, fault| Err(TraceError::RunningState { path, fault });
    if let Some(path) = &forward.unknown_state {
        return refused(ParameterPath::new(path.clone()), StateFault::Unknown);
    }
    match forward.updated.first() {
        Some((state, _)) if mode == Mode::Inference => {
            let state = &table.iter().as_slice()[*state];
            refused(state.path.clone(), StateFault::Evaluation)
        }
        _ => Ok(()),
    }
}

impl Recorded {
    /// Records the backward pass of the weighted loss.
    fn differentiate(&mut self, weight: Tensor<1>, table: &ParameterTable) -> Result<()> {
        let loss = self.forward.outputs.loss.clone();
        let loss = loss.ok_or(TraceError::NoLoss)?;
        let objective = match loss.dtype() == weight.dtype() {
            true => loss * weight,
            false => loss.cast(weight.dtype()) * weight,
        };
        let objective = self.objective.insert(objective.into()).clone();
        let backward = Backward::of(objective).ok_or(TraceError::NoGradients)?;
        let parameters = self.forward.parameters.iter().cloned();
        self.gradients = parameters.map(|value| backward.gradient(value)).collect();
        if self.gradients.iter().all(Option::is_none) {
            return Err(TraceError::NoGradients);
        }
        // A field that was computed from a parameter would pass its gradient to the value of the
        // constructor.
        let constructed = self.forward.constructed.iter().cloned().zip(table);
        for (value, parameter) in constructed {
            if value.and_then(|value| backward.gradient(value)).is_some() {
                let path = parameter.path.clone();
                return Err(TraceError::DerivedField { path });
            }
        }
        Ok(())
    }

    fn assemble(
        self,
        key: ProgramKey,
        table: Arc<ParameterTable>,
        recording: Recording,
        compute: Option<DType>,
    ) -> Result<JointGraph> {
        let forward = &self.forward;
        let updated = forward.updated.iter();
        let updated = updated.map(|(position, value)| (*position, recording.value(value)));
        let updated: Vec<(usize, Option<ValueId>)> = updated.collect();
        let values = self.values(&key, &recording)?;
        let graph = recording.graph();
        let index_of = |value: ValueId| graph.producer(value).map(|node| node.index());
        let inputs = values.inputs.iter().map(|input| input.value);
        let placeholders = values.parameters.iter().copied().chain(inputs);
        let forward_start = placeholders.filter_map(index_of).min().unwrap_or(0);
        check_fields(graph, forward_start, || (forward.fields)().tensors)?;
        let objective = self.objective.and_then(|value| recording.value(&value));
        let objective = objective.and_then(index_of);
        let mut joint = JointGraph {
            given: given(&values),
            forward_start,
            backward_start: objective.map_or(graph.nodes().len(), |objective| objective + 1),
            keys: forward_keys(graph, forward_start),
            marks: recording.marks(),
            states: RunningStates {
                running: forward.running.iter().copied().collect(),
                own: self.forward.own_states,
            },
            roles: OnceLock::new(),
            forward: OnceLock::new(),
            key,
            table,
            values,
            graph: recording.into_graph(),
        };
        joint.check_count()?;
        joint.find_updates(&updated, compute)?;
        Ok(joint)
    }

    /// The values of the tensors, without the new values of running states.
    fn values(&self, key: &ProgramKey, recording: &Recording) -> Result<Values> {
        let made = |tensor: &DynTensor| {
            let value = recording.value(tensor);
            value.expect("it is made in the recording")
        };
        let outputs = &self.forward.outputs;
        let named = outputs.named.iter().map(|(name, tensor)| {
            let foreign = || TraceError::ForeignOutput { name: name.clone() };
            Ok((name.clone(), recording.value(tensor).ok_or_else(foreign)?))
        });
        let inputs = key.leaves.iter().cloned().zip(&self.inputs);
        let inputs = inputs.map(|(leaf, tensor)| TracedInput {
            leaf,
            value: made(tensor),
        });
        let loss = outputs.loss.clone().map(DynTensor::from);
        let gradients = self.gradients.iter();
        let gradients = gradients.map(|gradient| recording.value(gradient.as_ref()?));
        let over = outputs.over.clone();
        let count = |tensor| recording.value(&tensor).ok_or(TraceError::ForeignCount);
        let carried = self.carried.iter();
        let carried = carried.map(|(position, value)| (*position, made(value)));
        Ok(Values {
            outputs: named.collect::<Result<_>>()?,
            parameters: self.forward.parameters.iter().map(made).collect(),
            inputs: inputs.collect(),
            weight: made(&self.weight),
            loss: loss.and_then(|loss| recording.value(&loss)),
            loss_over: over.try_map(count)?,
            gradients: gradients.collect(),
            updates: BTreeMap::new(),
            carried: carried.collect(),
        })
    }
}

/// The values that no operation of a program computes.
fn given(values: &Values) -> HashMap<ValueId, Given> {
    let inputs = values.inputs.iter().enumerate();
    let inputs = inputs.map(|(position, input)| (input.value, Given::Input(position)));
    // The first of several clones comes last, and is kept.
    let parameters = values.parameters.iter().enumerate().rev();
    let parameters = parameters.map(|(position, value)| (*value, Given::Parameter(position)));
    let weight = [(values.weight, Given::Weight)].into_iter();
    weight.chain(inputs).chain(parameters).collect()
}

/// The keys of the random operations of a forward: the ordinal of each.
fn forward_keys(graph: &Graph, start: usize) -> RandomKeys {
    let nodes = graph.node_ids().skip(start);
    let random = nodes.filter(|node| graph.node(*node).operation().random().is_some());
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

/// Names a batch norm in the error of a move between devices, which is a move of its running statistics unless the forward
/// itself moves a tensor.
fn explain(source: RecordError, table: &ParameterTable) -> TraceError {
    let batch_norm = table.iter().find(|one| one.owner() == "BatchNorm");
    let operation = source.origin().operation();
    let is_own = operation.is_some_and(|operation| operation.starts_with("Tensor::"));
    match (&source, batch_norm) {
        (RecordError::Moved { .. }, Some(parameter)) if !is_own => TraceError::BatchNorm {
            path: parameter.path.module().to_owned(),
            source,
        },
        _ => TraceError::Record { source },
    }
}
