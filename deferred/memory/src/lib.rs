//! Memory for tensors: populated in the faster page size, and reused after it is freed.
//!
//! Writing to a large new tensor spends most of its time in page faults, one per page of 4 KiB. This crate
//! reduces them in three ways:
//!
//! - [`Part::ready`] populates the pages of a part by one system call, on the thread that then writes to it.
//! - It uses huge pages (2 MiB) where they are measured to be faster ([`PageChoice`]). On a virtual machine that
//!   returns free memory to its host they can be several times slower than small pages.
//! - Freed blocks of 4 MiB and more are reused. Until then the kernel may reclaim their pages, except the pages of
//!   the last 64 MiB. The blocks still count toward limits on address space and committed memory;
//!   [`release_freed_memory`] frees them.
//!
//! [`keep_freed_blocks`] configures the C library to reuse the memory of all other tensors.
//!
//! # Not an allocator
//! Each block is allocated by the global allocator, and Burn can turn it into a `Vec` without a copy.
//!
//! # Invariants
//! - Page size and reuse affect speed only.
//! - After an allocation, blocks in use and kept blocks together are at most the highest number of bytes that
//!   were in use at one time.
//! - All `unsafe` code of the workspace is in this crate.
//!
//! # Modules
//!
//! In order: a module uses only the modules before it.
//!
//! ```text
//! system mapped block page_size memory
//! ```
//!
//! # Limits
//! - On systems other than Linux, allocations are ordinary. Memory is populated since Linux 5.14. Page sizes can be
//!   chosen if `/sys/kernel/mm/transparent_hugepage/enabled` is `madvise`; with `always`, Linux uses huge pages without
//!   advice.

mod block;
mod mapped;
mod memory;
mod page_size;
mod system;

pub use block::release_freed_memory;
#[cfg(target_os = "linux")]
pub use mapped::copy_mapped;
pub use memory::{Memory, Part};
pub use page_size::PageChoice;
pub use system::{advise_huge_pages, keep_freed_blocks, return_freed_blocks};
