//! The parts of an operation's inputs that a part of its result needs, by operation.

use burn::tensor::Slice;
use burn_ir::{
    ActivationOperationIr, BaseOperationIr, BoolOperationIr, CatOpIr, FlipOpIr, FloatOperationIr,
    IntOperationIr, NumericOperationIr, OperationIr, RepeatDimOpIr, SelectOpIr, SliceAssignOpIr,
    SliceOpIr, TensorIr,
};
use tinderbox_fake::Region;

use super::cover::{Cover, cover};
use crate::program::random;

/// How a part of an operation's result is computed.
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
    /// A part of random values.
    Draw,
    /// The operation as it was recorded: it is not sliceable.
    Whole,
}

/// The family of a base operation: the same operation exists for each kind of tensor.
type Family = fn(BaseOperationIr) -> OperationIr;

/// Returns how the wanted part of the result of an operation with one output is computed.
///
/// The wanted part is not empty. Operations that are not listed here are computed whole, which is always correct.
pub(super) fn step(operation: &OperationIr, wanted: &Region) -> Step {
    let pushed = match operation {
        OperationIr::BaseFloat(base) => base_step(base, OperationIr::BaseFloat, wanted),
        OperationIr::BaseInt(base) => base_step(base, OperationIr::BaseInt, wanted),
        OperationIr::BaseBool(base) => base_step(base, OperationIr::BaseBool, wanted),
        _ => None,
    };
    pushed
        .or_else(|| {
            random(operation).map(|_| Step {
                out: wanted.clone(),
                inputs: Vec::new(),
                make: Make::Draw,
            })
        })
        .or_else(|| elementwise(operation, wanted))
        .unwrap_or_else(|| whole(operation))
}

/// Returns the step of a result that is one of the inputs, or a part of one.
fn alias(wanted: &Region, inputs: Vec<Option<Region>>) -> Step {
    Step {
        out: wanted.clone(),
        inputs,
        make: Make::Alias,
    }
}

pub(super) fn whole(operation: &OperationIr) -> Step {
    let whole = |t: &TensorIr| Region::of_shape(&t.shape);
    Step {
        out: operation
            .outputs()
            .next()
            .map_or_else(|| Region::of_shape(&[]), whole),
        inputs: operation.inputs().map(|t| Some(whole(t))).collect(),
        make: Make::Whole,
    }
}

/// Returns whether each element of the result only depends on the elements of the inputs at the same index, and on
/// scalars.
pub(super) fn is_elementwise(operation: &OperationIr) -> bool {
    use NumericOperationIr as N;
    match operation {
        OperationIr::Float(_, float) => !matches!(
            float,
            FloatOperationIr::Matmul(_)
                | FloatOperationIr::Cross(_)
                | FloatOperationIr::Random(_)
                | FloatOperationIr::Quantize(_)
                | FloatOperationIr::Dequantize(_)
                | FloatOperationIr::GridSample2d(_)
        ),
        OperationIr::NumericFloat(_, numeric) | OperationIr::NumericInt(_, numeric) => matches!(
            numeric,
            N::Add(_)
                | N::AddScalar(_)
                | N::Sub(_)
                | N::SubScalar(_)
                | N::Div(_)
                | N::DivScalar(_)
                | N::Rem(_)
                | N::RemScalar(_)
                | N::Mul(_)
                | N::MulScalar(_)
                | N::Abs(_)
                | N::Full(_)
                | N::Greater(_)
                | N::GreaterElem(_)
                | N::GreaterEqual(_)
                | N::GreaterEqualElem(_)
                | N::Lower(_)
                | N::LowerElem(_)
                | N::LowerEqual(_)
                | N::LowerEqualElem(_)
                | N::Clamp(_)
                | N::ClampMin(_)
                | N::ClampMax(_)
                | N::Powi(_)
                | N::PowiScalar(_)
                | N::Neg(_)
                | N::Sign(_)
        ),
        OperationIr::Int(int) => !matches!(int, IntOperationIr::Matmul(_)),
        OperationIr::Bool(
            BoolOperationIr::IntoFloat(_)
            | BoolOperationIr::IntoInt(_)
            | BoolOperationIr::Not(_)
            | BoolOperationIr::And(_)
            | BoolOperationIr::Or(_)
            | BoolOperationIr::Xor(_),
        ) => true,
        OperationIr::Activation(activation) => matches!(
            activation,
            ActivationOperationIr::Relu(_)
                | ActivationOperationIr::LeakyRelu(_)
                | ActivationOperationIr::Gelu(_)
                | ActivationOperationIr::Sigmoid(_)
                | ActivationOperationIr::HardSigmoid(_)
                | ActivationOperationIr::LogSigmoid(_)
        ),
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => {
            matches!(
                base,
                BaseOperationIr::Equal(_)
                    | BaseOperationIr::EqualElem(_)
                    | BaseOperationIr::NotEqual(_)
                    | BaseOperationIr::NotEqualElem(_)
                    | BaseOperationIr::MaskWhere(_)
                    | BaseOperationIr::MaskFill(_)
                    | BaseOperationIr::Cast(_)
                    | BaseOperationIr::Empty(_)
                    | BaseOperationIr::Ones(_)
                    | BaseOperationIr::Zeros(_)
            )
        }
        _ => false,
    }
}

