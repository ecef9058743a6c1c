//! The parts of an operation's inputs that a part of its result needs, by operation.

use burn::tensor::Slice;
use burn_ir::{
    BaseOperationIr, CatOpIr, CreationOpIr, OperationIr, RepeatDimOpIr, SelectOpIr,
    SliceAssignOpIr, SliceOpIr, TensorIr,
};
use tinderbox_fake::{Operation, Region};

use super::cover::{Cover, cover, ranges, region};
use crate::program::{base, family, is_elementwise};

/// The computation of a part of an operation's result.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The part that is computed, around the wanted one.
    pub(super) out: Region,
    /// The needed part of each input, in the operation's order; `None` if it is not needed.
    pub(super) inputs: Vec<Option<Region>>,
    /// The operation to run.
    pub(super) make: Make,
}

/// The operation to run for a part of an operation's result.
#[derive(Clone, Debug)]
pub(super) enum Make {
    /// This operation on the needed parts.
    Run(Box<OperationIr>),
    /// None: the result is the needed part of its only needed input.
    Alias,
    /// The operation as it was recorded: it is not sliceable.
    Whole,
}

/// Returns how the wanted part of the result of an operation with one output is computed.
///
/// Operations that are not listed here are computed whole, which is always correct.
pub(super) fn step(operation: &OperationIr, wanted: &Region) -> Step {
    if wanted.num_elements() == 0 {
        return nothing(operation, wanted);
    }
    if Operation::from(operation).random().is_some() {
        return run(wanted.clone(), Vec::new(), operation.clone());
    }
    let pushed = base(operation).and_then(|base| base_step(base, operation, wanted));
    pushed
        .or_else(|| elementwise(operation, wanted))
        .unwrap_or_else(|| whole(operation))
}

/// Returns the step for no elements, which has no dependencies.
fn nothing(operation: &OperationIr, wanted: &Region) -> Step {
    let out = operation.outputs().next();
    let out = out.expect("the operation has one output").clone();
    let zeros = family(out.dtype)(BaseOperationIr::Zeros(CreationOpIr { out }));
    let inputs = operation.inputs().map(|_| None).collect();
    run(wanted.clone(), inputs, zeros)
}

fn run(out: Region, inputs: Vec<Option<Region>>, operation: OperationIr) -> Step {
    let make = Make::Run(Box::new(operation));
    Step { out, inputs, make }
}

/// Returns the step of a result that is one of the inputs, or a part of one.
fn alias(wanted: &Region, inputs: Vec<Option<Region>>) -> Step {
    let (out, make) = (wanted.clone(), Make::Alias);
    Step { out, inputs, make }
}

pub(super) fn whole(operation: &OperationIr) -> Step {
    let whole = |t: &TensorIr| Region::of_shape(&t.shape);
    let out = operation.outputs().next();
    let out = out.map_or_else(|| Region::of_shape(&[]), whole);
    let inputs = operation.inputs().map(|t| Some(whole(t))).collect();
    let make = Make::Whole;
    Step { out, inputs, make }
}

/// Returns the step of an elementwise operation; `None` for others.
fn elementwise(operation: &OperationIr, wanted: &Region) -> Option<Step> {
    if !is_elementwise(operation) {
        return None;
    }
    let shape = &operation.outputs().next()?.shape;
    let part_of = |input: &TensorIr| broadcast(&input.shape, shape, wanted).map(Some);
    let inputs = operation.inputs().map(part_of).collect::<Option<_>>()?;
    Some(run(wanted.clone(), inputs, operation.clone()))
}

/// Returns the needed part of an input that is broadcast along its dimensions of one element.
fn broadcast(input: &[usize], result: &[usize], wanted: &Region) -> Option<Region> {
    if input.len() != result.len() {
        return None;
    }
    let sizes = input.iter().zip(result).zip(ranges(wanted));
    let ranges = sizes.map(|((input, result), range)| match (input == result, input) {
        (true, _) => Some(range),
        (false, 1) => Some((0, 1)),
        _ => None,
    });
    Some(region(ranges.collect::<Option<Vec<_>>>()?))
}

/// Returns the step of a shape operation or join; `None` for operations without a rule.
fn base_step(base: &BaseOperationIr, operation: &OperationIr, wanted: &Region) -> Option<Step> {
    use BaseOperationIr as B;
    let of_one = |needed| run(wanted.clone(), vec![Some(needed)], operation.clone());
    Some(match base {
        B::Reshape(reshape) => {
            let Cover { before, after } = cover(&dims(&reshape.input), &dims(&reshape.out), wanted);
            run(after, vec![Some(before)], operation.clone())
        }
        B::Expand(expand) => {
            // New dimensions are first.
            let (input, out) = (&expand.input.shape, &expand.out.shape);
            let new = out.num_dims() - input.num_dims();
            let kept = region(ranges(wanted).skip(new));
            of_one(broadcast(input, &out[new..], &kept)?)
        }
        B::SwapDims(swap) => {
            let mut needed: Vec<_> = ranges(wanted).collect();
            needed.swap(swap.dim1, swap.dim2);
            of_one(region(needed))
        }
        B::Permute(permute) => {
            // Dimension `d` of the result is dimension `axes[d]` of the input.
            let mut needed = vec![(0, 0); permute.axes.len()];
            for (axis, range) in permute.axes.iter().zip(ranges(wanted)) {
                needed[*axis] = range;
            }
            of_one(region(needed))
        }
        B::Flip(flip) => {
            let mut needed: Vec<_> = ranges(wanted).collect();
            for axis in &flip.axes {
                let (offset, size) = needed[*axis];
                needed[*axis].0 = flip.input.shape[*axis] as u64 - offset - size;
            }
            of_one(region(needed))
        }
        B::Slice(slice) => sliced(slice, wanted)?,
        B::SliceAssign(assign) => assigned(assign, wanted)?,
        B::RepeatDim(repeat) => repeated(repeat, operation, wanted),
        B::Cat(cat) => joined(cat, wanted),
        B::Select(select) => selected(select, operation, wanted),
        _ => return None,
    })
}

