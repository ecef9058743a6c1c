//! Signals that end a training after its running step.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::module::Module;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use signal_hook::low_level::unregister;
use signal_hook::{SigId, consts, flag};
use tinderbox_pipeline::{Batch, Pipeline, PipelineError};

use crate::error::SignalError;

/// A signal that ends a training. Displays as its name without `SIG`, such as `USR1`; is parsed with and without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[display(rename_all = "UPPERCASE")]
#[non_exhaustive]
#[repr(i32)]
pub enum EndSignal {
    /// Ctrl-C.
    Int = consts::SIGINT,
    /// The default of `kill` and of schedulers.
    Term = consts::SIGTERM,
    /// The end of a terminal.
    #[cfg(unix)]
    Hup = consts::SIGHUP,
    /// Ctrl-\.
    #[cfg(unix)]
    Quit = consts::SIGQUIT,
    /// For programs to use: Slurm sends it some time before it ends a job, with `sbatch --signal=USR1@60`.
    #[cfg(unix)]
    Usr1 = consts::SIGUSR1,
    /// For programs to use.
    #[cfg(unix)]
    Usr2 = consts::SIGUSR2,
}

impl EndSignal {
    #[cfg(unix)]
    const ALL: &[Self] = &[
        Self::Int,
        Self::Term,
        Self::Hup,
        Self::Quit,
        Self::Usr1,
        Self::Usr2,
    ];
    #[cfg(not(unix))]
    const ALL: &[Self] = &[Self::Int, Self::Term];

    /// Returns the exit code of a program that the signal has ended, as shells report it: 128 plus its number.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        // At most 15.
        128 + self as u8
    }

    /// Returns whether a second signal asks a program to end immediately: INT, TERM and QUIT do. Schedulers use the other
    /// signals as announcements, and a terminal that is closed sends HUP more than once.
    fn may_insist(self) -> bool {
        consts::TERM_SIGNALS.contains(&(self as i32))
    }
}

impl FromStr for EndSignal {
    type Err = SignalError;

    fn from_str(text: &str) -> Result<Self, SignalError> {
        let name = text.strip_prefix("SIG").unwrap_or(text);
        let found = Self::ALL.iter().find(|one| one.to_string() == name);
        found.copied().ok_or_else(|| SignalError::Unknown {
            name: text.to_owned(),
            known: Self::ALL.to_vec(),
        })
    }
}

/// Signals after which a training saves and ends, instead of ending in the middle of a step, for a loop of your own. A session
/// has [`stop_on_signals`](super::SessionBuilder::stop_on_signals).
///
/// A second INT, TERM or QUIT ends the program immediately, with the exit code of the signal. A rank of `tinderbox launch`
/// does not end then, but its launcher ends it: a scheduler that signals all processes of a job reaches a rank twice, once
/// through the launcher. HUP, USR1 and USR2 may arrive any number of times.
///
/// After it is dropped, and after [`end_at_once`](Self::end_at_once), each of the signals ends the program immediately.
///
/// ```no_run
/// # use burn::module::Module;
/// # use tinderbox::{Batch, Checkpoints, Pipeline};
/// use tinderbox::session::{EndSignal, EndSignals};
///
/// # fn train<M: Module + Sync + 'static, B: Batch>(
/// #     mut pipeline: Pipeline<M, B>,
/// #     saves: Checkpoints,
/// #     mut batches: impl Iterator<Item = B>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let signals = EndSignals::listen([EndSignal::Int, EndSignal::Term])?;
/// for (position, batch) in (1..).zip(batches) {
///     pipeline.step(1e-3, batch)?;
///     if let Some(signal) = signals.received_by_any(&mut pipeline)? {
///         saves.save(&mut pipeline, position)?;
///         std::process::exit(signal.exit_code().into());
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct EndSignals {
    signals: Vec<EndSignal>,
    /// The actions on a signal.
    handlers: Vec<SigId>,
    /// The number of the last signal; 0 before the first.
    received: Arc<AtomicUsize>,
    has_ended: AtomicBool,
}

