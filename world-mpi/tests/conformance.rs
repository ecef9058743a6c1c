//! The conformance suite of engines, under `mpirun`: `scripts/test-mpi` starts it. Without the feature `mpi` it says that it
//! did not run.

#[cfg(not(feature = "mpi"))]
fn main() {
    println!(
        "NOT RUN: the conformance suite over MPI, which needs the feature `mpi` and mpirun (scripts/test-mpi)"
    );
}

#[cfg(feature = "mpi")]
fn main() {
    use std::process::ExitCode;

    let run = || -> Result<(), Box<dyn std::error::Error>> {
        let engine = tinderbox_world_mpi::Mpi::new(tinderbox_world::Limits::default())?;
        let rank = tinderbox_world::Engine::rank(&engine);
        tinderbox_world::testing::check_engine(Box::new(engine))?;
        println!("rank {rank} passed");
        Ok(())
    };
    let code = match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", tinderbox_world::with_causes(&*error));
            ExitCode::FAILURE
        }
    };
    if code != ExitCode::SUCCESS {
        std::process::exit(1);
    }
}
