//! Ranks that start each repetition at the same time.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::Mutex;
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
    /// Prepares every rank, then runs all ranks at the same time, repeatedly. Returns the results of the
    /// measured runs of all ranks, or the error of the first rank that failed.
    pub(crate) fn run<S: Send, T: Send>(
        self,
        prepare: impl Fn() -> Result<S, ProfileError> + Sync,
        run: impl Fn(&mut S) -> Result<T, ProfileError> + Sync,
    ) -> Result<Vec<T>, ProfileError> {
        if self.ranks == 0 {
            return Ok(Vec::new());
        }
        let pool_of = |threads| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.map_err(io::Error::other);
            pool.map_err(|source| ProfileError::Spawn { source })
        };
        let ranks = pool_of(self.ranks)?;
        let states = ranks.broadcast(|_| {
            Mutex::new(pool_of(self.threads).and_then(|pool| {
                let state = caught(|| pool.install(&prepare))?;
                Ok((pool, state))
            }))
        });
        let mut results = Vec::new();
        for turn in 0..self.warm_up + self.repetitions {
            let made = ranks.broadcast(|rank| {
                let mut prepared = states[rank.index()].lock();
                // After an error, a rank runs nothing more.
                let (pool, state) = prepared.as_mut().ok()?;
                let made = caught(|| pool.install(|| run(state)));
                made.map_err(|error| *prepared = Err(error)).ok()
            });
            if turn >= self.warm_up {
                results.extend(made.into_iter().flatten());
            }
        }
        for prepared in states {
            prepared.into_inner()?;
        }
        Ok(results)
    }
}

/// Returns a panic as an error.
fn caught<T>(run: impl FnOnce() -> Result<T, ProfileError>) -> Result<T, ProfileError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(ProfileError::Panicked))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn repeated(ranks: usize, repetitions: usize) -> Repeated {
        Repeated {
            ranks,
            threads: 1,
            warm_up: 0,
            repetitions,
        }
    }

    /// One of three ranks ends before the first round, during a round, or by a panic; the others
    /// finish theirs.
    #[test]
    fn no_rank_waits_for_one_that_ended() {
        for (ends_at, panics) in [(0, false), (2, false), (0, true), (2, true)] {
            let (numbers, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let prepare = || Ok((numbers.fetch_add(1, Ordering::Relaxed), 0));
            let result = repeated(3, 5).run(prepare, |(number, round)| {
                if *number == 1 && *round == ends_at {
                    assert!(!panics, "injected");
                    let source = io::Error::other("injected");
                    return Err(ProfileError::Spawn { source });
                }
                *round += 1;
                rounds.fetch_add(1, Ordering::Relaxed);
                Ok(*number)
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
        let seen = repeated(4, 100).run(
            || Ok(0),
            |round| {
                *round += 1;
                Ok((*round - 1, begun.fetch_add(1, Ordering::SeqCst)))
            },
        );
        let seen = seen.unwrap();
        assert_eq!(seen.len(), 400);
        for (round, before) in seen {
            assert!(
                (4 * round..4 * round + 4).contains(&before),
                "{round} {before}"
            );
        }
        assert_eq!(repeated(0, 1).run(|| Ok(()), |()| Ok(())).unwrap(), []);
    }
}