/// The number of `EndSignals` for each signal: a process has one handler for a signal.
static LISTENERS: Mutex<BTreeMap<i32, Listeners>> = Mutex::new(BTreeMap::new());

#[derive(Debug)]
struct Listeners {
    count: usize,
    /// Whether the number is 0: the signal then ends the program.
    is_over: Arc<AtomicBool>,
}

impl EndSignals {
    /// Receives these signals from now on.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses to report a signal.
    pub fn listen(signals: impl IntoIterator<Item = EndSignal>) -> Result<Self, SignalError> {
        // `tinderbox launch` sets it, and ends its ranks after a second signal.
        let is_launched = std::env::var_os("TINDERBOX_RESTARTS").is_some();
        let mut listening = Self::default();
        let again = Arc::<AtomicBool>::default();
        for signal in signals {
            let again = (signal.may_insist() && !is_launched).then_some(&again);
            let added = listening.add(signal, again);
            added.map_err(|source| SignalError::Listen { signal, source })?;
        }
        Ok(listening)
    }

    /// Receives the signals again after [`end_at_once`](Self::end_at_once).
    pub(super) fn renewed(self) -> Result<Self, SignalError> {
        match self.has_ended.load(Ordering::SeqCst) {
            true => Self::listen(self.signals.iter().copied()),
            false => Ok(self),
        }
    }

    /// Receives a signal, which ends the program if it arrives `again`.
    fn add(&mut self, signal: EndSignal, again: Option<&Arc<AtomicBool>>) -> io::Result<()> {
        let number = signal as i32;
        let code = i32::from(signal.exit_code());
        let mut all = LISTENERS.lock();
        let of_signal = match all.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let is_over = Arc::default();
                flag::register_conditional_shutdown(number, code, Arc::clone(&is_over))?;
                new.insert(Listeners { count: 0, is_over })
            }
        };
        of_signal.count += 1;
        of_signal.is_over.store(false, Ordering::SeqCst);
        self.signals.push(signal);
        if let Some(again) = again {
            let ends = flag::register_conditional_shutdown(number, code, again.clone())?;
            self.handlers.push(ends);
        }
        let notes = flag::register_usize(number, self.received.clone(), number as usize)?;
        self.handlers.push(notes);
        if let Some(again) = again {
            // Handlers run in the order of their registration: the first signal sets the flag after the flag was tested.
            self.handlers.push(flag::register(number, again.clone())?);
        }
        Ok(())
    }

    /// Returns the last signal that this process has received.
    #[must_use]
    pub fn received(&self) -> Option<EndSignal> {
        let number = self.received.load(Ordering::SeqCst);
        let mut all = EndSignal::ALL.iter().copied();
        all.find(|signal| *signal as usize == number)
    }

    /// Returns a signal that any of the pipeline's processes has received. A signal can reach processes in different steps,
    /// but all processes return the same signal. All processes make this call after the same steps. Cost: an
    /// [exchange](Pipeline::all_gather) of a few bytes with the ranks.
    ///
    /// # Errors
    ///
    /// See [`Pipeline::all_gather`].
    pub fn received_by_any<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Option<EndSignal>, PipelineError> {
        let received = pipeline.all_gather(self.received())?;
        Ok(received.into_iter().flatten().next())
    }

    /// Makes each of the signals end the program immediately from now on, unless another `EndSignals` receives it.
    pub fn end_at_once(&self) {
        if self.has_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut all = LISTENERS.lock();
        for signal in &self.signals {
            if let Some(of_signal) = all.get_mut(&(*signal as i32)) {
                of_signal.count -= 1;
                let is_over = of_signal.count == 0;
                of_signal.is_over.store(is_over, Ordering::SeqCst);
            }
        }
    }
}

