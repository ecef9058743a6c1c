//! Blocks of the global allocator, and the freed blocks that are kept for reuse.
//!
//! This needs `unsafe`: the kernel may replace the pages of a kept block by zeros at any time, so a kept block can't be
//! an initialized `Vec`.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::system;

/// Smaller blocks are freed at once: the allocator reuses them itself.
const LEAST_KEPT: usize = 4 << 20;
/// The bytes of the newest kept blocks that the kernel may not reclaim: a program that alternately frees and reads values
/// does not wait for each of their pages.
const RECENT_BYTES: usize = 64 << 20;

/// Memory of the global allocator with unspecified contents.
#[derive(Debug)]
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    /// Whether the kernel may zero a page until it is written to.
    is_reclaimable: bool,
}

// SAFETY: a block is owned like a `Box` of bytes.
unsafe impl Send for Block {}
// SAFETY: as above; a shared reference only allows reads.
unsafe impl Sync for Block {}

/// The origin of a block's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Zeros from the allocator, too small to populate.
    Small,
    /// Zeros from the allocator, usually without pages.
    Fresh,
    /// A reused block.
    Reused,
    /// A reused block. The kernel may zero a page until it is written to.
    Reclaimable,
}

impl Block {
    /// Allocates at least `bytes` bytes; `None` when there is not enough memory.
    pub(crate) fn take(bytes: usize, align: usize) -> Option<(Self, Origin)> {
        // At least one byte, and a multiple of the alignment.
        let size = bytes.checked_next_multiple_of(64)?.max(64);
        let layout = Layout::from_size_align(size, align).ok()?;
        if size < LEAST_KEPT {
            return Some((Self::zeroed(layout)?, Origin::Small));
        }
        let (used, removed) = KEPT.lock().reuse(layout);
        // Freed after the lock is released.
        drop(removed);
        let origin = match &used {
            Some(block) if block.is_reclaimable => Origin::Reclaimable,
            Some(_) => Origin::Reused,
            None => Origin::Fresh,
        };
        let block = used.or_else(|| Self::zeroed(layout)).or_else(|| {
            release_freed_memory();
            Self::zeroed(layout)
        });
        let mut kept = KEPT.lock();
        match &block {
            Some(_) => kept.most_used = kept.most_used.max(kept.used),
            None => kept.used -= size,
        }
        Some((block?, origin))
    }

    /// Keeps the block for reuse, or frees it.
    pub(crate) fn give_back(mut self) {
        if self.layout.size() < LEAST_KEPT {
            return;
        }
        self.is_reclaimable = false;
        let older = {
            let mut kept = KEPT.lock();
            kept.used -= self.layout.size();
            kept.blocks.push(self);
            kept.take_older()
        };
        if system::returns_freed_blocks() {
            return;
        }
        for mut block in older {
            // Without the lock, because it is slow.
            block.is_reclaimable = system::allow_reclaim(block.bytes_mut());
            if block.is_reclaimable {
                let mut kept = KEPT.lock();
                let at = kept.reclaimable();
                kept.blocks.insert(at, block);
            }
        }
    }

    /// Transfers ownership to the caller, who frees it with the global allocator.
    pub(crate) fn detach(self) -> NonNull<u8> {
        if self.layout.size() >= LEAST_KEPT {
            KEPT.lock().used -= self.layout.size();
        }
        ManuallyDrop::new(self).start
    }

    fn zeroed(layout: Layout) -> Option<Self> {
        // SAFETY: no layout here is empty.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start).map(|start| Self {
            start,
            layout,
            is_reclaimable: false,
        })
    }

    /// Returns the alignment in bytes.
    pub(crate) fn align(&self) -> usize {
        self.layout.align()
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: the block has this many bytes while it exists, and `MaybeUninit` allows any contents.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.layout.size()) }
    }

    /// Returns the bytes for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: as above, and `&mut self` is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.layout.size()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not used afterwards.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The freed blocks that are kept for reuse.
struct Kept {
    /// The reclaimable blocks before the others, each oldest first.
    blocks: Vec<Block>,
    /// Bytes of blocks in use.
    used: usize,
    /// The highest `used` so far.
    most_used: usize,
}

/// The kept blocks of this process. No change panics halfway, so the state is valid after a panic.
static KEPT: Mutex<Kept> = Mutex::new(Kept {
    blocks: Vec::new(),
    used: 0,
    most_used: 0,
});

impl Kept {
    /// Counts a block of this layout as used. Returns a kept block that is at most an eighth larger, or the blocks to free
    /// before a new block is allocated.
    fn reuse(&mut self, layout: Layout) -> (Option<Block>, Vec<Block>) {
        let size = layout.size();
        let fits = |block: &Block| {
            let kept = block.layout;
            kept.align() == layout.align() && kept.size() >= size && kept.size() - size <= size / 8
        };
        // The newest of the smallest.
        let numbered = self.blocks.iter().enumerate().rev();
        let fitting = numbered.filter(|(_, block)| fits(block));
        let best = fitting.min_by_key(|(_, block)| block.layout.size());
        if let Some((at, _)) = best {
            let block = self.blocks.remove(at);
            self.used += block.layout.size();
            return (Some(block), Vec::new());
        }
        self.used = self.used.saturating_add(size);
        let sizes = self.blocks.iter().map(|block| block.layout.size());
        let mut kept: usize = sizes.sum();
        let allowed = self.most_used.saturating_sub(self.used);
        let too_many = self.blocks.iter().take_while(|block| {
            let is_too_much = kept > allowed;
            kept -= block.layout.size();
            is_too_much
        });
        let too_many = too_many.count();
        (None, self.blocks.drain(..too_many).collect())
    }

    /// Returns the number of reclaimable blocks.
    fn reclaimable(&self) -> usize {
        self.blocks.partition_point(|block| block.is_reclaimable)
    }

    /// Removes the blocks that are neither reclaimable nor recent.
    fn take_older(&mut self) -> Vec<Block> {
        let mut bytes = 0;
        let newest = self.blocks.iter().rev().take_while(|block| {
            bytes += block.layout.size();
            bytes <= RECENT_BYTES
        });
        let recent = newest.count();
        let older = self.reclaimable()..self.blocks.len() - recent;
        if older.is_empty() {
            return Vec::new();
        }
        self.blocks.drain(older).collect()
    }
}

/// Frees all memory that is kept for reuse, by this crate and by the C library
/// ([`keep_freed_blocks`](crate::keep_freed_blocks)). Returns whether there was any.
pub fn release_freed_memory() -> bool {
    // Freed after the lock is released.
    let blocks = std::mem::take(&mut KEPT.lock().blocks);
    let any = !blocks.is_empty();
    drop(blocks);
    system::trim() || any
}

/// Held by tests that free the unused memory of the process, or expect that it is kept.
#[cfg(test)]
pub(crate) static UNUSED_MEMORY: Mutex<()> = Mutex::new(());

/// Returns the sizes of the kept blocks in bytes.
#[cfg(test)]
pub(crate) fn kept_sizes() -> Vec<usize> {
    KEPT.lock()
        .blocks
        .iter()
        .map(|block| block.layout.size())
        .collect()
}
