//! The output of the program.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tinderbox::ParameterPath;
use tinderbox::deferred::Observer;
use tinderbox::error::DeviceError;
use tinderbox_models::text::Text;

use crate::flags::usage;

/// Whether this process prints nothing, because another process is the first.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Stops or starts the output of this process.
pub fn set_quiet(is_quiet: bool) {
    IS_QUIET.store(is_quiet, Relaxed);
}

pub fn is_quiet() -> bool {
    IS_QUIET.load(Relaxed)
}

/// Prints a line on the first process, and nothing on the others.
macro_rules! say {
    ($($text:tt)*) => {
        if !crate::report::is_quiet() {
            println!($($text)*);
        }
    };
}
pub(crate) use say;

/// Creates a progress bar, which only the first process draws.
fn bar_of(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if is_quiet() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

/// Creates a progress bar over the programs of a replay.
pub fn programs_bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} programs, {msg}, {eta} left");
    bar_of(length).with_style(style.expect("the template is well-formed"))
}

/// Prints a figure in the format of the project's benchmarks.
pub fn figure(name: &str, value: f64, unit: &str) {
    say!("figure {name} {value:.6} {unit}");
}

/// Prints an error and its sources, one per line.
pub fn error(error: &anyhow::Error) {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
}

/// Ends the program because a device is not available, with one line and exit code 3. An unknown device name is
/// an invalid value, with exit code 2.
pub fn no_device(error: &DeviceError) -> ! {
    if let DeviceError::Unknown { .. } = error {
        usage(&format!("--device: {error}"));
    }
    eprintln!("error: {error}");
    std::process::exit(3)
}

/// Prints the size of the text.
pub fn text(text: &Text) {
    let (train, validation) = text.lengths();
    let different = text.vocabulary();
    say!("{train} characters to train on, {validation} to validate, {different} different");
}

/// Returns the anonymous memory of this process in bytes (heap and stacks, without the pages of the program
/// itself), if the system reports it (Linux).
pub fn process_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Prints the memory used by construction, which does not include parameters.
pub fn memory(before: Option<u64>, after: Option<u64>, model: u64) {
    const MIB: f64 = (1 << 20) as f64;
    match (before, after) {
        (Some(before), Some(after)) => say!(
            "process memory: {:.2} MiB before construction, {:.2} MiB after; materialized, the parameters \
             take {:.2} MiB",
            before as f64 / MIB,
            after as f64 / MIB,
            model as f64 / MIB,
        ),
        _ => say!("process memory: not reported by this system"),
    }
}

/// Prints the parameter bytes of each rank, and returns the largest fraction of the model on one rank.
pub fn ranks(held: &[u64], model: u64) -> f64 {
    for (rank, bytes) in held.iter().enumerate() {
        let share = 100.0 * *bytes as f64 / model as f64;
        say!("rank {rank} holds {bytes} bytes of parameters ({share:.1} % of the model)");
    }
    held.iter().copied().max().unwrap_or(0) as f64 / model as f64
}

/// A progress bar over the parameter bytes that the ranks materialize, cleared at the end.
pub struct MaterializeProgress {
    bar: ProgressBar,
}

impl MaterializeProgress {
    pub fn new() -> Self {
        let bar = bar_of(0);
        let style = "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {msg}";
        let style = ProgressStyle::with_template(style);
        bar.set_style(style.expect("the template is well-formed"));
        Self { bar }
    }
}

impl Observer for MaterializeProgress {
    fn begin(&self, _: usize, bytes: u64) {
        // Each rank adds its own bytes.
        self.bar.inc_length(bytes);
    }

    fn completed(&self, path: &ParameterPath, bytes: u64) {
        self.bar.set_message(path.to_string());
        self.bar.inc(bytes);
    }

    fn end(&self) {
        if self.bar.length() == Some(self.bar.position()) {
            self.bar.finish_and_clear();
        }
    }
}

/// A progress bar with step, loss and tokens per second; without a terminal, a line at intervals.
pub struct Progress {
    bar: ProgressBar,
    tokens_per_step: usize,
}

/// Number of steps per line without a terminal.
const STEPS_PER_LINE: u64 = 50;

impl Progress {
    pub fn start(first: u64, steps: u64, tokens_per_step: usize) -> Self {
        let bar = bar_of(steps).with_position(first);
        // A tick records the steps of the resumed run, so that they do not count for the rate.
        bar.tick();
        bar.reset_eta();
        let style = ProgressStyle::with_template("{bar:30} step {pos}/{len} {msg} {eta} left");
        bar.set_style(style.expect("the template is well-formed"));
        Self {
            bar,
            tokens_per_step,
        }
    }

    pub fn step(&self, loss: f64) {
        self.bar.inc(1);
        let rate = self.bar.per_sec() * self.tokens_per_step as f64;
        let (step, steps) = (self.bar.position(), self.bar.length().unwrap_or(0));
        if self.bar.is_hidden() && (step.is_multiple_of(STEPS_PER_LINE) || step == steps) {
            say!("step {step}/{steps} loss {loss:.4} {rate:.0} tokens/s");
        }
        self.bar
            .set_message(format!("loss {loss:.4} {rate:.0} tokens/s"));
    }

    /// Moves the bar to a step, and draws it if this process is the first now.
    pub fn continue_at(&self, step: u64) {
        self.bar.set_position(step);
        if !is_quiet() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Prints a line above the bar, also without a terminal.
    pub fn line(&self, text: &str) {
        self.bar.suspend(|| say!("{text}"));
    }

    /// Leaves the bar at its position, because the training ends before the last step.
    pub fn leave(&self) {
        self.bar.abandon();
    }

    pub fn end(&self) {
        if !self.bar.is_finished() {
            self.bar.finish();
        }
    }
}
