//! Sharded checkpoints: whole or not there.
//!
//! Every rank of a run writes its tensors to its own `safetensors` files; a coordinator publishes them
//! as one directory, in one instant, after it has proven that they are a whole model. Any other number
//! of ranks reads any box of any tensor again, and every byte that is read is checked.
//!
//! This crate does not know modules, optimizers or pipelines: it saves and loads named tensors and
//! scalars. [`Run`] is the checkpoints of a run, [`Attempt`] one save, [`Checkpoint`] what was published,
//! [`CheckpointSource`] its parameters as a model calls them, [`Pretrained`] those of others; [`tools`] compare, reshard, export and import,
//! and a [`store`] is the place for all of it.
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
//!     attempt.handle().write_rank(rank as u32, &[row], &scalars)?;
//! }
//! attempt.publish(Duration::from_secs(60))?;
//!
//! // One rank, and a column.
//! let checkpoint = run.latest()?.expect("one was published").checkpoint;
//! assert_eq!(checkpoint.step(), 100);
//! let weight = checkpoint.tensor(Role::Model, "embed.weight").expect("it was saved");
//! let column = checkpoint.read(weight, &Region::new(vec![0, 1], vec![2, 1])?)?;
//! assert_eq!(column, TensorData::new(vec![0.0f32, 1.0], [2, 1]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! As a [`tinderbox_deferred::Source`], a [`Checkpoint`] gives parameters their values straight on
//! their devices.
//!
//! # Architecture invariants
//!
//! - A directory is a checkpoint from the instant of one rename on; before it there is none, and after
//!   it no file in it is ever written. A step is replaced by an exchange of two directories. In a bucket, the
//!   instant is that of one conditional write.
//! - Every byte of a safetensors file, of the manifest and of the index has a digest: the header of a
//!   file has one, and the blocks of its chunks tile the rest.
//! - Nothing of a manifest is used before [`Manifest`]'s proof: names are those that a writer would
//!   choose, chunks tile every tensor, tensors tile every file. So no path leaves the directory, and no
//!   allocation is larger than the files.
//! - `format` and `layout` are pure; files are touched through a [`Store`](store::Store) only.
//! - What is removed is first renamed, and is provably ours while a part of it is left.
//! - [`Pretrained`] weights are the one exception to all of this: files of others, whose headers are proven and
//!   whose values are taken as they are.
//! - The bytes are a function of what was saved and the attempt's id. `FORMAT.md` describes them.
//!
//! # How it is fast
//!
//! - A rank writes several files at the same time, each from its beginning to its end; digests are taken a
//!   block at a time, while it is in the cache, and the disk begins before the file is complete.
//! - A load divides what it needs into spans of whole blocks and reads them on several threads, straight
//!   into the memory of the tensors (`tinderbox_pages`). Positioned reads were faster than copies from memory
//!   mappings, and a file that is cut meanwhile gives an error instead of a signal.
//! - A save in the background lets other threads go first (on Linux, where a priority is that of a thread).
//! - The digest is XXH3-128: 20 GB/s on one core where memory gives 8 and BLAKE3 4; CRC-64 by carry-less
//!   products has 36, and half the bits.
//!
//! # Features
//!
//! `object-store` for `store::BucketStore`, and `aws`, `gcp`, `azure`, `http` for its services.
//! None by default.
//!
//! # Limits
//!
//! - All ranks and the coordinator see one store. In a directory, renames within it are atomic and `fsync`
//!   keeps its promise. Locks are needed to clean up, and to join an attempt from another process; a bucket
//!   has none, see [`Run::clean_when_idle`].
//! - Quantized and `Flex32` tensors are refused; big-endian machines too.
//! - The digests find damage, not forgery.
//! - 256 MiB of manifest, 1 MiB of metadata, 65,536 ranks, 65,536 chunks of a tensor, 65,536 tied names, 32 dimensions,
//!   4096 bytes of a name.

mod digest;
mod dtype;
mod error;
mod format;
mod layout;
mod parallel;
mod progress;
mod read;
mod run;
pub mod store;
pub mod tools;
mod write;

pub use digest::{BlockSize, Digest};
pub use dtype::StoredDType;
pub use error::{ErrorClass, FormatError, HeaderError, LayoutError, LoadError, SaveError};
#[doc(hidden)]
pub use format::check_part;
pub use format::{
    AttemptId, Chunk, DocumentEntry, FileEntry, Header, HeaderTensor, Manifest, Role, Scalar,
    TensorEntry, UnknownFields, decode_header, encode_header,
};
pub use layout::check_tiling;
pub use progress::Progress;
pub use read::{Checkpoint, CheckpointSource, LoadOptions, LoadPlan, Pretrained, RankLoad};
/// The patterns of [`LoadOptions::rename`].
pub use regex::Regex;
pub use run::{Latest, Retention, Run, Skipped};
pub use write::{
    Attempt, AttemptHandle, CheckpointMeta, Cleaned, Held, RankSave, SaveData, SaveSize,
    SaveTensor, Saving, assign_writers,
};
