//! Carries the frames of a [`World`](tinderbox_world::World) by MPI, for clusters where it is the way to the network.
//!
//! A crate of its own, because a program that links MPI does not start without it: everything here needs the feature
//! `mpi`, and an MPI library with `mpicc` when it is built. The program has to be started by the `mpirun` of the same
//! library; another one starts processes that each are a world of one, which `world` refuses.
//!
//! ```no_run
//! # #[cfg(feature = "mpi")]
//! # fn example() -> Result<(), tinderbox_world::WorldError> {
//! // mpirun -n 2 program
//! let world = tinderbox_world_mpi::world()?;
//! assert!(world.rank().index() < world.size());
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! One thread owns MPI: it initializes it (`MPI_THREAD_FUNNELED`), queues sends, and probes every other rank in turn. MPI
//! can't wait without a core, so the thread looks again and again: at once after a message, then after naps that grow to a
//! millisecond. A core to spare for it is worth having.
//!
//! MPI is finalized only after an orderly end of all ranks that are left, because that waits for all of them: also for what
//! was on its way to a lost rank, because a rank that ends without finalizing can keep the others in it. After a failure,
//! the process just ends, and the launcher ends the others. With Open MPI 5 and `mpirun --with-ft ulfm`, a rank that was
//! killed is named by the others at once; otherwise they end with it, or name it after missing heartbeats.
//!
//! # Limits
//!
//! - A frame is copied once on each side.
//! - When a rank is lost that MPI takes for alive, such as a stopped one, the others wait 5 s at their end for what is on its
//!   way to it, and then end without finalizing MPI.
//! - Built and tested on Linux, with Open MPI 4 and 5 and MPICH 4.

#[cfg(feature = "mpi")]
mod engine;

#[cfg(feature = "mpi")]
pub use engine::{Mpi, world};
