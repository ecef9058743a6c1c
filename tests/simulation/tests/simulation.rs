//! What fibers see, and that a seed decides it.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use insta::assert_snapshot;
use tinderbox_simulation::{Event, Handle, Process, Report, Simulation, SimulationError, current};

const SECOND: Duration = Duration::from_secs(1);

fn simulated() -> Handle {
    current().expect("a fiber is simulated")
}

/// Runs a program as the fiber `main` of process 0.
fn run(seed: u64, program: impl FnOnce(Handle) + Send) -> Result<Report, SimulationError> {
    let mut simulation = Simulation::new(seed);
    simulation.start(Process::new(0), "main", || program(simulated()));
    simulation.run()
}

/// What fibers note, in the order in which they do.
type Notes = Arc<Mutex<Vec<(u64, u64)>>>;

/// Fibers that wait at random, and the order in which they ran.
fn interleaved(seed: u64) -> (Report, Vec<(u64, u64)>) {
    let notes = Notes::default();
    let report = run(seed, |simulation| {
        for fiber in 0..4 {
            let notes = notes.clone();
            let body = move || {
                let simulation = simulated();
                for step in 0..5 {
                    notes.lock().unwrap().push((fiber, step));
                    simulation.sleep(SECOND * simulation.random(3) as u32);
                }
            };
            simulation.spawn(format!("fiber {fiber}"), body);
        }
    });
    let notes = notes.lock().unwrap().clone();
    (report.unwrap(), notes)
}

#[test]
fn a_seed_decides_every_step() {
    let mut orders = BTreeSet::new();
    let mut digests = BTreeSet::new();
    for seed in 0..50 {
        let (report, order) = interleaved(seed);
        assert_eq!((report, order.clone()), interleaved(seed));
        orders.insert(order);
        digests.insert(report.digest);
    }
    assert!(orders.len() > 45 && digests.len() == 50, "{orders:?}");
}

#[test]
fn time_passes_while_all_wait() {
    let report = run(0, |simulation| {
        let event = simulation.event();
        let sleeper = simulation.spawn("sleeper", move || {
            let simulation = simulated();
            simulation.sleep(3 * SECOND);
            simulation.notify(event);
        });
        let began = simulation.instant();
        assert!(!simulation.wait(&[event], Some(SECOND)));
        assert_eq!(simulation.now(), SECOND);
        let other = simulation.event();
        assert!(simulation.wait(&[other, event], Some(Duration::MAX)));
        assert_eq!(simulation.now(), 3 * SECOND);
        assert_eq!(simulation.instant() - began, 3 * SECOND);
        sleeper.join();
        // Without a wait in between, an event is not kept.
        simulation.notify(event);
        assert!(!simulation.wait(&[event], Some(SECOND)));
    });
    assert_eq!(report.unwrap().elapsed, 4 * SECOND);
    assert!(current().is_none());
}

#[test]
fn an_event_wakes_all_that_wait_for_it() {
    let woken = Arc::new(Mutex::new(0));
    let report = run(1, |simulation| {
        let event = simulation.event();
        let wait = |number| {
            let woken = woken.clone();
            simulation.spawn(format!("waits {number}"), move || {
                assert!(simulated().wait(&[event], None));
                *woken.lock().unwrap() += 1;
            })
        };
        let fibers: Vec<_> = (0..5).map(wait).collect();
        simulation.sleep(SECOND);
        simulation.notify(event);
        fibers
            .into_iter()
            .for_each(tinderbox_simulation::Fiber::join);
    });
    report.unwrap();
    assert_eq!(*woken.lock().unwrap(), 5);
}

#[test]
fn actions_run_at_their_time() {
    for seed in 0..20 {
        let notes = Notes::default();
        let report = run(seed, |simulation| {
            for at in [5, 2, 9, 2] {
                let (notes, handle) = (notes.clone(), simulation.clone());
                simulation.at(Process::new(0), SECOND * at, move || {
                    let now = handle.now().as_secs();
                    notes.lock().unwrap().push((now, u64::from(at)));
                });
            }
            simulation.sleep(SECOND * 6);
        });
        report.unwrap();
        // The last one is due after all fibers have ended. It is dropped.
        assert_eq!(*notes.lock().unwrap(), [(2, 2), (2, 2), (5, 5)]);
        assert_eq!(Arc::strong_count(&notes), 1);
    }
}

