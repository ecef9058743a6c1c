//! The errors of refused programs and lists.

use crate::{CertifyError, CertifySite};

/// The error of a place in a step that expected another value.
pub(super) fn other_value(site: Box<CertifySite>, expected: &str, found: String) -> CertifyError {
    CertifyError::Value {
        site,
        expected: expected.to_owned(),
        found,
    }
}

/// The error of a computation that differs from the recorded one.
pub(super) fn differs(
    site: Box<CertifySite>,
    what: String,
    expected: String,
    found: String,
) -> CertifyError {
    CertifyError::Differs {
        site,
        what,
        expected,
        found,
    }
}
