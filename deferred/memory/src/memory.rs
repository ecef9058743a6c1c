//! Memory that several threads write to before it becomes the bytes of a tensor.
//!
//! This needs `unsafe`: Burn's trait for the owner of bytes is unsafe, and reused memory is initialized only once it is
//! ready.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};

use crate::block::{Block, Origin};
use crate::page_size;
use crate::system::SMALL_PAGE;

/// Memory for the bytes of a tensor.
///
/// Its initial contents are unspecified: zeros, or the contents of a freed block.
///
/// ```
/// let mut memory = tinderbox_memory::Memory::new(8 << 20, 4).ok_or("not enough memory")?;
/// let (first, second) = memory.parts().split_at(4 << 20);
/// std::thread::scope(|scope| {
///     scope.spawn(|| first.ready().fill(1));
///     scope.spawn(|| second.ready().fill(2));
/// });
/// let bytes = memory.into_bytes();
/// assert_eq!(bytes[(4 << 20) - 1..][..2], [1, 2]);
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
pub struct Memory {
    /// `None` after Burn turned it into a `Vec`.
    block: Option<Block>,
    length: usize,
    whole: Whole,
}

/// The state that the parts of a memory share.
#[derive(Debug)]
struct Whole {
    addresses: Range<usize>,
    origin: Origin,
    /// Bytes of the parts that are ready.
    ready: AtomicUsize,
}

impl Memory {
    /// Allocates `bytes` bytes; `None` when there is not enough memory, or `align` is not a power of two.
    ///
    /// The cost does not depend on the size, unless the allocator clears memory that it reuses.
    pub fn new(bytes: usize, align: usize) -> Option<Self> {
        let (block, origin) = Block::take(bytes, align)?;
        let start = block.bytes().as_ptr().addr();
        Some(Self {
            block: Some(block),
            length: bytes,
            whole: Whole {
                addresses: start..start + bytes,
                origin,
                ready: AtomicUsize::new(0),
            },
        })
    }

    /// Borrows the whole memory, to be split among threads.
    pub fn parts(&mut self) -> Part<'_> {
        // Parts of one call are disjoint, so that each byte is counted once.
        *self.whole.ready.get_mut() = 0;
        let bytes = self.block.as_mut().map_or(&mut [][..], Block::bytes_mut);
        Part {
            bytes: &mut bytes[..self.length],
            of: &self.whole,
        }
    }

    /// Turns the memory into the bytes of a tensor, without a copy.
    pub fn into_bytes(mut self) -> Bytes {
        let length = self.length;
        if *self.whole.ready.get_mut() < length {
            self.parts().ready();
        }
        // SAFETY: all parts are ready, so all bytes are initialized and are not changed by the kernel.
        unsafe { Bytes::from_controller(Box::new(self), length) }
    }
}

impl AllocationController for Memory {
    fn alloc_align(&self) -> usize {
        self.block.as_ref().map_or(1, Block::align)
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Native
    }

    unsafe fn memory_mut(
        &mut self,
        _policy: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        Ok(self.block.as_mut().map_or(&mut [], Block::bytes_mut))
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        Ok(self.block.as_ref().map_or(&[], Block::bytes))
    }

    fn try_detach(&mut self) -> Option<NonNull<u8>> {
        self.block.take().map(Block::detach)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            block.give_back();
        }
    }
}

/// A part of a [`Memory`], for one thread.
#[derive(Debug)]
pub struct Part<'a> {
    bytes: &'a mut [MaybeUninit<u8>],
    of: &'a Whole,
}

