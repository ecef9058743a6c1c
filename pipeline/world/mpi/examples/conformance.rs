//! The conformance suite of engines, as a rank of `mpirun`: `tools/test-mpi` starts it.

use std::error::Error;
use std::io::{Write, stdout};

use tinderbox_world::Engine;
use tinderbox_world::testing::check_engine;
use tinderbox_world_mpi::Mpi;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Mpi::new()?;
    let rank = engine.rank();
    check_engine(Box::new(engine))?;
    writeln!(stdout(), "rank {rank} passed")?;
    Ok(())
}
