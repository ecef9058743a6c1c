//! What replicas compute, and what they cost.
//!
//! `cargo bench --workspace --bench replicas` prints one figure per line; `-- recovery state` only the figures of some groups. Processes
//! are this program itself, joined by gRPC on loopback, and by MPI if it is built with `--features mpi` and `TINDERBOX_MPIRUN`
//! is the command that starts its ranks. If `TINDERBOX_BENCH_PYTHON` is a Python with PyTorch, `DistributedDataParallel` over
//! gloo trains the same layers. What is compared alternates in one run; a ratio is the median of the ratios of neighbouring
//! measurements.

mod bits;
mod recovery;
mod simulated;
mod state;
mod steps;

use tinderbox_benches::figures::Bench;
use tinderbox_benches::processes::ROLE;

/// The name of its figures, and the turns that medians are of.
const BENCH: Bench = Bench {
    name: "replicas",
    turns: 15,
};

fn main() {
    tinderbox_memory::keep_freed_blocks();
    match std::env::var(ROLE).as_deref() {
        Ok("bits") => return bits::rank(),
        Ok("recovery") => return recovery::rank(),
        Ok(other) => panic!("no role {other}"),
        Err(_) => {}
    }
    println!(
        "{} cores; medians of {} turns",
        std::thread::available_parallelism().map_or(1, usize::from),
        BENCH.turns(),
    );
    // First, because it prints the most memory that this process has had.
    let groups: [(&str, fn()); 5] = [
        ("simulated", simulated::figures),
        ("bits", bits::figures),
        ("steps", steps::figures),
        ("state", state::figures),
        ("recovery", recovery::figures),
    ];
    let mut asked: Vec<String> = std::env::args().skip(1).collect();
    asked.retain(|arg| !arg.starts_with('-'));
    if let Some(unknown) = asked
        .iter()
        .find(|arg| groups.iter().all(|(name, _)| name != arg))
    {
        panic!("no group {unknown}: {:?}", groups.map(|(name, _)| name));
    }
    for (name, figures) in groups {
        if asked.is_empty() || asked.iter().any(|arg| arg == name) {
            figures();
        }
    }
}