/// Returns the step of an elementwise operation; `None` for others.
fn elementwise(operation: &OperationIr, wanted: &Region) -> Option<Step> {
    if !is_elementwise(operation) {
        return None;
    }
    let shape = &operation.outputs().next()?.shape;
    let inputs = operation
        .inputs()
        .map(|input| broadcast(&input.shape, shape, wanted).map(Some));
    Some(Step {
        out: wanted.clone(),
        inputs: inputs.collect::<Option<_>>()?,
        make: Make::Run(Box::new(operation.clone())),
    })
}

/// Returns the needed part of an input that is broadcast along its dimensions of one element.
fn broadcast(input: &[usize], result: &[usize], wanted: &Region) -> Option<Region> {
    if input.len() != result.len() {
        return None;
    }
    let ranges = input.iter().zip(result).enumerate();
    let ranges = ranges.map(|(d, (i, r))| match (i == r, i) {
        (true, _) => Some((wanted.offset()[d], wanted.size()[d])),
        (false, 1) => Some((0, 1)),
        _ => None,
    });
    let (offset, size) = ranges.collect::<Option<Vec<_>>>()?.into_iter().unzip();
    Region::new(offset, size).ok()
}

/// Returns the step of a shape operation or join; `None` for operations without a rule.
fn base_step(base: &BaseOperationIr, family: Family, wanted: &Region) -> Option<Step> {
    use BaseOperationIr as B;
    let of_one = |needed| run(wanted.clone(), vec![Some(needed)], family(base.clone()));
    Some(match base {
        B::Reshape(reshape) => {
            let Cover { before, after } = cover(&dims(&reshape.input), &dims(&reshape.out), wanted);
            run(after, vec![Some(before)], family(base.clone()))
        }
        B::Expand(expand) => {
            // New dimensions are first.
            let new = expand.out.shape.num_dims() - expand.input.shape.num_dims();
            let kept = Region::new(
                wanted.offset()[new..].to_vec(),
                wanted.size()[new..].to_vec(),
            );
            let result = &expand.out.shape[new..];
            of_one(broadcast(&expand.input.shape, result, &kept.ok()?)?)
        }
        B::SwapDims(swap) => {
            let mut axes: Vec<usize> = (0..wanted.rank()).collect();
            axes.swap(swap.dim1, swap.dim2);
            of_one(permuted(wanted, &axes))
        }
        B::Permute(permute) => {
            // Dimension `d` of the result is dimension `axes[d]` of the input.
            let mut back = vec![0; permute.axes.len()];
            for (d, axis) in permute.axes.iter().enumerate() {
                back[*axis] = d;
            }
            of_one(permuted(wanted, &back))
        }
        B::Flip(flip) => of_one(flipped(flip, wanted)),
        B::Slice(slice) => sliced(slice, family, wanted)?,
        B::SliceAssign(assign) => assigned(assign, family, wanted)?,
        B::RepeatDim(repeat) => repeated(repeat, family(base.clone()), wanted),
        B::Cat(cat) => joined(cat, family, wanted),
        B::Select(select) => selected(select, family(base.clone()), wanted),
        _ => return None,
    })
}

fn run(out: Region, inputs: Vec<Option<Region>>, operation: OperationIr) -> Step {
    Step {
        out,
        inputs,
        make: Make::Run(Box::new(operation)),
    }
}

fn dims(tensor: &TensorIr) -> Vec<u64> {
    tensor.shape.iter().map(|d| *d as u64).collect()
}

fn permuted(region: &Region, axes: &[usize]) -> Region {
    let pick = |of: &[u64]| axes.iter().map(|axis| of[*axis]).collect();
    Region::new(pick(region.offset()), pick(region.size())).expect("a permuted region is a region")
}

