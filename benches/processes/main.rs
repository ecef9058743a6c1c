//! What it costs that ranks are processes.
//!
//! `cargo bench --bench processes` prints one figure per line. The processes are this program itself, joined by gRPC on
//! loopback, and by MPI if it is built with `--features mpi` and `TINDERBOX_MPIRUN` is the command that starts its ranks.
//! If `TINDERBOX_BENCH_PYTHON` is a Python with PyTorch, `torch.distributed.pipelining` trains the same layers. Steps of
//! processes alternate with steps of threads in one run; a ratio is the median of the ratios of neighbouring measurements.

#[path = "../schedule/cases.rs"]
#[allow(dead_code, reason = "the bench of schedules uses the rest")]
mod cases;
#[path = "../support/figures.rs"]
mod figures;
mod link;
mod named;
mod processes;
mod steps;

use figures::{figure, median, turns};
use processes::Engine;

/// The variable that makes this program a rank of a figure.
const ROLE: &str = "TINDERBOX_BENCH_ROLE";

/// The first part of the name of each figure.
const BENCH: &str = "processes";
/// The turns that medians are of.
const TURNS: usize = 15;

fn main() {
    tinderbox_pages::keep_freed_blocks();
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
        turns(),
    );
    let engines = Engine::all();
    steps::figures(&engines);
    engines.into_iter().for_each(link::figures);
    named::figures();
}
