//! Ctrl-C and SIGTERM: the running step is finished and saved; a second signal ends the program immediately.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of a program that a signal has ended is this plus the number of the signal.
const EXIT_CODE: i32 = 128;

/// A signal handler.
pub struct Interrupt {
    /// Whether the next signal ends the program immediately.
    at_once: Arc<AtomicBool>,
    /// The last signal; 0 before the first.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    pub fn listen() -> Result<Self> {
        let interrupt = Self {
            at_once: Arc::default(),
            signal: Arc::default(),
        };
        for signal in [SIGINT, SIGTERM] {
            // Handlers run in the order of their registration: the signal that sets the flag does not see it
            // set.
            let code = EXIT_CODE + signal;
            flag::register_conditional_shutdown(signal, code, interrupt.at_once.clone())?;
            flag::register_usize(signal, interrupt.signal.clone(), signal as usize)?;
            flag::register(signal, interrupt.at_once.clone())?;
        }
        Ok(interrupt)
    }

    /// Returns the exit code after a signal.
    pub fn exit_code(&self) -> Option<u8> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            signal => u8::try_from(EXIT_CODE as usize + signal).ok(),
        }
    }

    /// Makes the next signal end the program.
    pub fn end_at_once(&self) {
        self.at_once.store(true, Ordering::SeqCst);
    }
}

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
