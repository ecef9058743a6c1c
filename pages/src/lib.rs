//! Memory for tensors: filled in the faster size of pages, and used again when it was freed.
//!
//! What fills a large tensor for the first time spends most of its time waiting for the system, which hands
//! out memory in pages of 4 KiB, one interruption each. Three things are done about it:
//!
//! - The pages that a thread is about to fill are made by one call, not by an interruption each.
//! - They are large ones (2 MiB) where those are faster. On a machine of its own they most often are. On a
//!   virtual machine that gives free memory back to its host they may be slower by a factor of three: it is
//!   measured ([`PageChoice`]).
//! - Blocks of 4 MiB and more that were freed are used again. Until then the system may take their pages
//!   whenever memory is short. Where limits are on addresses or on what is reserved, they count:
//!   [`release_freed_memory`] gives them back.
//!
//! [`keep_freed_blocks`] asks the same of the C library's allocator, for the tensors that Burn makes.
//!
//! # What it is not
//! No allocator: the memory is a block of the global allocator, and Burn can take it as a `Vec`.
//!
//! # Invariants
//! - All this is a matter of speed only: where the system takes no advice, all else is the same.
//! - When a block is added, those in use and those kept are together no more than were once in use at the same
//!   time.
//! - This crate alone holds `unsafe` code, so that no other crate of the workspace does.
//!
//! # Limits
//! - Only Linux is asked. It has large pages where `/sys/kernel/mm/transparent_hugepage/enabled` says
//!   `madvise` or `always`, and makes many pages by one call from 5.14 on.

mod block;
mod fill;
mod mapped;
mod memory;
mod system;

pub use block::release_freed_memory;
pub use fill::PageChoice;
#[cfg(target_os = "linux")]
pub use mapped::copy_mapped;
pub use memory::{Memory, Part};
pub use system::{ask_for_large_pages, keep_freed_blocks};
