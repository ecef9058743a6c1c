//! Errors of operations on whole checkpoints.

use std::path::PathBuf;

use tinderbox_deferred::human_bytes_distinct;

use crate::{HeaderError, LoadError, SaveError, StoreError};

/// The reason why an operation on a whole checkpoint failed. Its output does not exist then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// A checkpoint can't be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The new checkpoint can't be saved, or a file can't be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// An I/O operation failed.
    #[error(transparent)]
    Io(#[from] StoreError),
    /// The system does not report the memory of the process.
    #[error(
        "a memory limit can't be kept, because the system does not report the memory of the process"
    )]
    UnknownMemory,
    /// A pattern of a rename matches no name.
    #[error("the pattern `{pattern}` matches no tensor: nothing would be renamed by it")]
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// Parameters alone would replace a checkpoint that has more.
    #[error(
        "{path} has a state of the optimizer or a position in the data, which would be lost: save another step, or to another \
         run"
    )]
    LosesState {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The memory limit is too low.
    #[error(
        "{} are allowed, and at least {} are needed: `{tensor}` is written in pieces that need most",
        human_bytes_distinct(*.memory_bytes, *.least_bytes), human_bytes_distinct(*.least_bytes, *.memory_bytes)
    )]
    Memory {
        /// The limit.
        memory_bytes: u64,
        /// The least limit, including the bytes that the process already has.
        least_bytes: u64,
        /// The tensor whose write needs the most memory.
        tensor: String,
    },
    /// The source has no parameters.
    #[error("{path} contains no parameters")]
    NoParameters {
        /// The checkpoint or the file.
        path: PathBuf,
    },
    /// The target exists.
    #[error("{path} already exists and is not an empty directory: choose a new one")]
    TargetExists {
        /// The target directory.
        path: PathBuf,
    },
    /// The target name is invalid.
    #[error(
        "{path} is not a valid name for a new directory: use a UTF-8 name that does not end in `..`"
    )]
    TargetName {
        /// The name.
        path: PathBuf,
    },
    /// The types of the modules are not known.
    #[error(
        "PyTorch's names and layouts follow from the types of the modules, which are not known for {path}: it was saved by an \
         earlier version or without a model; call `tools::export` with `ExportOptions::pytorch(model)`, or resume the run and \
         save a checkpoint with this version"
    )]
    NoModules {
        /// The checkpoint, or the target of an export of tensors.
        path: PathBuf,
    },
    /// The types of the modules belong to another model.
    #[error(
        "the modules of these parameters of {} are not in the model whose types were given, use the model that was saved: {}",
        .path.display(), .tensors.join(", ")
    )]
    OtherModel {
        /// The checkpoint, or the target of an export of tensors.
        path: PathBuf,
        /// The parameters.
        tensors: Vec<String>,
    },
    /// A burnpack file can't have the names and layouts of PyTorch.
    #[error(
        "a burnpack file has the names and layouts of Burn: use the format `safetensors` for PyTorch's"
    )]
    PyTorchFormat,
    /// Two tensors would have one name.
    #[error(
        "`{first}` and `{second}` would both be written as `{name}`: change the rename patterns, or add one that distinguishes \
         them"
    )]
    SameName {
        /// The first tensor.
        first: String,
        /// The second tensor.
        second: String,
        /// The common name.
        name: String,
    },
    /// The header of a plain file can't be created.
    #[error("the header of {path} can't be created")]
    Header {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: HeaderError,
    },
}
