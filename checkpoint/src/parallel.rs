//! Parallel execution.

use std::{
    sync::{Mutex, MutexGuard},
    thread,
};

/// Runs work items on several threads; returns the results in the order of the items.
pub(crate) fn parallel<T: Send, R: Send>(
    threads: usize,
    work: impl IntoIterator<Item = T, IntoIter: Send>,
    run: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let work = Mutex::new(work.into_iter().enumerate());
    let results = Mutex::new(Vec::new());
    let (waiting, _) = lock(&work).size_hint();
    let go = || loop {
        let Some((at, item)) = lock(&work).next() else {
            return;
        };
        let result = run(item);
        lock(&results).push((at, result));
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(waiting) {
            scope.spawn(go);
        }
        go();
    });
    let mut results = std::mem::take(&mut *lock(&results));
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("no thread panics while it holds the lock")
}
