//! Sums of many elements on the CPU, in an order that does not depend on threads.
//!
//! `flex` divides a sum of at least [`DIVIDED_SUM`] elements among threads, and adds the parts in an order that depends on
//! the number of threads, and on which of them is idle. On the thread of a pool of one the order is fixed.

use std::sync::LazyLock;

use burn::tensor::Device;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tinderbox_fake::is_host;

/// The number of elements from which `flex` divides a sum among threads.
const DIVIDED_SUM: usize = 4 << 20;

static ONE_THREAD: LazyLock<ThreadPool> = LazyLock::new(|| {
    let pool = ThreadPoolBuilder::new().num_threads(1);
    let pool = pool.thread_name(|_| "tinderbox-sums".to_owned()).build();
    pool.expect("a process that runs several threads can start one more")
});

/// Runs operations on a device so that sums of the elements of one tensor have a fixed order, if no tensor has more than
/// `elements`: sums that `flex` would divide among threads run on one.
///
/// The order is the order of plain Burn on the thread of a `rayon` pool with one thread.
///
/// Cost: all of the operations run on one thread, which all callers in the process share. No cost with less than 4 Mi
/// elements, on another device than the CPU, or on the thread of a pool of one.
pub fn with_ordered_sums<T: Send>(
    device: &Device,
    elements: usize,
    run: impl FnOnce() -> T + Send,
) -> T {
    // On the thread of a pool of one; the order is another outside of it.
    let is_ordered = rayon::current_num_threads() == 1 && rayon::current_thread_index().is_some();
    match is_divided(elements) && is_host(device) && !is_ordered {
        true => ONE_THREAD.install(run),
        false => run(),
    }
}

/// Returns whether `flex` would divide a sum of this number of elements among threads.
pub(super) fn is_divided(elements: usize) -> bool {
    elements >= DIVIDED_SUM
}