impl Drop for EndSignals {
    fn drop(&mut self) {
        self.end_at_once();
        self.handlers.drain(..).for_each(|handler| {
            unregister(handler);
        });
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::process::Command;

    use signal_hook::low_level::raise;

    use super::*;

    #[test]
    fn names_are_read_with_and_without_their_prefix() {
        for signal in EndSignal::ALL {
            assert_eq!(signal.to_string().parse::<EndSignal>().unwrap(), *signal);
            assert_eq!(
                format!("SIG{signal}").parse::<EndSignal>().unwrap(),
                *signal
            );
        }
        assert_eq!(EndSignal::Int.exit_code(), 130);
        assert_eq!(EndSignal::Usr1.exit_code(), 138);
        let error = "KILL".parse::<EndSignal>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`KILL` is no signal that a program can end after: expected one of INT, TERM, HUP, QUIT, USR1, USR2"
        );
    }

    /// The signals that a child process raises, one after the other. It prints the signals that it has received.
    const RAISED: &str = "TINDERBOX_TEST_SIGNALS";

    fn raise_all(signals: &str) {
        let mut listening = None;
        for word in signals.split(' ') {
            match word {
                "listen" => {
                    let all = EndSignal::ALL.iter().copied();
                    let new = listening.insert(EndSignals::listen(all).unwrap());
                    assert_eq!(new.received(), None);
                }
                "dropped" => listening = None,
                name => {
                    let signal: EndSignal = name.parse().unwrap();
                    raise(signal as i32).unwrap();
                    assert_eq!(listening.as_ref().unwrap().received(), Some(signal));
                    println!("noted {signal}");
                }
            }
        }
        std::process::exit(0);
    }

    /// Signals that a process raises, whether it is a rank of a launcher, its exit code, and how many it has noted.
    #[track_caller]
    fn check(signals: &str, is_launched: bool, code: i32, noted: usize) {
        let exe = std::env::current_exe().unwrap();
        let mut child = match cfg!(target_os = "linux") {
            // A test that `nohup` or a shell runs in the background ignores some.
            true => {
                let mut env = Command::new("env");
                env.arg("--default-signal").arg(exe);
                env
            }
            false => Command::new(exe),
        };
        child.args([
            "session::signals::tests::signals_are_noted",
            "--exact",
            "--nocapture",
        ]);
        child
            .env(RAISED, format!("listen {signals}"))
            .env_remove("TINDERBOX_RESTARTS");
        if is_launched {
            child.env("TINDERBOX_RESTARTS", "0");
        }
        let output = child.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{signals}: {printed}");
        assert_eq!(
            printed.matches("noted").count(),
            noted,
            "{signals}: {printed}"
        );
    }

    /// The first signal is noted, and the second ends the program unless it is an announcement or its launcher ends it.
    #[test]
    fn signals_are_noted() {
        if let Ok(signals) = std::env::var(RAISED) {
            return raise_all(&signals);
        }
        for (signals, is_launched, code, noted) in [
            ("INT INT", false, 130, 1),
            ("INT TERM", false, 143, 1),
            // The end of a session sends HUP, perhaps beside TERM.
            ("HUP HUP QUIT", false, 0, 3),
            ("HUP QUIT QUIT", false, 131, 2),
            ("TERM HUP", false, 0, 2),
            ("INT INT TERM", true, 0, 3),
            ("USR1 USR1 USR2 TERM", false, 0, 4),
            ("USR1 TERM TERM", false, 143, 2),
            ("INT USR1 USR1 TERM", false, 143, 3),
            ("dropped USR1", false, 138, 0),
            ("INT dropped TERM", true, 143, 1),
            // The next training of a program.
            ("INT dropped listen INT", false, 0, 2),
            ("INT listen INT", false, 0, 2),
            ("listen dropped INT", false, 130, 0),
        ] {
            check(signals, is_launched, code, noted);
        }
    }
}
