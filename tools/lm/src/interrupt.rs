//! The output of an interrupted training.

use std::path::Path;

/// Prints the state of an interrupted training, and how to resume it.
pub fn report(step: u64, steps: u64, saved: Option<&Path>, save: Option<&Path>) {
    println!("interrupted after step {step} of {steps}");
    match (saved, save) {
        (Some(saved), Some(dir)) => {
            let dir = dir.display();
            println!("saved {}", saved.display());
            println!("resume with the same arguments and --resume {dir}");
        }
        _ => {
            println!("nothing was saved: use --save DIR to make an interrupted training resumable")
        }
    }
}
