//! A fault before actions of a step, of every kind: all others name the rank and its action within a second.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::process::Signal;

use crate::inject::{Fault, FaultKind, sockets};
use crate::program::Program;
use crate::ranks::Ranks;
#[cfg(feature = "mpi")]
use crate::ranks::mpirun;
use crate::{alone, not_run};

/// The ranks of all replicas, how many replicas, and at least how many actions a step of all ranks has.
#[derive(Clone, Copy)]
pub struct Shape {
    pub ranks: usize,
    pub replicas: usize,
    pub actions: usize,
}

pub const ALONE: Shape = Shape {
    ranks: 3,
    replicas: 1,
    actions: 50,
};

pub const REPLICAS: [Shape; 2] = [
    Shape {
        ranks: 2,
        replicas: 2,
        actions: 14,
    },
    Shape {
        ranks: 4,
        replicas: 2,
        actions: 48,
    },
];

/// How soon all others have ended, in milliseconds.
const SOON_MS: u64 = 1000;

/// Other programs take the cores: a fault that is named too late, or before heartbeats have carried its action, is injected
/// again. That is for few of them: one in so many.
const TRIES: usize = 3;
const REPEATED: usize = 10;

/// Runs that are tried at the same time, as they mostly wait.
const TOGETHER: usize = 3;

/// The actions of a step, by rank.
pub fn actions(over_mpi: bool, shape: Shape) -> Vec<Vec<String>> {
    let program = Program {
        over_mpi,
        replicas: shape.replicas,
        steps: 1,
        ..Program::default()
    };
    let ranks = Ranks::start(shape.ranks, &program).succeed();
    let of_rank = ranks
        .iter()
        .map(|reported| reported.all("action ").map(str::to_owned).collect());
    of_rank.collect()
}

/// Which faults are tried: one of each kind before one action of each kind, or all of them where `TINDERBOX_ALL_FAULTS` is set, as
/// at night.
#[derive(Default)]
pub struct Selected(BTreeSet<(FaultKind, String)>);

impl Selected {
    /// Whether a fault before an action is tried.
    pub fn takes(&mut self, kind: FaultKind, action: &str) -> bool {
        // All but the numbers of stages and micro-batches.
        let letters = action.chars().filter(|c| !c.is_ascii_digit()).collect();
        self.0.insert((kind, letters)) || std::env::var_os("TINDERBOX_ALL_FAULTS").is_some()
    }
}

/// Injects a fault before an action of the second step, and returns how long the others ran on; nothing if they did not know
/// the action, or none of them named the rank whose connections were cut.
fn inject(over_mpi: bool, shape: Shape, fault: Fault, action: &str) -> Option<u64> {
    let program = Program {
        over_mpi,
        replicas: shape.replicas,
        steps: 100,
        fault: Some(fault),
        ..Program::default()
    };
    let mut ranks = Ranks::start(shape.ranks, &program);
    ranks.wait_until("fault", |ranks| {
        ranks.reported(fault.rank).time("fault").is_some()
    });
    let begin = ranks.reported(fault.rank).time("fault").unwrap();
    let (mut last, mut named, mut is_known) = (begin, 0, true);
    for rank in (0..shape.ranks).filter(|rank| *rank != fault.rank) {
        last = last.max(ranks.ended_ms(rank));
        let reported = ranks.reported(rank);
        let error = reported.text("error: ");
        let error = error.unwrap_or_else(|| panic!("{fault:?}: rank {rank} has no error"));
        let [start, part] = fault.text(over_mpi, action);
        let is_named = error.starts_with(&start);
        let is_other = fault.kind == FaultKind::Cut && is_lost(error, shape);
        assert!(
            is_named || is_other,
            "{fault:?}: rank {rank}: {error}, expected {start}"
        );
        is_known &= !is_named || error.contains(&part);
        named += usize::from(is_named);
    }
    // Connections are cut one after the other, and each side of the first reports to who is left that the other is lost. Under
    // load, this may reach the other side before it finds its connection cut.
    assert!(
        named > 0 || fault.kind == FaultKind::Cut,
        "{fault:?}: no rank names it"
    );
    match fault.kind {
        FaultKind::Stop if !over_mpi => {
            // It continues, and reports that the others have given it up, or that this may be why they are gone.
            ranks.signal(fault.rank, Signal::CONT);
            ranks.ended_ms(fault.rank);
            let reported = ranks.reported(fault.rank);
            let error = reported.text("error: ").unwrap_or_default();
            let [start, _] = fault.text(over_mpi, action);
            let is_told =
                error.starts_with(&start) || error.contains("; this process was paused for ");
            assert!(is_told, "{fault:?}: {error}");
        }
        FaultKind::Cut => {
            last = last.max(ranks.ended_ms(fault.rank));
            let reported = ranks.reported(fault.rank);
            let error = reported.text("error: ").unwrap_or_default();
            assert!(is_lost(error, shape), "{fault:?}: {error}");
        }
        _ => {}
    }
    (is_known && named > 0).then_some(last - begin)
}

