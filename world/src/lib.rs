//! Processes that run a program together: which of them this is, calls that all make, and frames of bytes between them.
//!
//! A [`World`] is the set of processes, as one of them sees it. An [`Engine`] carries frames between them: gRPC (feature
//! `grpc`), which needs nothing but a network, or one of a crate of its own, such as MPI. The crate knows bytes and ranks;
//! it does not depend on Burn, and builds in seconds.
//!
//! It is no collective library: there is no all-reduce of tensors, and every process is connected with every other, which
//! is made for up to some 64 of them.
//!
//! ```
//! use tinderbox_world::World;
//!
//! // Alone, without the variables of a launcher.
//! let world = World::from_env()?;
//! let plan: String = world.from_first(|| Ok::<_, std::io::Error>("two stages".to_owned()))?;
//! assert_eq!(world.all_gather(plan.len())?, [10]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How a world ends
//!
//! Every rank that finishes says goodbye; a rank that fails says why, and every rank that hears of it passes it on and
//! stops. Both words are confirmed, and a process waits for the confirmations before it ends, so that no word is lost with
//! its connection. A connection that ends without a goodbye, and a rank that shows no sign of life for ten heartbeats, is
//! a failure of that rank. The first failure is the world's.
//!
//! The protocol is a pure state machine (`peers`); the tests run it in every order of events, with processes that end at
//! any moment.
//!
//! # How a world continues
//!
//! Processes that are left after one was lost may [regroup](World::regroup): they keep their connections, agree on who is
//! left, and begin a new generation. Every frame carries the number of its generation, so what a process sends that the
//! others have given up is not read. This protocol is a pure state machine as well (`members`), tested in every order of
//! messages and ends.
//!
//! # Modules
//!
//! In order: a module uses only those before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! repeat nodes environment frame peers members message options engine handler core channel world threads simulated testing
//! grpc join
//! ```
//!
//! # Architecture invariants
//!
//! - Frames that arrive are not trusted: every length is checked before memory is reserved, and nothing in a frame
//!   panics.
//! - Heartbeats are the world's, the same for every engine. They are counted by the rank that waits, while it runs, so a
//!   machine that pauses as a whole loses nobody.
//! - All but the engines waits, reads the time and starts threads only through `tinderbox_link`, so that a simulation can run
//!   it with an engine of its own.
//! - A send never waits. Ranks receive at any time, so memory is the only limit of what is on its way.
//!
//! # Features
//!
//! - `grpc`: the engine over gRPC.
//! - `testing`: `testing::check_engine`, and two engines with faults: between threads (`testing::Threads`), and between processes of a
//!   simulation (`testing::Simulated`).

mod channel;
mod core;
mod engine;
mod environment;
mod error;
mod frame;
#[cfg(feature = "grpc")]
mod grpc;
mod handler;
mod join;
mod members;
mod message;
mod nodes;
mod options;
mod peers;
mod repeat;
#[cfg(feature = "testing")]
mod simulated;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "testing")]
mod threads;
mod world;

pub use channel::Channel;
pub use engine::{Close, Engine, Events, Outbox, Started};
pub use environment::{Environment, Launcher, Local, Meeting, machine};
pub use error::{EnvironmentError, NodeListError, WorldError};
pub use frame::{Buffer, Decoder, Frame, FrameError, Limits, Received};
#[cfg(feature = "grpc")]
pub use grpc::Grpc;
pub use handler::Handler;
pub use options::WorldOptions;
pub use peers::{Failure, How};
pub use tinderbox_path::with_causes;
pub use tinderbox_schedule::RankIndex;
pub use world::World;
