//! Models as Burn's users write them: whether they train as in plain Burn, and at what speed.
//!
//! `cargo bench --bench models` prints one figure per line; `-- zoo`, `-- steps`, `-- learner` or `-- generate`
//! selects some. The models come from the tests in `tests/zoo`, and from the examples `digits` and `generate`.
//! What is compared alternates in one run, and a ratio is the median of the ratios of neighbouring measurements, because
//! the speed of a shared machine drifts.

mod generate;
mod learner;
mod steps;

#[path = "../../tests/zoo/check.rs"]
mod check;

#[path = "../../train/examples/digits/data.rs"]
mod data;

#[path = "../../train/examples/digits/model.rs"]
mod digits;

#[path = "../../examples/partitioners/models/encoder_decoder.rs"]
mod encoder_decoder;

#[path = "../../examples/partitioners/models/experts.rs"]
mod experts;

#[path = "../support/figures.rs"]
mod figures;

#[path = "../../tests/zoo/gan.rs"]
mod gan;

#[path = "../../examples/minilm/model.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod minilm;

#[path = "../../tests/zoo/models/mod.rs"]
mod models;

#[path = "../../pipeline/tests/support/split.rs"]
#[allow(dead_code, reason = "the pipeline's own tests use all of it")]
mod split;

#[path = "../../examples/generate"]
#[allow(dead_code, reason = "the example uses all of it")]
mod llama {
    pub mod decode;
    pub mod model;
    pub mod sample;
}

use figures::{figure, median, turns};

/// The first part of the name of each figure.
const BENCH: &str = "models";
/// The turns that medians are of.
const TURNS: usize = 11;

fn main() {
    println!(
        "{} cores; medians of {} turns",
        std::thread::available_parallelism().map_or(1, usize::from),
        turns(),
    );
    let only = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let is_chosen = |name: &str| only.as_ref().is_none_or(|only| only == name);
    if is_chosen("zoo") {
        zoo();
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
fn zoo() {
    let mut equal = 0;
    for name in models::NAMES {
        let mut check = check::Check::default();
        models::visit(name, &mut check);
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
    let all = models::NAMES.len() + 1;
    figure("zoo_models", all as f64, "models");
    figure("zoo_bit_equal", f64::from(equal) / all as f64, "ratio");
}
