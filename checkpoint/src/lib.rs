//! Sharded checkpoints with atomic publication.
//!
//! Every rank of a run writes its tensors to its own `safetensors` files. A coordinator validates that the tensors form a
//! complete model, and publishes the files atomically as one directory. A run with any other number of ranks can read any box
//! of any tensor; every byte that is read is checked.
//!
//! This crate does not depend on modules, optimizers or pipelines: it saves and loads named tensors and
//! scalars. [`Run`] manages the checkpoints of a run, [`Attempt`] is one save, [`Checkpoint`] is a published
//! checkpoint, [`CheckpointSource`] maps its parameters to a model, and [`Pretrained`] reads weights of other
//! programs. [`tools`] compare, copy, reshard, convert and export checkpoints, and a [`store`] contains them.
//!
//! ```
//! use std::{collections::BTreeMap, time::Duration};
//! use burn::tensor::TensorData;
//! use tinderbox_checkpoint::{CheckpointMeta, Role, Run, SaveTensor, Scalar};
//! use tinderbox_fake::Region;
//!
//! # let dir = tempfile::tempdir()?;
//! let run = Run::local(dir.path());
//! // Two ranks, each with one row of a parameter.
//! let attempt = run.begin(CheckpointMeta::new(100, 2))?;
//! for rank in 0..2 {
//!     let row = SaveTensor {
//!         name: "embed.weight".to_owned(),
//!         role: Role::Model,
//!         tied: Vec::new(),
//!         shape: vec![2, 3],
//!         region: Region::new(vec![rank, 0], vec![1, 3])?,
//!         data: TensorData::new(vec![rank as f32; 3], [1, 3]).into(),
//!     };
//!     let scalars = BTreeMap::from([(format!("rank{rank}.steps"), Scalar::Uint(100))]);
//!     // On the rank's own thread or process; the handle is `Clone` and `Send`.
//!     attempt.handle().write_rank(rank as u32, &[row], &scalars, &())?;
//! }
//! attempt.publish(Duration::from_secs(60))?;
//!
//! // One rank reads a column.
//! let checkpoint = run.latest()?.expect("one was published").checkpoint;
//! assert_eq!(checkpoint.step(), 100);
//! let weight = checkpoint.tensor(Role::Model, "embed.weight").expect("it was saved");
//! let column = checkpoint.read(weight, &Region::new(vec![0, 1], vec![2, 1])?)?;
//! assert_eq!(column, TensorData::new(vec![0.0f32, 1.0], [2, 1]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! As a [`tinderbox_deferred::Source`], a [`Checkpoint`] loads parameter values directly to their devices.
//!
//! # Modules
//!
//! The modules in order: a module uses only modules before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! digest dtype layout parallel format store read write run tools testing
//! ```
//!
//! # Architecture invariants
//!
//! - A directory becomes a checkpoint by one rename. Before the rename there is no checkpoint, and after it no file in the
//!   directory is ever written. A step is replaced by an exchange of two directories. In a bucket, one conditional write
//!   replaces the rename.
//! - Every byte of a safetensors file, of the manifest and of the index is covered by a digest: the header of
//!   a file has one, and the blocks of its chunks tile the rest.
//! - No content of a manifest is used before [`Manifest`] has validated it: a writer would choose the same names, chunks tile
//!   every tensor, tensors tile every file. Therefore no path leaves the directory, and no allocation is larger than the files.
//! - `format` and `layout` are pure; files are accessed only through a [`Store`](store::Store).
//! - A directory is renamed before it is removed, and its remaining contents identify it as a directory of this crate until the
//!   last file is removed.
//! - The directory of a step can be a symbolic link that a user has created. No other link is followed, and nothing is removed
//!   through a link.
//! - A [`Checkpoint`] never has bytes that are not checked. [`Pretrained`] weights have a type of their own: they are files of
//!   other programs, whose headers are validated and whose values are not. [`SavedTensors`] is the common part of both.
//! - The bytes are a function of the saved values and the attempt's id. `FORMAT.md` describes them.
//!
//! # Performance
//!
//! - A rank writes several files concurrently, each sequentially. Digests are computed block by block while
//!   the block is in the cache, and write-back to the disk starts before the file is complete.
//! - A load divides the required bytes into spans of whole blocks and reads them on several threads, directly
//!   into the memory of the tensors (`tinderbox_memory`). Positioned reads were faster than copies from memory
//!   mappings, and a file that is truncated during the load causes an error instead of a signal.
//! - A background save yields to other threads (on Linux, where each thread has its own priority).
//! - The digest is XXH3-128: 20 GB/s on one core, where memory delivers 8 GB/s and BLAKE3 4 GB/s. CRC-64 by
//!   carry-less multiplication reaches 36 GB/s, with half the bits.
//!
//! # Features
//!
//! `object-store` enables `store::BucketStore`; `aws`, `gcp`, `azure` and `http` enable its services. No
//! feature is enabled by default.
//!
//! # Limits
//!
//! - All ranks and the coordinator access one store. For a directory, renames within it must be atomic and `fsync` reliable.
//!   The removal of dead attempts requires locks; for a bucket, which has no locks, see [`Run::clean_when_idle`].
//! - Quantized and `Flex32` tensors, and big-endian machines, are not supported.
//! - The digests detect damage, not forgery.
//! - Maximum sizes: 256 MiB of manifest, 1 MiB of metadata, 65,536 ranks, 65,536 chunks per tensor, 65,536
//!   tied names, 32 dimensions, 4096 bytes per name.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod digest;
mod dtype;
mod error;
mod format;
mod layout;
mod parallel;
mod read;
mod run;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tools;
mod write;

pub use digest::{AttemptId, BlockSize, Digest};
pub use dtype::StoredDType;
pub use error::{
    ErrorClass, FormatError, HeaderError, LayoutError, LoadError, SaveError, StoreError,
};
pub use format::{
    Chunk, DocumentEntry, FileEntry, Header, HeaderTensor, Manifest, ModuleTypes, Role, Scalar,
    TensorEntry, UnknownFields, decode_header, encode_header,
};
pub use layout::check_tiling;
pub use read::{
    Checkpoint, CheckpointSource, LoadOptions, LoadPlan, Pretrained, RankLoad, SavedTensors,
    most_working_bytes,
};
/// The pattern type of [`LoadOptions::rename`].
pub use regex::Regex;
pub use run::{Latest, Retention, Run, Skipped};
pub use write::{
    Attempt, AttemptHandle, CheckpointMeta, Cleaned, RankSave, SaveData, SaveSize, SaveTensor,
    SavedPart, Saving, assign_writers,
};
