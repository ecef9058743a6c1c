//! Frames of other processes, each kept until it is awaited.

use std::collections::BTreeMap;
use std::time::Duration;

use tinderbox_world::link::Awaited;
use tinderbox_world::{Buffer, Failure, Handler, WorldError};

use crate::schedule::RankIndex;

/// The frames that have arrived, by their sender and number, and the failure of the world. The header of a frame is its number,
/// in four little-endian bytes.
#[derive(Default)]
pub(crate) struct Arrivals(Awaited<(Frames, Option<Failure>)>);

type Frames = BTreeMap<(RankIndex, u32), Vec<Buffer>>;

impl Arrivals {
    /// Waits for a frame, and returns its pieces; `None` after the timeout.
    ///
    /// # Errors
    ///
    /// When a process has failed, and the frame has not arrived.
    pub(crate) fn wait_for(
        &self,
        frame: (RankIndex, u32),
        timeout: Duration,
    ) -> Result<Option<Vec<Buffer>>, WorldError> {
        let found = self.0.wait_for(timeout, |(frames, failure)| {
            let failed = || Some(Err(WorldError::Failed(failure.clone()?)));
            frames.remove(&frame).map(Ok).or_else(failed)
        });
        found.transpose()
    }
}

impl Handler for Arrivals {
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) {
        if let Ok(number) = header.try_into() {
            let frame = (from, u32::from_le_bytes(number));
            self.0.change(|(frames, _)| frames.insert(frame, pieces));
        }
    }

    fn failed(&self, failure: &Failure) {
        self.0.change(|(_, failed)| *failed = Some(failure.clone()));
    }
}
