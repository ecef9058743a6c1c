//! Work on several threads.

use std::{sync::Mutex, thread};

/// Runs work on several threads; the results are in the order of the work.
pub(crate) fn parallel<T: Send, R: Send>(
    threads: usize,
    work: impl IntoIterator<Item = T, IntoIter: Send>,
    run: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let (work, results) = (
        Mutex::new(work.into_iter().enumerate()),
        Mutex::new(Vec::new()),
    );
    let (waiting, _) = work.lock().expect("no thread panics with it").size_hint();
    let go = || {
        while let Some((at, item)) = {
            let mut work = work.lock().expect("no thread panics with it");
            work.next()
        } {
            let result = run(item);
            results
                .lock()
                .expect("no thread panics with it")
                .push((at, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(waiting) {
            scope.spawn(go);
        }
        go();
    });
    let mut results = results.into_inner().expect("no thread panics with it");
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
