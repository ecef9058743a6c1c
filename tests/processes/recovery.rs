//! Processes that are killed or stopped before actions of a step, of every kind: those that are left continue, and compute what an
//! undisturbed run computes.

use std::sync::Mutex;

use rustix::process::Signal;

use crate::alone;
use crate::faults::{ALONE, REPLICAS, Selected, Shape, actions};
use crate::inject::{Fault, FaultKind};
use crate::program::{Digest, Program};
use crate::ranks::Ranks;

const SHAPES: [Shape; 4] = [
    Shape {
        ranks: 2,
        replicas: 1,
        actions: 30,
    },
    Shape {
        actions: 58,
        ..ALONE
    },
    REPLICAS[0],
    REPLICAS[1],
];

/// Runs that are tried at the same time.
const TOGETHER: usize = 2;

fn program(shape: Shape) -> Program {
    Program {
        replicas: shape.replicas,
        steps: 4,
        recovers: true,
        is_uneven: true,
        ..Program::default()
    }
}

/// Makes a rank fail before an action of the second step, and returns the milliseconds that each of the others took to continue.
fn survive(shape: Shape, fault: Fault, expected: (u64, u64)) -> Vec<u64> {
    let program = Program {
        fault: Some(fault),
        ..program(shape)
    };
    let mut ranks = Ranks::start(shape.ranks, &program);
    let mut took = Vec::new();
    for rank in (0..shape.ranks).filter(|rank| *rank != fault.rank) {
        ranks.ended_ms(rank);
        let reported = ranks.reported(rank);
        let number = |start: &str| reported.text(start).and_then(|text| text.parse().ok());
        let found = (number("seen "), number("holds "));
        let expected = (Some(expected.0), Some(expected.1));
        assert_eq!(found, expected, "{fault:?}: {}", ranks.described(rank));
        let recovered = reported.text("recovered ").unwrap_or_default();
        let mut words = recovered
            .split(' ')
            .map_while(|word| word.parse::<u64>().ok());
        let repeated = words.next();
        assert!(
            repeated.is_some_and(|steps| steps <= 1),
            "{fault:?}: {recovered}"
        );
        took.extend(words.next());
    }
    if fault.kind == FaultKind::Stop {
        ranks.signal(fault.rank, Signal::CONT);
        ranks.ended_ms(fault.rank);
        let reported = ranks.reported(fault.rank);
        let error = reported.text("error: ").unwrap_or_default();
        let is_left_out = error.contains("have given this one up and continue as generation 1");
        // Of two, each is a half.
        let is_alone = shape.ranks == 2 && reported.time("end").is_some();
        let is_cut_off = error.contains(" processes are left");
        assert!(
            is_left_out || is_alone || is_cut_off,
            "{fault:?}: {}",
            ranks.described(fault.rank)
        );
    }
    took
}

/// Makes every rank fail before the selected ones of its actions.
fn check(shape: Shape, kind: FaultKind, selected: &mut Selected) {
    let _alone = alone();
    let (seen, _, holds) = Digest::and_state(1, &program(shape));
    let mut cases = Vec::new();
    for (rank, actions) in actions(false, shape).iter().enumerate() {
        let of_rank = actions.iter().enumerate().map(|(number, action)| {
            let at = actions.len() + number;
            (Fault { kind, rank, at }, action.clone())
        });
        cases.extend(of_rank);
    }
    assert!(cases.len() >= shape.actions, "{} cases", cases.len());
    cases.retain(|(_, action)| selected.takes(kind, action));
    let cases: Vec<Fault> = cases.into_iter().map(|(fault, _)| fault).collect();
    let count = cases.len();
    let (cases, times) = (Mutex::new(cases), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                loop {
                    let Some(fault) = cases.lock().unwrap().pop() else {
                        return;
                    };
                    let took = survive(shape, fault, (seen.number(), holds));
                    times.lock().unwrap().extend(took);
                }
            });
        }
    });
    let mut times = times.into_inner().unwrap();
    assert_eq!(times.len(), count * (shape.ranks - 1));
    times.sort_unstable();
    let Some(worst) = times.last() else {
        return;
    };
    let median = times[times.len() / 2];
    println!(
        "{} replicas on {} ranks: {count} times {kind:?}, went on after {median} ms, at most {worst} ms",
        shape.replicas, shape.ranks
    );
}

#[test]
fn those_that_are_left_go_on_after_kills() {
    let mut selected = Selected::default();
    for shape in SHAPES {
        check(shape, FaultKind::Kill, &mut selected);
    }
}

#[test]
fn a_process_that_was_stopped_changes_nothing_when_it_comes_back() {
    let mut selected = Selected::default();
    for shape in SHAPES {
        check(shape, FaultKind::Stop, &mut selected);
    }
}

/// Processes that wait take the place of those that are lost, one after the other.
#[test]
fn spares_take_the_place_of_lost_ranks() {
    const SPARES: usize = 10;
    const STEPS: u64 = 200;
    let _alone = alone();
    let program = Program {
        steps: STEPS,
        recovers: true,
        is_uneven: true,
        is_verbose: true,
        spares: SPARES,
        ..Program::default()
    };
    let (_, expected, holds) = Digest::and_state(1, &program);
    let size = 2 + SPARES;
    let mut ranks = Ranks::start(size, &program);
    // The last process is never killed, so it tells how far they are.
    let steps = |ranks: &Ranks| ranks.reported(size - 1).steps().len();
    let mut left: Vec<usize> = (0..size).collect();
    for killed in 0..SPARES {
        // In turns the first rank and the second.
        let one = left.remove(killed % 2);
        ranks.wait_until("step", |ranks| steps(ranks) >= 10 * (killed + 1));
        ranks.signal(one, Signal::KILL);
    }
    let mut recovered = 0;
    for rank in 0..size {
        ranks.ended_ms(rank);
        let reported = ranks.reported(rank);
        for (step, digest) in reported.steps() {
            assert_eq!(digest, expected[step], "rank {rank}, step {step}");
        }
        if reported.time("end").is_some() {
            let held = reported.text("holds ").and_then(|text| text.parse().ok());
            assert_eq!(held, Some(holds), "rank {rank}");
            recovered = reported.all("recovered ").count();
        }
    }
    assert_eq!(recovered, SPARES);
}

/// The rank that keeps a state is lost with the rank that it is of: the others continue from the last checkpoint.
#[test]
fn without_a_state_the_last_checkpoint_is_taken() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let program = Program {
        steps: 60,
        recovers: true,
        is_verbose: true,
        saves: Some(directory.path().to_owned()),
        ..Program::default()
    };
    let (_, expected, holds) = Digest::and_state(1, &program);
    let mut ranks = Ranks::start(4, &program);
    ranks.wait_until("step", |ranks| ranks.reported(0).steps().len() >= 5);
    ranks.signal(1, Signal::KILL);
    ranks.signal(2, Signal::KILL);
    let mut lost = 0;
    for rank in [0, 3] {
        ranks.ended_ms(rank);
        let reported = ranks.reported(rank);
        for (step, digest) in reported.steps() {
            assert_eq!(digest, expected[step], "rank {rank}, step {step}");
        }
        let held = reported.text("holds ").and_then(|text| text.parse().ok());
        assert_eq!(held, Some(holds), "{}", ranks.described(rank));
        lost += reported.all("lost: ").count();
    }
    assert_eq!(lost, 2);
}
