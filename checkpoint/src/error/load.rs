//! Errors of reading a checkpoint, and their classification for recovery.

use std::{error::Error, io, path::PathBuf};

use tinderbox_deferred::{Mismatches, with_causes};
use tinderbox_fake::RegionError;

use super::{FormatError, HeaderError, LayoutError, StoreError};
use crate::{Digest, StoredDType};

/// The reason why a checkpoint can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// An I/O operation failed.
    #[error(transparent)]
    Io(StoreError),
    /// The directory does not exist, or is not a complete checkpoint.
    #[error(
        "{path} {}",
        if *.exists { "has no manifest: it is not a complete checkpoint" } else { "does not exist" }
    )]
    NotPublished {
        /// The directory.
        path: PathBuf,
        /// Whether it exists, without a manifest.
        exists: bool,
    },
    /// The directory of a step is a symbolic link, and its target does not exist or is not a checkpoint.
    #[error(
        "{path} is a symbolic link to {target}, where there is no checkpoint: mount the disk that it leads to, or remove the \
         link"
    )]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// The target, as the link contains it.
        target: PathBuf,
    },
    /// The directory of a step was given as the directory of a run.
    #[error(
        "{path} is a checkpoint, not the directory of a run: use the directory that contains it"
    )]
    NotARun {
        /// The directory.
        path: PathBuf,
    },
    /// A file listed in the manifest does not exist.
    #[error("file {path} does not exist")]
    FileMissing {
        /// The file.
        path: PathBuf,
    },
    /// A path is not a regular file, or a file of a checkpoint is a symbolic link.
    #[error("{path} is not a regular file; symbolic links in a checkpoint are not followed")]
    NotAFile {
        /// The file or directory.
        path: PathBuf,
    },
    /// The manifest is damaged or has another version.
    #[error("{path} can't be used")]
    Manifest {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: FormatError,
    },
    /// The manifest in the directory is of another step.
    #[error("{path} holds step {found}; its name specifies step {expected}")]
    WrongStep {
        /// The file or directory.
        path: PathBuf,
        /// The expected value.
        expected: u64,
        /// The actual value.
        found: u64,
    },
    /// The size of a file differs from the manifest.
    #[error("{path} has {found_bytes} bytes instead of {expected_bytes}")]
    FileSize {
        /// The file or directory.
        path: PathBuf,
        /// Expected number of bytes.
        expected_bytes: u64,
        /// Actual number of bytes.
        found_bytes: u64,
    },
    /// A part of a file outside the tensors is damaged.
    #[error("{path} is damaged: the digest of its {what} is {found} instead of {expected}")]
    DamagedFile {
        /// The file or directory.
        path: PathBuf,
        /// The damaged part of the file.
        what: &'static str,
        /// The expected value.
        expected: Digest,
        /// The actual value.
        found: Digest,
    },
    /// The header of a file is invalid.
    #[error("the header of {path} can't be used")]
    Header {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: HeaderError,
    },
    /// The data of a tensor is damaged.
    #[error(
        "tensor `{tensor}` is damaged: the digest of bytes {start_bytes}..{end_bytes} of {path} is {found} instead of \
         {expected}"
    )]
    DamagedTensor {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// First byte.
        start_bytes: u64,
        /// End of the range, exclusive.
        end_bytes: u64,
        /// The expected value.
        expected: Digest,
        /// The actual value.
        found: Digest,
    },
    /// A boolean is neither 0 nor 1.
    #[error("tensor `{tensor}` of {path} holds a boolean that is neither 0 nor 1")]
    InvalidBoolean {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
    },
    /// A finite number would become infinite in the requested dtype.
    #[error(
        "tensor `{tensor}` of {path} has {value:e}, which is out of the range of the requested dtype: read it in {stored}, or \
         in one with its range"
    )]
    Overflow {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// The first such value.
        value: f64,
        /// Its dtype in the file.
        stored: StoredDType,
    },
    /// A tensor entry does not belong to this checkpoint.
    #[error("the entry of tensor `{tensor}` does not belong to {path}")]
    OtherCheckpoint {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
    },
    /// A file has more damaged blocks than are reported individually.
    #[error("{blocks} more blocks of {path} are damaged")]
    MoreDamage {
        /// The file or directory.
        path: PathBuf,
        /// Number of blocks that are not reported individually.
        blocks: u64,
    },
    /// The stored dtype can't be converted to the requested one.
    #[error("tensor `{tensor}` has dtype {found} and can't be read as {expected}")]
    NoCast {
        /// Name of the tensor.
        tensor: String,
        /// The dtype in the file.
        found: StoredDType,
        /// The requested dtype.
        expected: String,
    },
    /// Two tensors are renamed to the same name.
    #[error(
        "`{first}` and `{second}` would both be renamed to `{name}`: change the rename patterns"
    )]
    Renamed {
        /// The first tensor.
        first: String,
        /// The second tensor.
        second: String,
        /// The common name.
        name: String,
    },
    /// The memory for a tensor can't be allocated.
    #[error("failed to allocate {bytes} bytes for tensor `{tensor}`")]
    OutOfMemory {
        /// Name of the tensor.
        tensor: String,
        /// The requested number of bytes.
        bytes: u64,
    },
    /// A region extends outside its tensor.
    #[error("invalid region of tensor `{tensor}`")]
    Region {
        /// Name of the tensor.
        tensor: String,
        /// The cause.
        source: RegionError,
    },
    /// Optimizer state is missing.
    #[error("{path} does not hold optimizer state {names:?}")]
    MissingState {
        /// The file or directory.
        path: PathBuf,
        /// Names of the missing state.
        names: Vec<String>,
    },
    /// The parameters do not match the model.
    #[error("{path} does not fit the model, nothing was loaded:{mismatches}")]
    Mismatch {
        /// The file or directory.
        path: PathBuf,
        /// All differences.
        mismatches: Mismatches,
    },
    /// The directory contains no model.
    #[error(
        "{path} has neither model.safetensors nor model.safetensors.index.json, and no shards (shard-*-model-*.safetensors); \
         in a run, use the directory of a step"
    )]
    NoModel {
        /// The directory.
        path: PathBuf,
    },
    /// The directory contains two models.
    #[error(
        "{path} contains a model.safetensors that its index does not list: pass the path of the intended file"
    )]
    TwoModels {
        /// The directory.
        path: PathBuf,
    },
    /// The file is not a Hugging Face index.
    #[error("{path} is not a valid safetensors index")]
    Index {
        /// The index.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// The index lists a file that may be outside its directory.
    #[error("{path} lists file `{name}`, which is not a plain file name in the same directory")]
    IndexFile {
        /// The index.
        path: PathBuf,
        /// The name in it.
        name: String,
    },
    /// The index does not match the files that it lists.
    #[error(
        "{path} does not match its files: missing from the listed file: {missing:?}; in two files: {unlisted:?}"
    )]
    IndexMismatch {
        /// The index.
        path: PathBuf,
        /// Names of tensors that are missing from the file that the index assigns them to.
        missing: Vec<String>,
        /// Names of tensors in a file that the index does not assign them to, which another file has as well.
        unlisted: Vec<String>,
    },
    /// The file is a pointer to another file, which was not downloaded.
    #[error(
        "{path} is a pointer of Git LFS instead of the file: run `git lfs pull` in its repository"
    )]
    LfsPointer {
        /// The pointer.
        path: PathBuf,
    },
    /// A file was replaced or written to while it was in use.
    #[error("{path} was replaced or written to since it was opened: open the weights again")]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// The file has parts of tensors; the other parts are in other files.
    #[error("{path} is one shard of a model: open its directory, which has the others")]
    OneShard {
        /// The file.
        path: PathBuf,
    },
    /// Shards are missing.
    #[error("{path} lacks shards of the model: {names:?}; copy all files of the checkpoint")]
    MissingShards {
        /// The directory.
        path: PathBuf,
        /// Names of the missing files, with `*` for the rank; at most 20.
        names: Vec<String>,
    },
    /// The positions of the parts of a shard are invalid.
    #[error("{path} has an invalid `DCP_SHARDING_INFO` in its metadata")]
    Offsets {
        /// The shard.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A shard does not contain the position of a part.
    #[error(
        "{path} does not contain which part of tensor `{tensor}` it has: its `DCP_SHARDING_INFO` lacks an offset for each \
         dimension"
    )]
    NoOffsets {
        /// The shard.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
    },
    /// Two parts belong to different tensors.
    #[error("the parts of tensor `{tensor}` in {path} do not fit each other: {}", parts.join(", "))]
    PartsDiffer {
        /// The directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Dtype, number of dimensions and file of two parts.
        parts: [String; 2],
    },
    /// The parts of a tensor do not form it.
    #[error(
        "the parts of tensor `{tensor}` in {path} do not form it; a shard may be missing, or be of another checkpoint; parts \
         are in {files:?}"
    )]
    Parts {
        /// The directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Names of the files that have parts; at most 20.
        files: Vec<String>,
        /// The cause.
        source: Box<LayoutError>,
    },
    /// The newest checkpoint that is not known to be damaged can't be used. No older one is used instead,
    /// because a temporary error would then discard training progress.
    #[error(
        "the checkpoint of step {step} can't be used; it is not known to be damaged, so no older one is used ({})",
        way_out(.source)
    )]
    NotUsable {
        /// The step.
        step: u64,
        /// The cause.
        source: Box<LoadError>,
    },
    /// Checkpoints exist, and all of them are damaged.
    #[error(
        "none of the {} checkpoint(s) in {} can be used; restore one from a copy, or start a new run in another directory:{}",
        .reasons.len(), .path.display(), list(.reasons)
    )]
    NoneUsable {
        /// The file or directory.
        path: PathBuf,
        /// The reason for each checkpoint.
        reasons: Vec<LoadError>,
    },
}

