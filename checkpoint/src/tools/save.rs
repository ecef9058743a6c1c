//! Saves all ranks of a checkpoint from one process.

use std::{path::PathBuf, time::Duration};

use super::ToolError;
use crate::{Attempt, Progress, RankSave};

/// Never reached, because all parts exist before the wait begins.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);

/// Writes one rank after the other and publishes; returns the directory. The contents of a rank are created
/// when the rank is written, because descriptions of tensors include all their digests.
pub(super) fn save(
    attempt: Attempt,
    bytes: u64,
    of_rank: impl Fn(u32) -> Result<RankSave, ToolError>,
    progress: &dyn Progress,
) -> Result<PathBuf, ToolError> {
    progress.begin(bytes);
    let handle = attempt.handle();
    for rank in 0..handle.world_size() {
        let RankSave { tensors, scalars } = of_rank(rank)?;
        handle.write_rank_with(rank, &tensors, &scalars, &Begun(progress))?;
    }
    Ok(attempt.publish(PARTS_TIMEOUT)?)
}

/// Progress of work whose bytes were announced for all ranks at once.
struct Begun<'a>(&'a dyn Progress);

impl Progress for Begun<'_> {
    fn done(&self, bytes: u64) {
        self.0.done(bytes);
    }
}
