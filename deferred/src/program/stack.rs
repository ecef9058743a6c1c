//! Chooses one of two depths of the stack for a program that runs many times.
//!
//! Each access to a vector that lies across the boundary of two memory pages is slow, and `gemm` 0.19 does not align the
//! frame of its kernels. The stacks of rank threads start at a page, so a build has a kernel's frame at the same position
//! of a page in every step. Half a page deeper, it is elsewhere.

use std::hint::black_box;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Half of the smallest page of the machines that Burn runs on.
const DEEPER_BYTES: usize = 2048;
/// Runs that alternate at the beginning. The first run at a depth also allocates, the second one counts.
const ALTERNATING_RUNS: u64 = 4;
/// The other depth is tried again once in this number of runs, since callers may use more or less of the stack.
const RUNS_PER_TRIAL: u64 = 32;
/// The weight of a slower run: a thread that was interrupted once does not change the depth.
const WEIGHT_OF_SLOWER: f64 = 0.25;

/// The times of a program's runs.
#[derive(Debug, Default)]
struct Runs {
    number: u64,
    /// The time of recent runs at the depth of the caller, and at the deeper one.
    recent: [Duration; 2],
}

impl Runs {
    fn next_is_deeper(&self) -> bool {
        let is_deeper_faster = self.recent[1] < self.recent[0];
        match self.number {
            number if number < ALTERNATING_RUNS => number % 2 == 1,
            number => is_deeper_faster != number.is_multiple_of(RUNS_PER_TRIAL),
        }
    }

    fn add(&mut self, is_deeper: bool, time: Duration) {
        let recent = &mut self.recent[usize::from(is_deeper)];
        *recent = match time.checked_sub(*recent) {
            Some(slower) if self.number >= ALTERNATING_RUNS => {
                *recent + slower.mul_f64(WEIGHT_OF_SLOWER)
            }
            _ => time,
        };
        self.number += 1;
    }
}

/// Runs a program at the depth of the stack where it was faster recently.
#[derive(Debug, Default)]
pub(super) struct StackDepth(Mutex<Runs>);

impl StackDepth {
    pub(super) fn run<T>(&self, program: impl FnOnce() -> T) -> T {
        let is_deeper = self.0.lock().next_is_deeper();
        let started = Instant::now();
        let outputs = match is_deeper {
            true => deeper(program),
            false => program(),
        };
        self.0.lock().add(is_deeper, started.elapsed());
        outputs
    }
}

#[inline(never)]
fn deeper<T>(program: impl FnOnce() -> T) -> T {
    let space = [0_u8; DEEPER_BYTES];
    let outputs = program();
    // The space is in use until the program ends.
    black_box(&space);
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLERS: bool = false;
    const DEEPER: bool = true;

    /// Runs a program whose times in milliseconds depend on the depth and the run.
    fn depths(runs: usize, time: impl Fn(bool, u64) -> u64) -> Vec<bool> {
        let mut state = Runs::default();
        let mut depths = Vec::new();
        for _ in 0..runs {
            let depth = state.next_is_deeper();
            state.add(depth, Duration::from_millis(time(depth, state.number)));
            depths.push(depth);
        }
        depths
    }

    fn runs_at(depth: bool, depths: &[bool]) -> usize {
        depths.iter().filter(|found| **found == depth).count()
    }

    #[test]
    fn the_faster_depth_runs_all_but_the_trials() {
        for fast in [CALLERS, DEEPER] {
            let slow_start = |run| if run < 2 { 100 } else { 0 };
            let depths = depths(320, |depth, run| {
                slow_start(run) + if depth == fast { 10 } else { 16 }
            });
            // Two runs of the alternation, and 9 trials.
            assert_eq!(runs_at(fast, &depths), 320 - 2 - 9, "{fast:?}");
        }
    }

    #[test]
    fn a_depth_that_becomes_slow_is_left_after_a_few_runs() {
        let depths = depths(100, |depth, run| match depth {
            CALLERS => 12,
            DEEPER if run <= 50 => 10,
            DEEPER => 16,
        });
        assert_eq!(runs_at(DEEPER, &depths[10..31]), 21);
        assert_eq!(runs_at(CALLERS, &depths[54..64]), 10);
    }

    /// A twentieth of the runs take twice as long, as if the thread had been interrupted.
    #[test]
    fn interrupted_runs_do_not_change_the_depth() {
        let depths = depths(3200, |depth, run| {
            let time = if depth == CALLERS { 10 } else { 16 };
            time * if run % 20 == 7 { 2 } else { 1 }
        });
        assert!(runs_at(DEEPER, &depths) < 3200 / 20);
    }

    #[test]
    fn the_deeper_frame_is_at_another_position_of_its_page() {
        let position = || {
            let local = 0_u8;
            std::ptr::from_ref(black_box(&local)) as usize
        };
        #[inline(never)]
        fn here<T>(run: impl FnOnce() -> T) -> T {
            run()
        }
        let moved = (here(position) - deeper(position)) % (2 * DEEPER_BYTES);
        assert!(
            (DEEPER_BYTES / 2..DEEPER_BYTES * 3 / 2).contains(&moved),
            "{moved} B"
        );
    }
}
