//! Errors of this crate.

use std::fmt;

use derive_more::Display;
use tinderbox_fake::dtype_name;

use crate::ParameterPath;
use crate::table::human_bytes_beside;

/// One reason why a source can't answer one request.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum Mismatch {
    /// The source does not have the parameter.
    #[display("missing: {path}")]
    Missing {
        /// Its path.
        path: ParameterPath,
    },
    /// The source has a fake tensor for it.
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
    /// The region is not inside the parameter.
    #[display("region of {path}: {reason}")]
    Region {
        /// Path of the parameter.
        path: ParameterPath,
        /// What is wrong with it.
        reason: tinderbox_fake::RegionError,
    },
}

/// Every mismatch of a load, one to a line.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Mismatches(pub Vec<Mismatch>);

impl Mismatches {
    /// Refuses a source that they are found in, unless there are none.
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

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mismatch in &self.0 {
            write!(f, "\n  {mismatch}")?;
        }
        Ok(())
    }
}

/// Why a source gave no values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Some requests can't be answered; nothing was loaded.
    #[error("{described} does not fit the model, nothing was loaded:{mismatches}")]
    Mismatch {
        /// What the source is.
        described: String,
        /// All that is wrong.
        mismatches: Mismatches,
    },
    /// The source broke its promise of one value for each request.
    #[error("{described} gave {found} values for {expected} requests")]
    Count {
        /// What the source is.
        described: String,
        /// Number of requests.
        expected: usize,
        /// Number of values.
        found: usize,
    },
    /// The source did not construct the module that it was asked to.
    #[error("{described} did not call the closure that constructs the model")]
    NotConstructed {
        /// What the source is.
        described: String,
    },
    /// The source itself failed: a file, a digest, an operation.
    #[error("loading from {described} failed")]
    Failed {
        /// What the source is.
        described: String,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a model could not be constructed deferred.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeferredError {
    /// The construction failed under recording.
    #[error("the model could not be constructed on a recording device")]
    Record {
        /// What went wrong.
        #[from]
        source: tinderbox_fake::RecordError,
    },
    /// The initializer of a parameter failed under recording.
    #[error("parameter `{path}` could not be made on a recording device")]
    Parameter {
        /// Which one.
        path: ParameterPath,
        /// What went wrong.
        source: tinderbox_fake::RecordError,
    },
    /// Two parameters have one path.
    #[error("two parameters of the model have the path `{path}`: name their fields differently")]
    SamePath {
        /// The path.
        path: ParameterPath,
    },
    /// A parameter was not made on the device that the closure was given.
    #[error(
        "parameter `{path}` was made on {device}, not on the device that the closure was given: \
         pass that device to every `init`"
    )]
    NotRecorded {
        /// The parameter.
        path: ParameterPath,
        /// Where it was made.
        device: String,
    },
    /// The closure makes another model now than at its first call.
    #[error(
        "the closure made another model at its second call: {change}; it must make the same model \
         at every call: draw random values through Burn's tensors, not from the host"
    )]
    Unstable {
        /// The first difference.
        change: Box<crate::Change>,
    },
}

/// Why a recipe could not be made, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The model has no such parameter.
    #[error(transparent)]
    Unknown(#[from] crate::UnknownPath),
    /// The tensor was not made under the recording.
    #[error("{tensor} is not of this recording: give the recording that it was made under")]
    Foreign {
        /// The tensor.
        tensor: String,
    },
    /// The region does not lie inside the result.
    #[error("region of {name}")]
    Region {
        /// Name of the recipe.
        name: String,
        /// What is wrong with it.
        source: tinderbox_fake::RegionError,
    },
    /// The file can't be written or read.
    #[error("file of a recipe")]
    File(#[from] tinderbox_fake::GraphFileError),
    /// A part of a constant could not be cut out.
    #[error("a part of a constant could not be cut out")]
    Constant(#[from] tinderbox_fake::FakeError),
    /// The backend's generator has no recipes: its values depend on all that was drawn before.
    #[error(
        "a replay with the backend's generator has no recipes, since its values depend on all that \
         was drawn before: use the counter-based generator"
    )]
    Backend,
}