/// Whether an error says that a connection ended, of any rank.
fn is_lost(error: &str, shape: Shape) -> bool {
    let lost = |rank| error.starts_with(&format!("rank {rank} is lost: its connection "));
    (0..shape.ranks).any(lost)
}

impl Fault {
    /// What the others report: how it starts, and a part of it.
    fn text(self, over_mpi: bool, action: &str) -> [String; 2] {
        let rank = self.rank;
        let last = format!("; it was last in `{action}` of round 1");
        match self.kind {
            FaultKind::Kill | FaultKind::Exit | FaultKind::Cut => {
                let how = if over_mpi { "" } else { "its connection " };
                [format!("rank {rank} is lost: {how}"), last]
            }
            FaultKind::Stop => [
                format!("rank {rank} is lost: it has shown no sign of life for "),
                last,
            ],
            FaultKind::Panic => [
                format!("rank {rank} failed: "),
                format!("action {action} failed: panicked: injected"),
            ],
        }
    }
}

/// Injects faults of some kinds before the selected actions of every rank.
fn check(over_mpi: bool, shape: Shape, kinds: &[FaultKind], selected: &mut Selected) {
    let _alone = alone();
    let mut cases = Vec::new();
    for (rank, actions) in actions(over_mpi, shape).iter().enumerate() {
        for (number, action) in actions.iter().enumerate() {
            let at = actions.len() + number;
            let faults = kinds.iter().map(|kind| Fault {
                kind: *kind,
                rank,
                at,
            });
            cases.extend(faults.map(|fault| (fault, action.clone())));
        }
    }
    assert!(
        cases.len() >= shape.actions * kinds.len(),
        "{} cases",
        cases.len()
    );
    cases.retain(|(fault, action)| selected.takes(fault.kind, action));
    let count = cases.len();
    let (cases, times) = (Mutex::new(cases), Mutex::new(Vec::new()));
    let repeated = AtomicUsize::new(0);
    let run = |fault: Fault, action: &str| {
        for _ in 0..TRIES {
            match inject(over_mpi, shape, fault, action) {
                Some(time) if time < SOON_MS => return time,
                _ => repeated.fetch_add(1, Relaxed),
            };
        }
        panic!("{fault:?} at {action}: {TRIES} times too late, not named, or without its action");
    };
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                loop {
                    let Some((fault, action)) = cases.lock().unwrap().pop() else {
                        return;
                    };
                    let time = run(fault, &action);
                    times.lock().unwrap().push((fault.kind, time));
                }
            });
        }
    });
    let times = times.into_inner().unwrap();
    assert_eq!(times.len(), count);
    let repeated = repeated.into_inner();
    assert!(
        repeated * REPEATED <= count,
        "{repeated} of {count} were repeated"
    );
    println!("{count} faults, and {repeated} of them again");
    for kind in kinds {
        let of_kind = times.iter().filter(|(other, _)| other == kind);
        let mut of_kind: Vec<u64> = of_kind.map(|(_, time)| *time).collect();
        of_kind.sort_unstable();
        let Some(worst) = of_kind.last() else {
            continue;
        };
        let median = of_kind[of_kind.len() / 2];
        println!(
            "{kind:?} before {} actions: named after {median} ms, at most {worst} ms",
            of_kind.len()
        );
    }
}

#[test]
fn faults_before_actions_are_named() {
    use FaultKind::{Cut, Exit, Kill, Panic, Stop};
    // So that there is a socket to look for.
    let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let selected = &mut Selected::default();
    match sockets() {
        Ok(_) => check(false, ALONE, &[Kill, Stop, Panic, Exit, Cut], selected),
        Err(error) => {
            let why = format!("a process may not have its sockets: {error}");
            not_run("connections that are cut", &why);
            check(false, ALONE, &[Kill, Stop, Panic, Exit], selected);
        }
    }
}

#[test]
fn faults_of_replicas_are_named() {
    use FaultKind::{Kill, Panic};
    let mut selected = Selected::default();
    for shape in REPLICAS {
        check(false, shape, &[Kill, Panic], &mut selected);
    }
}

/// With Open MPI's fault tolerance. Connections of MPI are not this program's to cut.
#[cfg(feature = "mpi")]
#[test]
fn faults_before_actions_are_named_over_mpi() {
    use FaultKind::{Exit, Kill, Panic, Stop};
    match mpirun() {
        Ok(mpirun) if mpirun.contains("ulfm") => {
            check(
                true,
                ALONE,
                &[Kill, Stop, Panic, Exit],
                &mut Selected::default(),
            );
        }
        Ok(mpirun) => not_run(
            "faults over MPI",
            &format!("`{mpirun}` ends all ranks with one"),
        ),
        Err(reason) => not_run("faults over MPI", reason),
    }
}
