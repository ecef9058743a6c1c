//! Faults and delays before the actions of a step. Each action has a span of `tracing`, which any program can subscribe to.

use std::fmt;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::program::{Program, Report};

/// What happens to a process, and when.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Fault {
    pub kind: FaultKind,
    pub rank: usize,
    /// How many actions the rank has begun before.
    pub at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FaultKind {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    Panic,
    /// `exit(3)`.
    Exit,
    /// All connections are shut down.
    Cut,
}

/// Does what a program asks for before actions, and reports the actions of a program of one step.
pub struct Injector {
    report: Report,
    reports_actions: bool,
    /// Whether heartbeats tell the others what this rank does before a fault.
    waits: bool,
    fault: Option<(FaultKind, usize)>,
    state: Mutex<State>,
}

struct State {
    /// How many actions have begun.
    count: usize,
    /// Of a generator of delays.
    delays: Option<u64>,
}

impl Injector {
    pub fn new(report: Report, rank: usize, program: &Program) -> Self {
        let fault = program.fault.filter(|fault| fault.rank == rank);
        Self {
            report,
            reports_actions: program.steps == 1,
            waits: !program.recovers,
            fault: fault.map(|fault| (fault.kind, fault.at)),
            state: Mutex::new(State {
                count: 0,
                delays: program.delays.map(|seed| seed * 100 + rank as u64 + 1),
            }),
        }
    }

    pub fn install(self) {
        tracing_subscriber::registry().with(self).init();
    }

    fn inject(&self, kind: FaultKind) {
        if self.waits {
            std::thread::sleep(Duration::from_millis(120));
        }
        self.report.line("fault");
        match kind {
            FaultKind::Kill => kill_process(getpid(), Signal::KILL).unwrap(),
            FaultKind::Stop => kill_process(getpid(), Signal::STOP).unwrap(),
            FaultKind::Panic => panic!("injected"),
            FaultKind::Exit => std::process::exit(3),
            FaultKind::Cut => cut().unwrap(),
        }
    }
}

/// Shuts down all connections of this process.
fn cut() -> io::Result<()> {
    for socket in sockets()? {
        // One that is not connected has nothing to cut.
        let _ = socket.shutdown(Shutdown::Both);
    }
    Ok(())
}

/// Returns all sockets of this process, if the system lets it.
#[cfg(target_os = "linux")]
pub fn sockets() -> io::Result<Vec<TcpStream>> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let to = std::fs::read_link(entry.path()).unwrap_or_default();
        let name = entry.file_name();
        if let Some(number) = name.to_str().and_then(|text| text.parse().ok())
            && to.to_string_lossy().starts_with("socket:")
        {
            let socket = pidfd_getfd(&own, number, PidfdGetfdFlags::empty())?;
            sockets.push(TcpStream::from(socket));
        }
    }
    Ok(sockets)
}

#[cfg(not(target_os = "linux"))]
pub fn sockets() -> io::Result<Vec<TcpStream>> {
    Err(io::ErrorKind::Unsupported.into())
}

impl<S: Subscriber> Layer<S> for Injector {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.name() == "action"
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let mut state = self.state.lock().unwrap();
        let count = state.count;
        state.count += 1;
        let delay = state.delays.as_mut().map(next);
        drop(state);
        if let Some(delay) = delay {
            // One action in 8 is late, by up to 2 ms.
            if delay.is_multiple_of(8) {
                std::thread::sleep(Duration::from_micros(delay / 8 % 2000));
            }
        }
        if self.reports_actions {
            let mut name = Name::default();
            attributes.record(&mut name);
            self.report.line(&format!("action {}", name.0));
        }
        match self.fault {
            Some((kind, at)) if at == count => self.inject(kind),
            _ => {}
        }
    }
}

/// The next number of a generator: the high bits of a linear congruence.
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// The field with the name of the action.
#[derive(Default)]
struct Name(String);

impl Visit for Name {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "action" {
            self.0 = format!("{value:?}");
        }
    }
}
