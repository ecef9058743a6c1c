//! Reading of published directories, which are validated before use.

mod aliases;
mod checkpoint;
mod compared;
mod dry_run;
mod failure;
mod files;
mod load;
mod options;
mod place;
mod plan;
mod pretrained;
mod scratch;
mod shard;
mod source;
mod transfer;
mod transpose;
mod values;
mod verify;

pub use checkpoint::Checkpoint;
pub use dry_run::{LoadPlan, RankLoad};
pub use options::LoadOptions;
pub use pretrained::Pretrained;
pub use source::CheckpointSource;

pub(crate) use failure::failed;
pub(crate) use load::default_threads;
pub use load::most_working_bytes;
pub(crate) use options::renamed;
pub(crate) use transfer::can_cast;
pub(crate) use transpose::{reversed, transposed_piece};
pub(crate) use values::PIECE_BYTES;
