//! Threads that start each repetition at the same time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

use rayon::ThreadPoolBuilder;

use crate::ProfileError;

/// Repeated runs on several ranks at once, each with its own pool of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeated {
    pub(crate) ranks: usize,
    /// CPU threads of each rank.
    pub(crate) threads: usize,
    /// Runs of each rank before the measured ones.
    pub(crate) warm_up: usize,
    /// Measured runs of each rank.
    pub(crate) repetitions: usize,
}

impl Repeated {
    /// Prepares every rank, then runs all at the same time, again and again. Returns the results of the
    /// measured runs of all ranks.
    pub(crate) fn run<S, T: Send>(
        self,
        prepare: impl Fn() -> Result<S, ProfileError> + Sync,
        run: impl Fn(&mut S) -> Result<T, ProfileError> + Sync,
    ) -> Result<Vec<T>, ProfileError>
    where
        S: Send,
    {
        let results = together(self.ranks, |member| {
            let pool = ThreadPoolBuilder::new().num_threads(self.threads).build()?;
            let mut state = pool.install(&prepare)?;
            let mut turn = || {
                member.wait();
                pool.install(|| run(&mut state))
            };
            for _ in 0..self.warm_up {
                turn()?;
            }
            (0..self.repetitions)
                .map(|_| turn())
                .collect::<Result<Vec<T>, _>>()
        })?;
        Ok(results.into_iter().flatten().collect())
    }
}

/// Runs `run` on `count` threads, and returns the results of all, or the error of the first that
/// failed.
///
/// A thread that fails or panics leaves the barrier, and the others continue without it.
fn together<T: Send>(
    count: usize,
    run: impl Fn(&BarrierMember<'_>) -> Result<T, ProfileError> + Sync,
) -> Result<Vec<T>, ProfileError> {
    let barrier = Barrier::new(count);
    // A member that no thread uses leaves when it is dropped.
    let members: Vec<BarrierMember<'_>> = (0..count).map(|_| BarrierMember(&barrier)).collect();
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .map(|member| {
                let body = move || {
                    let done = catch_unwind(AssertUnwindSafe(|| run(&member)));
                    done.unwrap_or(Err(ProfileError::Panicked))
                };
                thread::Builder::new().spawn_scoped(scope, body)
            })
            .collect();
        let results = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or(Err(ProfileError::Panicked)),
            Err(source) => Err(ProfileError::Spawn { source }),
        });
        // All are joined before the first error is returned.
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

/// One of the threads. Dropping it leaves the barrier.
struct BarrierMember<'a>(&'a Barrier);

impl BarrierMember<'_> {
    /// Waits until all members that have not left wait.
    fn wait(&self) {
        let mut state = self.0.state();
        state.waiting += 1;
        let round = state.round;
        if !self.0.begin_when_complete(&mut state) {
            let begun = self
                .0
                .changed
                .wait_while(state, |state| state.round == round);
            drop(begun);
        }
    }
}

impl Drop for BarrierMember<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.members -= 1;
        self.0.begin_when_complete(&mut state);
    }
}

/// A barrier that its members can leave.
struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    members: usize,
    waiting: usize,
    round: u64,
}

impl Barrier {
    fn new(members: usize) -> Self {
        Self {
            state: Mutex::new(State {
                members,
                waiting: 0,
                round: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each update of the state is complete even if a member panicked.
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Wakes the waiting members if all are waiting.
    fn begin_when_complete(&self, state: &mut State) -> bool {
        let is_complete = state.waiting > 0 && state.waiting >= state.members;
        if is_complete {
            state.waiting = 0;
            state.round += 1;
            self.changed.notify_all();
        }
        is_complete
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// One of three threads ends before the first round, during a round, or by a panic; the others
    /// finish theirs.
    #[test]
    fn no_thread_waits_for_one_that_left() {
        for (ends_at, panics) in [(0, false), (2, false), (0, true), (2, true)] {
            let (numbers, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let result = together(3, |member| {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                for round in 0..5 {
                    if number == 1 && round == ends_at {
                        assert!(!panics, "injected");
                        let source = std::io::Error::other("injected");
                        return Err(ProfileError::Spawn { source });
                    }
                    member.wait();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                Ok(number)
            });
            match (panics, result.unwrap_err()) {
                (true, ProfileError::Panicked) | (false, ProfileError::Spawn { .. }) => {}
                (_, error) => panic!("{error}"),
            }
            assert_eq!(rounds.into_inner(), 10 + ends_at);
        }
    }

    #[test]
    fn all_start_each_round_together() {
        let begun = AtomicUsize::new(0);
        let rounds = together(4, |member| {
            let mut seen = Vec::new();
            for _ in 0..100 {
                begun.fetch_add(1, Ordering::SeqCst);
                member.wait();
                seen.push(begun.load(Ordering::SeqCst));
                member.wait();
            }
            Ok(seen)
        });
        for seen in rounds.unwrap() {
            let expected: Vec<usize> = (1..=100).map(|round| 4 * round).collect();
            assert_eq!(seen, expected);
        }
        assert_eq!(together(0, |_| Ok(())).unwrap(), []);
    }
}
