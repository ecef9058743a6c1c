//! Panics and errors of a rank, as errors that name their place.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::Device;
use tinderbox_fake::{DeviceLabel, panic_message};

use crate::runtime::digest::AnyError;
use crate::schedule::{MicroBatchIndex, RankIndex, StageIndex};
use crate::{ActionError, ActionResult, RankError};

/// The error of an action or another part of a rank's work.
pub(super) fn action_error(
    rank: RankIndex,
    (stage, micro_batch): (Option<StageIndex>, Option<MicroBatchIndex>),
    text: &str,
    source: ActionError,
) -> RankError {
    RankError::Action {
        rank,
        stage,
        micro_batch,
        action: text.to_owned(),
        source: Box::new(source),
    }
}

/// The error of a device that failed.
pub(super) fn device_failed(device: &Device, error: impl Into<AnyError>) -> ActionError {
    let (device, source) = (DeviceLabel::of(device), error.into());
    ActionError::Device { device, source }
}

/// Runs a part of an action; converts a panic to an error.
pub(super) fn caught<T>(run: impl FnOnce() -> ActionResult<T>) -> ActionResult<T> {
    guarded(run).unwrap_or_else(|message| Err(ActionError::Panicked { message }))
}

/// Runs code that may panic, and returns the text of the panic.
pub(super) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panic_message(&*panic))
}
