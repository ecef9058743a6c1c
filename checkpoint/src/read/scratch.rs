//! The memory of loads.

use std::{
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The memory of each thread of a load. It is kept for the next load: the threads end, and an allocator that freed and allocated it
/// each time between values would need more memory in the end.
#[derive(Debug, Default)]
pub(super) struct Scratch(Mutex<Vec<Held>>);

impl Scratch {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        // It is whole after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory in which a thread has the block that it has read.
#[derive(derive_more::Debug, Default)]
pub(super) struct Held {
    #[debug(skip)]
    pub(super) memory: Vec<u8>,
    /// Where in the memory the block is.
    pub(super) range: Range<usize>,
    /// Memory to transpose.
    #[debug(skip)]
    pub(super) scratch: Vec<u8>,
    /// Whether the cache of the system is bypassed.
    pub(super) uncached: bool,
}
