//! Reading: a published directory, proven before it is used.

mod checkpoint;
mod latest;
mod plain_file;
mod shard;
mod source;

pub use checkpoint::Checkpoint;
