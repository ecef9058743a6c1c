//! Compares the partitioners on models of five architectures: the stages, and the predicted and measured step
//! times. Prints the tables of `docs/src/partitioners.md`.

mod cases;
mod flags;
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
