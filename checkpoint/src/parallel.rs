//! Parallel execution.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;

/// Returns the number of cores, at most `most`.
pub(crate) fn cores(most: usize) -> usize {
    let cores = thread::available_parallelism();
    cores.map_or(1, usize::from).min(most)
}

/// Runs work items on several threads; returns the results in the order of the items, or the first error in this order. After
/// an error no further item starts.
pub(crate) fn parallel<T: Send, R: Send, E: Send>(
    threads: usize,
    work: impl IntoIterator<Item = T, IntoIter: Send>,
    run: impl Fn(T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    parallel_with(&mut vec![(); threads.max(1)], work, |(), item| run(item))
}

/// Runs work items like [`parallel`], with one thread for each scratch memory, at least one. The items of a thread use its
/// memory one after the other.
pub(crate) fn parallel_with<T: Send, R: Send, E: Send, S: Send>(
    scratch: &mut [S],
    work: impl IntoIterator<Item = T, IntoIter: Send>,
    run: impl Fn(&mut S, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let failed = AtomicBool::new(false);
    let work = Mutex::new(work.into_iter().enumerate());
    let results = Mutex::new(Vec::new());
    let (waiting, _) = work.lock().size_hint();
    let go = |scratch: &mut S| {
        while !failed.load(Ordering::Relaxed) {
            let Some((at, item)) = work.lock().next() else {
                return;
            };
            let result = run(scratch, item);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            results.lock().push((at, result));
        }
    };
    thread::scope(|scope| {
        let mut scratch = scratch.iter_mut().take(waiting);
        let own = scratch.next();
        for other in scratch {
            scope.spawn(|| go(other));
        }
        if let Some(own) = own {
            go(own);
        }
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_run_whatever_the_threads() {
        for threads in 0..4 {
            let doubled = parallel(threads, 0..10, |item| Ok::<_, ()>(2 * item));
            let doubled: Vec<_> = doubled.into_iter().flatten().collect();
            assert_eq!(doubled, (0..20).step_by(2).collect::<Vec<_>>(), "{threads}");
        }
    }
}
