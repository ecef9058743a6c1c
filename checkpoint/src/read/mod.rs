//! Reading of published directories, which are validated before use, and of the files of other programs.

mod aliases;
mod checkpoint;
mod dry_run;
mod files;
mod load;
mod options;
mod place;
mod plan;
mod pretrained;
mod saved;
mod shard;
mod source;
mod transfer;
mod transpose;
mod values;

pub use checkpoint::Checkpoint;
pub use dry_run::{LoadPlan, RankLoad};
pub use options::LoadOptions;
pub use pretrained::Pretrained;
pub use saved::SavedTensors;
pub use source::CheckpointSource;

pub(crate) use load::default_threads;
pub use load::most_working_bytes;
pub(crate) use options::renamed;
pub(crate) use transfer::can_cast;
pub(crate) use transpose::{reversed, transposed};
pub(crate) use values::PIECE_BYTES;