fn dims(tensor: &TensorIr) -> Vec<u64> {
    tensor.shape.iter().map(|d| *d as u64).collect()
}

/// Only positive steps have a rule.
fn sliced(slice: &SliceOpIr, wanted: &Region) -> Option<Step> {
    let (mut needed, mut steps) = (Vec::new(), Vec::new());
    for (d, (offset, size)) in ranges(wanted).enumerate() {
        let (start, step) = match slice.ranges.get(d) {
            Some(range) => {
                let start = range.to_range(slice.tensor.shape[d]).start;
                (start as u64, u64::try_from(range.step).ok()?)
            }
            None => (0, 1),
        };
        let span = (size - 1) * step + 1;
        needed.push((start + offset * step, span));
        steps.push(Slice::new(0, Some(span as isize), step as isize));
    }
    let needed = vec![Some(region(needed))];
    if steps.iter().all(|range| range.step == 1) {
        return Some(alias(wanted, needed));
    }
    let operation = family(slice.out.dtype)(BaseOperationIr::Slice(SliceOpIr {
        ranges: steps,
        ..slice.clone()
    }));
    Some(run(wanted.clone(), needed, operation))
}

/// Returns the box that a value is written to, for steps of one; `None` for other steps.
fn target(assign: &SliceAssignOpIr) -> Option<Region> {
    let whole = Region::of_shape(&assign.tensor.shape);
    let (mut offset, size) = (whole.offset().to_vec(), dims(&assign.value));
    for (d, range) in assign.ranges.iter().enumerate() {
        if range.step != 1 {
            return None;
        }
        offset[d] = range.to_range(assign.tensor.shape[d]).start as u64;
    }
    Region::new(offset, size).ok()
}

fn assigned(assign: &SliceAssignOpIr, wanted: &Region) -> Option<Step> {
    let target = target(assign)?;
    let Some(written) = wanted.intersection(&target) else {
        return Some(alias(wanted, vec![Some(wanted.clone()), None]));
    };
    let of_value = written.relative_to(&target);
    if written == *wanted {
        return Some(alias(wanted, vec![None, Some(of_value)]));
    }
    let ranges = written.relative_to(wanted).ranges();
    let operation = family(assign.out.dtype)(BaseOperationIr::SliceAssign(SliceAssignOpIr {
        ranges: ranges.into_iter().map(Slice::from).collect(),
        ..assign.clone()
    }));
    let inputs = vec![Some(wanted.clone()), Some(of_value)];
    Some(run(wanted.clone(), inputs, operation))
}

fn repeated(repeat: &RepeatDimOpIr, operation: &OperationIr, wanted: &Region) -> Step {
    let dim = repeat.dim;
    let length = repeat.tensor.shape[dim] as u64;
    let (offset, size) = (wanted.offset()[dim], wanted.size()[dim]);
    let within = offset % length;
    if within + size <= length {
        // Inside one repetition.
        let part = wanted.with_range(dim, within..within + size);
        return alias(wanted, vec![Some(part)]);
    }
    let out = wanted.with_range(dim, 0..repeat.out.shape[dim] as u64);
    let once = wanted.with_range(dim, 0..length);
    run(out, vec![Some(once)], operation.clone())
}

fn joined(cat: &CatOpIr, wanted: &Region) -> Step {
    let dim = cat.dim;
    let wanted_range = wanted.range(dim);
    let mut begin = 0;
    let mut tensors = Vec::new();
    let mut inputs = Vec::new();
    for tensor in &cat.tensors {
        let end = begin + tensor.shape[dim] as u64;
        let (from, to) = (wanted_range.start.max(begin), wanted_range.end.min(end));
        inputs.push((from < to).then(|| {
            tensors.push(tensor.clone());
            wanted.with_range(dim, from - begin..to - begin)
        }));
        begin = end;
    }
    if tensors.len() == 1 {
        return alias(wanted, inputs);
    }
    let operation = family(cat.out.dtype)(BaseOperationIr::Cat(CatOpIr {
        tensors,
        ..cat.clone()
    }));
    run(wanted.clone(), inputs, operation)
}

/// Returns the indices of the wanted rows, and the whole of the selected dimension.
fn selected(select: &SelectOpIr, operation: &OperationIr, wanted: &Region) -> Step {
    let dim = select.dim;
    let tensor = wanted.with_range(dim, 0..select.tensor.shape[dim] as u64);
    let indices = region([(wanted.offset()[dim], wanted.size()[dim])]);
    let inputs = vec![Some(tensor), Some(indices)];
    run(wanted.clone(), inputs, operation.clone())
}
