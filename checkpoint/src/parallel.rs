//! Parallel execution.

use std::{sync::Mutex, thread};

/// Runs work items on several threads; returns the results in the order of the items.
pub(crate) fn parallel<T: Send, R: Send>(
    threads: usize,
    work: impl IntoIterator<Item = T, IntoIter: Send>,
    run: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let (work, results) = (
        Mutex::new(work.into_iter().enumerate()),
        Mutex::new(Vec::new()),
    );
    let (waiting, _) = work
        .lock()
        .expect("no thread panics while it holds the lock")
        .size_hint();
    let go = || {
        while let Some((at, item)) = {
            let mut work = work
                .lock()
                .expect("no thread panics while it holds the lock");
            work.next()
        } {
            let result = run(item);
            results
                .lock()
                .expect("no thread panics while it holds the lock")
                .push((at, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(waiting) {
            scope.spawn(go);
        }
        go();
    });
    let mut results = results
        .into_inner()
        .expect("no thread panics while it holds the lock");
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
