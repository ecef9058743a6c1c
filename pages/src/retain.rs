//! Asks the C library to keep what is freed.
#![allow(
    unsafe_code,
    reason = "the settings of the allocator are a function of the C library, which has no safe form"
)]

/// Keeps freed memory in the process, for whoever allocates next; `false` where the system's allocator
/// does not take the wish. It holds for the whole process and can't be taken back.
///
/// By default glibc gives large blocks back to the system when they are freed, and the system clears
/// them before it hands them out again. A training step frees and takes the same tensors for every
/// micro-batch, and threads that do so wait for each other in the system. On two x86-64 cores a step of the
/// bench `schedule` is about a tenth faster with this, in plain Burn and in a pipeline. The process then
/// holds its largest step's memory until it ends. Programs with a global allocator of their own gain
/// nothing.
pub fn retain_freed_memory() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// The largest that every version of glibc takes.
        const LARGEST_BLOCK: libc::c_int = 32 << 20;
        /// Blocks up to here come from memory that was freed before.
        const BLOCK: libc::c_int = 1 << 30;
        // SAFETY: `mallopt` takes any two integers, from any thread; it refuses what it does not know.
        unsafe {
            let blocks = libc::mallopt(libc::M_MMAP_THRESHOLD, BLOCK) == 1
                || libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_BLOCK) == 1;
            let rest = libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX) == 1;
            blocks && rest
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[cfg(test)]
mod tests {
    use super::*;

    /// Page faults of this process so far that needed no disk.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        // The name of the program, in brackets, may hold spaces; the tenth field counts the faults.
        let behind = stat.rsplit_once(')').unwrap().1;
        behind.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn memory_that_was_freed_is_taken_again_without_faults() {
        const BYTES: usize = 8 << 20;
        assert!(retain_freed_memory());
        let take = || std::hint::black_box(vec![1u8; BYTES]);
        drop(take());
        let before = faults();
        for _ in 0..8 {
            drop(take());
        }
        // Eight times 2,048 pages of 4 KiB, if they were fresh; other tests run beside this one.
        assert!(faults() - before < 4096, "{} faults", faults() - before);
    }
}
