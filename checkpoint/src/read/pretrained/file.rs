//! A file of another program, with a validated header.

use crate::{
    Digest, FileEntry, Header, LoadError, Role, decode_header,
    format::{burnpack_len, decode_burnpack, header_len, is_burnpack},
    read::failed,
    store::{FileVersion, LocalStore, ReadFile, Store},
};

/// The bytes of a file that contain the size of its header, of either format, and those by which a pointer is recognized.
const PREFIX_BYTES: u64 = 64;
/// The first bytes of a pointer to a file in Git LFS: <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Returns whether a file that begins with these bytes is a pointer of Git LFS.
pub(super) fn is_lfs_pointer(first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(LFS_POINTER)
}

/// A file with a validated header.
pub(super) struct PlainFile {
    /// `None` if it is opened again when it is read.
    pub(super) file: Option<Box<dyn ReadFile>>,
    pub(super) version: FileVersion,
    pub(super) entry: FileEntry,
    pub(super) header: Header,
    pub(super) is_burnpack: bool,
}

impl PlainFile {
    /// Opens a file of a directory, and checks that its tensors tile it.
    pub(super) fn open(store: &LocalStore, name: &str) -> Result<Self, LoadError> {
        let opened = store.open_version(name);
        let (file, version) = opened.map_err(failed(store, "open", name))?;
        let read = |len: u64| {
            // At most the format's limit of 100 MB, and at most the size of the file.
            let mut bytes = vec![0; len.min(file.bytes()) as usize];
            file.read_exact_at(&mut bytes, 0)
                .map_err(failed(store, "read", name))?;
            Ok::<_, LoadError>(bytes)
        };
        let path = || store.place(name);
        let refused = |source| LoadError::Header {
            path: path(),
            source,
        };
        let first = read(PREFIX_BYTES)?;
        if is_lfs_pointer(&first) {
            return Err(LoadError::LfsPointer { path: path() });
        }
        let is_burnpack = is_burnpack(&first);
        let header_bytes = match is_burnpack {
            true => burnpack_len(&first, file.bytes()),
            false => header_len(&first, file.bytes()),
        };
        let bytes = read(header_bytes.map_err(refused)?)?;
        let header = match is_burnpack {
            true => decode_burnpack(&bytes, file.bytes()),
            false => decode_header(&bytes, file.bytes()),
        };
        let header = header.map_err(refused)?;
        let entry = FileEntry {
            name: name.to_owned(),
            role: Role::Model,
            rank: 0,
            number: 0,
            size_bytes: file.bytes(),
            header_bytes: bytes.len() as u64,
            header_digest: Digest::of(&bytes),
        };
        Ok(Self {
            file: Some(file),
            version,
            entry,
            header,
            is_burnpack,
        })
    }
}
