//! Ctrl-C and SIGTERM: the running step is finished and saved; a second signal ends the program at once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What a shell reports of a program that a signal has ended is this and the number of the signal.
const EXIT_CODE: i32 = 128;

/// Listens for signals.
pub struct Interrupt {
    /// Whether the next signal ends the program at once.
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
            // What is registered first is done first: the signal that sets the flag does not see it.
            let code = EXIT_CODE + signal;
            flag::register_conditional_shutdown(signal, code, interrupt.at_once.clone())?;
            flag::register_usize(signal, interrupt.signal.clone(), signal as usize)?;
            flag::register(signal, interrupt.at_once.clone())?;
        }
        Ok(interrupt)
    }

    /// The code to end with, once a signal has come.
    pub fn exit_code(&self) -> Option<u8> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            signal => u8::try_from(EXIT_CODE as usize + signal).ok(),
        }
    }

    /// From now on the first signal ends the program.
    pub fn end_at_once(&self) {
        self.at_once.store(true, Ordering::SeqCst);
    }
}

/// Prints what there is of an interrupted training, and how to go on with it.
pub fn report(step: u64, steps: u64, saved: Option<&Path>, save: Option<&Path>) {
    println!("interrupted after step {step} of {steps}");
    match (saved, save) {
        (Some(saved), Some(dir)) => {
            let dir = dir.display();
            println!("saved {}", saved.display());
            println!("go on with the same arguments and --resume {dir}");
        }
        _ => println!("nothing was saved: give --save DIR, and an interrupted training can go on"),
    }
}
