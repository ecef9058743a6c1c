//! The ranks of a pipeline: threads of this process, processes of a world, or one whose stages are streamed.
//!
//! A new kind of rank that runs stages in the memory of their driver needs another implementation of [`Ranks`], and another
//! variant of `RankKind` that `Launch` of the driver starts. Calls run code on stages, and all ranks share a round. A rank in
//! another place is a process of a world with its own engine ([`tinderbox_world::Engine`]), and needs no change here.

mod notice;
#[expect(clippy::module_inception, reason = "the folder is of the trait")]
mod ranks;
mod remote;
mod threads;

pub(crate) use notice::{Notice, digest_of};
pub(crate) use ranks::{Ranks, To, read, typed, untyped, written};
pub(crate) use remote::{Processes, Remote, header_of};
pub(crate) use threads::{SharedPasses, StreamingRank, Threads, Wrap, linked};
