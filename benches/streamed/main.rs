//! Models that do not fit in memory: a pass over a model four times as large as the memory limit, a conversion of its files, and a
//! training step.
//!
//! `cargo bench --workspace --bench streamed` prints one figure per line. What is measured runs in a child process, in a control group whose
//! limit is the memory limit if one can be made (`/sys/fs/cgroup`, as root): without it the files may come from the system's
//! cache, which is printed. If `TINDERBOX_BENCH_PYTHON` is a Python with PyTorch and accelerate, its disk offload runs the same
//! layers from the same file under the same limit.

mod convert;
mod group;
mod model;
mod pass;
mod raw;
mod train;

use std::path::Path;
use std::process::{Command, Stdio};

use tinderbox_benches::figures::Bench;

use group::Group;

/// The variable that makes this program the measured process, with what it measures.
const ROLE: &str = "TINDERBOX_BENCH_ROLE";
/// The variable with the directory of the model.
const DIR: &str = "TINDERBOX_BENCH_DIR";
/// The variable with the seconds of the computation of a training step.
const COMPUTE: &str = "TINDERBOX_BENCH_COMPUTE_S";
/// The variable with a Python that has PyTorch and accelerate.
const PYTHON: &str = "TINDERBOX_BENCH_PYTHON";
/// The name of its figures, and the turns that medians are of.
const BENCH: Bench = Bench {
    name: "streamed",
    turns: 5,
};
/// The memory limit.
const BUDGET: u64 = 512 << 20;

fn main() {
    if let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) {
        let dir = Path::new(&dir);
        return match &*role {
            "pass" => pass::measure(dir),
            "convert" => convert::measure(dir),
            "train_compute" => train::measure_compute(dir),
            _ => {
                let compute = std::env::var(COMPUTE).expect("it was measured before");
                train::measure(dir, compute.parse().expect("it is a number"));
            }
        };
    }
    println!(
        "{} cores; medians of {} turns",
        std::thread::available_parallelism().map_or(1, usize::from),
        BENCH.turns(),
    );
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the model");
    model::write(dir.path());
    pass::plan(dir.path());
    let measure = |role: &str, compute_s: f64| {
        raw::drop_cached(dir.path());
        let own = std::env::current_exe().expect("this program is a file");
        let mut command = Command::new(own);
        command.env(ROLE, role).env(DIR, dir.path());
        command.env(COMPUTE, compute_s.to_string());
        seconds_of(command).expect("the measured process ends well")
    };
    let pass_s = measure("pass", 0.0);
    measure("convert", 0.0);
    let compute_s = measure("train_compute", 0.0);
    measure("train", compute_s);
    accelerate(dir.path(), pass_s);
}

/// Prints how many times longer a pass of accelerate takes.
fn accelerate(dir: &Path, own_s: f64) {
    let Ok(python) = std::env::var(PYTHON) else {
        println!("NOT RUN vs_accelerate: {PYTHON} is not set");
        return;
    };
    raw::drop_cached(dir);
    let mut command = Command::new(python);
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/streamed/accelerate_offload.py"
    );
    let sizes = [model::LAYERS, model::WIDTH, model::SAMPLES, BENCH.turns()];
    command
        .arg(script)
        .arg(dir.join(model::PYTORCH).join("model.safetensors"))
        .args(sizes.map(|size| size.to_string()));
    match seconds_of(command) {
        Some(seconds) => {
            BENCH.figure("accelerate_pass_s", seconds, "s");
            BENCH.figure("vs_accelerate", seconds / own_s, "ratio");
        }
        None => println!("NOT RUN vs_accelerate: the program has failed under the limit"),
    }
}

/// Runs a command under the memory limit, prints its figures, and returns the seconds that it prints; `None` if it fails.
fn seconds_of(mut command: Command) -> Option<f64> {
    let group = Group::new(BUDGET);
    match &group {
        Some(group) => group.join(&mut command),
        None => println!("no control group can be made: files may come from the system's cache"),
    }
    let output = command.stdin(Stdio::null()).output().ok()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("{}", output.status);
        // Without bars of progress, which replace a line.
        for line in errors.lines().filter(|line| !line.contains('\r')) {
            println!("{line}");
        }
    }
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.starts_with("figure ")) {
        println!("{line}");
    }
    let seconds = text
        .lines()
        .find_map(|line| line.strip_prefix("seconds "))?;
    let seconds = seconds.parse().ok()?;
    output.status.success().then_some(seconds)
}
