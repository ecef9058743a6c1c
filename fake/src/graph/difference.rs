//! Comparison of two recordings of one program.

use std::collections::HashMap;

use burn::tensor::{DType, TensorData};
use burn_ir::{OperationIr, TensorId};
use derive_more::Display;
use twox_hash::XxHash3_128;

use super::{Graph, Slice};
use crate::operation::{Operation, ValueId, change_tensors, encode, typed_shape};

/// The first difference between two recordings of one program. Operations and constants are counted from 1, in
/// recorded order, within the compared part.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum Difference {
    /// An operation, one of its arguments or one of its inputs differs.
    #[display("operation {number} {}", change(before.as_ref(), now.as_ref()))]
    Operation {
        /// The number of the operation.
        number: usize,
        /// The operation before; `None` if it was added.
        before: Option<String>,
        /// The operation now; `None` if it was removed.
        now: Option<String>,
    },
    /// A constant differs.
    #[display("constant {number} {}", change(before.as_ref(), now.as_ref()))]
    Constant {
        /// The number of the constant.
        number: usize,
        /// The constant before; `None` if it was added.
        before: Option<String>,
        /// The constant now; `None` if it was removed.
        now: Option<String>,
    },
    /// The value is another output of the last operation.
    #[display("it was value %{before} of its recipe and is now value %{now}")]
    Output {
        /// The number of the value before.
        before: u32,
        /// The number of the value now.
        now: u32,
    },
}

fn change(before: Option<&String>, now: Option<&String>) -> String {
    match (before, now) {
        (Some(before), Some(now)) => format!("was {before} and is now {now}"),
        (Some(before), None) => format!("was {before} and no longer exists"),
        (None, Some(now)) => format!("is new: {now}"),
        (None, None) => "differs".to_owned(),
    }
}

impl Graph {
    /// Returns the first difference from a later recording of the same program; `None` when
    /// all operations and all constants are equal, floats bit by bit.
    ///
    /// Cost: each operation is encoded once, about a microsecond.
    pub fn difference(&self, now: &Graph) -> Option<Difference> {
        let (mut before, mut now) = (Side::new(self, self.all()), Side::new(now, now.all()));
        compare(&mut before, &mut now)
    }

    /// Returns a hash of all operations and constants. Two recordings without a [`difference`](Self::difference) have the
    /// same hash. Not cryptographic.
    ///
    /// Cost: each operation is encoded once, about a microsecond; a pass over the constants.
    pub fn digest(&self) -> u128 {
        let mut side = Side::new(self, self.all());
        let (mut hasher, mut bytes) = (XxHash3_128::new(), Vec::new());
        let mut write = |bytes: &[u8]| {
            hasher.write(&(bytes.len() as u64).to_le_bytes());
            hasher.write(bytes);
        };
        for index in 0..side.slice.nodes.len() {
            let operation = side.operation(index).expect("the index is in the slice");
            bytes.clear();
            encode(&operation, &mut bytes);
            write(&bytes);
        }
        for constant in self.constants().values() {
            let data = constant.data();
            write(describe_data(data, None).as_bytes());
            write(data.as_bytes());
        }
        hasher.finish_128()
    }

    /// Returns the slice of the whole graph.
    fn all(&self) -> Slice {
        let nodes = self.node_ids().collect();
        let leaves = self.constants().keys().copied().collect();
        Slice { nodes, leaves }
    }

    /// Returns the first difference between the recipe of `value` and the recipe of a value of a later recording;
    /// `None` when both are computed by the same operations from the same constants, floats bit by
    /// bit. The positions of the recipes in their graphs do not matter.
    ///
    /// Cost: proportional to the size of the recipes.
    pub fn recipe_difference(
        &self,
        value: ValueId,
        now: &Graph,
        value_now: ValueId,
    ) -> Option<Difference> {
        let mut before = Side::new(self, self.backward_slice([value], |_| false));
        let mut now = Side::new(now, now.backward_slice([value_now], |_| false));
        compare(&mut before, &mut now).or_else(|| {
            let (before, now) = (before.number(value), now.number(value_now));
            (before != now).then_some(Difference::Output { before, now })
        })
    }
}

