//! A directory on this machine, or on a file system that all ranks see.

use std::{
    fs::{self, File, Metadata, TryLockError},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::{Found, FoundKind, Lock, ReadFile, Store, WriteFile, existing};

/// Bytes that are gathered before a write: small tensors share one, large ones go past it.
const BUFFER_BYTES: usize = 1 << 20;

/// Bytes of a file after which their way to the disk begins: little beside what a disk writes in a tenth
/// of a second.
const FLUSH_BYTES: u64 = 32 << 20;

/// A directory.
///
/// # File systems that several machines share
///
/// A lock (`flock`) tells an attempt that lives from one that died, and so whether its directory may be removed. It does so
/// where the directory is on a file system of this machine: ext2 to ext4, XFS, Btrfs, ZFS, F2FS, bcachefs, tmpfs, ramfs,
/// overlayfs, exFAT, FAT, ReiserFS. Everywhere else (NFS, Lustre, CephFS, GPFS, BeeGFS, SMB, 9P, FUSE, what is not known, and
/// all systems but Linux) another machine may not see the lock: as in a bucket, nothing is taken for dead there until
/// the caller says that nobody saves ([`Run::clean_when_idle`](crate::Run::clean_when_idle)), and
/// [`Run::join`](crate::Run::join) takes a dead attempt to save the same step for a living one.
///
/// A directory that this machine exports to others looks like its own: say so by [`shared`](Self::shared).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalStore {
    root: PathBuf,
    /// Whether links are followed where a name is looked up or opened.
    follow: bool,
    /// Whether other machines reach it, whatever its file system is.
    shared: bool,
}

impl LocalStore {
    /// The store of this directory, which need not be there yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            follow: false,
            shared: false,
        }
    }

    /// Says that other machines reach the directory, although its file system is one of this machine's: then no lock
    /// tells who is dead.
    #[must_use]
    pub fn shared(self) -> Self {
        Self {
            shared: true,
            ..self
        }
    }

    /// A directory whose files may be links, as in Hugging Face's cache: for reading files that are not
    /// ours.
    pub(crate) fn following_links(root: impl Into<PathBuf>) -> Self {
        Self {
            follow: true,
            ..Self::new(root)
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        match path {
            "" => self.root.clone(),
            _ => self.root.join(path),
        }
    }
}

