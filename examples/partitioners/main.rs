//! What each partitioner makes of models of five shapes: the stages, and the step that was predicted and
//! measured. It prints the tables of `docs/src/partitioners.md`.

mod cases;
mod flags;
#[path = "../train_lm/model.rs"]
#[allow(dead_code, reason = "another example samples from it")]
mod gpt;
mod models;
mod table;

use std::process::ExitCode;

use flags::Flags;

fn main() -> ExitCode {
    let flags = Flags::read();
    match cases::run(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
