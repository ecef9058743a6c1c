//! Errors of this crate.

use derive_more::Display;
use tinderbox_fake::dtype_name;
use tinderbox_ids::text::human_bytes_distinct;

use crate::ParameterPath;

/// One reason why a source can't serve a request.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum Mismatch {
    /// The source does not have the parameter.
    #[display("missing: {path}")]
    Missing {
        /// Its path.
        path: ParameterPath,
    },
    /// The source has a fake tensor for the parameter.
    #[display("fake, without data: {path}")]
    Fake {
        /// Its path.
        path: ParameterPath,
    },
    /// The source has a parameter that the model does not.
    #[display("extra: {path}")]
    Extra {
        /// Its path.
        path: ParameterPath,
    },
    /// The shapes differ.
    #[display("shape of {path}: the model has {expected:?}, the source {found:?}")]
    Shape {
        /// Path of the parameter.
        path: ParameterPath,
        /// The model's shape.
        expected: Vec<u64>,
        /// The source's shape.
        found: Vec<u64>,
    },
    /// The dtypes differ.
    #[display("dtype of {path}: the model has {expected}, the source {found}")]
    DType {
        /// Path of the parameter.
        path: ParameterPath,
        /// The model's dtype.
        expected: String,
        /// The source's dtype.
        found: String,
    },
    /// Burn's record contains the value transposed.
    #[display(
        "layout of {path}: records of Burn contain it transposed, so load them with `LoadOptions::burn(model)`"
    )]
    Transposed {
        /// Path of the parameter.
        path: ParameterPath,
    },
    /// The source has different values of one parameter, under two of its paths.
    #[display(
        "values of {path} and {other}: they are one parameter of the model, and differ in the source; construct the model with \
         a parameter for each, or leave one out of the source: rename it, with `allow_extra`"
    )]
    Differ {
        /// The path whose value would be loaded.
        path: ParameterPath,
        /// The path whose value differs from it.
        other: ParameterPath,
    },
    /// The region is not inside the parameter.
    #[display("region of {path}: {reason}")]
    Region {
        /// Path of the parameter.
        path: ParameterPath,
        /// The error of the region.
        reason: tinderbox_fake::RegionError,
    },
}

/// All mismatches of a load, one per line.
#[derive(Clone, Debug, PartialEq, Eq, Default, Display)]
#[display("{}", lines(_0))]
pub struct Mismatches(pub Vec<Mismatch>);

impl Mismatches {
    /// Returns an error unless there are no mismatches.
    ///
    /// # Errors
    ///
    /// [`SourceError::Mismatch`] with all of them.
    pub fn none_in(self, describe: impl FnOnce() -> String) -> Result<(), SourceError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(SourceError::Mismatch {
                described: describe(),
                mismatches: self,
            }),
        }
    }
}

/// An error of a source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Some requests can't be served; nothing was loaded.
    #[error("{described} does not fit the model, nothing was loaded:{mismatches}")]
    Mismatch {
        /// The description of the source.
        described: String,
        /// All mismatches.
        mismatches: Mismatches,
    },
    /// The source did not return one value per request.
    #[error("{described} returned {found} values for {expected} requests")]
    Count {
        /// The description of the source.
        described: String,
        /// Number of requests.
        expected: usize,
        /// Number of values.
        found: usize,
    },
    /// The source did not construct the module.
    #[error("{described} did not call the closure that constructs the model")]
    NotConstructed {
        /// The description of the source.
        described: String,
    },
    /// The source itself failed: a file, a digest, an operation.
    #[error("loading from {described} failed")]
    Failed {
        /// The description of the source.
        described: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An error of constructing a deferred model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeferredError {
    /// The construction failed under recording.
    #[error("the model could not be constructed on a recording device")]
    Record {
        /// The cause.
        #[from]
        source: tinderbox_fake::RecordError,
    },
    /// The initializer of a parameter failed under recording.
    #[error("parameter `{path}` could not be created on a recording device")]
    Parameter {
        /// The parameter.
        path: ParameterPath,
        /// The cause.
        source: tinderbox_fake::RecordError,
    },
    /// Two parameters have one path.
    #[error("two parameters of the model have the path `{path}`: name their fields differently")]
    SamePath {
        /// The path.
        path: ParameterPath,
    },
    /// A parameter was not created on the device that was passed to the closure.
    #[error(
        "parameter `{path}` was created on {device}, not on the device that was passed to the closure: \
         pass that device to every `init`"
    )]
    NotRecorded {
        /// The parameter.
        path: ParameterPath,
        /// The device on which it was created.
        device: String,
    },
    /// The closure created another model than at its first call.
    #[error(
        "the closure created another model at its second call: {change}; it must create the same model \
         at every call: draw random values through Burn's tensors, not from the host"
    )]
    Unstable {
        /// The first difference.
        change: Box<crate::Change>,
    },
}