impl LoadError {
    /// Returns the class of this error.
    pub fn class(&self) -> ErrorClass {
        use ErrorClass::{Damaged, Missing, NotSupported, Refused, Transient};
        match self {
            Self::Io(error) => class_of_io(&error.source),
            // Other invalid files have a valid digest, so their writer wrote the content.
            Self::Manifest { source, .. } => match source {
                FormatError::Envelope | FormatError::Digest { .. } => Damaged,
                _ => NotSupported,
            },
            Self::NotPublished { .. } | Self::NoModel { .. } => Missing,
            // Its disk may not be mounted.
            Self::DanglingLink { .. } => Transient,
            Self::FileMissing { .. }
            | Self::NotAFile { .. }
            | Self::WrongStep { .. }
            | Self::FileSize { .. }
            | Self::DamagedFile { .. }
            | Self::Header { .. }
            | Self::DamagedTensor { .. }
            | Self::InvalidBoolean { .. }
            | Self::MoreDamage { .. }
            | Self::Index { .. }
            | Self::IndexMismatch { .. }
            | Self::LfsPointer { .. }
            | Self::MissingShards { .. }
            | Self::Offsets { .. }
            | Self::NoOffsets { .. }
            | Self::PartsDiffer { .. }
            | Self::Parts { .. }
            | Self::NoneUsable { .. } => Damaged,
            Self::NotUsable { source, .. } => source.class(),
            // Only known damage makes a run fall back to an older checkpoint.
            _ => Refused,
        }
    }