impl<'a> Part<'a> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the part is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Splits off the first `bytes` bytes.
    ///
    /// # Panics
    ///
    /// When the part is shorter than `bytes`.
    pub fn split_at(self, bytes: usize) -> (Self, Self) {
        let (first, rest) = self.bytes.split_at_mut(bytes);
        let part = |bytes| Self { bytes, of: self.of };
        (part(first), part(rest))
    }

    /// Splits into parts of `bytes` bytes; the last may be shorter.
    ///
    /// # Panics
    ///
    /// When `bytes` is 0.
    pub fn chunks(self, bytes: usize) -> Vec<Self> {
        let chunks = self.bytes.chunks_mut(bytes);
        chunks.map(|bytes| Self { bytes, of: self.of }).collect()
    }

    /// Populates the pages of the part on this thread, and returns the memory, whose contents are unspecified. Parts
    /// of 256 KiB to a few MiB remain in the caches until they are written to.
    pub fn ready(self) -> &'a mut [u8] {
        if self.of.origin == Origin::Reclaimable {
            // The kernel no longer reclaims a page that was written to. The last step may extend into one more page.
            let steps = (0..self.bytes.len()).step_by(SMALL_PAGE);
            for at in steps.chain(self.bytes.len().checked_sub(1)) {
                let byte = &raw mut self.bytes[at];
                // SAFETY: the pointer is to a byte of this part.
                unsafe { byte.write_volatile(byte.read_volatile()) };
            }
        }
        let len = self.bytes.len();
        self.of.ready.fetch_add(len, Ordering::Relaxed);
        // SAFETY: the allocator returned zeros, or the block was written before it was freed; and the kernel no
        // longer changes the pages.
        let bytes = unsafe { self.bytes.assume_init_mut() };
        if self.of.origin == Origin::Fresh {
            page_size::populate(bytes, &self.of.addresses);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{UNUSED_MEMORY, kept_sizes as kept};
    use crate::release_freed_memory;

    /// The kept blocks are shared by the process, so only one test examines them.
    #[test]
    fn freed_blocks_are_used_again() {
        let _unused = UNUSED_MEMORY.lock();
        const BYTES: usize = 6 << 20;
        let filled = |value: u8| {
            let mut memory = Memory::new(BYTES, 4).unwrap();
            let origin = memory.whole.origin;
            for part in memory.parts().chunks(300_001) {
                part.ready().fill(value);
            }
            (origin, memory.into_bytes())
        };
        let address = |bytes: &Bytes| bytes.as_ptr().addr();
        let (origin, first) = filled(1);
        assert_eq!(origin, Origin::Fresh);
        let was = address(&first);
        drop(first);
        let (origin, second) = filled(2);
        assert_eq!((origin, address(&second)), (Origin::Reused, was));
        assert!(second.iter().all(|byte| *byte == 2));
        // One block is in use and no block is kept: the second is new, like one of another alignment or a smaller size.
        let (origin, third) = filled(3);
        assert_eq!(origin, Origin::Fresh);
        drop((second, third));
        assert_eq!(Memory::new(BYTES, 8).unwrap().whole.origin, Origin::Fresh);
        assert_eq!(
            Memory::new(BYTES - (1 << 20), 4).unwrap().whole.origin,
            Origin::Fresh
        );
        // In total there are at most two blocks: one of the first two was freed for these.
        assert_eq!(kept().len(), 2);
        assert!(release_freed_memory());
        assert!(kept().is_empty());
        // Burn may turn it into a `Vec`, which then belongs to the allocator.
        let (_, bytes) = filled(4);
        let was = address(&bytes);
        let list: Vec<u32> = bytes.try_into_vec().unwrap();
        assert_eq!(list.as_ptr().addr(), was);
        assert_eq!(list, vec![0x0404_0404; BYTES / 4]);
        drop(list);
        assert!(kept().is_empty());
        // Making any parts of reused memory ready, any number of times, keeps written bytes.
        drop(filled(5));
        let mut memory = Memory::new(BYTES, 4).unwrap();
        let half = |memory: &mut Memory| memory.parts().split_at(BYTES / 2).0.ready().to_vec();
        memory.parts().split_at(BYTES / 2).0.ready().fill(6);
        assert_eq!(half(&mut memory), half(&mut memory));
        let bytes = memory.into_bytes();
        assert!(bytes[..BYTES / 2].iter().all(|byte| *byte == 6));
        // A failed allocation does not change the counts.
        for bytes in [isize::MAX as usize - 100, usize::MAX - 3, usize::MAX] {
            assert!(Memory::new(bytes, 8).is_none(), "{bytes}");
        }
        assert!(Memory::new(8, 3).is_none(), "not a power of two");
        drop(bytes);
        drop(Memory::new(BYTES, 8));
        assert_eq!(kept().len(), 2, "the number that was in use at a time");
        assert!(release_freed_memory());
        // The newest of many is reused first, and the kernel may reclaim the older ones: 10 of 6 MiB are recent.
        let many: Vec<_> = (0..12).map(|value| filled(value).1).collect();
        let newest = address(&many[11]);
        drop(many);
        let (origin, again) = filled(13);
        assert_eq!((origin, address(&again)), (Origin::Reused, newest));
        if cfg!(target_os = "linux") {
            let rest: Vec<_> = (0..11).map(filled).collect();
            let origins = rest.iter().map(|(origin, _)| *origin);
            let recent = origins.filter(|origin| *origin == Origin::Reused).count();
            assert_eq!(recent, 9);
            for (value, (_, bytes)) in rest.iter().enumerate() {
                assert!(bytes.iter().all(|byte| *byte == value as u8));
            }
        }
        assert!(release_freed_memory() || !cfg!(target_os = "linux"));
    }

    #[test]
    fn any_length_can_be_filled() {
        for length in [0, 1, 1000, 4096, (3 << 20) + 3] {
            let mut memory = Memory::new(length, 8).unwrap();
            assert_eq!(memory.parts().len(), length);
            memory.parts().ready().fill(7);
            let mut bytes = memory.into_bytes();
            assert_eq!(bytes.len(), length);
            assert!(bytes.iter().all(|byte| *byte == 7));
            bytes.extend_from_byte_slice(&[8; 100]);
            assert_eq!(bytes[length..], [8; 100]);
        }
    }
}