/// Why a program could not be made or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A value is read before it is there.
    #[error("{reader} reads {value}, which is no input, no constant, and not made before")]
    NotAtHand {
        /// The value.
        value: tinderbox_fake::ValueId,
        /// What reads it.
        reader: String,
    },
    /// A value is read after its memory was given back.
    #[error("{reader} reads {value} after its last use")]
    Freed {
        /// The value.
        value: tinderbox_fake::ValueId,
        /// What reads it.
        reader: String,
    },
    /// A random operation has no key.
    #[error("random operation {node} has no key")]
    NoKey {
        /// The operation.
        node: tinderbox_fake::NodeId,
    },
    /// No program can run an operation.
    #[error("operation {operation} can't be replayed: {reason}")]
    Unsupported {
        /// Its name.
        operation: String,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// Programs can't run on this device.
    #[error(transparent)]
    Device(#[from] crate::DeviceError),
    /// An input is on another backend than the program, or is not plain.
    #[error(
        "{tensor} can't go into a program: it must be on the program's backend, without autodiff"
    )]
    InputDevice {
        /// The tensor.
        tensor: String,
    },
    /// Too few or too many inputs.
    #[error("the program takes {expected} inputs, and was given {found}")]
    InputCount {
        /// What it takes.
        expected: usize,
        /// What it was given.
        found: usize,
    },
    /// An input has another shape or dtype than the value whose place it takes.
    #[error("input {value} of the program is {expected}, and was given as {found}")]
    InputType {
        /// The value.
        value: tinderbox_fake::ValueId,
        /// Dtype and shape that the program was recorded with.
        expected: String,
        /// Those of the input.
        found: String,
    },
    /// An operation would read or write outside of a tensor.
    #[error("{}", out_of_range(operation, *index, position, *size))]
    IndexOutOfRange {
        /// Its name.
        operation: String,
        /// Index of the value that it makes, in the graph that the program is of.
        made: u64,
        /// The index that does not fit.
        index: i64,
        /// Where it is in the tensor of indices.
        position: Vec<usize>,
        /// Elements of the dimension that it indexes.
        size: usize,
    },
    /// The operations could not be rewritten for a part of their result.
    #[error("the operations could not be rewritten")]
    Recipe(#[from] Box<RecipeError>),
    /// A value could not be copied.
    #[error("a value could not be copied")]
    Copy(#[from] tinderbox_fake::FakeError),
    /// Random values could not be made.
    #[error("random values could not be made")]
    Random(#[from] crate::random::RandomError),
}

fn out_of_range(operation: &str, index: i64, position: &[usize], size: usize) -> String {
    let allowed = match size.checked_sub(1) {
        Some(last) => format!("only 0 to {last} are allowed"),
        None => "it indexes a dimension without elements".to_owned(),
    };
    format!("{operation} was given the index {index} at {position:?}: {allowed}")
}

/// A dtype that was asked for a parameter which can't have it.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[display("`{path}` is {}, not {}", dtype_name(*from), dtype_name(*to))]
pub struct Cast {
    /// Path of the parameter.
    pub path: ParameterPath,
    /// Its own dtype.
    pub from: burn::tensor::DType,
    /// The dtype that was asked for.
    pub to: burn::tensor::DType,
}

/// Why a model could not be materialized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaterializeError {
    /// The model has no such parameter.
    #[error(transparent)]
    Unknown(#[from] crate::UnknownPath),
    /// The closure makes another model than it did when it was recorded.
    #[error(transparent)]
    Changed(#[from] DeferredError),
    /// The source gave no values.
    #[error("the parameters could not be loaded")]
    Source(#[from] SourceError),
    /// The closure makes another model than it did when it was recorded.
    #[error(
        "parameter `{path}` is not the same as when the model was recorded: the closure must make \
         the same model at every call"
    )]
    Unstable {
        /// The first parameter that differs.
        path: ParameterPath,
    },
    /// Parameters were asked for in a dtype that they can't be cast to; nothing was made.
    #[error(
        "only float parameters are cast, and to f64, f32, f16 or bf16: {}; choose a dtype by kind, as in \
         `.dtype(|p| (p.kind == TensorKind::Float).then_some(DType::BF16))`",
        list(casts)
    )]
    Cast {
        /// All of them.
        casts: Vec<Cast>,
    },
    /// The device can't be used; nothing was made.
    #[error(transparent)]
    Device(#[from] crate::DeviceError),
    /// The values will not fit into memory; nothing was made.
    #[error(
        "{parameters} parameter(s) need {} on {device}, and {} are available: select fewer, choose a \
         smaller dtype, or spread them over more ranks",
        human_bytes_beside(*needed_bytes, *available_bytes), human_bytes_beside(*available_bytes, *needed_bytes)
    )]
    Memory {
        /// Where they were to be made.
        device: String,
        /// How many.
        parameters: usize,
        /// Bytes of their values and of what the source takes beside them, at least.
        needed_bytes: u64,
        /// Bytes that the process can still get.
        available_bytes: u64,
    },
    /// A region does not lie inside of its parameter.
    #[error("parameter `{path}` has no such region")]
    Region {
        /// The parameter.
        path: ParameterPath,
        /// What is wrong with it.
        source: tinderbox_fake::RegionError,
    },
    /// A value does not fit its parameter.
    #[error("the value of `{path}` can't be put into its parameter")]
    Value {
        /// The parameter.
        path: ParameterPath,
        /// What is wrong with it.
        source: tinderbox_fake::FakeError,
    },
    /// A parameter has a rank that a stage can't hold.
    #[error("parameters of a stage have rank 1 to 8")]
    Rank {
        /// Which one.
        source: tinderbox_fake::FakeError,
    },
    /// Parameters are fake.
    #[error(
        "{} parameter(s) are fake, the first is `{}`: they were not selected when the module was \
         materialized", paths.len(), paths[0]
    )]
    NotMaterialized {
        /// All of them.
        paths: Vec<ParameterPath>,
    },
}

/// The first few of a list, and how many more there are.
fn list(items: &[impl fmt::Display]) -> String {
    const SHOWN: usize = 4;
    let shown = items.iter().take(SHOWN);
    let texts: Vec<String> = shown.map(ToString::to_string).collect();
    let more = match items.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    texts.join(", ") + &more
}
