//! How orders of events are picked.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Preemptions that the second search places. Its authors find that most errors need two or three.
/// Burckhardt et al., A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs, ASPLOS
/// 2010.
const PREEMPTIONS: usize = 3;

/// Tries `orders` random orders, then as many with few preemptions. The same seed tries the same.
pub fn try_orders(seed: u64, orders: usize, run: impl Fn() + Clone + Send + Sync + 'static) {
    search(RandomScheduler::new_from_seed(seed, orders), run.clone());
    search(PctScheduler::new_from_seed(seed, PREEMPTIONS, orders), run);
}

/// Tries every order and gives their number; fails when there are more than `most`.
pub fn try_all_orders(most: usize, run: impl Fn() + Send + Sync + 'static) -> usize {
    let orders = search(DfsScheduler::new(Some(most), false), run);
    assert!(orders < most, "not all orders were tried");
    orders
}

fn search(scheduler: impl Scheduler + 'static, run: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    // Unoptimized code of the tests takes more than the 60 KiB that it is given otherwise.
    config.stack_size = 256 << 10;
    Runner::new(scheduler, config).run(run)
}

/// What the search found, in the words of the panic. It runs on a thread of its own, which a failed
/// search may leave in any state.
pub fn found(search: impl FnOnce() + Send + 'static) -> Option<String> {
    let run = || catch_unwind(AssertUnwindSafe(search)).err();
    let panic = std::thread::spawn(run).join().unwrap()?;
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    Some(text.unwrap_or_else(|| "a panic without a text".into()))
}
