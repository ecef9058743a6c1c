//! The newest checkpoint of a run.

use std::{fs, path::Path};

use super::{Checkpoint, plain_file::failed};
use crate::{LoadError, error::chain, format::parse_step_dir_name};

impl Checkpoint {
    /// The usable checkpoint with the highest step in a run's directory; `None` when there is no
    /// checkpoint, or no such directory.
    ///
    /// One that can't be opened is skipped with a `tracing` warning that says why. Tensor data is not
    /// read: damage in it is found when it is loaded.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoneUsable`] with all reasons when there are checkpoints and none can be opened.
    pub fn latest(run_dir: impl AsRef<Path>) -> Result<Option<Self>, LoadError> {
        let run_dir = run_dir.as_ref();
        let listing = match fs::read_dir(run_dir) {
            Ok(listing) => listing,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("list", run_dir)(error)),
        };
        let mut steps = Vec::new();
        for entry in listing {
            let entry = entry.map_err(failed("list", run_dir))?;
            // The type is that of the name itself, so a link to a directory is none.
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            if let (true, Ok(name)) = (is_dir, entry.file_name().into_string())
                && let Some(step) = parse_step_dir_name(&name)
            {
                steps.push((step, entry.path()));
            }
        }
        steps.sort();
        let mut reasons = Vec::new();
        for (step, path) in steps.into_iter().rev() {
            let opened = Self::open(&path).and_then(|checkpoint| {
                if checkpoint.step() == step {
                    Ok(checkpoint)
                } else {
                    Err(LoadError::WrongStep {
                        path: path.clone(),
                        expected: step,
                        found: checkpoint.step(),
                    })
                }
            });
            match opened {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                Err(error) => {
                    tracing::warn!(
                        dir = %path.display(), reason = %chain(&error),
                        "skipped a checkpoint that can't be used"
                    );
                    reasons.push(error);
                }
            }
        }
        if reasons.is_empty() {
            return Ok(None);
        }
        Err(LoadError::NoneUsable {
            path: run_dir.to_owned(),
            reasons,
        })
    }
}
