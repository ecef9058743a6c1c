//! Fresh memory in large pages, and freed memory kept.
//!
//! What fills a large tensor for the first time spends most of its time waiting for the system, which
//! hands out memory in pages of 4 KiB, one interruption each. [`zeroed`] asks it for pages of 2 MiB
//! instead. On two x86-64 cores, filling fresh memory is then twice as fast.
//!
//! # What it is not
//! No allocator: the memory is an ordinary `Vec` of the global allocator, to be grown, given away and
//! freed like any other.
//!
//! ```
//! let mut weights: Vec<f32> = tinderbox_pages::zeroed(16 << 20);
//! assert!(weights.iter().all(|weight| *weight == 0.0));
//! weights.fill(1.0);
//! ```
//!
//! # Invariants
//! - Large pages are a matter of speed only: where the system gives none, all else is the same.
//! - This crate alone holds `unsafe` code, in three files, so that no other crate of the workspace does.
//!
//! # Limits
//! - Linux gives large pages where `/sys/kernel/mm/transparent_hugepage/enabled` says `madvise` or
//!   `always`; other systems are not asked.

mod advise;
mod fresh;
mod mapped;
mod retain;

pub use fresh::{try_zeroed, zeroed};
#[cfg(target_os = "linux")]
pub use mapped::copy_mapped;
pub use retain::retain_freed_memory;
