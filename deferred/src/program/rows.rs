//! Tables of which a program reads some rows, by index.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use burn::tensor::{Device, TensorData};
use burn_dispatch::{DispatchKindConversion, DispatchTensor};
use burn_ir::{
    BaseOperationIr, IrVisitorMut, ModuleOperationIr, OperationIr, TensorId, TensorIr, TensorStatus,
};
use burn_router::TensorInterpreter;
use tinderbox_fake::{DynTensor, Node, ValueId};

use super::handle::handle;
use super::{indices, tensor_id};
use crate::random::{RandomBackend, tensor};
use crate::{ProgramError, SourceError};

/// A table that is not in memory, of which operations read some rows by index.
pub trait Rows: Send + Sync {
    /// Returns the rows with these numbers, which ascend, as one tensor.
    ///
    /// # Errors
    ///
    /// When they can't be read.
    fn read(&self, rows: &[u64]) -> Result<DynTensor, SourceError>;
}

/// An input of a program.
#[derive(Clone)]
pub enum ProgramInput {
    /// A value.
    Value(DynTensor),
    /// A table, if all operations that read it [read rows](rows_read).
    Rows(Arc<dyn Rows>),
}

impl fmt::Debug for ProgramInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Rows(_) => f.write_str("Rows"),
        }
    }
}

impl From<DynTensor> for ProgramInput {
    fn from(value: DynTensor) -> Self {
        Self::Value(value)
    }
}

/// Returns the table of which an operation reads rows by index, such as an embedding, with the number of indices. `None` for other
/// operations.
pub fn rows_read(node: &Node) -> Option<(ValueId, usize)> {
    let (table, indices) = selection(&node.operation)?;
    let mut inputs = node.inputs().iter().copied();
    let table = inputs.find(|value| tensor_id(*value) == table.id)?;
    Some((table, indices.shape.num_elements()))
}

/// The table and the indices of an operation that reads rows.
fn selection(operation: &OperationIr) -> Option<(&TensorIr, &TensorIr)> {
    match operation {
        OperationIr::Module(ModuleOperationIr::Embedding(op)) => Some((&op.weights, &op.indices)),
        OperationIr::BaseFloat(BaseOperationIr::Select(op)) if op.dim == 0 => {
            Some((&op.tensor, &op.indices))
        }
        _ => None,
    }
}

/// Replaces tensors that an operation reads.
struct Replace([(TensorId, TensorIr); 2]);

impl IrVisitorMut for Replace {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if let Some((_, by)) = self.0.iter().find(|(id, _)| *id == tensor.id) {
            *tensor = by.clone();
        }
    }
}

/// If an operation reads rows of one of the tables, reads these, and changes the operation to read only them.
pub(super) fn read<B: RandomBackend>(
    interpreter: &mut TensorInterpreter<B>,
    operation: &mut OperationIr,
    tables: &HashMap<TensorId, Arc<dyn Rows>>,
    device: &Device,
) -> Result<(), ProgramError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let Some((table, by)) = selection(operation) else {
        return Ok(());
    };
    let Some(rows) = tables.get(&table.id) else {
        return Ok(());
    };
    // Freed here if it is not read again.
    let wanted = tensor::<B>(interpreter.get_tensor(by)).to_data()?;
    indices::in_range(operation, &wanted, &table.shape.as_slice()[..1])?;
    let wanted: Vec<u64> = wanted.iter::<i64>().map(i64::unsigned_abs).collect();
    let different: BTreeSet<u64> = wanted.iter().copied().collect();
    let different: Vec<u64> = different.into_iter().collect();
    let value = rows.read(&different).map_err(|source| ProgramError::Rows {
        source: Box::new(source),
    })?;
    let places = wanted
        .iter()
        .map(|row| different.partition_point(|r| r < row) as i64);
    let places = TensorData::new(places.collect(), by.shape.clone()).convert_dtype(by.dtype);
    let places = DynTensor::from_data(places, device);
    let few = TensorIr {
        shape: value.shape(),
        status: TensorStatus::ReadWrite,
        ..table.clone()
    };
    let new = TensorIr {
        // No value of a graph has it.
        id: TensorId::new(u64::MAX),
        status: TensorStatus::ReadWrite,
        ..by.clone()
    };
    interpreter.register_tensor_to_device(few.id, handle::<B>(value)?);
    interpreter.register_tensor_to_device(new.id, handle::<B>(places)?);
    let mut replace = Replace([(table.id, few), (by.id, new)]);
    operation.visit_mut(&mut replace);
    Ok(())
}
