//! Errors of batches and traces.

use burn::tensor::DType;
use tinderbox_deferred::{DeferredError, ParameterPath, ParameterTable, SharedId};
use tinderbox_fake::{RecordError, dtype_name};

use crate::schedule::RankIndex;

/// Errors of a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A tensor of the batch can't be read from its device.
    #[error("the batch can't be read from its device")]
    Unread {
        /// The error of the device.
        source: tinderbox_fake::FakeError,
    },
    /// No tensor of the batch is divided by samples.
    #[error("no tensor of the batch is divided by samples: at least one must not be `Whole`")]
    NoSamples,
    /// Two tensors have different numbers of samples.
    #[error(
        "tensor `{first}` of the batch has {expected} samples and `{name}` has {found}: wrap a \
         tensor that belongs to all samples in `Whole`, and one whose samples are not the first dimension in `Along`"
    )]
    SampleCount {
        /// The name of the first tensor.
        first: String,
        /// The number of its samples.
        expected: usize,
        /// The name of the other tensor.
        name: String,
        /// The number of its samples.
        found: usize,
    },
    /// A tensor has another dtype than in the traced batch.
    #[error(
        "tensor `{name}` of the batch is {}, and the model was traced with {}: cast it, or trace with such a batch",
        dtype_name(*found),
        dtype_name(*expected)
    )]
    DType {
        /// The name of the tensor; empty for a single tensor.
        name: String,
        /// The dtype in the traced batch.
        expected: DType,
        /// The dtype of the tensor.
        found: DType,
    },
    /// A tensor has no data.
    #[error(
        "tensor `{name}` of the batch is fake: it has a shape and no data, because it was created under recording"
    )]
    Fake {
        /// The name of the tensor; empty for a single tensor.
        name: String,
    },
    /// There are fewer samples than micro-batches.
    #[error(
        "a batch of {samples} samples can't be split into {micro_batches} micro-batches: lower the number of micro-batches"
    )]
    TooFewSamples {
        /// The number of samples of the batch.
        samples: usize,
        /// The number of micro-batches requested.
        micro_batches: usize,
    },
    /// There are fewer samples than micro-batches, and the schedule is for a fixed number of them.
    #[error(
        "a batch of {samples} samples can't be split into {micro_batches} micro-batches, and the schedule is for a \
         fixed number: drop the batch, or use a named schedule, which is generated for fewer"
    )]
    TooFewForSchedule {
        /// The number of samples of the batch.
        samples: usize,
        /// The number of micro-batches of the schedule.
        micro_batches: usize,
    },
    /// A step was given no batch.
    #[error("no batch was given: a step needs at least one")]
    NoBatches,
    /// A step has no such micro-batch.
    #[error("there is no micro-batch {micro_batch}: the step has {count}, numbered from 0")]
    NoMicroBatch {
        /// The requested micro-batch.
        micro_batch: usize,
        /// The number of micro-batches of the step.
        count: usize,
    },
    /// A share has another number of samples than the process reads.
    #[error(
        "the share of this process is {expected} samples, and {found} were passed: read the range that `share` returns"
    )]
    Share {
        /// The number of samples that it reads.
        expected: usize,
        /// The number of samples that were passed.
        found: usize,
    },
    /// Ranks of one replica have different shares; nothing was run.
    #[error(
        "rank {rank} has another share than a rank of the same replica: all of them pass the same samples"
    )]
    OtherShare {
        /// The rank.
        rank: RankIndex,
    },
    /// The share of another process can't be used; nothing was run.
    #[error("the share of rank {rank} can't be used: {reason}")]
    ShareElsewhere {
        /// The rank.
        rank: RankIndex,
        /// Its error.
        reason: String,
    },
    /// There are no samples.
    #[error("the batch has no samples: its tensors have a first dimension of 0")]
    Empty,
}

/// The reasons for which a pipeline can't know the new value of a running state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateFault {
    /// A second forward of the module can't read the state that the first forward has left.
    #[error(
        "a second forward can't read its new value: leave out `to_device`, the state is on the device of the model"
    )]
    Moved {
        /// The cause.
        source: RecordError,
    },
    /// The forward reads the state without the last update.
    #[error(
        "the forward reads it with `value`, which misses the last update: read it with `value_sync`"
    )]
    ReadLate,
    /// The new value is not known.
    #[error(
        "its new value is not known: make it a field of the module without `#[module(skip)]`, and update it in the \
         forward and not in the constructor"
    )]
    Unknown,
    /// The new value has another type.
    #[error("its value was {old} and becomes {new}: keep shape and dtype")]
    Type {
        /// Dtype and shape of the state.
        old: String,
        /// Dtype and shape of its new value.
        new: String,
    },
    /// In mixed precision, an operation between the state and its new value can't be computed in f32.
    #[error(
        "in mixed precision its new value is computed in f32, which `{operation}` can't be: update it without casts, by \
         operations on floats of one type"
    )]
    Precision {
        /// The operation.
        operation: String,
    },
    /// The forward updates the state without gradients too.
    #[error(
        "it is updated in evaluation too: update it only if the device of the input `is_autodiff()`"
    )]
    Evaluation,
}