/// Paused as by SIGSTOP: nothing runs, and what was missed follows.
#[test]
fn a_paused_process_continues_with_what_it_missed() {
    for seed in 0..20 {
        let (ticks, notes) = (Notes::default(), Notes::default());
        let mut simulation = Simulation::new(seed);
        let (paused, other) = (Process::new(1), Process::new(2));
        let of_fiber = ticks.clone();
        simulation.start(paused, "ticks", move || {
            let simulation = simulated();
            let second = move || {
                for _ in 0..3 {
                    simulation.sleep(SECOND);
                    let now = simulation.now().as_secs();
                    of_fiber.lock().unwrap().push((now, 0));
                }
            };
            // A fiber that it spawns is paused with it.
            simulated().spawn("inner", second);
        });
        simulation.start(other, "pauses", || {
            let simulation = simulated();
            for at in 0..4 {
                let notes = notes.clone();
                simulation.at(paused, SECOND * at as u32 + SECOND / 4, move || {
                    let now = simulated().now().as_secs();
                    notes.lock().unwrap().push((now, at));
                });
            }
            simulation.sleep(SECOND / 2);
            simulation.pause(paused, 2 * SECOND);
            // The longer of two pauses counts.
            simulation.pause(paused, SECOND);
            simulation.sleep(2 * SECOND);
        });
        let report = simulation.run().unwrap();
        assert_eq!(*ticks.lock().unwrap(), [(2, 0), (3, 0), (4, 0)]);
        let mut notes = notes.lock().unwrap().clone();
        notes.sort_unstable();
        assert_eq!(notes, [(0, 0), (2, 1), (2, 2), (3, 3)]);
        assert_eq!(report.elapsed, Duration::from_millis(4500));
    }
}

#[test]
fn fibers_that_wait_forever_are_named() {
    let error = run(9, |simulation| {
        let never = simulation.event();
        let waits = move || assert!(simulated().wait(&[never], None));
        simulation.spawn_in(Process::new(3), "stuck", waits);
        simulation.sleep(SECOND);
    });
    assert_snapshot!(error.unwrap_err(), @"seed 9: 1 fiber is left after 1s and 3 steps: `stuck` of process 3 waits forever");
    let mut simulation = Simulation::new(9).time_limit(3 * SECOND);
    simulation.start(Process::new(0), "beats", || {
        loop {
            simulated().sleep(2 * SECOND);
        }
    });
    assert_snapshot!(simulation.run().unwrap_err(), @"seed 9: 1 fiber is left after 2s and 2 steps: `beats` of process 0 waits until 4s");
}

#[test]
fn the_first_panic_ends_the_simulation() {
    let error = run(4, |simulation| {
        simulation.spawn("panics", || panic!("injected"));
        simulation.sleep(SECOND);
    });
    assert_snapshot!(error.unwrap_err(), @"seed 4: `panics` of process 0 panicked after 0ns: injected");
    let error = run(4, |simulation| {
        let process = Process::new(2);
        simulation.at(process, SECOND, || simulated().sleep(SECOND));
        simulation.sleep(2 * SECOND);
    });
    assert_snapshot!(error.unwrap_err(), @"seed 4: an action of process 2 panicked after 1s: only a fiber waits");
    // One that is caught does not.
    let report = run(4, |_| {
        assert!(catch_unwind(|| panic!("injected")).is_err());
    });
    report.unwrap();
}

/// A destructor that waits would let others run while the thread panics.
#[test]
fn a_wait_while_a_panic_unwinds_ends_the_simulation() {
    struct Waits(Event);
    impl Drop for Waits {
        fn drop(&mut self) {
            simulated().wait(&[self.0], None);
        }
    }
    // The thread counts the panic as one that never ends, so it has one of its own.
    let error = std::thread::spawn(|| {
        run(4, |simulation| {
            let _waits = Waits(simulation.event());
            panic!("injected");
        })
    });
    assert_snapshot!(error.join().unwrap().unwrap_err(), @"seed 4: `main` of process 0 panicked after 0ns: it waits while it unwinds; its message was printed before");
}

#[test]
fn a_small_stack_is_named() {
    #[inline(never)]
    fn deep(depth: u64) -> u64 {
        let local = std::hint::black_box([depth; 64]);
        match depth {
            0 => local[7],
            _ => deep(depth - 1) + local[3],
        }
    }
    let mut simulation = Simulation::new(0).stack_bytes(1 << 16);
    simulation.start(Process::new(0), "deep", || assert!(deep(10_000) > 0));
    assert_snapshot!(simulation.run().unwrap_err(), @"seed 0: `deep` of process 0 panicked after 0ns: it needs a larger stack");
    let mut simulation = Simulation::new(0).stack_bytes(16 << 20);
    simulation.start(Process::new(0), "deep", || assert!(deep(10_000) > 0));
    simulation.run().unwrap();
}

#[test]
fn a_simulation_runs_no_other_one() {
    let inner = || catch_unwind(AssertUnwindSafe(|| run(0, |_| {}))).is_err();
    run(0, |simulation| {
        assert!(inner());
        simulation.sleep(SECOND);
    })
    .unwrap();
}
