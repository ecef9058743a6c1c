//! Errors of this crate.

use std::fmt;

use crate::ParameterPath;

/// One reason why a source can't answer one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// The source does not have the parameter.
    Missing {
        /// Its path.
        path: ParameterPath,
    },
    /// The source has a fake tensor for it.
    Fake {
        /// Its path.
        path: ParameterPath,
    },
    /// The source has a parameter that the model does not.
    Extra {
        /// Its path.
        path: ParameterPath,
    },
    /// The shapes differ.
    Shape {
        /// Path of the parameter.
        path: ParameterPath,
        /// The model's shape.
        expected: Vec<u64>,
        /// The source's shape.
        found: Vec<u64>,
    },
    /// The dtypes differ.
    DType {
        /// Path of the parameter.
        path: ParameterPath,
        /// The model's dtype.
        expected: String,
        /// The source's dtype.
        found: String,
    },
    /// The region does not lie inside the parameter.
    Region {
        /// Path of the parameter.
        path: ParameterPath,
        /// What is wrong with it.
        reason: tinderbox_fake::RegionError,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => write!(f, "missing: {path}"),
            Self::Fake { path } => write!(f, "fake, without data: {path}"),
            Self::Extra { path } => write!(f, "extra: {path}"),
            Self::Shape {
                path,
                expected,
                found,
            } => {
                write!(
                    f,
                    "shape of {path}: the model has {expected:?}, the source {found:?}"
                )
            }
            Self::DType {
                path,
                expected,
                found,
            } => {
                write!(
                    f,
                    "dtype of {path}: the model has {expected}, the source {found}"
                )
            }
            Self::Region { path, reason } => write!(f, "region of {path}: {reason}"),
        }
    }
}

/// Every mismatch of a load, one to a line.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Mismatches(pub Vec<Mismatch>);

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
    /// The source itself failed: a file, a digest, an operation.
    #[error("loading from {described} failed")]
    Failed {
        /// What the source is.
        described: String,
        /// What went wrong.
        #[source]
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
    #[error("programs can't run on {device}: this build runs them on flex")]
    Device {
        /// The device.
        device: String,
    },
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
    /// Random values could not be made.
    #[error("random values could not be made")]
    Random {
        /// What is wrong.
        #[from]
        source: crate::random::RandomError,
    },
}

/// Why a model could not be materialized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaterializeError {
    /// The source gave no values.
    #[error("the parameters could not be loaded")]
    Source {
        /// What went wrong.
        #[from]
        source: SourceError,
    },
    /// The closure makes another model than it did when it was recorded.
    #[error(
        "parameter `{path}` is not the same as when the model was recorded: the closure must make \
         the same model at every call"
    )]
    Unstable {
        /// The first parameter that differs.
        path: ParameterPath,
    },
    /// A value does not fit its parameter.
    #[error("the value of `{path}` can't be put into its parameter")]
    Value {
        /// The parameter.
        path: ParameterPath,
        /// What is wrong with it.
        #[source]
        source: tinderbox_fake::FakeError,
    },
    /// A parameter has a rank that a stage can't hold.
    #[error("parameters of a stage have rank 1 to 8")]
    Rank {
        /// Which one.
        #[source]
        source: tinderbox_fake::FakeError,
    },
    /// Parameters are fake.
    #[error(
        "{} parameter(s) are fake, the first is `{}`: they were not selected when the module was \
         materialized", paths.len(), paths[0]
    )]
    NotLit {
        /// All of them.
        paths: Vec<ParameterPath>,
    },
}
