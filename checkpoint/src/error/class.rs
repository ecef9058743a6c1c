//! What an error means for who wants to go on.

use std::{error::Error, io};

use super::{FormatError, LoadError};

/// What an error of a load means for who wants to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The checkpoint is not what was published: bytes have another digest, or a file is cut or gone. Only this is
    /// stepped over for an older checkpoint.
    Damaged,
    /// It is whole as far as this program can tell, and of a version or form that the program does not read.
    NotSupported,
    /// The store has failed several times, and says nothing about the checkpoint. It may answer later.
    Transient,
    /// The store denies it, or what was asked for is not what the checkpoint holds.
    Refused,
    /// There is no checkpoint.
    Missing,
}

impl LoadError {
    /// What it means for who wants to go on.
    pub fn class(&self) -> ErrorClass {
        use ErrorClass::{Damaged, Missing, Refused};
        match self {
            Self::Io { source, .. } => class_of_io(source),
            Self::Manifest { source, .. } => class_of_format(source),
            Self::NotPublished { .. } | Self::NoModel { .. } => Missing,
            Self::FileMissing { .. }
            | Self::NotAFile { .. }
            | Self::WrongStep { .. }
            | Self::FileSize { .. }
            | Self::DamagedFile { .. }
            | Self::Header { .. }
            | Self::DamagedTensor { .. }
            | Self::TruthValue { .. }
            | Self::MoreDamage { .. }
            | Self::Index { .. }
            | Self::IndexMismatch { .. }
            | Self::NoneUsable { .. } => Damaged,
            Self::NotUsable { source, .. } => source.class(),
            Self::OtherCheckpoint { .. }
            | Self::NoCast { .. }
            | Self::Renamed { .. }
            | Self::OutOfMemory { .. }
            | Self::Region { .. }
            | Self::MissingState { .. }
            | Self::Mismatch { .. }
            | Self::TwoModels { .. }
            | Self::IndexFile { .. } => Refused,
        }
    }

    /// The class of the load error that an error is, or that is among its causes; `None` without one.
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

/// Of a file that its writer has sealed: what is wrong although the digest is right was written so.
fn class_of_format(error: &FormatError) -> ErrorClass {
    match error {
        FormatError::Envelope | FormatError::Digest { .. } => ErrorClass::Damaged,
        _ => ErrorClass::NotSupported,
    }
}

/// Of an answer of the store. What is not known to last may pass.
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
