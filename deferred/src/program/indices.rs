//! Checks indices against the indexed tensor, before an operation reads with them.

use burn::tensor::TensorData;
use burn_dispatch::{DispatchKindConversion, DispatchTensor};
use burn_ir::{BaseOperationIr, ModuleOperationIr, OperationIr, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;
use tinderbox_fake::{Node, ValueId, operation_name};

use crate::ProgramError;
use crate::random::{RandomBackend, tensor};

/// An index tensor and the sizes of the indexed dimensions: one, or one for each element of the tensor's
/// last dimension.
type Indexing<'a> = (&'a TensorIr, &'a [usize]);

/// Returns the indexing of an operation: gathers, selections, embeddings, scatters. The targets of a cross-entropy are
/// the indices of a gather.
fn indexing(operation: &OperationIr) -> Option<Indexing<'_>> {
    let base = match operation {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => {
            base
        }
        OperationIr::Module(ModuleOperationIr::Embedding(op)) => {
            return Some((&op.indices, &op.weights.shape.as_slice()[..1]));
        }
        OperationIr::Module(ModuleOperationIr::EmbeddingBackward(op)) => {
            return Some((&op.indices, &op.weights.shape.as_slice()[..1]));
        }
        _ => return None,
    };
    let along = |dim: usize| dim..dim + 1;
    let first = |indices: &TensorIr| 0..indices.shape.as_slice().last().copied().unwrap_or(0);
    let (indices, tensor, dims) = match base {
        BaseOperationIr::Gather(op) => (&op.indices, &op.tensor, along(op.dim)),
        BaseOperationIr::Scatter(op) => (&op.indices, &op.tensor, along(op.dim)),
        BaseOperationIr::Select(op) => (&op.indices, &op.tensor, along(op.dim)),
        BaseOperationIr::SelectAssign(op) => (&op.indices, &op.tensor, along(op.dim)),
        BaseOperationIr::GatherNd(op) => (&op.indices, &op.data, first(&op.indices)),
        BaseOperationIr::ScatterNd(op) => (&op.indices, &op.data, first(&op.indices)),
        _ => return None,
    };
    Some((indices, tensor.shape.as_slice().get(dims)?))
}

/// Returns the index tensor of an operation that reads by index, and the sizes of the indexed dimensions: one, or one
/// for each element of the tensor's last dimension. `None` for other operations.
pub fn indices_of(node: &Node) -> Option<(ValueId, &[usize])> {
    let (indices, sizes) = indexing(&node.operation)?;
    let mut inputs = node.inputs().iter().copied();
    let indices = inputs.find(|value| super::tensor_id(*value) == indices.id)?;
    Some((indices, sizes))
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
pub(super) fn check<B>(
    interpreter: &mut TensorInterpreter<B>,
    operation: &OperationIr,
) -> Result<(), ProgramError>
where
    B: RandomBackend,
    DispatchTensor: DispatchKindConversion<B>,
{
    let Some((indices, sizes)) = indexing(operation) else {
        return Ok(());
    };
    let mut taken = indices.clone();
    taken.status = TensorStatus::ReadOnly;
    let data = tensor::<B>(interpreter.get_tensor(&taken)).to_data()?;
    in_range(operation, &data, sizes)
}

pub(super) fn in_range(
    operation: &OperationIr,
    data: &TensorData,
    sizes: &[usize],
) -> Result<(), ProgramError> {
    match wrong(data, sizes) {
        Some((position, index, size)) => Err(ProgramError::IndexOutOfRange {
            operation: operation_name(operation),
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
    let pairs = data
        .iter::<i64>()
        .map(|index| (index, sizes.next().copied()));
    let (flat, (index, size)) = pairs.enumerate().find(|(_, (index, size))| {
        size.is_some_and(|size| usize::try_from(*index).map_or(true, |index| index >= size))
    })?;
    let mut rest = flat;
    let shape = data.shape();
    let dims = shape.iter().rev();
    let mut position: Vec<usize> = dims
        .map(|dim| {
            let at = rest % dim;
            rest /= dim;
            at
        })
        .collect();
    position.reverse();
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
