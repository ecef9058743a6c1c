//! Tables from which a program reads some rows, by index.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use burn::tensor::{Device, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;
use tinderbox_fake::{DynTensor, Node, ValueId, change_tensors};

use super::indices;
use super::operation::row_selection;
use crate::device::DeviceBackend;
use crate::{ProgramError, SourceError};

/// A table that is not in memory, from which operations read some rows by index.
pub trait Rows: Send + Sync {
    /// Returns the rows with these numbers, in ascending order, as one tensor.
    ///
    /// # Errors
    ///
    /// When they can't be read.
    fn read(&self, rows: &[u64]) -> Result<DynTensor, SourceError>;
}

/// An input of a program.
#[derive(Clone, derive_more::Debug, derive_more::From)]
// Almost all inputs are values, which are moved once.
#[cfg_attr(feature = "cubecl", expect(clippy::large_enum_variant))]
pub enum ProgramInput {
    /// A value.
    Value(DynTensor),
    /// A table, if all operations that read it [read rows](rows_read).
    #[debug("Rows")]
    #[from(skip)]
    Rows(Arc<dyn Rows>),
}

/// Returns the table from which an operation, such as an embedding, reads rows by index, with the number of indices. `None`
/// for other operations.
pub fn rows_read(node: &Node) -> Option<(ValueId, usize)> {
    let (table, indices) = row_selection(&node.operation)?;
    Some((ValueId::of_tensor(table)?, indices.shape.num_elements()))
}

/// Reads the rows that an operation reads of one of the tables, and changes the operation to read only these rows. Other
/// operations are unchanged.
pub(super) fn read<B: DeviceBackend>(
    interpreter: &mut TensorInterpreter<B>,
    operation: &mut OperationIr,
    tables: &HashMap<TensorId, Arc<dyn Rows>>,
    device: &Device,
) -> Result<(), ProgramError> {
    let read = row_selection(operation);
    let read = read.and_then(|(table, by)| Some((table, by, tables.get(&table.id)?)));
    let Some((table, by, rows)) = read else {
        return Ok(());
    };
    // Freed here if no later operation reads it.
    let wanted = B::to_dyn(interpreter.get_tensor(by)).to_data()?;
    indices::in_range(operation, &wanted, &table.shape.as_slice()[..1])?;
    let wanted: Vec<u64> = wanted.iter::<i64>().map(i64::unsigned_abs).collect();
    let different: BTreeSet<u64> = wanted.iter().copied().collect();
    let different: Vec<u64> = different.into_iter().collect();
    let value = rows.read(&different).map_err(Box::new)?;
    let place_of = |row: &u64| different.partition_point(|other| other < row) as i64;
    let places: Vec<i64> = wanted.iter().map(place_of).collect();
    let places = TensorData::new(places, by.shape.clone()).convert_dtype(by.dtype);
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
    interpreter.register_tensor_to_device(few.id, B::of_dyn(value)?);
    interpreter.register_tensor_to_device(new.id, B::of_dyn(places)?);
    let (table, by) = (table.id, by.id);
    change_tensors(operation, |tensor| {
        if tensor.id == table {
            tensor.clone_from(&few);
        } else if tensor.id == by {
            tensor.clone_from(&new);
        }
    });
    Ok(())
}