/// The reasons for which a new value can't replace a carried tensor of a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarriedFault {
    /// There is no new value.
    #[error(
        "the new value is missing: return the new values of all carried tensors by `Outputs::carry`, in the structure of the batch"
    )]
    Missing,
    /// The tensor in its place has another name.
    #[error(
        "its place has `{found}`: return the new values in the structure and the order of the batch"
    )]
    Other {
        /// The name of the tensor in its structure.
        found: String,
    },
    /// The new value has another type.
    #[error("it is {old} in the batch and becomes {new}: use one shape and dtype for both")]
    Type {
        /// Dtype and shape of the tensor of the batch.
        old: String,
        /// Dtype and shape of its new value.
        new: String,
    },
    /// The forward did not compute the new value.
    #[error(
        "it was not created under recording: create it on the device of the batch or of a parameter"
    )]
    Foreign,
}

/// Errors of tracing a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A step can't have this number of micro-batches.
    #[error("{}", not_divided(*micro_batches, *samples))]
    MicroBatches {
        /// The number of micro-batches requested.
        micro_batches: usize,
        /// The number of samples of the batch of a step; `None` if no tensor of the batch has samples.
        samples: Option<usize>,
    },
    /// The batch has no samples, or it has several micro-batches and its tensors have different numbers of samples.
    #[error("the batch can't be the batch of a step")]
    Batch {
        /// The cause.
        source: BatchError,
    },
    /// The forward failed under recording.
    #[error("the forward could not be recorded")]
    Record {
        /// The cause.
        source: RecordError,
    },
    /// The forward calls a batch norm more than once.
    #[error(
        "the forward could not be recorded, because it calls a BatchNorm, {} or another, more than once: the second \
         call moves the statistics of the first between devices, which can't be recorded; call it once, on the \
         concatenated inputs",
        module_name(path)
    )]
    BatchNorm {
        /// The path of the model's first batch norm; empty if the model itself is one.
        path: String,
        /// The cause.
        source: RecordError,
    },
    /// The closure constructs another model than before.
    #[error(
        "parameter `{path}` differs from the first construction: the closure must construct the \
         same model at every call"
    )]
    Unstable {
        /// The first parameter that differs.
        path: ParameterPath,
    },
    /// The constructor fails, or constructs another model, when it is called again.
    #[error("two constructions of the model differ")]
    Constructor {
        /// The difference.
        source: DeferredError,
    },
    /// The forward differs when it is called again.
    #[error(
        "two recordings of the same forward differ: {difference}; a forward must depend only on the model \
         and the batch, so draw random values with `Tensor::random`, and pass values that change with the step in the batch"
    )]
    UnstableForward {
        /// The first operation, constant or output that differs.
        difference: String,
    },
    /// The forward depends on a field of the batch that is skipped.
    #[error(
        "the forward depends on a field of the batch with `#[batch(skip)]`: recorded with the field's default value, it \
         differs; mark a field that the forward reads as `#[batch(constant)]`"
    )]
    SkippedField {
        /// The difference.
        source: Box<Self>,
    },
    /// The forward reads a random tensor that is not a parameter.
    #[error(
        "the forward reads a random tensor of the constructor (`{operation}`) that is not a parameter{}: no \
         checkpoint contains it, and every construction draws another; store it as a frozen parameter, \
         `Param::from_tensor(tensor).set_require_grad(false)`",
        in_fields(fields)
    )]
    RandomField {
        /// The tensor fields of the model in its `Debug` output. One of them is the tensor.
        fields: Vec<String>,
        /// The random operation.
        operation: String,
    },
    /// A program that was dropped was recorded again and differs.
    #[error(
        "the forward of {program} differs from its earlier recording: a forward must depend only on the model and the batch, \
         so pass values that change with the step in the batch"
    )]
    ChangedForward {
        /// The mode and the batch shapes.
        program: String,
    },
    /// The loss is declared both as a sum and as a mean over a count.
    #[error(
        "the loss is declared both as a sum and as a mean over a count: use `Outputs::sum(loss)` alone for a sum, or \
         `Outputs::loss(loss).weighted_by(count)` for a mean"
    )]
    SumOverCount,
    /// The forward initializes a parameter that no visitor of the module sees.
    #[error(
        "the forward initializes a parameter that no visitor of the module sees{}, as in a field with \
         `#[module(skip)]`: every run would draw another value; make it a field of the module and freeze it (`no_grad`)",
        in_fields(fields)
    )]
    SkippedParameter {
        /// The parameters in the model's `Debug` output that no visitor sees.
        fields: Vec<String>,
    },
    /// The loss has a gradient for a value that the constructor computed from a parameter.
    #[error(
        "the forward reads a tensor field that the constructor computed from parameter `{path}`, and passes a gradient \
         through it: compute it from the parameter in the forward, or `detach` it in the constructor"
    )]
    DerivedField {
        /// The parameter.
        path: ParameterPath,
    },
    /// The forward updates a running state in a way that can't be recorded.
    #[error("the forward updates the running state `{path}` in a way that a pipeline can't repeat")]
    RunningState {
        /// The path of the running state.
        path: ParameterPath,
        /// The fault of the forward.
        #[source]
        fault: StateFault,
    },
    /// The forward returns no usable new value of a carried tensor of the batch.
    #[error("the forward returns no new value of the carried tensor `{name}` that can replace it")]
    Carried {
        /// The name of the tensor.
        name: String,
        /// The fault of the returned value.
        #[source]
        fault: CarriedFault,
    },
    /// The forward returns a new value of a tensor that is not carried.
    #[error(
        "the forward carries `{name}`, after the last carried tensor of the batch: wrap every tensor that it carries in `Carried`, and \
         call `Outputs::carry` once for each such part"
    )]
    NotCarried {
        /// The name of the tensor in its structure.
        name: String,
    },
    /// The forward of a training trace returned no loss.
    #[error(
        "the forward returned no loss: return `Outputs::loss(loss)`, or trace it with `trace_forward` for evaluation only"
    )]
    NoLoss,
    /// The loss has more than one element.
    #[error(
        "the loss has {elements} elements: reduce it to one, with `mean`, or with `sum` and `Outputs::sum`"
    )]
    LossShape {
        /// The number of elements of the loss.
        elements: usize,
    },
    /// The count of a loss has more than one element.
    #[error("the count in `weighted_by` has {elements} elements: reduce it to one, with `sum`")]
    CountShape {
        /// The number of elements of the count.
        elements: usize,
    },
    /// The count of a loss can't be exact.
    #[error(
        "the count in `weighted_by` is computed in {}, which is too imprecise for counts: count in ints, as in \
         `mask.int().sum()`, and pass masks as ints or bools, since mixed precision casts the floats of a batch",
        dtype_name(*dtype)
    )]
    CountType {
        /// The dtype of the count.
        dtype: DType,
    },
    /// The count of a loss depends on a parameter.
    #[error(
        "the count in `weighted_by` depends on parameter `{path}`: it must be computed from the batch only, \
         because a step needs it before the forward runs"
    )]
    CountOnParameter {
        /// The parameter.
        path: ParameterPath,
    },
    /// The count of a loss was not computed by the forward.
    #[error(
        "the count in `weighted_by` is a tensor that was not created under recording: compute it from the tensors \
         of the batch"
    )]
    ForeignCount,
    /// No parameter gets a gradient.
    #[error(
        "no parameter gets a gradient from the loss: is the model frozen, or the loss detached?"
    )]
    NoGradients,
    /// No parameter gets a gradient, because a clone was frozen.
    #[error(
        "no parameter gets a gradient from the loss: `{second}` is a clone of `{first}`, and `no_grad` on a clone of a \
         parameter that has no value yet freezes both; create a copy with values of its own, such as a target network, \
         with `independent_copy(&module).no_grad()`"
    )]
    FrozenClones {
        /// The first parameter.
        first: ParameterPath,
        /// The clone.
        second: ParameterPath,
    },
    /// A layer of the model does not act in training.
    #[error(
        "{} does not act in this forward: if its input is computed from integers or booleans of the batch that the forward \
         moves with `to_device`, leave `to_device` out, since a recording keeps moved tensors outside of autodiff, where \
         dropout, noise and batch norm do nothing; if the forward does not call the layer, freeze it (`freeze`)",
        module_name(path)
    )]
    IdleLayer {
        /// The path of the layer; empty if it is the model itself.
        path: String,
    },
    /// An output was not computed by the forward.
    #[error(
        "output `{name}` is a tensor that was not created under recording: create it on the \
         device of the batch or of a parameter"
    )]
    ForeignOutput {
        /// Name of the output.
        name: String,
    },
}

