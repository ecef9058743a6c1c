//! What the launcher passes on to the supervisor.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::flag;

/// The signals that reach the ranks through the launcher.
pub(super) const PASSED_ON: [i32; 8] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH,
];

/// The signals among them that ask the launcher to end.
pub(super) const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Those that end no program.
pub(super) const HARMLESS: [i32; 2] = [SIGCONT, SIGWINCH];

/// Receives the signals that arrive at the launcher, one byte for each at standard input. At the end of the launcher, the channel
/// closes, all descendants of this process are ended, and then this process: by a thread, since others may wait for a terminal
/// that takes no output.
pub(super) fn listen() -> anyhow::Result<Receiver<i32>> {
    // A terminal and a scheduler send them to this process too: the launcher's count, so that ranks get them once.
    for signal in PASSED_ON {
        flag::register(signal, Arc::default()).context("signals can't be received")?;
    }
    let (sender, signals) = channel();
    let body = move || {
        for byte in io::stdin().lock().bytes().map_while(Result::ok) {
            // The other end lives as long as the process.
            let _ = sender.send(i32::from(byte));
        }
        drop(sender);
        #[cfg(target_os = "linux")]
        {
            super::descendants::end_all_but(&[]);
            signal_hook::low_level::exit(code_of(signal_hook::consts::SIGKILL).into());
        }
    };
    let thread = thread::Builder::new().name("control".to_owned());
    thread.spawn(body).context("a thread can't be started")?;
    Ok(signals)
}

/// The exit code of shells for a signal.
pub(super) fn code_of(signal: i32) -> u8 {
    u8::try_from(signal.saturating_add(128)).unwrap_or(1)
}
