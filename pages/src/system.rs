//! What is asked of the system about memory that is there already.
//!
//! Why safe code can't do it: neither the standard library nor a well-kept crate has a safe function for
//! `madvise` on memory that the caller owns (`memmap2` has one for its own mappings, but a mapping is no
//! `Vec`, which Burn takes a tensor's bytes as without a copy), nor for the settings of the C library's
//! allocator.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of a large page on most systems; where they are others, advice comes in these steps all the same.
pub(crate) const LARGE_PAGE: usize = 2 << 20;
/// A divisor of the bytes of a small page, and what they are on most systems.
pub(crate) const SMALL_PAGE: usize = 4 << 10;

/// Bytes of a small page; `None` where there is nothing to ask for.
pub(crate) fn page() -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        static PAGE: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
        *PAGE.get_or_init(|| {
            // SAFETY: a query without arguments that point anywhere.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            usize::try_from(page)
                .ok()
                .filter(|page| page.is_power_of_two())
        })
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Gives advice on `range` of the memory that `pointer` points into; whether the system took it.
///
/// # Safety
///
/// The advice must leave alone what is in the pages of `range`, or all of them must belong to memory that
/// may hold anything.
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
    //! Names of advice that is never given.
    pub const MADV_HUGEPAGE: i32 = 0;
    pub const MADV_POPULATE_WRITE: i32 = 0;
    pub const MADV_FREE: i32 = 0;
}

/// Asks for large pages wherever a part of one lies in `part`, but not outside of `whole`. What the answer
/// is makes no difference but in speed.
pub(crate) fn advise_large_pages(part: &mut [u8], whole: &Range<usize>) {
    let Some(page) = page() else { return };
    let addresses = part.as_ptr_range();
    let start = addresses.start.addr() / LARGE_PAGE * LARGE_PAGE;
    let end = addresses.end.addr().next_multiple_of(LARGE_PAGE);
    let start = start.max(whole.start.next_multiple_of(page));
    let end = end.min(whole.end / page * page);
    // SAFETY: this advice changes nothing in the pages.
    unsafe { advise(part.as_mut_ptr(), start..end, libc::MADV_HUGEPAGE) };
}

/// Asks for large pages behind this memory, whatever is faster: for comparisons.
pub fn ask_for_large_pages(memory: &mut [u8]) {
    let addresses = memory.as_ptr_range();
    advise_large_pages(memory, &(addresses.start.addr()..addresses.end.addr()));
}

/// Has the pages made that `part` lies in, as if it were written to. Gives how many were made, as far as
/// this system tells; what it does not make is made when it is written to.
pub(crate) fn make_pages(part: &mut [u8]) -> u64 {
    let Some(page) = page() else { return 0 };
    let addresses = part.as_ptr_range();
    let start = addresses.start.addr() / page * page;
    let end = addresses.end.addr().next_multiple_of(page);
    let before = page_faults();
    // SAFETY: this advice changes nothing in the pages. Before Linux 5.14 it is refused.
    unsafe { advise(part.as_mut_ptr(), start..end, libc::MADV_POPULATE_WRITE) };
    page_faults().saturating_sub(before)
}

/// Pages that were made for this thread so far.
fn page_faults() -> u64 {
    #[cfg(target_os = "linux")]
    {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call fills the structure; all zeros are valid for it too, if it fails.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        u64::try_from(usage.ru_minflt).unwrap_or(0)
    }
    #[cfg(not(target_os = "linux"))]
    0
}

/// Lets the system take the pages of this memory whenever it needs them. Each keeps its bytes until it is
/// taken, and is not taken any more once it is written to. `false` where the system has no such offer.
pub(crate) fn offer(memory: &mut [MaybeUninit<u8>]) -> bool {
    let Some(page) = page() else { return false };
    let addresses = memory.as_ptr_range();
    // Whole pages: those at the ends hold bytes of others too.
    let start = addresses.start.addr().next_multiple_of(page);
    let end = addresses.end.addr() / page * page;
    // SAFETY: all pages of the range belong to memory that may hold anything.
    unsafe { advise(memory.as_mut_ptr().cast(), start..end, libc::MADV_FREE) }
}

/// Has the C library's allocator keep freed blocks for whoever allocates next, for the rest of the process;
/// `false` where it does not take the wish.
///
/// By default glibc gives large blocks back to the system when they are freed, and the system clears them
/// before it hands them out again. A training step frees and takes the same tensors for every micro-batch,
/// and threads that do so wait for each other in the system: on two x86-64 cores a step of the bench
/// `schedule` is about a tenth faster with this, and steps beside a save in the background, which have the
/// parameters change in memory of their own, by a third. Each thread then holds what it once used until the
/// process ends or [`release_freed_memory`](crate::release_freed_memory) is called. Programs with a global
/// allocator of their own gain nothing, and libraries in C that they use are meant as well.
pub fn keep_freed_blocks() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// The largest that every version of glibc takes.
        const LARGEST_BLOCK: libc::c_int = 32 << 20;
        /// Blocks up to here come from memory that was freed before.
        const BLOCK: libc::c_int = 1 << 30;
        /// A heap of a thread. It is given back once it is empty, unless more than this is to be spare.
        const HEAP: libc::c_int = 64 << 20;
        // SAFETY: `mallopt` takes any two integers, from any thread; it refuses what it does not know.
        unsafe {
            let blocks = libc::mallopt(libc::M_MMAP_THRESHOLD, BLOCK) == 1
                || libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_BLOCK) == 1;
            let rest = libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX) == 1;
            let heaps = libc::mallopt(libc::M_TOP_PAD, HEAP + 4096) == 1;
            blocks && rest && heaps
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// Has the C library give back what it keeps; whether it had any.
pub(crate) fn trim() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it touches nothing but memory that nobody has.
        unsafe { libc::malloc_trim(0) == 1 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_thread_freed_is_taken_again_without_faults() {
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
