//! The errors of refused programs and lists.

use crate::{CertifyError, CertifySite};

/// The result of a check.
pub(super) type Result<T, E = CertifyError> = std::result::Result<T, E>;

/// The error of a place in a step that expected another value.
pub(super) fn other_value(site: Box<CertifySite>, expected: &str, found: String) -> CertifyError {
    differs(site, ["found".to_owned(), expected.to_owned(), found])
}

/// The error of a computation that differs from the recorded one.
pub(super) fn differs(
    site: Box<CertifySite>,
    [what, expected, found]: [String; 3],
) -> CertifyError {
    CertifyError::Differs {
        site,
        what,
        expected,
        found,
    }
}
