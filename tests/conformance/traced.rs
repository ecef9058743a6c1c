//! Executes a whole traced program on one device.

use burn::tensor::{Device, Tensor, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_ir::{TensorId, TensorStatus};
use burn_router::TensorInterpreter;
use tinderbox::DynTensor;
use tinderbox::deferred::ParameterTable;
use tinderbox::deferred::random::Seed;
use tinderbox_deferred::{Executor, Program, RunContext};
use tinderbox_fake::{NodeId, ValueId};
use tinderbox_pipeline::JointGraph;

use crate::eager::{Eager, Named};
use crate::row::FORWARD_SEED;

/// The source of a forward's random values.
#[derive(Clone, Copy)]
pub enum Generator {
    /// No random values. The program runs on this project's executor.
    None,
    /// The backend, as in plain Burn. The recorded operations run on Burn's interpreter.
    Backend,
}

/// Runs a joint graph with the given parameters and inputs.
pub fn execute(
    joint: &JointGraph,
    table: &ParameterTable,
    parameters: Vec<DynTensor>,
    inputs: Vec<DynTensor>,
    generator: Generator,
) -> Result<Eager, String> {
    let device = Device::flex();
    let mut given = joint.parameters().to_vec();
    given.extend(joint.inputs().iter().map(|input| input.value));
    given.push(joint.weight());
    let mut values = parameters;
    values.extend(inputs);
    values.push(Tensor::<1>::ones([1], &device).into());

    let named = joint.outputs().iter().cloned();
    let gradients = table
        .iter()
        .zip(joint.gradients())
        .filter_map(|(parameter, value)| Some((parameter.path.to_string(), (*value)?)));
    let outputs: Vec<(String, ValueId)> = named
        .chain(joint.loss().map(|loss| ("loss".to_owned(), loss)))
        .chain(gradients)
        .collect();
    let wanted: Vec<ValueId> = outputs.iter().map(|(_, value)| *value).collect();
    let is_given = |value| given.contains(&value);
    let nodes = joint
        .graph()
        .backward_slice(wanted.iter().copied(), is_given)
        .nodes;

    let found = match generator {
        Generator::None => {
            let random = nodes.iter().any(|node| joint.keys().contains_key(node));
            if random {
                return Err("the forward draws random values".into());
            }
            run(joint, nodes, &given, &wanted, values)?
        }
        Generator::Backend => interpret(joint, nodes, &given, &wanted, values)?,
    };
    let mut found: Named = outputs
        .into_iter()
        .map(|(name, _)| name)
        .zip(found)
        .collect();
    let forward = joint.outputs().len() + usize::from(joint.loss().is_some());
    let gradients = found.split_off(forward);
    Ok(Eager {
        outputs: found,
        gradients,
        ..Eager::default()
    })
}

/// Runs operations on this project's executor.
fn run(
    joint: &JointGraph,
    nodes: Vec<NodeId>,
    given: &[ValueId],
    wanted: &[ValueId],
    values: Vec<DynTensor>,
) -> Result<Vec<TensorData>, String> {
    let error = |error: &dyn std::error::Error| error.to_string();
    let program = Program::new(joint.graph(), nodes, given, wanted, joint.keys());
    let program = program.map_err(|source| error(&source))?;
    let executor = Executor::new(&Device::flex()).map_err(|source| error(&source))?;
    let context = RunContext {
        seed: Seed::new(0),
        step: 0,
        micro_batch: 0,
    };
    let found = executor.load(program).run(values, &context);
    let found = found.map_err(|source| error(&source))?.into_iter();
    found
        .map(|tensor| tensor.to_data().map_err(|source| error(&source)))
        .collect()
}

/// Runs operations only on Burn's interpreter, in recorded order, with the backend's generator for random
/// ones.
fn interpret(
    joint: &JointGraph,
    nodes: Vec<NodeId>,
    given: &[ValueId],
    wanted: &[ValueId],
    values: Vec<DynTensor>,
) -> Result<Vec<TensorData>, String> {
    Device::flex().seed(FORWARD_SEED);
    let graph = joint.graph();
    let id = |value: ValueId| TensorId::new(value.index() as u64);
    let mut interpreter = TensorInterpreter::<Flex>::new(FlexDevice);
    for (value, tensor) in given.iter().zip(values) {
        let data = tensor.to_data().map_err(|error| error.to_string())?;
        interpreter.register_tensor_data_id(id(*value), data);
    }
    let read = nodes.iter().flat_map(|node| graph.node(*node).inputs());
    let mut constants: Vec<ValueId> = read.chain(wanted).copied().collect();
    constants.sort_unstable();
    constants.dedup();
    for value in constants {
        if let Some(data) = graph.constant(value) {
            interpreter.register_tensor_data_id(id(value), data.clone());
        }
    }
    let mut made = Vec::new();
    for node in nodes {
        let operation = graph.node(node).operation.clone();
        made.extend(operation.outputs().cloned());
        interpreter.register_op(operation);
    }
    wanted
        .iter()
        .map(|value| {
            let mut tensor = made
                .iter()
                .find(|tensor| tensor.id == id(*value))
                .cloned()
                .ok_or_else(|| format!("{value} is made by no operation"))?;
            tensor.status = TensorStatus::ReadOnly;
            let data = interpreter.read_tensor_async(tensor);
            burn::tensor::read_sync(data).map_err(|error| error.to_string())
        })
        .collect()
}
