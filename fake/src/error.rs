//! Errors of this crate.

use crate::{ErrorOrigin, TensorMeta};

/// Why a recording failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The recorded code asked for the data of a fake tensor.
    #[error(
        "the recorded code read the data of a fake tensor{origin}; a fake tensor has a shape and no data: {}",
        instead_of(origin.operation())
    )]
    DataRead {
        /// What Burn reports: it names a tensor by a number that differs from run to run.
        message: String,
        /// Where.
        origin: ErrorOrigin,
    },
    /// The recorded code did what a recording with gradients does not allow.
    #[error(
        "the recorded code moved a fake tensor between devices or autodiff contexts{origin} ({message}); \
         `to_device`, `inner` and `from_inner` can't be recorded: create tensors on the device of \
         their input"
    )]
    Moved {
        /// What Burn reports.
        message: String,
        /// Where.
        origin: ErrorOrigin,
    },
    /// The recorded code met something that is not implemented, which is how Burn refuses to quantize on
    /// a recording device.
    #[error(
        "the recorded code did what is not implemented{origin} ({message}): a recording device can't \
         quantize, so if it was that, quantize the materialized module"
    )]
    NotImplemented {
        /// What Burn reports.
        message: String,
        /// Where.
        origin: ErrorOrigin,
    },
    /// The recorded code panicked.
    #[error("the recorded code panicked{origin}: {message}")]
    Panicked {
        /// Text of the panic.
        message: String,
        /// Where.
        origin: ErrorOrigin,
    },
    /// An operation reads a tensor that the recording did not make, fake or real.
    #[error(
        "the recorded code used a tensor that is not of this recording{origin} ({message}): make it inside, \
         on the device that the closure was given, or pass its data"
    )]
    Foreign {
        /// What Burn reports, or which operation it was.
        message: String,
        /// Where, if Burn refused it there and then.
        origin: ErrorOrigin,
    },
    /// The capture device refused the default dtypes.
    #[error("the recording device refused the default dtypes")]
    Defaults {
        /// What Burn reports.
        source: burn::tensor::DeviceError,
    },
    /// Burn refused the capture scope.
    #[error("the capture scope failed: {reason}")]
    Capture {
        /// Burn's error, whose type implements no `Error`.
        reason: burn_capture::CaptureError,
    },
}

impl RecordError {
    /// Where in the recorded code the error arose; `None` for errors that do not come from a panic.
    pub fn origin(&self) -> Option<&ErrorOrigin> {
        match self {
            Self::DataRead { origin, .. }
            | Self::Moved { origin, .. }
            | Self::NotImplemented { origin, .. }
            | Self::Panicked { origin, .. }
            | Self::Foreign { origin, .. } => Some(origin),
            Self::Defaults { .. } | Self::Capture { .. } => None,
        }
    }
}

/// What to write in place of an operation that reads data.
fn instead_of(operation: Option<&str>) -> &'static str {
    let (of, method) = operation
        .and_then(|name| name.rsplit_once("::"))
        .unwrap_or_default();
    match (of, method) {
        ("PoissonNllLoss" | "poisson", _) => {
            "this loss reads its arguments to check them; write it with tensor operations"
        }
        ("CTCLoss" | "ctc", _) => {
            "this loss reads its arguments to check them in builds with debug assertions; call \
             `burn::tensor::module::ctc_loss` in its place"
        }
        (_, "one_hot" | "one_hot_fill") => {
            "write ones into zeros with `scatter`, or compare with `arange` by `equal`"
        }
        (_, method) if method.contains("to_data") || method.contains("to_scalar") => {
            "keep the value a tensor, and return it as a named output to look at it"
        }
        (_, "nonzero" | "nonzero_async" | "argwhere" | "argwhere_async") => {
            "the shape of its result depends on data; use a mask, as with `mask_where` or a product"
        }
        _ => "compute on tensors, and read values only from a materialized module",
    }
}

/// Wrong use of a fake tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FakeError {
    /// The data of a fake tensor were asked for.
    #[error("{tensor} has no data: materialize it first")]
    NoData {
        /// The tensor.
        tensor: Box<TensorMeta>,
    },
    /// A tensor was taken for one of another rank or kind.
    #[error("{tensor} is not a tensor of rank {rank} and kind {kind}")]
    WrongType {
        /// The tensor.
        tensor: Box<TensorMeta>,
        /// The rank asked for.
        rank: usize,
        /// The kind asked for.
        kind: &'static str,
    },
    /// The device failed to give or take the data.
    #[error("reading {tensor} failed")]
    Execution {
        /// The tensor.
        tensor: Box<TensorMeta>,
        /// What the device reports.
        source: Box<burn_backend::ExecutionError>,
    },
    /// A device label could not be read.
    #[error("`{label}` is no device label: write a backend and an index, like `cuda:7`, or `flex`")]
    BadLabel {
        /// The text.
        label: String,
    },
}

/// Why a graph file could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphFileError {
    /// The file system failed.
    #[error("{action} {path} failed")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// What the system reports.
        source: std::io::Error,
    },
    /// The bytes are not a graph.
    #[error("these are no recorded operations, or they are damaged: {reason}")]
    Decode {
        /// What the decoder reports.
        reason: String,
    },
    /// The graph could not be encoded.
    #[error("the graph could not be encoded: {reason}")]
    Encode {
        /// What the encoder reports.
        reason: String,
    },
    /// The file is of another format, format version or Burn version.
    #[error(
        "the file has {field} `{found}`, this build reads `{expected}`: record again and write it anew"
    )]
    Version {
        /// Which of them.
        field: &'static str,
        /// What this build reads.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The bytes are not those that were written.
    #[error("the file is damaged: its digest is {found}, not {expected}")]
    Damaged {
        /// XXH3-128 in the header of the file, in hexadecimal digits.
        expected: String,
        /// That of the bytes.
        found: String,
    },
    /// The parts of the file contradict each other.
    #[error("the graph in the file is inconsistent: {reason}")]
    Inconsistent {
        /// What does not fit.
        reason: &'static str,
    },
}
