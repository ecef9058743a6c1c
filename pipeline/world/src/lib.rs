//! Processes that run a program together: the rank of each process, calls that all of them make, and frames of bytes
//! between them.
//!
//! A [`World`] is the set of processes, as one of them sees it. An [`Engine`] carries frames between them: gRPC (feature
//! `grpc`), which needs only a network, or an engine of another crate, such as MPI. The crate knows bytes and ranks. It does
//! not depend on Burn, and builds in seconds.
//!
//! It is not a collective library: there is no all-reduce of tensors. Every process is connected with every other one, which
//! is designed for at most about 64 processes.
//!
//! ```
//! use tinderbox_world::World;
//!
//! // Without the variables of a launcher, this process is alone.
//! let world = World::from_env()?;
//! let plan: String = world.from_first(|| Ok::<_, std::io::Error>("two stages".to_owned()))?;
//! assert_eq!(world.all_gather(plan.len())?, [10]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How a world ends
//!
//! A rank that finishes sends a goodbye. A rank that fails sends the reason; every rank that receives it forwards it and
//! stops. Both messages are confirmed, and a process waits for the confirmations before it ends, so that no message is lost
//! with its connection. A rank has failed if its connection ends without a goodbye, or if it sends nothing for ten
//! heartbeats. The first failure is the failure of the world.
//!
//! The protocol is a pure state machine (`peers`). The tests run it in every order of events, with processes that end at
//! any moment.
//!
//! # How a world continues
//!
//! When a process is lost, the remaining ones may [regroup](World::regroup): they keep their connections, agree on who is
//! left, and begin a new generation. Every frame carries the number of its generation, so that the frames of a process that
//! the others have given up are ignored. This protocol is a pure state machine as well (`members`), which is tested in every
//! order of messages and ends.
//!
//! # Modules
//!
//! In order: a module uses only those before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! link nodes environment frame peers members message options engine core channel world testing grpc join
//! ```
//!
//! # Architecture invariants
//!
//! - Frames that arrive are not trusted: every length is checked before memory is reserved, and no frame causes a panic.
//! - The world sends heartbeats, in the same way over every engine. The rank that waits counts them while it runs, so a
//!   machine that pauses as a whole loses no rank.
//! - Everything except the engines waits, reads the time and starts threads only through [`link`], so that a simulation can
//!   run it with an engine of its own.
//! - A send never waits. Ranks receive at any time, so memory is the only limit of the frames on their way.
//!
//! # Features
//!
//! - `grpc`: the engine over gRPC.
//! - `testing`: `testing::check_engine`, a conformance suite for engines.
//! - `simulation`: this crate, and code that builds on [`link`], may also run in a simulation of `tinderbox-simulation`, in
//!   which threads are fibers.

mod channel;
mod core;
mod engine;
mod environment;
mod error;
mod frame;
#[cfg(feature = "grpc")]
mod grpc;
mod join;
pub mod link;
mod members;
mod message;
mod nodes;
mod options;
mod peers;
#[cfg(feature = "testing")]
pub mod testing;
mod world;

pub use channel::Channel;
pub use engine::{Close, Engine, Events, Handler, Outbox, Priority, Started};
pub use environment::{Environment, Launcher, Local, Meeting, machine};
pub use error::{EnvironmentError, NodeListError, WorldError};
pub use frame::{Buffer, Decoder, Frame, FrameError, Received};
#[cfg(feature = "grpc")]
pub use grpc::Grpc;
pub use options::WorldOptions;
pub use peers::{Failure, How};
pub use tinderbox_ids::{RankIndex, with_causes};
pub use world::World;