/// Returns a region with another range in one dimension.
fn with_range(region: &Region, dim: usize, offset: u64, size: u64) -> Region {
    let (mut offsets, mut sizes) = (region.offset().to_vec(), region.size().to_vec());
    (offsets[dim], sizes[dim]) = (offset, size);
    Region::new(offsets, sizes).expect("the range is inside the tensor")
}

fn flipped(flip: &FlipOpIr, wanted: &Region) -> Region {
    let mut needed = wanted.clone();
    for axis in &flip.axes {
        let length = flip.input.shape[*axis] as u64;
        let (offset, size) = (wanted.offset()[*axis], wanted.size()[*axis]);
        needed = with_range(&needed, *axis, length - offset - size, size);
    }
    needed
}

/// Only positive steps have a rule.
fn sliced(slice: &SliceOpIr, family: Family, wanted: &Region) -> Option<Step> {
    let mut needed = Region::of_shape(&slice.tensor.shape);
    let mut ranges = Vec::new();
    for d in 0..wanted.rank() {
        let length = slice.tensor.shape[d];
        let (start, step) = match slice.ranges.get(d) {
            Some(range) => (
                range.to_range(length).start as u64,
                u64::try_from(range.step).ok()?,
            ),
            None => (0, 1),
        };
        let span = (wanted.size()[d] - 1) * step + 1;
        needed = with_range(&needed, d, start + wanted.offset()[d] * step, span);
        ranges.push(Slice::new(0, Some(span as isize), step as isize));
    }
    if ranges.iter().all(|range| range.step == 1) {
        return Some(alias(wanted, vec![Some(needed)]));
    }
    let operation = family(BaseOperationIr::Slice(SliceOpIr {
        ranges,
        ..slice.clone()
    }));
    Some(run(wanted.clone(), vec![Some(needed)], operation))
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

fn assigned(assign: &SliceAssignOpIr, family: Family, wanted: &Region) -> Option<Step> {
    let target = target(assign)?;
    let Some(written) = wanted.intersection(&target) else {
        return Some(alias(wanted, vec![Some(wanted.clone()), None]));
    };
    let of_value = written.relative_to(&target);
    if written == *wanted {
        return Some(alias(wanted, vec![None, Some(of_value)]));
    }
    let ranges = written.relative_to(wanted).ranges();
    let operation = family(BaseOperationIr::SliceAssign(SliceAssignOpIr {
        ranges: ranges.into_iter().map(Slice::from).collect(),
        ..assign.clone()
    }));
    let inputs = vec![Some(wanted.clone()), Some(of_value)];
    Some(run(wanted.clone(), inputs, operation))
}

fn repeated(repeat: &RepeatDimOpIr, operation: OperationIr, wanted: &Region) -> Step {
    let dim = repeat.dim;
    let length = repeat.tensor.shape[dim] as u64;
    let (offset, size) = (wanted.offset()[dim], wanted.size()[dim]);
    let within = offset % length;
    if within + size <= length {
        // Inside one repetition.
        return alias(wanted, vec![Some(with_range(wanted, dim, within, size))]);
    }
    let out = with_range(wanted, dim, 0, repeat.out.shape[dim] as u64);
    run(
        out,
        vec![Some(with_range(wanted, dim, 0, length))],
        operation,
    )
}

fn joined(cat: &CatOpIr, family: Family, wanted: &Region) -> Step {
    let dim = cat.dim;
    let wanted_range = wanted.offset()[dim]..wanted.offset()[dim] + wanted.size()[dim];
    let mut begin = 0;
    let mut tensors = Vec::new();
    let mut inputs = Vec::new();
    for tensor in &cat.tensors {
        let end = begin + tensor.shape[dim] as u64;
        let (from, to) = (wanted_range.start.max(begin), wanted_range.end.min(end));
        inputs.push((from < to).then(|| {
            tensors.push(tensor.clone());
            with_range(wanted, dim, from - begin, to - from)
        }));
        begin = end;
    }
    if tensors.len() == 1 {
        return alias(wanted, inputs);
    }
    let operation = family(BaseOperationIr::Cat(CatOpIr {
        tensors,
        ..cat.clone()
    }));
    run(wanted.clone(), inputs, operation)
}

/// Returns the indices of the wanted rows, and the whole of the selected dimension.
fn selected(select: &SelectOpIr, operation: OperationIr, wanted: &Region) -> Step {
    let dim = select.dim;
    let tensor = with_range(wanted, dim, 0, select.tensor.shape[dim] as u64);
    let indices = Region::new(vec![wanted.offset()[dim]], vec![wanted.size()[dim]]);
    let indices = indices.expect("a range of a region is a region");
    run(wanted.clone(), vec![Some(tensor), Some(indices)], operation)
}
