//! The ranks of a pipeline: threads of this process, processes of a world, or one whose stages are streamed.
//!
//! A new kind of rank that runs stages in the memory of their driver is another implementation of [`Ranks`] and another variant
//! of `RankKind`, which `Launch` of the driver starts: calls run code on stages, and a round is shared by all ranks. A rank
//! elsewhere is a process of a world, with an engine of its own ([`tinderbox_world::Engine`]); nothing here changes then.

mod notice;

#[expect(clippy::module_inception, reason = "the folder is of the trait")]
mod ranks;
mod remote;
mod streaming;
mod threads;

pub(crate) use notice::{Notice, digest_of};

pub(crate) use ranks::{Ranks, To, read, typed, untyped, written};
pub(crate) use remote::{Processes, Remote, header_of};
pub(crate) use streaming::{SharedPasses, StreamingRank};
pub(crate) use threads::{Threads, Wrap, linked};