/// One of the two programs that are compared. Its values are numbered in the order of their first use, so that equal
/// programs have equal numbers wherever they are in their graphs.
struct Side<'a> {
    graph: &'a Graph,
    slice: Slice,
    numbers: HashMap<ValueId, u32>,
}

impl<'a> Side<'a> {
    fn new(graph: &'a Graph, slice: Slice) -> Self {
        Self {
            graph,
            slice,
            numbers: HashMap::new(),
        }
    }

    fn number(&mut self, value: ValueId) -> u32 {
        let next = u32::try_from(self.numbers.len()).expect("a graph has fewer than 2^32 values");
        *self.numbers.entry(value).or_insert(next)
    }

    /// Returns the operation with this program's own numbers.
    fn operation(&mut self, index: usize) -> Option<OperationIr> {
        let node = self.graph.node(*self.slice.nodes.get(index)?);
        let mut operation = node.operation.clone();
        change_tensors(&mut operation, |tensor| {
            let value = ValueId::of_tensor(tensor).expect("the graph's ids are dense");
            tensor.id = TensorId::new(self.number(value).into());
        });
        Some(operation)
    }

    fn constant(&self, index: usize) -> Option<&'a TensorData> {
        self.graph.constant(*self.slice.leaves.get(index)?)
    }
}

fn compare(before: &mut Side<'_>, now: &mut Side<'_>) -> Option<Difference> {
    let most = before.slice.nodes.len().max(now.slice.nodes.len());
    let encoded = |operation: &OperationIr| {
        let mut bytes = Vec::new();
        encode(operation, &mut bytes);
        bytes
    };
    for index in 0..most {
        let pair = (before.operation(index), now.operation(index));
        if let (Some(before), Some(now)) = &pair
            && encoded(before) == encoded(now)
        {
            continue;
        }
        let describe = |text: fn(Operation<'_>) -> String| {
            let of = |operation: &Option<OperationIr>| Some(text(operation.as_ref()?.into()));
            (of(&pair.0), of(&pair.1))
        };
        let mut texts = describe(|operation| operation.describe());
        if texts.0 == texts.1 {
            texts = describe(|operation| operation.describe_with_inputs());
        }
        return Some(Difference::Operation {
            number: index + 1,
            before: texts.0,
            now: texts.1,
        });
    }
    let most = before.slice.leaves.len().max(now.slice.leaves.len());
    (0..most).find_map(|index| {
        let (before, now) = (before.constant(index), now.constant(index));
        // Burn compares the bytes, so a NaN is equal to itself.
        if before == now {
            return None;
        }
        let element = before.zip(now).and_then(|(a, b)| first_difference(a, b));
        Some(Difference::Constant {
            number: index + 1,
            before: before.map(|data| describe_data(data, element)),
            now: now.map(|data| describe_data(data, element)),
        })
    })
}

/// Returns the index of the first element that differs, if shapes and dtypes are equal.
fn first_difference(before: &TensorData, now: &TensorData) -> Option<usize> {
    if before.shape() != now.shape() || before.dtype() != now.dtype() {
        return None;
    }
    let mut pairs = before.as_bytes().iter().zip(now.as_bytes());
    let byte = pairs.position(|(a, b)| a != b)?;
    Some(byte / before.dtype().size().max(1))
}

fn describe_data(data: &TensorData, element: Option<usize>) -> String {
    let of = typed_shape(data.dtype(), data.shape());
    let value = element.and_then(|element| match data.dtype() {
        DType::Bool(_) => data.iter::<bool>().nth(element).map(|v| v.to_string()),
        dtype if dtype.is_float() => data.iter::<f64>().nth(element).map(|v| v.to_string()),
        _ => data.iter::<i64>().nth(element).map(|v| v.to_string()),
    });
    match (element, value) {
        (Some(element), Some(value)) => format!("{of} with {value} at element {element}"),
        _ => of,
    }
}
