//! Search over orders of events.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Preemptions per order of the second search. Most errors need two or three: Burckhardt et al., A Randomized
/// Scheduler with Probabilistic Guarantees of Finding Bugs, ASPLOS 2010.
const PREEMPTIONS: usize = 3;

/// Runs `orders` random orders, then as many with few preemptions. The same seed runs the same orders.
pub fn try_orders(seed: u64, orders: usize, run: impl Fn() + Clone + Send + Sync + 'static) {
    search(RandomScheduler::new_from_seed(seed, orders), run.clone());
    search(PctScheduler::new_from_seed(seed, PREEMPTIONS, orders), run);
}

/// Runs every order and returns their number; panics when there are more than `most`.
pub fn try_all_orders(most: usize, run: impl Fn() + Send + Sync + 'static) -> usize {
    let orders = search(DfsScheduler::new(Some(most), false), run);
    assert!(orders < most, "not all orders were tried");
    orders
}

fn search(scheduler: impl Scheduler + 'static, run: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    // Unoptimized test code needs more than the default of 60 KiB.
    config.stack_size = 256 << 10;
    Runner::new(scheduler, config).run(run)
}

/// Returns the panic message of a search that failed. It runs on a thread of its own, because a failed
/// search may leave thread-local state behind.
pub fn found(search: impl FnOnce() + Send + 'static) -> Option<String> {
    let run = || catch_unwind(AssertUnwindSafe(search)).err();
    let panic = std::thread::spawn(run).join().unwrap()?;
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    Some(text.unwrap_or_else(|| "a panic without a message".into()))
}