/// An error of a recipe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The model has no such parameter.
    #[error(transparent)]
    Unknown(#[from] crate::UnknownPath),
    /// The tensor was not created in the recording.
    #[error(
        "{tensor} does not belong to this recording: pass the recording in which it was created"
    )]
    Foreign {
        /// The tensor.
        tensor: String,
    },
    /// The region is not inside the result.
    #[error("region of {name}")]
    Region {
        /// Name of the recipe.
        name: String,
        /// The error of the region.
        source: tinderbox_fake::RegionError,
    },
    /// The file can't be written or read.
    #[error("file of a recipe")]
    File(#[from] tinderbox_fake::GraphFileError),
    /// A part of a constant could not be extracted.
    #[error("a part of a constant could not be extracted")]
    Constant(#[from] tinderbox_fake::FakeError),
    /// The backend's generator has no recipes: its values depend on all earlier draws.
    #[error(
        "an initializer with the backend's generator has no recipes, since its values depend on all that \
         was drawn before: use the counter-based generator"
    )]
    Backend,
}

/// An error of creating or running a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A value is read before it is computed, or after its memory was freed.
    #[error(
        "{reader} reads {value}, which is not available: a program has inputs, constants and results of earlier \
         operations, until they are freed"
    )]
    Unavailable {
        /// The value.
        value: tinderbox_fake::ValueId,
        /// The operation or output that reads it.
        reader: String,
    },
    /// A random operation has no key.
    #[error("random operation {node} has no key")]
    NoKey {
        /// The operation.
        node: tinderbox_fake::NodeId,
    },
    /// An operation that can't run in a program.
    #[error("operation {operation} can't be replayed: {reason}")]
    Unsupported {
        /// Its name.
        operation: String,
        /// The reason, and what to do instead.
        reason: &'static str,
    },
    /// Programs can't run on this device.
    #[error(transparent)]
    Device(#[from] crate::DeviceError),
    /// An input is on another backend than the program, or on an autodiff device.
    #[error(
        "{tensor} can't be an input of a program: it must be on the program's backend, without autodiff"
    )]
    InputDevice {
        /// The tensor.
        tensor: String,
    },
    /// Too few or too many inputs.
    #[error("the program has {expected} inputs, found {found}")]
    InputCount {
        /// The number of inputs.
        expected: usize,
        /// The number of values passed.
        found: usize,
    },
    /// An input has another shape or dtype than its value.
    #[error("input {value} of the program must be {expected}, found {found}")]
    InputType {
        /// The value.
        value: tinderbox_fake::ValueId,
        /// Dtype and shape that the program was recorded with.
        expected: String,
        /// Dtype and shape of the input.
        found: String,
    },
    /// The condition of [`Executable::run_until`](crate::Executable::run_until) has stopped it.
    #[error("the program was stopped before its end")]
    Stopped,
    /// An operation would read or write out of the range of a tensor.
    #[error("{}", out_of_range(operation, *index, position, *size))]
    IndexOutOfRange {
        /// Its name.
        operation: String,
        /// Index of its output in the graph of the program.
        made: u64,
        /// The index that is out of range.
        index: i64,
        /// Its position in the tensor of indices.
        position: Vec<usize>,
        /// Elements of the indexed dimension.
        size: usize,
    },
    /// The rows of a table could not be read.
    #[error("the rows of a table could not be read")]
    Rows(#[from] Box<SourceError>),
    /// The operations could not be rewritten for a part of their result.
    #[error("the operations could not be rewritten")]
    Recipe(#[from] Box<RecipeError>),
    /// A value could not be copied.
    #[error("a value could not be copied")]
    Copy(#[from] tinderbox_fake::FakeError),
    /// Random values could not be generated.
    #[error("random values could not be generated")]
    Random(#[from] crate::random::RandomError),
}

fn out_of_range(operation: &str, index: i64, position: &[usize], size: usize) -> String {
    let allowed = match size.checked_sub(1) {
        Some(last) => format!("only 0 to {last} are allowed"),
        None => "it indexes a dimension without elements".to_owned(),
    };
    format!("{operation} was given the index {index} at {position:?}: {allowed}")
}

/// A requested dtype that a parameter can't be cast to.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[display("`{path}` is {}, not {}", dtype_name(*from), dtype_name(*to))]
pub struct Cast {
    /// Path of the parameter.
    pub path: ParameterPath,
    /// The dtype of the parameter.
    pub from: burn::tensor::DType,
    /// The requested dtype.
    pub to: burn::tensor::DType,
}

/// The number of casts in an error.
const SHOWN: usize = 4;

/// An error of materializing a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaterializeError {
    /// The model has no such parameter.
    #[error(transparent)]
    Unknown(#[from] crate::UnknownPath),
    /// The closure creates another model than when it was recorded.
    #[error(transparent)]
    Changed(#[from] DeferredError),
    /// The source failed.
    #[error("the parameters could not be loaded")]
    Source(#[from] SourceError),
    /// The closure creates another model than when it was recorded.
    #[error(
        "parameter `{path}` is not the same as when the model was recorded: the closure must create \
         the same model at every call"
    )]
    Unstable {
        /// The first parameter that differs.
        path: ParameterPath,
    },
    /// Parameters were requested in a dtype that they can't be cast to; nothing was computed.
    #[error(
        "only float parameters are cast, and to f64, f32, f16 or bf16: {}; choose a dtype by kind, as in \
         `.dtype(|p| (p.kind == TensorKind::Float).then_some(DType::BF16))`",
        listed(casts.iter().take(SHOWN).map(ToString::to_string), casts.len().saturating_sub(SHOWN))
    )]
    Cast {
        /// All such parameters.
        casts: Vec<Cast>,
    },
    /// The device can't be used; nothing was computed.
    #[error(transparent)]
    Device(#[from] crate::DeviceError),
    /// The values do not fit into memory; nothing was computed.
    #[error(
        "{parameters} parameter(s) need {} on {device}, and {} are available: select fewer, choose a \
         smaller dtype, or spread them over more ranks",
        human_bytes_distinct(*needed_bytes, *available_bytes), human_bytes_distinct(*available_bytes, *needed_bytes)
    )]
    Memory {
        /// The device.
        device: String,
        /// The number of parameters.
        parameters: usize,
        /// A lower bound of the bytes of their values and of the source's working memory.
        needed_bytes: u64,
        /// Bytes that the process can still allocate.
        available_bytes: u64,
    },
    /// A region is not inside its parameter.
    #[error("parameter `{path}` has no such region")]
    Region {
        /// The parameter.
        path: ParameterPath,
        /// The error of the region.
        source: tinderbox_fake::RegionError,
    },
    /// A value does not fit its parameter.
    #[error("the value of `{path}` can't be assigned to its parameter")]
    Value {
        /// The parameter.
        path: ParameterPath,
        /// The cause.
        source: tinderbox_fake::FakeError,
    },
    /// A parameter has a rank that a stage does not support.
    #[error("parameters of a stage have rank 1 to 8")]
    Rank(#[from] tinderbox_fake::FakeError),
    /// Parameters are fake.
    #[error(
        "{} parameter(s) are fake, the first is `{}`: they were not selected when the module was \
         materialized", paths.len(), paths[0]
    )]
    NotMaterialized {
        /// All fake parameters.
        paths: Vec<ParameterPath>,
    },
}

/// Returns the items of a list, and the number of further items.
pub(crate) fn listed(items: impl Iterator<Item = String>, further: usize) -> String {
    let further = (further > 0).then(|| format!("and {further} more"));
    items.chain(further).collect::<Vec<_>>().join(", ")
}

/// Returns the items, each on a line of its own after another text.
pub(crate) fn lines<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(|item| format!("\n  {item}")).collect()
}
