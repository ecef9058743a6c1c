//! What it costs that ranks are processes.
//!
//! `cargo bench --workspace --bench processes` prints one figure per line. The processes are this program itself, joined by gRPC on
//! loopback, and by MPI if it is built with `--features mpi` and `TINDERBOX_MPIRUN` is the command that starts its ranks.
//! If `TINDERBOX_BENCH_PYTHON` is a Python with PyTorch, `torch.distributed.pipelining` trains the same layers. Steps of
//! processes alternate with steps of threads in one run; a ratio is the median of the ratios of neighbouring measurements.

mod link;
mod named;
mod steps;

use tinderbox_benches::figures::Bench;
use tinderbox_benches::processes::{Engine, ROLE};

/// The name of its figures, and the turns that medians are of.
const BENCH: Bench = Bench {
    name: "processes",
    turns: 15,
};

fn main() {
    tinderbox_memory::keep_freed_blocks();
    match std::env::var(ROLE).as_deref() {
        Ok("step") => return steps::rank(),
        Ok("link") => return link::rank(),
        Ok("idle") => return link::idle_rank(),
        Ok("named") => return named::rank(),
        _ => {}
    }
    println!(
        "{} cores; medians of {} turns",
        std::thread::available_parallelism().map_or(1, usize::from),
        BENCH.turns(),
    );
    let engines = Engine::all();
    steps::figures(&engines);
    engines.into_iter().for_each(link::figures);
    named::figures();
}
