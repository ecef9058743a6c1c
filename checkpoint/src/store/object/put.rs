//! Writes under a condition, and what became of those whose answer was lost.

use std::{io, sync::Arc};

use object_store::{
    Error, GetOptions, ObjectMeta, ObjectStore, PutMode, PutPayload, UpdateVersion, path::Path,
};

use super::outcome::{is_refusal, to_io};

/// Why a write under a condition is not known to be done.
#[derive(Debug)]
pub(super) enum PutError {
    /// It was not done: another object is there, or another than the one that was to be replaced.
    Taken(Error),
    /// It was not done: the store can't do it.
    Refused(Error),
    /// It may have been done, or may be yet.
    Unknown(Error),
}

impl From<PutError> for io::Error {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Taken(source) => Self::new(io::ErrorKind::AlreadyExists, source),
            PutError::Refused(source) | PutError::Unknown(source) => to_io(source),
        }
    }
}

/// The version of an object, as a condition.
pub(super) fn version_of(meta: &ObjectMeta) -> UpdateVersion {
    UpdateVersion {
        e_tag: meta.e_tag.clone(),
        version: meta.version.clone(),
    }
}

/// Writes an object if the condition holds.
///
/// The answer of a write can be lost, and then a repeated one finds that the condition does not hold any
/// more. So after an error, what counts is what is there: the bytes must be ours alone.
pub(super) async fn put_if(
    store: Arc<dyn ObjectStore>,
    at: Path,
    payload: PutPayload,
    mode: PutMode,
) -> Result<(), PutError> {
    let put = store
        .put_opts(&at, payload.clone(), mode.clone().into())
        .await;
    let error = match put {
        Ok(_) => return Ok(()),
        Err(error) if is_refusal(&error) => return Err(PutError::Refused(error)),
        Err(error) => error,
    };
    match read_back(&*store, &at, &payload).await {
        Ok((_, true)) => Ok(()),
        Ok((now, false)) if never_again(&mode, &now) => Err(PutError::Taken(error)),
        // What was to be replaced is gone, and another object would be of another version.
        Err(Error::NotFound { .. }) if matches!(mode, PutMode::Update(_)) => {
            Err(PutError::Taken(error))
        }
        // An answer that the condition does not hold is none, either: it may be that of a repeated request,
        // which has met the first one on its way.
        _ => Err(PutError::Unknown(error)),
    }
}

/// The version of what is there, and whether it has the bytes of the payload.
async fn read_back(
    store: &dyn ObjectStore,
    at: &Path,
    payload: &PutPayload,
) -> object_store::Result<(UpdateVersion, bool)> {
    let found = store.get_opts(at, GetOptions::default()).await?;
    let version = version_of(&found.meta);
    if found.meta.size != payload.content_length() as u64 {
        return Ok((version, false));
    }
    let bytes = found.bytes().await?;
    Ok((version, is_same(payload, &bytes)))
}

fn is_same(payload: &PutPayload, found: &[u8]) -> bool {
    let mut rest = found;
    for piece in payload {
        match rest.strip_prefix(&piece[..]) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}

/// Whether the condition can't hold any more, also for a write that is still on its way.
fn never_again(mode: &PutMode, now: &UpdateVersion) -> bool {
    match mode {
        PutMode::Create => true,
        PutMode::Update(expected) => expected != now,
        PutMode::Overwrite => false,
    }
}
