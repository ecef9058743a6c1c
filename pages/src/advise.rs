//! Asks the system for large pages.
//!
//! Why safe code can't do it: the only way to ask is the system call `madvise`, for which neither the
//! standard library nor a well-kept crate has a safe function on memory that the caller owns.
//! `memmap2` has one for its own mappings, but a mapping is no `Vec`: a tensor on top of it would be
//! copied at its first change in place.
#![allow(unsafe_code)]

/// Smaller memory would hold few whole large pages, if any: the call would cost more than it saves.
#[cfg(target_os = "linux")]
const LEAST_BYTES: usize = 4 << 20;

/// Asks for large pages behind this memory. What the answer is makes no difference but in speed.
#[cfg(target_os = "linux")]
pub(crate) fn advise_large_pages<T>(memory: &mut [T]) {
    let bytes = size_of_val(memory);
    if bytes < LEAST_BYTES {
        return;
    }
    // SAFETY: a query without arguments that point anywhere.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let Ok(page) = usize::try_from(page) else {
        return;
    };
    // The call takes whole pages. Those at the ends hold parts of this memory too, so they are mapped.
    let before = memory.as_ptr().addr() % page;
    let start = memory.as_mut_ptr().cast::<u8>().wrapping_sub(before);
    let length = (before + bytes).next_multiple_of(page);
    // SAFETY: this advice never changes, moves or unmaps what is in the pages, whoever owns it, and
    // the call reads and writes no memory through the pointer. A failure is without effect, and left
    // alone: it says that this system has no large pages.
    unsafe {
        libc::madvise(start.cast(), length, libc::MADV_HUGEPAGE);
    }
}

/// Other systems have no such call.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_large_pages<T>(_memory: &mut [T]) {}
