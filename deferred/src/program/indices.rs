//! Checks indices against the indexed tensor, before an operation reads with them.

use burn::tensor::TensorData;
use burn_ir::{OperationIr, TensorStatus};
use burn_router::TensorInterpreter;
use tinderbox_fake::{Node, Operation, ValueId};

use super::operation::indexing;
use crate::ProgramError;
use crate::device::DeviceBackend;

/// Returns the index tensor of an operation that reads by index, and the sizes of the indexed dimensions: one, or one
/// for each element of the tensor's last dimension. `None` for other operations.
pub fn indices_of(node: &Node) -> Option<(ValueId, &[usize])> {
    let (indices, sizes) = indexing(&node.operation)?;
    Some((ValueId::of_tensor(indices)?, sizes))
}

/// Returns an error if an index of a node's operation is out of range; accepts any data for an operation that
/// does not read by index.
///
/// # Errors
///
/// [`ProgramError::IndexOutOfRange`] with the first such index.
pub fn check_indices(node: &Node, data: &TensorData) -> Result<(), ProgramError> {
    match indexing(&node.operation) {
        Some((_, sizes)) => in_range(&node.operation, data, sizes),
        None => Ok(()),
    }
}

/// Rejects an operation that would read or write out of range. Reads the indices, which on a GPU waits for all
/// queued work.
pub(super) fn check<B: DeviceBackend>(
    interpreter: &mut TensorInterpreter<B>,
    operation: &OperationIr,
) -> Result<(), ProgramError> {
    let Some((indices, sizes)) = indexing(operation) else {
        return Ok(());
    };
    let mut kept = indices.clone();
    kept.status = TensorStatus::ReadOnly;
    let data = B::to_dyn(interpreter.get_tensor(&kept)).to_data()?;
    in_range(operation, &data, sizes)
}

pub(super) fn in_range(
    operation: &OperationIr,
    data: &TensorData,
    sizes: &[usize],
) -> Result<(), ProgramError> {
    match wrong(data, sizes) {
        Some((position, index, size)) => Err(ProgramError::IndexOutOfRange {
            operation: Operation::from(operation).name(),
            made: operation.outputs().next().map_or(0, |out| out.id.value()),
            index,
            position,
            size,
        }),
        None => Ok(()),
    }
}

/// Returns the first index that is out of range: its position, the index, and the size.
fn wrong(data: &TensorData, sizes: &[usize]) -> Option<(Vec<usize>, i64, usize)> {
    let mut sizes = sizes.iter().cycle();
    let indices = data.iter::<i64>();
    let pairs = indices.map(|index| (index, sizes.next().copied()));
    let (flat, (index, size)) = pairs.enumerate().find(|(_, (index, size))| {
        size.is_some_and(|size| usize::try_from(*index).map_or(true, |index| index >= size))
    })?;
    let mut rest = flat;
    let mut position = data.shape().to_vec();
    for at in position.iter_mut().rev() {
        (*at, rest) = (rest % *at, rest / *at);
    }
    Some((position, index, size?))
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::wrong;

    #[test]
    fn the_first_index_that_does_not_fit_is_found() {
        let check =
            |data: TensorData, sizes: &[usize], expected: Option<(&[usize], i64, usize)>| {
                let expected = expected.map(|(at, index, size)| (at.to_vec(), index, size));
                assert_eq!(wrong(&data, sizes), expected, "{data:?} in {sizes:?}");
            };
        check(TensorData::from([[0i64, 4], [2, 3]]), &[5], None);
        check(
            TensorData::from([[0i64, 4], [5, 9]]),
            &[5],
            Some((&[1, 0], 5, 5)),
        );
        check(TensorData::from([0i32, -1]), &[5], Some((&[1], -1, 5)));
        check(
            TensorData::from([i64::MAX, 0]),
            &[5],
            Some((&[0], i64::MAX, 5)),
        );
        check(TensorData::from([0u8, 255]), &[255], Some((&[1], 255, 255)));
        // A row for each element, a column for each of two dimensions.
        check(
            TensorData::from([[4i32, 0], [0, 2]]),
            &[5, 2],
            Some((&[1, 1], 2, 2)),
        );
        check(TensorData::from([[4i32, 1]]), &[5, 2], None);
        check(TensorData::from([0i32]), &[0], Some((&[0], 0, 0)));
        check(TensorData::new(Vec::<i32>::new(), [0, 2]), &[1], None);
        check(TensorData::new(Vec::<i32>::new(), [2, 0]), &[], None);
    }
}
