//! What a load allows.

use std::{fmt, sync::Arc};

use regex::Regex;

use super::load::default_threads;
use crate::Progress;

/// What a load allows beyond an exact fit. By default nothing: a parameter that is missing, an extra
/// one, another shape or dtype is an error that lists all of them.
#[derive(Clone)]
pub struct LoadOptions {
    pub(super) allow_extra: bool,
    pub(super) allow_missing: bool,
    pub(super) allow_shape: bool,
    pub(super) cast: bool,
    pub(super) renames: Vec<(Regex, String)>,
    pub(super) threads: usize,
    pub(super) progress: Arc<dyn Progress>,
}

impl fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadOptions")
            .field("allow_extra", &self.allow_extra)
            .field("allow_missing", &self.allow_missing)
            .field("allow_shape", &self.allow_shape)
            .field("cast", &self.cast)
            .field("renames", &self.renames)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            allow_extra: false,
            allow_missing: false,
            allow_shape: false,
            cast: false,
            renames: Vec::new(),
            threads: default_threads(),
            progress: Arc::new(()),
        }
    }
}

impl LoadOptions {
    /// Saved parameters that the model does not have are left alone.
    #[must_use]
    pub fn allow_extra(self) -> Self {
        Self {
            allow_extra: true,
            ..self
        }
    }

    /// Parameters that were not saved come from elsewhere: from the source that stands behind this one,
    /// see [`or_else`](tinderbox_deferred::Source::or_else).
    #[must_use]
    pub fn allow_missing(self) -> Self {
        Self {
            allow_missing: true,
            ..self
        }
    }

    /// Parameters that were saved in another shape count as missing.
    #[must_use]
    pub fn allow_shape(self) -> Self {
        Self {
            allow_shape: true,
            ..self
        }
    }

    /// Float types are cast to each other, rounded to the nearest, ties to even.
    #[must_use]
    pub fn cast(self) -> Self {
        Self { cast: true, ..self }
    }

    /// Renames what was saved: in every name, the first match of the pattern becomes the replacement,
    /// where `$1` and `${name}` stand for groups. Several are done one after the other.
    #[must_use]
    pub fn rename(mut self, pattern: Regex, replacement: impl Into<String>) -> Self {
        self.renames.push((pattern, replacement.into()));
        self
    }

    /// Reads on so many threads; the number of cores, up to 8, unless chosen.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Tells how far a load is.
    #[must_use]
    pub fn progress(self, progress: Arc<dyn Progress>) -> Self {
        Self { progress, ..self }
    }

    /// The name of a saved tensor after all renames.
    pub(super) fn renamed(&self, name: &str) -> String {
        let mut name = name.to_owned();
        for (pattern, replacement) in &self.renames {
            name = pattern.replace(&name, replacement).into_owned();
        }
        name
    }
}
