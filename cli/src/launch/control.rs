//! The signals that the launcher passes on to the supervisor.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::flag;

/// The variable that makes a launcher the supervisor of another one.
pub(super) const SUPERVISOR: &str = "TINDERBOX_SUPERVISOR";

/// The signals that reach the ranks through the launcher.
pub(super) const PASSED_ON: [i32; 8] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH,
];

/// The signals among them that ask the launcher to end.
pub(super) const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// The signals that end no program by default.
pub(super) const HARMLESS: [i32; 2] = [SIGCONT, SIGWINCH];

/// Returns a channel of the signals that arrive at the launcher. Standard input has one byte for each. The channel closes when
/// the launcher ends.
pub(super) fn listen() -> anyhow::Result<Receiver<i32>> {
    // A terminal and a scheduler also send them to this process. Only the signals of the launcher count, so that ranks get each
    // signal once.
    for signal in PASSED_ON {
        flag::register(signal, Arc::default()).context("signals can't be received")?;
    }
    let (sender, signals) = channel();
    let body = move || {
        for byte in io::stdin().lock().bytes().map_while(Result::ok) {
            // The receiver lives as long as the process.
            let _ = sender.send(i32::from(byte));
        }
    };
    let thread = thread::Builder::new().name("control".to_owned());
    thread.spawn(body).context("a thread can't be started")?;
    Ok(signals)
}

/// Returns the exit code of shells for a signal.
pub(super) fn code_of(signal: i32) -> u8 {
    u8::try_from(signal.saturating_add(128)).unwrap_or(1)
}
