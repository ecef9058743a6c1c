//! Runs calls of the tensor API in Burn itself and as a recorded program, and compares the bits.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData, kind::Basic};
use burn_ir::{IrVisitorMut, TensorId, TensorIr};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{Executor, Program, RandomKeys, RunContext};
use tinderbox_fake::{DynTensor, Graph, Mode, Node, RecordOptions, ValueId, record};

use crate::keys::key;

type Run = dyn Fn(&Device) -> Vec<DynTensor>;

/// Calls of the tensor API on a device, with a name.
pub(crate) struct Row {
    name: String,
    mode: Mode,
    dtype_differs: bool,
    run: Box<Run>,
}

/// Rows that share the beginning of their name.
pub(crate) struct Rows {
    prefix: String,
    mode: Mode,
    rows: Vec<Row>,
}

impl Rows {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            mode: Mode::Inference,
            rows: Vec::new(),
        }
    }

    /// Rows whose device tracks gradients.
    pub(crate) fn tracked(prefix: &str) -> Self {
        Self {
            mode: Mode::Training,
            ..Self::new(prefix)
        }
    }

    pub(crate) fn add(&mut self, name: &str, run: impl Fn(&Device) -> Vec<DynTensor> + 'static) {
        self.rows.push(Row {
            name: format!("{}: {name}", self.prefix),
            mode: self.mode,
            dtype_differs: false,
            run: Box::new(run),
        });
    }

    /// A row with positions in a tensor of this dtype. `flex` returns positions in an int tensor as
    /// i64; Burn records, and a program returns, the dtype of the tensor itself.
    pub(crate) fn add_positions(
        &mut self,
        dtype: DType,
        name: &str,
        run: impl Fn(&Device) -> Vec<DynTensor> + 'static,
    ) {
        self.add(name, run);
        let row = self.rows.last_mut().expect("a row was just added");
        row.dtype_differs = !dtype.is_float() && dtype != DType::I64;
    }

    pub(crate) fn done(self) -> Vec<Row> {
        self.rows
    }
}

/// One tensor as the output of a row.
pub(crate) fn one(tensor: impl Into<DynTensor>) -> Vec<DynTensor> {
    vec![tensor.into()]
}

/// Two tensors as the outputs of a row.
pub(crate) fn two((a, b): (impl Into<DynTensor>, impl Into<DynTensor>)) -> Vec<DynTensor> {
    vec![a.into(), b.into()]
}

/// A tensor whose elements are derived from `seed`: floats in [-2, 2], signed integers from -4 to 5 and
/// unsigned ones from 1 to 9 without 0 (so that they are valid divisors), and booleans.
pub(crate) fn values<const D: usize, K: Basic>(
    device: &Device,
    dtype: DType,
    shape: [usize; D],
    seed: u64,
) -> Tensor<D, K> {
    let count = shape.iter().product::<usize>() as u64;
    let draws = (0..count).map(|i| {
        let mixed = (seed * 1_000_003 + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
    });
    let data = if dtype.is_bool() {
        TensorData::new(draws.map(|d| d % 2 == 0).collect::<Vec<_>>(), shape)
    } else if dtype.is_float() {
        let float = |d: u64| (d % 4001) as f32 / 1000.0 - 2.0;
        TensorData::new(draws.map(float).collect::<Vec<_>>(), shape)
    } else if dtype.is_uint() {
        let integer = |d: u64| (d % 9) as i32 + 1;
        TensorData::new(draws.map(integer).collect::<Vec<_>>(), shape)
    } else {
        let integer = |d: u64| (d % 9) as i32 - 4;
        let without_zero = |i: i32| if i < 0 { i } else { i + 1 };
        TensorData::new(
            draws.map(integer).map(without_zero).collect::<Vec<_>>(),
            shape,
        )
    };
    Tensor::from_data(data, (device, dtype))
}

/// [`values`] of f32.
pub(crate) fn floats<const D: usize>(device: &Device, shape: [usize; D], seed: u64) -> Tensor<D> {
    values(device, DType::F32, shape, seed)
}

/// Indices.
pub(crate) fn ints<const D: usize>(
    device: &Device,
    shape: [usize; D],
    values: &[i32],
) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

/// A mask.
pub(crate) fn bools<const D: usize>(
    device: &Device,
    shape: [usize; D],
    seed: u64,
) -> Tensor<D, Bool> {
    values(device, device.settings().bool_dtype.into(), shape, seed)
}

/// The operations that the programs of the rows actually ran, and the failures of each row.
pub(crate) fn check(rows: &[Row]) -> (BTreeSet<String>, Vec<String>) {
    let mut ran = BTreeSet::new();
    let mut failures = Vec::new();
    for row in rows {
        match catch_unwind(AssertUnwindSafe(|| verify(row))) {
            Ok(Ok(keys)) => ran.extend(keys),
            Ok(Err(reason)) => failures.push(format!("{}: {reason}", row.name)),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
                failures.push(format!("{}: panic: {}", row.name, text.unwrap_or_default()));
            }
        }
    }
    (ran, failures)
}

