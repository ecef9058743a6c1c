//! Errors of this crate.

use crate::{ErrorOrigin, TensorMeta};

/// An error of a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The recorded code read the data of a fake tensor.
    #[error(
        "the recorded code read the data of a fake tensor{origin}; a fake tensor has a shape and no data: {}",
        instead_of(origin.operation())
    )]
    DataRead {
        /// Burn's message: it names a tensor by a number that differs from run to run.
        message: String,
        /// The origin of the error.
        origin: ErrorOrigin,
    },
    /// The recorded code did something that a recording with gradients does not allow.
    #[error(
        "the recorded code moved a fake tensor between devices or autodiff contexts{origin} ({message}); \
         `to_device`, `inner` and `from_inner` of float tensors can't be recorded: leave them out, and create \
         tensors on the device of their input"
    )]
    Moved {
        /// Burn's message.
        message: String,
        /// The origin of the error.
        origin: ErrorOrigin,
    },
    /// The recorded code called something that is not implemented; Burn reports quantization on a recording device
    /// this way.
    #[error(
        "the recorded code called something that is not implemented{origin} ({message}): a recording device can't \
         quantize, so if it was that, quantize the materialized module"
    )]
    NotImplemented {
        /// Burn's message.
        message: String,
        /// The origin of the error.
        origin: ErrorOrigin,
    },
    /// The recorded code panicked.
    #[error("the recorded code panicked{origin}: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
        /// The origin of the error.
        origin: ErrorOrigin,
    },
    /// An operation reads a fake or real tensor that was not created in the recording.
    #[error(
        "the recorded code used a tensor that does not belong to this recording{origin} ({message}): create it inside, \
         on the device of the closure or of another tensor, or pass its data"
    )]
    Foreign {
        /// Burn's message, or the operation.
        message: String,
        /// The origin of the error, if Burn reported it while the code ran.
        origin: ErrorOrigin,
    },
}

impl RecordError {
    /// Returns the place in the recorded code where the error arose.
    pub fn origin(&self) -> &ErrorOrigin {
        match self {
            Self::DataRead { origin, .. }
            | Self::Moved { origin, .. }
            | Self::NotImplemented { origin, .. }
            | Self::Panicked { origin, .. }
            | Self::Foreign { origin, .. } => origin,
        }
    }
}

/// Advice on how to replace an operation that reads data.
fn instead_of(operation: Option<&str>) -> &'static str {
    let names = operation.and_then(|name| name.rsplit_once("::"));
    match names.unwrap_or_default() {
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
            "keep the value as a tensor, and return it as a named output to inspect it"
        }
        (_, "nonzero" | "nonzero_async" | "argwhere" | "argwhere_async") => {
            "the shape of its result depends on data; use a mask, as with `mask_where` or a product"
        }
        _ => "compute on tensors, and read values only from a materialized module",
    }
}

/// An error in the use of a tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FakeError {
    /// The data of a fake tensor was requested.
    #[error("{tensor} has no data: materialize it first")]
    NoData {
        /// The tensor.
        tensor: Box<TensorMeta>,
    },
    /// A tensor was converted to another rank or kind.
    #[error("{tensor} is not a tensor of rank {rank} and kind {kind}")]
    WrongType {
        /// The tensor.
        tensor: Box<TensorMeta>,
        /// The requested rank.
        rank: usize,
        /// The requested kind.
        kind: &'static str,
    },
    /// The device failed to read or write the data.
    #[error("reading {tensor} failed")]
    Execution {
        /// The tensor.
        tensor: Box<TensorMeta>,
        /// The device's error.
        source: Box<burn_backend::ExecutionError>,
    },
    /// A device label could not be parsed.
    #[error(
        "`{label}` is not a device label: write a backend and an index, like `cuda:7`, or `flex`"
    )]
    BadLabel {
        /// The text.
        label: String,
    },
}

/// An error of reading or writing a graph file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphFileError {
    /// The file system failed.
    #[error("{action} {path} failed")]
    Io {
        /// The action, such as "reading".
        action: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The bytes are not a graph.
    #[error("not a file of recorded operations, or a damaged one: {reason}")]
    Decode {
        /// The decoder's error.
        reason: String,
    },
    /// The file is of another format, format version or Burn version.
    #[error(
        "the file has {field} `{found}`, this build reads `{expected}`: record and write it again"
    )]
    Version {
        /// The field of the header.
        field: &'static str,
        /// The value that this build reads.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// The bytes differ from the bytes that were written.
    #[error("the file is damaged: its digest is {found}, not {expected}")]
    Damaged {
        /// XXH3-128 in the header of the file, in hexadecimal digits.
        expected: String,
        /// XXH3-128 of the bytes.
        found: String,
    },
    /// The parts of the file contradict each other.
    #[error("the graph in the file is inconsistent: {reason}")]
    Inconsistent {
        /// The contradiction.
        reason: &'static str,
    },
}
