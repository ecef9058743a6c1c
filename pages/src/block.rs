//! A block of the global allocator, and those that were freed and wait for their next use.
//!
//! Why safe code can't do it: what a freed block holds is not known any more once the system may take its
//! pages, which no type of the standard library says of memory that it gives out again without a pass over
//! it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::system;

/// Smaller blocks are left to the allocator alone, which keeps such blocks itself.
const LEAST_KEPT: usize = 4 << 20;

/// Memory of the global allocator that may hold anything.
#[derive(Debug)]
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block is owned like a `Box` of bytes.
unsafe impl Send for Block {}
// SAFETY: as above; a shared block can only be looked at.
unsafe impl Sync for Block {}

/// Where a block's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From the allocator, as zeros, which most often has used its pages before.
    Small,
    /// From the allocator, as zeros. Its pages are most often not made yet.
    Fresh,
    /// It was freed before. What its pages hold may change until they are written to.
    Used,
}

impl Block {
    /// A block of at least so many bytes; `None` when there is not enough memory.
    pub(crate) fn take(bytes: usize, align: usize) -> Option<(Self, Origin)> {
        // Of a size that is a whole number of elements of any type, and never none.
        let size = bytes.checked_next_multiple_of(64)?.max(64);
        let layout = Layout::from_size_align(size, align).ok()?;
        if size < LEAST_KEPT {
            return Some((Self::zeroed(layout)?, Origin::Small));
        }
        let (used, removed) = kept().reuse(layout);
        // Outside of the lock: the system takes its time.
        drop(removed);
        let block = match used {
            Some(block) => Some((block, Origin::Used)),
            None => {
                let block = Self::zeroed(layout).or_else(|| {
                    release_freed_memory();
                    Self::zeroed(layout)
                });
                block.map(|block| (block, Origin::Fresh))
            }
        };
        let mut kept = kept();
        match &block {
            Some(_) => kept.most_used = kept.most_used.max(kept.used),
            None => kept.used -= size,
        }
        block
    }

    /// Gives it back, to be taken again.
    pub(crate) fn give_back(mut self) {
        if self.layout.size() < LEAST_KEPT {
            return;
        }
        let offered = system::offer(self.bytes_mut());
        let mut kept = kept();
        kept.used -= self.layout.size();
        if offered {
            kept.blocks.push(self);
        }
    }

    /// Gives it to whoever frees it with the global allocator.
    pub(crate) fn detach(self) -> NonNull<u8> {
        if self.layout.size() >= LEAST_KEPT {
            kept().used -= self.layout.size();
        }
        ManuallyDrop::new(self).start
    }

    fn zeroed(layout: Layout) -> Option<Self> {
        // SAFETY: no layout here is empty.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start).map(|start| Self { start, layout })
    }

    /// What its address is a multiple of.
    pub(crate) fn align(&self) -> usize {
        self.layout.align()
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: it has so many bytes as long as it is there, and they may hold anything.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.layout.size()) }
    }

    /// Its bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: as above, and nobody else has a reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.layout.size()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody uses it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Blocks that were freed.
///
/// When one is added, those in use and those kept are together no more than were once in use at the same time.
struct Kept {
    /// The oldest first.
    blocks: Vec<Block>,
    /// Bytes of blocks that are in use.
    used: usize,
    /// The most that were in use at a time.
    most_used: usize,
}

fn kept() -> MutexGuard<'static, Kept> {
    static KEPT: Mutex<Kept> = Mutex::new(Kept {
        blocks: Vec::new(),
        used: 0,
        most_used: 0,
    });
    // Nothing panics halfway through a change.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// Counts a block of this layout as used, and gives one that is large enough and hardly larger. Where there is none,
    /// gives those that make room for a new one.
    fn reuse(&mut self, layout: Layout) -> (Option<Block>, Vec<Block>) {
        let size = layout.size();
        let fits = |block: &Block| {
            let kept = block.layout;
            kept.align() == layout.align() && kept.size() >= size && kept.size() - size <= size / 8
        };
        let numbered = self.blocks.iter().enumerate();
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
        let room = self.most_used.saturating_sub(self.used);
        let too_many = self.blocks.iter().take_while(|block| {
            let stays = kept <= room;
            kept -= block.layout.size();
            !stays
        });
        let too_many = too_many.count();
        (None, self.blocks.drain(..too_many).collect())
    }
}

/// Gives all memory that is kept for its next use back to the system, that which the C library keeps
/// ([`keep_freed_blocks`](crate::keep_freed_blocks)) included; whether there was any.
pub fn release_freed_memory() -> bool {
    // They are freed outside of the lock.
    let blocks = std::mem::take(&mut kept().blocks);
    let any = !blocks.is_empty();
    drop(blocks);
    system::trim() || any
}

/// The sizes of the blocks that are kept.
#[cfg(test)]
pub(crate) fn kept_sizes() -> Vec<usize> {
    kept()
        .blocks
        .iter()
        .map(|block| block.layout.size())
        .collect()
}