fn verify(row: &Row) -> Result<BTreeSet<String>, String> {
    let device = match row.mode {
        Mode::Inference => Device::flex(),
        Mode::Training => Device::flex().autodiff(),
    };
    let mut expected = data(&(row.run)(&device));
    let (fakes, recording) = record(&RecordOptions::like(&device), |device| (row.run)(device))
        .map_err(|error| error.to_string())?;
    let outputs: Vec<ValueId> = fakes
        .iter()
        .map(|fake| recording.value_of(fake.captured_id().unwrap()).unwrap())
        .collect();
    let graph = recording.graph();
    let mut differs = false;
    for (output, expected) in outputs.iter().zip(&mut expected) {
        let value = graph.value(*output);
        if &value.shape != expected.shape() {
            return Err(format!(
                "{:?} recorded, {:?} in Burn",
                value.shape,
                expected.shape()
            ));
        }
        if value.dtype != expected.dtype() {
            differs = true;
            *expected = expected.clone().convert_dtype(value.dtype);
        }
    }
    if differs != row.dtype_differs {
        return Err(format!("the recorded dtype is not Burn's: {differs}"));
    }
    let slice = graph.backward_slice(outputs.iter().copied(), |_| false);
    let mut keys = BTreeSet::new();
    for id in &slice.nodes {
        keys.insert(consistent_key(graph.node(*id))?);
    }
    // Constants are never modified by the program; inputs are consumed, and modified in place.
    compare(graph, &outputs, &[], &expected)?;
    compare(graph, &outputs, &slice.leaves, &expected)?;
    Ok(keys)
}

/// The name of a node's operation; its name as a node, and the tensors that it lists, must agree.
fn consistent_key(node: &Node) -> Result<String, String> {
    struct Visited(Vec<TensorId>);
    impl IrVisitorMut for Visited {
        fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
            self.0.push(tensor.id);
        }
    }
    let key = key(&node.operation);
    if node.name() != key {
        return Err(format!("{key} is named {}", node.name()));
    }
    let mut visited = Visited(Vec::new());
    node.operation.clone().visit_mut(&mut visited);
    let operation = &node.operation;
    let mut listed: Vec<TensorId> = operation
        .inputs()
        .chain(operation.outputs())
        .map(|t| t.id)
        .collect();
    listed.sort();
    visited.0.sort();
    match listed == visited.0 {
        true => Ok(key),
        false => Err(format!("{key} lists {listed:?} and visits {:?}", visited.0)),
    }
}

/// Runs the program of `outputs` with these constants as inputs: twice while the caller holds the
/// inputs, and once without other references.
fn compare(
    graph: &Graph,
    outputs: &[ValueId],
    inputs: &[ValueId],
    expected: &[TensorData],
) -> Result<(), String> {
    let device = Device::flex();
    let slice = graph.backward_slice(outputs.iter().copied(), |_| false);
    let program = Program::new(graph, slice.nodes, inputs, outputs, &RandomKeys::new())
        .map_err(|error| error.to_string())?;
    let executable = Executor::new(&device).unwrap().load(program);
    let given = || -> Vec<DynTensor> {
        let given = inputs.iter().map(|id| graph.constant(*id).unwrap().clone());
        given
            .map(|data| DynTensor::from_data(data, &device))
            .collect()
    };
    let context = RunContext::initialization(Seed::new(0));
    let run = |inputs: Vec<DynTensor>| {
        let outputs = executable.run(inputs, &context);
        outputs
            .map(|outputs| data(&outputs))
            .map_err(|error| error.to_string())
    };
    let held = given();
    let before = data(&held);
    for (how, inputs) in [
        ("at first", held.clone()),
        ("again", held.clone()),
        ("alone", given()),
    ] {
        for (index, (found, expected)) in run(inputs)?.iter().zip(expected).enumerate() {
            if !same_bits(found, expected) {
                return Err(format!(
                    "output {index}, run {how}, {} inputs: {found:?} instead of {expected:?}",
                    held.len()
                ));
            }
        }
    }
    match before
        .iter()
        .zip(data(&held))
        .all(|(before, after)| same_bits(before, &after))
    {
        true => Ok(()),
        false => Err("an input that the caller holds was written to".into()),
    }
}

/// Returns whether dtype, shape and every bit are equal: NaN is compared by its bits.
pub(crate) fn same_bits(a: &TensorData, b: &TensorData) -> bool {
    a.dtype() == b.dtype() && a.shape() == b.shape() && a.as_bytes() == b.as_bytes()
}

pub(crate) fn data(tensors: &[DynTensor]) -> Vec<TensorData> {
    tensors
        .iter()
        .map(|tensor| tensor.to_data().unwrap())
        .collect()
}
