//! Classification of load errors for recovery.

use std::{error::Error, io};

use super::{FormatError, LoadError};

/// The class of a load error, which determines how a caller can recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The checkpoint is damaged: a digest does not match, or a file is truncated or missing. Only errors of
    /// this class make [`Run::latest`](crate::Run::latest) fall back to an older checkpoint.
    Damaged,
    /// The checkpoint is not known to be damaged, but has a version or form that this program does not read.
    NotSupported,
    /// The store failed repeatedly, or the directory of a step is a link that leads nowhere, for example to a disk that is not
    /// mounted. This does not indicate anything about the checkpoint. A later attempt may succeed.
    Transient,
    /// The store denied access, or the request does not match the contents of the checkpoint.
    Refused,
    /// The checkpoint does not exist.
    Missing,
}

impl LoadError {
    /// Returns the class of this error.
    pub fn class(&self) -> ErrorClass {
        use ErrorClass::{Damaged, Missing, Refused, Transient};
        match self {
            Self::Io { source, .. } => class_of_io(source),
            Self::Manifest { source, .. } => class_of_format(source),
            Self::NotPublished { .. } | Self::NoModel { .. } => Missing,
            // Its disk may not be mounted.
            Self::DanglingLink { .. } => Transient,
            Self::FileMissing { .. }
            | Self::NotAFile { .. }
            | Self::WrongStep { .. }
            | Self::FileSize { .. }
            | Self::DamagedFile { .. }
            | Self::Header { .. }
            | Self::DamagedTensor { .. }
            | Self::InvalidBoolean { .. }
            | Self::MoreDamage { .. }
            | Self::Index { .. }
            | Self::IndexMismatch { .. }
            | Self::LfsPointer { .. }
            | Self::MissingShards { .. }
            | Self::Offsets { .. }
            | Self::NoOffsets { .. }
            | Self::PartsDiffer { .. }
            | Self::Parts { .. }
            | Self::NoneUsable { .. } => Damaged,
            Self::NotUsable { source, .. } => source.class(),
            Self::OtherCheckpoint { .. }
            | Self::NoCast { .. }
            | Self::Overflow { .. }
            | Self::Renamed { .. }
            | Self::OutOfMemory { .. }
            | Self::Region { .. }
            | Self::MissingState { .. }
            | Self::Mismatch { .. }
            | Self::TwoModels { .. }
            | Self::OneShard { .. }
            | Self::Replaced { .. }
            | Self::NotARun { .. }
            | Self::IndexFile { .. } => Refused,
        }
    }

    /// Returns the class of the first load error in the source chain of an error, itself included, or `None`
    /// without one.
    pub fn class_in(error: &(dyn Error + 'static)) -> Option<ErrorClass> {
        let mut next = Some(error);
        while let Some(cause) = next {
            if let Some(found) = cause.downcast_ref::<Self>() {
                return Some(found.class());
            }
            if let Some(found) = cause.downcast_ref::<Box<Self>>() {
                return Some(found.class());
            }
            next = cause.source();
        }
        None
    }
}

/// Classifies a format error in a sealed file: its digest matches, so the writer wrote the invalid content.
fn class_of_format(error: &FormatError) -> ErrorClass {
    match error {
        FormatError::Envelope | FormatError::Digest { .. } => ErrorClass::Damaged,
        _ => ErrorClass::NotSupported,
    }
}

/// Classifies an I/O error of a store. Errors that are not known to be permanent are transient.
pub(crate) fn class_of_io(error: &io::Error) -> ErrorClass {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => ErrorClass::Missing,
        Kind::UnexpectedEof => ErrorClass::Damaged,
        Kind::FileTooLarge => ErrorClass::NotSupported,
        Kind::PermissionDenied
        | Kind::ReadOnlyFilesystem
        | Kind::Unsupported
        | Kind::InvalidInput
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::OutOfMemory
        | Kind::StorageFull
        | Kind::QuotaExceeded => ErrorClass::Refused,
        _ => ErrorClass::Transient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system() {
        for (code, expected) in [
            (2, ErrorClass::Missing),
            (5, ErrorClass::Transient),
            (13, ErrorClass::Refused),
            (23, ErrorClass::Transient),
            (24, ErrorClass::Transient),
            (30, ErrorClass::Refused),
            (110, ErrorClass::Transient),
        ] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(class_of_io(&error), expected, "{error}");
        }
    }
}
