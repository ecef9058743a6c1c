//! The id of a save attempt.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use twox_hash::XxHash3_128;

use crate::digest::hex_128;

/// The id of a save attempt. Every file of an attempt that could be confused with another attempt's contains
/// it, so that a delayed writer of an earlier attempt never contributes to a later checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId([u8; 16]);

impl AttemptId {
    /// Creates a new id.
    ///
    /// The id must be unique, not secret: it combines the standard library's random hash keys, which come
    /// from the operating system, with time, process id and a counter.
    pub(crate) fn fresh() -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |t| t.as_nanos());
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut seed = Vec::with_capacity(64);
        for salt in 0..2u64 {
            seed.extend(RandomState::new().hash_one(salt).to_le_bytes());
        }
        seed.extend(now.to_le_bytes());
        seed.extend(std::process::id().to_le_bytes());
        seed.extend(count.to_le_bytes());
        Self(XxHash3_128::oneshot(&seed).to_be_bytes())
    }
}

hex_128!(AttemptId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ids_differ_and_survive_their_text_form() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|_| AttemptId::fresh()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!(id.to_string().parse::<AttemptId>().unwrap(), id);
        }
    }
}
