//! System calls on memory of the process.
//!
//! This needs `unsafe`: neither the standard library nor a well-maintained crate has a safe function for
//! `madvise` on memory that the caller owns (`memmap2` has one for its own mappings, but a mapping can't become the
//! `Vec` from which Burn creates a tensor without a copy), nor for the settings of the C library's
//! allocator.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a huge page on most machines. On others advice is rounded differently, and the measurement is less exact.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// Bytes of a small page on most machines, and a divisor of the page size on all.
pub(crate) const SMALL_PAGE: usize = 4 << 10;

/// Bytes of a small page; `None` on systems without these calls.
pub(crate) fn page() -> Option<usize> {
    #[cfg(target_os = "linux")]
    return Some(rustix::param::page_size());
    #[cfg(not(target_os = "linux"))]
    None
}

/// Calls `madvise` on `range` of the memory that `pointer` points into. Returns whether it succeeded.
///
/// # Safety
///
/// The advice must not change the contents of the pages of `range`, or all of them must belong to memory with
/// unspecified contents.
unsafe fn advise(pointer: *mut u8, range: Range<usize>, advice: i32) -> bool {
    #[cfg(target_os = "linux")]
    if range.start < range.end {
        let start = pointer.with_addr(range.start);
        // SAFETY: no memory is read or written through the pointer, and the caller promises the rest.
        return unsafe { libc::madvise(start.cast(), range.len(), advice) == 0 };
    }
    let _ = (pointer, range, advice);
    false
}

#[cfg(not(target_os = "linux"))]
mod libc {
    //! Unused on this system.
    pub const MADV_HUGEPAGE: i32 = 0;
    pub const MADV_POPULATE_WRITE: i32 = 0;
    pub const MADV_FREE: i32 = 0;
}

/// Advises huge pages for `part`, rounded outward to huge pages within the addresses of `whole`.
pub(crate) fn advise_huge_pages_within(part: &mut [u8], whole: &Range<usize>) {
    let Some(page) = page() else { return };
    let addresses = part.as_ptr_range();
    let start = addresses.start.addr() / HUGE_PAGE * HUGE_PAGE;
    let end = addresses.end.addr().next_multiple_of(HUGE_PAGE);
    let start = start.max(whole.start.next_multiple_of(page));
    let end = end.min(whole.end / page * page);
    // SAFETY: this advice does not change the contents of the pages.
    unsafe { advise(part.as_mut_ptr(), start..end, libc::MADV_HUGEPAGE) };
}

/// Advises huge pages for this memory, for comparisons.
pub fn advise_huge_pages(memory: &mut [u8]) {
    let addresses = memory.as_ptr_range();
    advise_huge_pages_within(memory, &(addresses.start.addr()..addresses.end.addr()));
}

/// The cost of populating memory, for the thread.
pub(crate) struct Populated {
    /// Page faults; 0 where the system can't populate, and the pages fault when they are written to.
    pub faults: u64,
    /// Seconds of processor time, so other threads on the same core are not counted.
    pub seconds: f64,
}

/// Populates the pages of `part` without changing their contents.
pub(crate) fn populate(part: &mut [u8]) -> Populated {
    let (faults, seconds) = (page_faults(), processor_seconds());
    if let Some(page) = page() {
        let addresses = part.as_ptr_range();
        let start = addresses.start.addr() / page * page;
        let end = addresses.end.addr().next_multiple_of(page);
        // SAFETY: this advice does not change the contents of the pages. Before Linux 5.14 it fails.
        unsafe { advise(part.as_mut_ptr(), start..end, libc::MADV_POPULATE_WRITE) };
    }
    let faults = page_faults().saturating_sub(faults);
    let seconds = processor_seconds() - seconds;
    Populated { faults, seconds }
}

/// Minor page faults of this thread so far.
fn page_faults() -> u64 {
    #[cfg(target_os = "linux")]
    {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call fills the structure; if it fails, all zeros are valid too.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        u64::try_from(usage.ru_minflt).unwrap_or(0)
    }
    #[cfg(not(target_os = "linux"))]
    0
}

/// Processor time of this thread so far. `getrusage` only has it as of the last timer tick.
fn processor_seconds() -> f64 {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
    }
    #[cfg(not(target_os = "linux"))]
    0.0
}

