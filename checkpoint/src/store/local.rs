//! A store in a directory on this machine, or on a file system that all ranks can access.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use super::{Found, FoundKind, Lock, ReadFile, Store, WriteFile, direct, existing};

/// Size of the write buffer: small tensors are combined, larger ones bypass it.
const BUFFER_BYTES: usize = 1 << 20;

/// Number of bytes after which write-back of a file to the disk starts: less than a disk writes in a tenth of
/// a second.
const FLUSH_BYTES: u64 = 32 << 20;

/// A directory.
///
/// # Shared file systems
///
/// A lock (`flock`) distinguishes a live attempt from a dead one, and so determines whether its directory can
/// be removed. It is reliable only if the directory is on a local file system of this machine: ext2 to ext4,
/// XFS, Btrfs, ZFS, F2FS, bcachefs, tmpfs, ramfs, overlayfs, exFAT, FAT, ReiserFS. On any other (NFS, Lustre,
/// CephFS, GPFS, BeeGFS, SMB, 9P, FUSE, unknown types, and all systems but Linux) another machine may not see
/// the lock. As in a bucket, no attempt is then considered dead until the caller asserts that no process is
/// saving ([`Run::clean_when_idle`](crate::Run::clean_when_idle)).
///
/// A directory that this machine exports to others is indistinguishable from a local one: use
/// [`shared`](Self::shared) for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalStore {
    root: PathBuf,
    /// Whether links are followed in lookups and when opening files.
    follow: bool,
    /// Whether other machines can access it, regardless of its file system.
    shared: bool,
}

impl LocalStore {
    /// Creates the store of a directory, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            follow: false,
            shared: false,
        }
    }

    /// Declares that other machines can access the directory, although its file system is local to this
    /// machine: locks then do not identify dead attempts.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Creates a store whose files may be links, as in Hugging Face's cache, for reading files of other
    /// programs.
    pub(crate) fn following_links(root: impl Into<PathBuf>) -> Self {
        let mut store = Self::new(root);
        store.follow = true;
        store
    }

    /// Opens a file, and returns its version.
    pub(crate) fn open_version(&self, path: &str) -> io::Result<(Box<dyn ReadFile>, FileVersion)> {
        let (file, metadata) = open_plain(&self.place(path), self.follow)?;
        let version = FileVersion {
            id: id_of(&metadata),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        };
        let file = LocalRead {
            file,
            direct: OnceLock::new(),
            bytes: metadata.len(),
        };
        Ok((Box::new(file), version))
    }
}

