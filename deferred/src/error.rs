//! Errors of this crate.

use std::fmt;

use crate::ParameterPath;

/// One reason why a source can't answer one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// The source does not have the parameter.
    Missing {
        /// Its path.
        path: ParameterPath,
    },
    /// The source has a parameter that the model does not.
    Extra {
        /// Its path.
        path: ParameterPath,
    },
    /// The shapes differ.
    Shape {
        /// Path of the parameter.
        path: ParameterPath,
        /// The model's shape.
        expected: Vec<u64>,
        /// The source's shape.
        found: Vec<u64>,
    },
    /// The dtypes differ.
    DType {
        /// Path of the parameter.
        path: ParameterPath,
        /// The model's dtype.
        expected: String,
        /// The source's dtype.
        found: String,
    },
    /// The region does not lie inside the parameter.
    Region {
        /// Path of the parameter.
        path: ParameterPath,
        /// What is wrong with it.
        reason: tinderbox_fake::RegionError,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => write!(f, "missing: {path}"),
            Self::Extra { path } => write!(f, "extra: {path}"),
            Self::Shape {
                path,
                expected,
                found,
            } => {
                write!(
                    f,
                    "shape of {path}: the model has {expected:?}, the source {found:?}"
                )
            }
            Self::DType {
                path,
                expected,
                found,
            } => {
                write!(
                    f,
                    "dtype of {path}: the model has {expected}, the source {found}"
                )
            }
            Self::Region { path, reason } => write!(f, "region of {path}: {reason}"),
        }
    }
}

/// Every mismatch of a load, one to a line.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Mismatches(pub Vec<Mismatch>);

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mismatch in &self.0 {
            write!(f, "\n  {mismatch}")?;
        }
        Ok(())
    }
}

/// Why a source gave no values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Some requests can't be answered; nothing was loaded.
    #[error("{described} does not fit the model, nothing was loaded:{mismatches}")]
    Mismatch {
        /// What the source is.
        described: String,
        /// All that is wrong.
        mismatches: Mismatches,
    },
    /// The source itself failed: a file, a digest, an operation.
    #[error("loading from {described} failed")]
    Failed {
        /// What the source is.
        described: String,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