/// Allows the kernel to reclaim the pages of this memory until they are written to again; a reclaimed page reads as
/// zeros. Returns `false` where the system can't.
pub(crate) fn allow_reclaim(memory: &mut [MaybeUninit<u8>]) -> bool {
    let Some(page) = page() else { return false };
    let addresses = memory.as_ptr_range();
    // Whole pages only: the pages at the ends also contain bytes outside this memory.
    let start = addresses.start.addr().next_multiple_of(page);
    let end = addresses.end.addr() / page * page;
    // SAFETY: all pages of the range belong to memory with unspecified contents.
    unsafe { advise(memory.as_mut_ptr().cast(), start..end, libc::MADV_FREE) }
}

/// The number of an option in glibc's `malloc.h`: the free bytes at the end of a heap from which they are returned.
const TRIM_THRESHOLD: i32 = -1;
/// The bytes that a heap grows by in addition.
const TOP_PAD: i32 = -2;
/// The bytes from which a block has pages of its own.
const MMAP_THRESHOLD: i32 = -3;

/// Sets an option of glibc's allocator. Returns `false` for a value that it rejects, and with other C libraries.
fn set_option(option: i32, value: i32) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `mallopt` accepts any two integers, from any thread; it rejects unknown ones.
        unsafe { libc::mallopt(option, value) == 1 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = (option, value);
        false
    }
}

/// Configures glibc's allocator to reuse freed memory instead of returning it to the system, for the rest of the
/// process. Returns `false` with other C libraries.
///
/// By default glibc unmaps large blocks and empty thread heaps, so that every micro-batch faults in the same tensors
/// again. With this setting each thread keeps the most memory that it once used, until the process ends or
/// [`release_freed_memory`](crate::release_freed_memory) is called. Rust programs with another global allocator
/// are not affected, but the C libraries that they use are.
pub fn keep_freed_blocks() -> bool {
    /// The largest threshold that every version of glibc accepts.
    const LARGEST_BLOCK: i32 = 32 << 20;
    /// Blocks of fewer bytes reuse freed memory.
    const BLOCK: i32 = 1 << 30;
    /// The largest heap of a thread. An empty heap is unmapped unless the padding is larger.
    const HEAP: i32 = 64 << 20;
    RETURNS.store(false, Ordering::Relaxed);
    let blocks = set_option(MMAP_THRESHOLD, BLOCK) || set_option(MMAP_THRESHOLD, LARGEST_BLOCK);
    let rest = set_option(TRIM_THRESHOLD, i32::MAX);
    let heaps = set_option(TOP_PAD, HEAP + 4096);
    blocks && rest && heaps
}

/// Whether blocks are freed instead of kept, except the newest.
static RETURNS: AtomicBool = AtomicBool::new(false);

pub(crate) fn returns_freed_blocks() -> bool {
    RETURNS.load(Ordering::Relaxed)
}

/// Returns freed memory to the system from now on, for a process with a memory limit: freed blocks of this crate except
/// the last 64 MiB, and with glibc's allocator each block of 128 KiB and more. Returns `false` with other C libraries.
///
/// By default glibc keeps blocks of up to 32 MiB once such a block was freed, and kept blocks of this crate count as
/// memory of the process until the kernel reclaims them.
pub fn return_freed_blocks() -> bool {
    const BLOCK: i32 = 128 << 10;
    RETURNS.store(true, Ordering::Relaxed);
    set_option(MMAP_THRESHOLD, BLOCK) && set_option(TRIM_THRESHOLD, BLOCK)
}

/// Returns unused memory of the C library to the system. Returns whether there was any.
pub(crate) fn trim() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it only touches memory that is not allocated.
        unsafe { libc::malloc_trim(0) == 1 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::UNUSED_MEMORY;

    #[test]
    fn memory_that_a_thread_freed_is_reused_without_faults() {
        let _unused = UNUSED_MEMORY.lock();
        const BLOCKS: usize = 6;
        const BYTES: usize = 24 << 20;
        assert!(keep_freed_blocks());
        let take = || {
            let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| vec![1; BYTES]).collect();
            std::hint::black_box(blocks);
        };
        std::thread::spawn(move || {
            take();
            let before = page_faults();
            take();
            let faults = page_faults() - before;
            // Each block has 6,144 pages of 4 KiB.
            assert!(faults < 4096, "{faults} faults");
        })
        .join()
        .unwrap();
    }
}
