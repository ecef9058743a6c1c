//! Why a checkpoint can't be read.

use std::{io, path::PathBuf};

use tinderbox_deferred::Mismatches;
use tinderbox_fake::RegionError;

use super::{ErrorClass, FormatError, HeaderError, chain};
use crate::{Digest, StoredDType};

/// Why a checkpoint can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file system failed.
    #[error("can't {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The directory is no checkpoint.
    #[error("{} is no published checkpoint: it has no manifest", .path.display())]
    NotPublished {
        /// The file or directory.
        path: PathBuf,
    },
    /// A file that the manifest lists is not there.
    #[error("there is no file {}", .path.display())]
    FileMissing {
        /// The file.
        path: PathBuf,
    },
    /// A file is a directory, a pipe or a device, or one of a checkpoint is a link.
    #[error("{} is not a plain file; links in a checkpoint are not followed", .path.display())]
    NotAFile {
        /// The file or directory.
        path: PathBuf,
    },
    /// The manifest is damaged, or of another version.
    #[error("{} can't be used", .path.display())]
    Manifest {
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: FormatError,
    },
    /// The directory has the name of another step.
    #[error("{} holds step {found}, by its name it should hold {expected}", .path.display())]
    WrongStep {
        /// The file or directory.
        path: PathBuf,
        /// What should be there.
        expected: u64,
        /// What was found.
        found: u64,
    },
    /// A file is longer or shorter than the manifest says.
    #[error("{} has {found_bytes} bytes instead of {expected_bytes}", .path.display())]
    FileSize {
        /// The file or directory.
        path: PathBuf,
        /// Bytes that there should be.
        expected_bytes: u64,
        /// Bytes that are there.
        found_bytes: u64,
    },
    /// Bytes of a file that belong to no tensor are damaged.
    #[error("{} is damaged: the digest of its {what} is {found} instead of {expected}", .path.display())]
    DamagedFile {
        /// The file or directory.
        path: PathBuf,
        /// Which part of the file.
        what: &'static str,
        /// What should be there.
        expected: Digest,
        /// What was found.
        found: Digest,
    },
    /// The header of a file is not valid.
    #[error("the header of {} can't be used", .path.display())]
    Header {
        /// The file or directory.
        path: PathBuf,
        /// What went wrong.
        source: HeaderError,
    },
    /// Bytes of a tensor are damaged.
    #[error("tensor `{tensor}` is damaged: the digest of bytes {start_bytes}..{end_bytes} of {} is {found} instead of {expected}", .path.display())]
    DamagedTensor {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// First byte.
        start_bytes: u64,
        /// The byte after the last.
        end_bytes: u64,
        /// What should be there.
        expected: Digest,
        /// What was found.
        found: Digest,
    },
    /// A boolean is neither 0 nor 1.
    #[error("tensor `{tensor}` of {} holds a boolean that is neither 0 nor 1", .path.display())]
    TruthValue {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor is not of this checkpoint.
    #[error("tensor `{tensor}` as it was given is not one of {}", .path.display())]
    OtherCheckpoint {
        /// The file or directory.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
    },
    /// More blocks of a file are damaged than are named.
    #[error("{blocks} more blocks of {} are damaged", .path.display())]
    MoreDamage {
        /// The file or directory.
        path: PathBuf,
        /// Number of the blocks that are not named.
        blocks: u64,
    },
    /// Values of the saved dtype are none of the wanted one.
    #[error("tensor `{tensor}` is {found} and can't be read as {expected}")]
    NoCast {
        /// Name of the tensor.
        tensor: String,
        /// The dtype in the file.
        found: StoredDType,
        /// What was asked for.
        expected: String,
    },
    /// Two tensors get one name.
    #[error(
        "`{first}` and `{second}` would both be called `{name}`: change the patterns that rename"
    )]
    Renamed {
        /// The first tensor.
        first: String,
        /// The second tensor.
        second: String,
        /// The name of both.
        name: String,
    },
    /// A tensor does not fit the memory.
    #[error("no memory for {bytes} bytes of tensor `{tensor}`")]
    OutOfMemory {
        /// Name of the tensor.
        tensor: String,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// A region does not lie inside its tensor.
    #[error("region of tensor `{tensor}`")]
    Region {
        /// Name of the tensor.
        tensor: String,
        /// What went wrong.
        source: RegionError,
    },
    /// State of the optimizer was not saved.
    #[error("{} does not hold optimizer state {names:?}", .path.display())]
    MissingState {
        /// The file or directory.
        path: PathBuf,
        /// Names of what is missing.
        names: Vec<String>,
    },
    /// The parameters are not those of the model.
    #[error("{} does not fit the model, nothing was loaded:{mismatches}", .path.display())]
    Mismatch {
        /// The file or directory.
        path: PathBuf,
        /// All that differs.
        mismatches: Mismatches,
    },
    /// The directory holds no model.
    #[error("{} has neither model.safetensors nor model.safetensors.index.json", .path.display())]
    NoModel {
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds two models.
    #[error("{} has a model.safetensors that its index does not name: give the file that is meant", .path.display())]
    TwoModels {
        /// The directory.
        path: PathBuf,
    },
    /// The index is not one of Hugging Face's form.
    #[error("{} is not the JSON of a safetensors index", .path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What went wrong.
        source: serde_json::Error,
    },
    /// The index names a file that may lie elsewhere.
    #[error("{} names file `{name}`, which is no plain name of a file beside it", .path.display())]
    IndexFile {
        /// The index.
        path: PathBuf,
        /// The name in it.
        name: String,
    },
    /// The index and the files that it names hold other tensors.
    #[error("{} does not fit its files: not in the file that it names: {missing:?}, in a file and not in it: {unlisted:?}", .path.display())]
    IndexMismatch {
        /// The index.
        path: PathBuf,
        /// Tensors that are not in the file that the index names, by name.
        missing: Vec<String>,
        /// Tensors that are in a file for which the index does not name them, by name.
        unlisted: Vec<String>,
    },
    /// The newest checkpoint that is not proven to be damaged can't be used. No older one is taken instead: what was
    /// trained since would be lost for an error that may pass.
    #[error(
        "the checkpoint of step {step} can't be used; it is not proven to be damaged, so no older one is taken ({})",
        way_out(.source.class())
    )]
    NotUsable {
        /// The step.
        step: u64,
        /// What went wrong.
        source: Box<LoadError>,
    },
    /// There are checkpoints, and all are damaged.
    #[error("none of the {} checkpoint(s) in {} can be used:{}", .reasons.len(), .path.display(), list(.reasons))]
    NoneUsable {
        /// The file or directory.
        path: PathBuf,
        /// Why each can't be used.
        reasons: Vec<LoadError>,
    },
}

impl LoadError {
    /// The message with those of its sources, on one line.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// What to do about a checkpoint that can't be used and is not damaged.
fn way_out(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::NotSupported => {
            "use the program that wrote it, or a newer one; to go on from an older step, move this one out of the run"
        }
        ErrorClass::Transient => "its store has failed several times: try again when it answers",
        _ => "let this program read it; to go on from an older step, move this one out of the run",
    }
}

/// One reason to a line, each with its sources.
fn list(reasons: &[LoadError]) -> String {
    reasons
        .iter()
        .map(|r| format!("\n  {}", chain(r)))
        .collect()
}