impl Store for LocalStore {
    fn place(&self, path: &str) -> PathBuf {
        match path {
            "" => self.root.clone(),
            _ => self.root.join(path),
        }
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.place(dir))? {
            let entry = entry?;
            // Metadata of the entry itself, so a link to a directory is not a directory; missing if it was
            // removed concurrently.
            if let Some(metadata) = existing(entry.metadata())? {
                all.push(found(&entry.path(), &metadata));
            }
        }
        Ok(all)
    }

    fn look(&self, path: &str) -> io::Result<Found> {
        let path = self.place(path);
        metadata(&path, self.follow).map(|metadata| found(&path, &metadata))
    }

    fn link_target(&self, path: &str) -> io::Result<Option<PathBuf>> {
        let path = self.place(path);
        // With a separator at its end, a path is the path of the target.
        let path = path.components().as_path();
        match fs::symlink_metadata(path)?.is_symlink() {
            true => fs::read_link(path).map(Some),
            false => Ok(None),
        }
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        self.open_version(path).map(|(file, _)| file)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>> {
        let file = File::create_new(self.place(path))?;
        Ok(Box::new(LocalWrite {
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            unflushed: 0..0,
        }))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        if !path.is_empty() {
            return fs::create_dir(self.place(path));
        }
        let missing = self.root.ancestors().take_while(|dir| !dir.exists());
        let missing = missing.count();
        fs::create_dir_all(&self.root)?;
        // Syncs the parent even if the root exists, because another process may have just created it.
        let mut parents = self.root.ancestors().skip(1).take(missing.max(1));
        // Joined with `.`, because the last parent of a relative path is empty.
        parents.try_for_each(|parent| sync_dir(&parent.join(".")))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.place(from), self.place(to));
        // The system's own rename allows a directory to replace an empty one, and a link to replace a file.
        if !fs::symlink_metadata(&from)?.is_file() && fs::symlink_metadata(&to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(from, to)
    }

    #[cfg(target_os = "linux")]
    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;

        let (one, other) = (self.place(one), self.place(other));
        let exchanged = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
        exchanged.map_err(|error| match error {
            // The file system does not support this call or this flag.
            Errno::INVAL | Errno::NOSYS => io::ErrorKind::Unsupported.into(),
            error => error.into(),
        })
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.place(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.place(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        sync_dir(&self.place(path))
    }

    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock> {
        let path = self.place(path);
        let mut file = File::create_new(&path)?;
        if let Err(error) = file.lock() {
            // Without locks no other process can lock it either, and it is never removed as dead.
            tracing::warn!(path = %path.display(), %error, "this file system does not support locks");
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        // Cleanup considers a marker without contents dead; from here on it has contents.
        fs::metadata(&path)?;
        Ok(Lock::of(file))
    }

    fn has_locks(&self) -> bool {
        !self.shared && is_of_one_machine(&self.root)
    }

    fn try_lock(&self, path: &str) -> io::Result<Option<Lock>> {
        let (file, _) = open_plain(&self.place(path), false)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(None),
            // A process on another machine may hold the lock nevertheless. NFS does not grant an exclusive
            // lock of a file that is open for reading, and some file systems do not grant any.
            _ if !self.has_locks() => Err(io::ErrorKind::Unsupported.into()),
            Ok(()) => Ok(Some(Lock::of(file))),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// The identity of a file and of its contents: another file, or a later write, has another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion {
    id: (u64, u64),
    bytes: u64,
    /// The time of the last write; `None` if the system does not know it.
    modified: Option<SystemTime>,
}

/// Returns whether only this machine can access the file system of a directory, which need not exist. A lock is then visible to
/// all processes. Returns `false` if that can't be determined.
#[cfg(target_os = "linux")]
fn is_of_one_machine(dir: &Path) -> bool {
    // Joined with `.`, because the last parent of a relative path is empty.
    let mut found = dir.ancestors().map(|dir| rustix::fs::statfs(dir.join(".")));
    // The directory itself may not exist yet.
    let found = found.find(|found| !matches!(found, Err(rustix::io::Errno::NOENT)));
    matches!(found, Some(Ok(found)) if OF_ONE_MACHINE.contains(&(found.f_type as u32)))
}

/// Returns `false`: the file system is determined on Linux only.
#[cfg(not(target_os = "linux"))]
fn is_of_one_machine(_dir: &Path) -> bool {
    false
}

/// The type numbers of file systems that one machine can access, from `linux/magic.h` and `statfs(2)`.
#[cfg(target_os = "linux")]
const OF_ONE_MACHINE: [u32; 12] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683E, // Btrfs
    0x2FC1_2FC1, // ZFS
    0xF2F5_2010, // F2FS
    0xCA45_1A4E, // bcachefs
    0x0102_1994, // tmpfs
    0x8584_58F6, // ramfs
    0x794C_7630, // overlayfs
    0x2011_BAB0, // exFAT
    0x4D44,      // FAT
    0x5265_4973, // ReiserFS
];

/// Returns the metadata of the entry, or of the target of a link.
fn metadata(path: &Path, follow: bool) -> io::Result<Metadata> {
    match follow {
        true => fs::metadata(path),
        false => fs::symlink_metadata(path),
    }
}

/// Opens a regular file. A link could lead out of the store, and is refused unless links are followed; a pipe would block until
/// it has a writer.
fn open_plain(path: &Path, follow: bool) -> io::Result<(File, Metadata)> {
    let refused = || io::Error::from(io::ErrorKind::InvalidInput);
    let before = metadata(path, follow)?;
    if !before.is_file() {
        return Err(refused());
    }
    let mut options = File::options();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // The entry may have been replaced since.
        let mut flags = rustix::fs::OFlags::NONBLOCK;
        flags.set(rustix::fs::OFlags::NOFOLLOW, !follow);
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    let after = file.metadata()?;
    match after.is_file() && id_of(&before) == id_of(&after) {
        true => Ok((file, after)),
        false => Err(refused()),
    }
}

fn found(path: &Path, metadata: &Metadata) -> Found {
    let name = path.file_name().unwrap_or_default();
    Found {
        name: name.to_string_lossy().into_owned(),
        kind: match metadata {
            m if m.is_file() => FoundKind::File,
            m if m.is_dir() => FoundKind::Dir,
            m if m.is_symlink() => FoundKind::Link,
            _ => FoundKind::Other,
        },
        bytes: metadata.len(),
        modified: metadata.modified().ok(),
    }
}

#[derive(Debug)]
struct LocalRead {
    file: File,
    /// The same file for reads around the cache, opened by the first of them.
    direct: OnceLock<Option<File>>,
    bytes: u64,
}

impl ReadFile for LocalRead {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()> {
        direct::read_at_least(&self.file, into, start, into.len())
    }

    fn read_uncached(&self, into: &mut [u8], start: u64, least: usize) -> io::Result<bool> {
        match self.direct.get_or_init(|| direct::open(&self.file)) {
            Some(file) => direct::read(file, into, start, least),
            None => Ok(false),
        }
    }
}

#[derive(Debug)]
struct LocalWrite {
    file: BufWriter<File>,
    /// The bytes whose write-back has not started.
    unflushed: Range<u64>,
}

impl WriteFile for LocalWrite {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        let Range { start, end } = &mut self.unflushed;
        *end += bytes.len() as u64;
        if *end - *start >= FLUSH_BYTES {
            begin_flush(self.file.get_ref(), *start, *end - *start);
            *start = *end;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        let file = self.file.into_inner().map_err(|error| error.into_error())?;
        file.sync_all()
    }
}

/// Starts write-back of pages, so that the disk is not idle until the sync. The advice drops no pages that
/// have not been written back. An error affects only performance.
#[cfg(target_os = "linux")]
fn begin_flush(file: &File, start: u64, bytes: u64) {
    let bytes = std::num::NonZeroU64::new(bytes);
    let _ = rustix::fs::fadvise(file, start, bytes, rustix::fs::Advice::DontNeed);
}

/// Does nothing: the advice exists on Linux only.
#[cfg(not(target_os = "linux"))]
fn begin_flush(_file: &File, _start: u64, _bytes: u64) {}

/// Makes the entries of a directory durable. Systems other than Unix can't open a directory, and make renames durable by
/// themselves.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Returns the device of a file and its number there.
#[cfg(unix)]
fn id_of(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Returns the size of a file: files have no numbers on this system.
#[cfg(not(unix))]
fn id_of(metadata: &Metadata) -> (u64, u64) {
    (0, metadata.len())
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_one_machine_are_known() {
        for (name, number, is_local) in [
            ("ext4", 0xEF53, true),
            ("tmpfs", 0x0102_1994, true),
            ("overlayfs", 0x794C_7630, true),
            ("NFS", 0x6969, false),
            ("Lustre", 0x0BD0_0BD0, false),
            ("CephFS", 0x00C3_6400, false),
            ("GPFS", 0x4750_4653, false),
            ("SMB 2", 0xFE53_4D42, false),
            ("CIFS", 0xFF53_4D42, false),
            ("9P", 0x0102_1997, false),
            ("FUSE", 0x6573_5546, false),
            ("unknown", 0, false),
        ] {
            assert_eq!(OF_ONE_MACHINE.contains(&number), is_local, "{name}");
        }
    }

    /// A directory that does not exist is on the file system of its nearest existing ancestor.
    #[test]
    fn a_directory_that_does_not_exist_yet() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            is_of_one_machine(&dir.path().join("a/b")),
            is_of_one_machine(dir.path())
        );
        assert_eq!(
            is_of_one_machine(Path::new("a-b-c")),
            is_of_one_machine(Path::new("."))
        );
        assert!(!is_of_one_machine(Path::new("/proc")));
    }
}
