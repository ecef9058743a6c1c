//! The conformance suite of engines, as a rank of `mpirun`: `scripts/test-mpi` starts it.

use std::error::Error;
use std::process::exit;

use tinderbox_world::testing::check_engine;
use tinderbox_world::{Engine, Limits, with_causes};
use tinderbox_world_mpi::Mpi;

fn main() {
    if let Err(error) = run() {
        eprintln!("error: {}", with_causes(&*error));
        // Without an end of MPI, which would wait for the other ranks.
        exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let engine = Mpi::new(Limits::default())?;
    let rank = engine.rank();
    check_engine(Box::new(engine))?;
    println!("rank {rank} passed");
    Ok(())
}
