//! Carries the frames of a [`World`](tinderbox_world::World) over MPI, for clusters where MPI is the way to the network.
//!
//! It is a separate crate, because a program that links MPI does not start without it. Everything here needs the feature
//! `mpi`, and an MPI library with `mpicc` at build time. The `mpirun` of the same library must start the program. Another
//! `mpirun` starts each process as a world of one, which `world` refuses.
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
//! One thread owns MPI: it initializes MPI (`MPI_THREAD_FUNNELED`), queues sends, and probes every other rank in turn. A wait
//! in MPI would occupy a core, so the thread polls: at once after a message, then after naps that grow to a millisecond. Leave
//! a core free for it.
//!
//! MPI is finalized only after an orderly end of all remaining ranks, because finalizing waits for all of them. It also waits
//! for the messages on their way to a lost rank, because a rank that ends without finalizing can block the others in it. After
//! a failure, the process ends without finalizing, and the launcher ends the others. With Open MPI 5 and
//! `mpirun --with-ft ulfm`, the others report a killed rank at once. Otherwise they end with it, or report it after missing
//! heartbeats.
//!
//! # Limits
//!
//! - A frame is copied once on each side.
//! - If a rank is lost that MPI considers alive, such as a stopped one, the others wait 5 s at their end for the messages on
//!   their way to it, and then end without finalizing MPI.
//! - Built and tested on Linux, with Open MPI 4 and 5 and MPICH 4.

#[cfg(feature = "mpi")]
mod engine;

#[cfg(feature = "mpi")]
pub use engine::{Mpi, world};