impl Store for LocalStore {
    fn place(&self, path: &str) -> PathBuf {
        self.at(path)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.at(dir))? {
            let entry = entry?;
            // Of the name itself, so a link to a directory is none; nothing when somebody removed it meanwhile.
            if let Some(metadata) = existing(entry.metadata())? {
                all.push(found(&entry.path(), &metadata));
            }
        }
        Ok(all)
    }

    fn look(&self, path: &str) -> io::Result<Found> {
        let path = self.at(path);
        metadata(&path, self.follow).map(|metadata| found(&path, &metadata))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        let (file, metadata) = open_plain(&self.at(path), self.follow)?;
        Ok(Box::new(LocalRead {
            bytes: metadata.len(),
            file,
        }))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>> {
        let file = File::create_new(self.at(path))?;
        Ok(Box::new(LocalWrite {
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            bytes: 0,
            begun: 0,
        }))
    }

    fn create_root(&self) -> io::Result<()> {
        let missing = self.root.ancestors().take_while(|dir| !dir.exists());
        let missing = missing.count();
        fs::create_dir_all(&self.root)?;
        // The root's own name always: somebody else may have just made it.
        for dir in self.root.ancestors().take(missing.max(1)) {
            match dir.parent() {
                Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new("."))?,
                Some(parent) => sync_dir(parent)?,
                None => {}
            }
        }
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.at(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.at(from), self.at(to));
        // The system's own rename lets a directory replace an empty one.
        if fs::symlink_metadata(&from)?.is_dir() && fs::symlink_metadata(&to).is_ok() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        fs::rename(from, to)
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        exchange(&self.at(one), &self.at(other))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.at(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.at(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        sync_dir(&self.at(path))
    }

    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock> {
        let path = self.at(path);
        let mut file = File::create_new(&path)?;
        if let Err(error) = file.lock() {
            // Without locks nobody else can lock it either, and it is left alone.
            tracing::warn!(path = %path.display(), %error, "this file system has no locks");
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        // Whoever cleans takes a file without contents for a dead one; from here on it has them.
        fs::metadata(&path)?;
        Ok(Lock::of(file))
    }

    fn has_locks(&self) -> bool {
        !self.shared && reach_of(&self.root) == Reach::Machine
    }

    fn try_lock(&self, path: &str, shared: bool) -> io::Result<Option<Lock>> {
        let (file, _) = open_plain(&self.at(path), false)?;
        let locked = match shared {
            true => file.try_lock_shared(),
            false => file.try_lock(),
        };
        match locked {
            Err(TryLockError::WouldBlock) => Ok(None),
            // Somebody on another machine may hold it all the same. NFS takes no exclusive lock of a file that was opened
            // to be read, and some file systems take none at all.
            _ if !self.has_locks() => Err(io::Error::from(io::ErrorKind::Unsupported)),
            Ok(()) => Ok(Some(Lock::of(file))),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Who sees a lock of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Everybody: only this machine sees the file.
    Machine,
    /// Perhaps this machine alone, of those that see the file.
    Unknown,
}

/// The reach of locks on the file system that a directory is on, or will be; unknown where that can't be asked.
#[cfg(target_os = "linux")]
fn reach_of(dir: &Path) -> Reach {
    let empty = |dir: &&Path| !dir.as_os_str().is_empty();
    let above = dir.ancestors().filter(empty).chain([Path::new(".")]);
    let mut found = above.map(rustix::fs::statfs);
    // The directory itself may not be there yet.
    let found = found.find(|found| !matches!(found, Err(rustix::io::Errno::NOENT)));
    match found {
        Some(Ok(found)) => reach_of_type(found.f_type as u32),
        _ => Reach::Unknown,
    }
}

/// Other systems are not asked.
#[cfg(not(target_os = "linux"))]
fn reach_of(_dir: &Path) -> Reach {
    Reach::Unknown
}

/// By the number of a file system's type, as `linux/magic.h` and `statfs(2)` have them.
#[cfg(target_os = "linux")]
fn reach_of_type(number: u32) -> Reach {
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
    match OF_ONE_MACHINE.contains(&number) {
        true => Reach::Machine,
        false => Reach::Unknown,
    }
}

/// What a name stands for: what a link leads to, or the link itself.
fn metadata(path: &Path, follow: bool) -> io::Result<Metadata> {
    match follow {
        true => fs::metadata(path),
        false => fs::symlink_metadata(path),
    }
}

/// Opens a file that is neither a link, which could lead out of the store, unless links are followed, nor
/// a pipe, which would wait for its writer.
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
        // It may have become another since.
        let mut flags = rustix::fs::OFlags::NONBLOCK;
        flags.set(rustix::fs::OFlags::NOFOLLOW, !follow);
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    let after = file.metadata()?;
    match after.is_file() && same_file(&before, &after) {
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
            _ => FoundKind::Other,
        },
        bytes: metadata.len(),
    }
}

#[derive(Debug)]
struct LocalRead {
    file: File,
    bytes: u64,
}

impl ReadFile for LocalRead {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(unix)]
    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, into, start)
    }

    #[cfg(windows)]
    fn read_exact_at(&self, mut into: &mut [u8], mut start: u64) -> io::Result<()> {
        while !into.is_empty() {
            let read = std::os::windows::fs::FileExt::seek_read(&self.file, into, start)?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            into = &mut into[read..];
            start += read as u64;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct LocalWrite {
    file: BufWriter<File>,
    /// Bytes that were written.
    bytes: u64,
    /// Bytes whose way to the disk has begun.
    begun: u64,
}

impl WriteFile for LocalWrite {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        if self.bytes - self.begun >= FLUSH_BYTES {
            begin_flush(self.file.get_ref(), self.begun, self.bytes - self.begun);
            self.begun = self.bytes;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        let file = self.file.into_inner().map_err(|error| error.into_error())?;
        file.sync_all()
    }
}

/// Asks the system to begin to write pages to the disk, so that it is not idle until the sync. Of what is
/// not on the disk yet, this advice drops nothing. What comes of it makes no difference but in speed.
#[cfg(target_os = "linux")]
fn begin_flush(file: &File, start: u64, bytes: u64) {
    let bytes = std::num::NonZeroU64::new(bytes);
    let _ = rustix::fs::fadvise(file, start, bytes, rustix::fs::Advice::DontNeed);
}

/// Other systems are not asked.
#[cfg(not(target_os = "linux"))]
fn begin_flush(_file: &File, _start: u64, _bytes: u64) {}

/// Other systems than Unix can't open a directory, and make renames durable by themselves.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(|error| {
        match error {
            // The file system knows of no such call, or not of this flag.
            rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS => {
                io::Error::from(io::ErrorKind::Unsupported)
            }
            error => error.into(),
        }
    })
}

#[cfg(not(target_os = "linux"))]
fn exchange(_one: &Path, _other: &Path) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(unix)]
fn same_file(before: &Metadata, after: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (before.dev(), before.ino()) == (after.dev(), after.ino())
}

#[cfg(not(unix))]
fn same_file(before: &Metadata, after: &Metadata) -> bool {
    before.file_type() == after.file_type() && before.len() == after.len()
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_reach_all_who_see_a_file_system_of_one_machine() {
        for (name, number, reach) in [
            ("ext4", 0xEF53, Reach::Machine),
            ("tmpfs", 0x0102_1994, Reach::Machine),
            ("overlayfs", 0x794C_7630, Reach::Machine),
            ("NFS", 0x6969, Reach::Unknown),
            ("Lustre", 0x0BD0_0BD0, Reach::Unknown),
            ("CephFS", 0x00C3_6400, Reach::Unknown),
            ("GPFS", 0x4750_4653, Reach::Unknown),
            ("SMB 2", 0xFE53_4D42, Reach::Unknown),
            ("CIFS", 0xFF53_4D42, Reach::Unknown),
            ("9P", 0x0102_1997, Reach::Unknown),
            ("FUSE", 0x6573_5546, Reach::Unknown),
            ("unknown", 0, Reach::Unknown),
        ] {
            assert_eq!(reach_of_type(number), reach, "{name}");
        }
    }

    /// A directory that is not there yet has the reach of the one that it will be in.
    #[test]
    fn a_directory_that_is_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(reach_of(&dir.path().join("a/b")), reach_of(dir.path()));
        assert_eq!(reach_of(Path::new("a-b-c")), reach_of(Path::new(".")));
        assert_eq!(reach_of(Path::new("/proc")), Reach::Unknown);
    }
}
