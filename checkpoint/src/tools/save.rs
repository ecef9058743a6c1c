//! Saves all ranks of a checkpoint from one process.

use std::{path::PathBuf, time::Duration};

use crate::{Attempt, RankSave, SaveError};
use tinderbox_deferred::Observer;

/// Never reached, because all parts exist before the wait begins.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);

/// Writes one rank after the other and publishes; returns the directory. The contents of a rank are created
/// when the rank is written, because descriptions of tensors include all their digests.
pub(super) fn save(
    attempt: Attempt,
    (tensors, bytes): (usize, u64),
    of_rank: impl Fn(u32) -> RankSave,
    progress: &dyn Observer,
) -> Result<PathBuf, SaveError> {
    progress.begin(tensors, bytes);
    let handle = attempt.handle();
    for rank in 0..handle.world_size() {
        let RankSave { tensors, scalars } = of_rank(rank);
        handle.write_rank_with(rank, &tensors, &scalars, &Begun(progress))?;
    }
    let dir = attempt.publish(PARTS_TIMEOUT)?;
    progress.end();
    Ok(dir)
}

/// Progress of work whose bytes were announced for all ranks at once.
struct Begun<'a>(&'a dyn Observer);

impl Observer for Begun<'_> {
    fn advanced(&self, bytes: u64) {
        self.0.advanced(bytes);
    }
}
