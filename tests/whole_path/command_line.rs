//! Programs of the examples.

use std::path::Path;
use std::process::{Command, Output};

/// Returns the command of the program of an example, which `cargo test --workspace` builds with the tests.
pub fn command(name: &str, arguments: &[&str]) -> Command {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(|deps| deps.parent()).unwrap();
    let mut command = Command::new(profile.join("examples").join(name));
    command
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command
}

/// Runs the program of an example.
pub fn example(name: &str, arguments: &[&str]) -> Output {
    output(&mut command(name, arguments))
}

/// Runs the program of an example by its command.
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| {
        let program = Path::new(command.get_program()).display();
        panic!("{program}: {error}; build it: cargo build --workspace --examples")
    })
}
