//! Models as Burn's users write them: whether they train as in plain Burn, and at what speed.
//!
//! `cargo bench --workspace --bench models` prints one figure per line; `-- zoo`, `-- steps`, `-- learner` or `-- generate`
//! selects some. The models are those of `tests/zoo` and of the examples `digits` and `generate`.
//! What is compared alternates in one run, and a ratio is the median of the ratios of neighbouring measurements, because
//! the speed of a shared machine drifts.

mod generate;
mod learner;
mod steps;

use tinderbox_benches::figures::Bench;
use tinderbox_models::zoo::{self, check::Check, gan};

/// The name of its figures, and the turns that medians are of.
const BENCH: Bench = Bench {
    name: "models",
    turns: 11,
};

fn main() {
    println!(
        "{} cores; medians of {} turns",
        std::thread::available_parallelism().map_or(1, usize::from),
        BENCH.turns(),
    );
    let only = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let is_chosen = |name: &str| only.as_ref().is_none_or(|only| only == name);
    if is_chosen("zoo") {
        equal_models();
    }
    if is_chosen("steps") {
        steps::figures();
    }
    if is_chosen("learner") {
        learner::figures();
    }
    if is_chosen("generate") {
        generate::figures();
    }
}

/// Prints the share of the models that are bit-equal to plain Burn in every setting.
fn equal_models() {
    let mut equal = 0;
    for name in zoo::NAMES {
        let mut check = Check::default();
        zoo::visit(name, &mut check);
        match check.differences.first() {
            None => equal += 1,
            Some(difference) => println!("{name} differs: {difference}"),
        }
    }
    let differences = gan::differences();
    match differences.first() {
        None => equal += 1,
        Some(difference) => println!("gan differs: {difference}"),
    }
    let all = zoo::NAMES.len() + 1;
    BENCH.figure("zoo_models", all as f64, "models");
    BENCH.figure("zoo_bit_equal", f64::from(equal) / all as f64, "ratio");
}