    /// Returns the class of the first load error in the source chain of an error, including the error itself, or `None` without
    /// a load error.
    pub fn class_in(error: &(dyn Error + 'static)) -> Option<ErrorClass> {
        let mut causes = std::iter::successors(Some(error), |error| (*error).source());
        let found = causes.find_map(|cause| {
            let boxed = cause.downcast_ref::<Box<Self>>().map(|found| &**found);
            cause.downcast_ref().or(boxed)
        });
        found.map(Self::class)
    }

    /// Returns the message with the messages of all sources, on one line.
    pub fn chain(&self) -> String {
        with_causes(self)
    }
}

impl From<StoreError> for LoadError {
    fn from(error: StoreError) -> Self {
        match error.source.kind() {
            io::ErrorKind::NotFound => Self::FileMissing { path: error.path },
            io::ErrorKind::InvalidInput => Self::NotAFile { path: error.path },
            _ => Self::Io(error),
        }
    }
}

/// Returns advice for a checkpoint that can't be used and is not known to be damaged.
fn way_out(reason: &LoadError) -> &'static str {
    match reason.class() {
        _ if matches!(reason, LoadError::DanglingLink { .. }) => {
            "to resume from an older step, move the link out of the run"
        }
        ErrorClass::NotSupported => {
            "use the version of the program that wrote it, or a newer one; to resume from an older step, move this one out of \
             the run"
        }
        ErrorClass::Transient => "its store failed repeatedly: retry when the store is available",
        _ => {
            "give this program read access; to resume from an older step, move this one out of the run"
        }
    }
}

/// Formats one reason per line, each with its sources.
fn list(reasons: &[LoadError]) -> String {
    let lines = reasons.iter().map(|r| format!("\n  {}", r.chain()));
    lines.collect()
}

/// The class of a load error, which determines how a caller can recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The checkpoint is damaged: a digest does not match, or a file is truncated or missing. Only errors of
    /// this class make [`Run::latest`](crate::Run::latest) fall back to an older checkpoint.
    Damaged,
    /// The checkpoint is not known to be damaged, but has a version or form that this program does not read.
    NotSupported,
    /// The store failed repeatedly, or the directory of a step is a link without a target, for example on a disk that is not
    /// mounted. The checkpoint may be intact, and a later attempt may succeed.
    Transient,
    /// The store denied access, or the request does not match the contents of the checkpoint.
    Refused,
    /// The checkpoint does not exist.
    Missing,
}

/// Classifies an I/O error of a store. Errors that are not known to be permanent are transient.
pub(crate) fn class_of_io(error: &io::Error) -> ErrorClass {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => ErrorClass::Missing,
        Kind::UnexpectedEof => ErrorClass::Damaged,
        Kind::FileTooLarge => ErrorClass::NotSupported,
        Kind::PermissionDenied
        | Kind::ReadOnlyFilesystem
        | Kind::Unsupported
        | Kind::InvalidInput
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::OutOfMemory
        | Kind::StorageFull
        | Kind::QuotaExceeded => ErrorClass::Refused,
        _ => ErrorClass::Transient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system() {
        for (code, expected) in [
            (2, ErrorClass::Missing),
            (5, ErrorClass::Transient),
            (13, ErrorClass::Refused),
            (23, ErrorClass::Transient),
            (24, ErrorClass::Transient),
            (30, ErrorClass::Refused),
            (110, ErrorClass::Transient),
        ] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(class_of_io(&error), expected, "{error}");
        }
    }
}