impl TraceError {
    /// Names two clones if no parameter gets a gradient, and both are frozen.
    pub fn of_clones(self, shared: Option<&SharedId>, table: &ParameterTable) -> Self {
        let frozen = shared.filter(|SharedId { first, second }| {
            let mut clones = [first, second].into_iter();
            clones.all(|path| table.get(path).is_some_and(|found| !found.trainable))
        });
        match (self, frozen) {
            (Self::NoGradients, Some(SharedId { first, second })) => Self::FrozenClones {
                first: first.clone(),
                second: second.clone(),
            },
            (error, _) => error,
        }
    }
}

fn not_divided(micro_batches: usize, samples: Option<usize>) -> String {
    match (micro_batches, samples) {
        (0, _) => "a step can't have 0 micro-batches: use at least 1".to_owned(),
        (_, Some(samples)) => format!(
            "a step of {samples} samples can't have {micro_batches} micro-batches: use at most {samples}, or trace the model \
             with the largest batch of a step"
        ),
        (_, None) => format!(
            "a batch without samples can't be split into {micro_batches} micro-batches: use 1, or leave out `Whole` where a \
             tensor has samples"
        ),
    }
}

fn in_fields(fields: &[String]) -> String {
    match fields {
        [] => String::new(),
        [only] => format!(", in field `{only}`"),
        several => format!(", in one of the fields `{}`", several.join("`, `")),
    }
}

fn module_name(path: &str) -> String {
    match path.is_empty() {
        true => "the model".into(),
        false => format!("`{path}`"),
    }
}
