//! Reads of a local file around the cache of the system.

use std::fs::File;
use std::io;
use std::io::ErrorKind::{Interrupted, InvalidInput, UnexpectedEof, Unsupported};

use crate::format::PAGE_BYTES;

/// Opens a file again, for reads around the cache; returns `None` if the file system has no such reads.
#[cfg(target_os = "linux")]
pub(super) fn open(file: &File) -> Option<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    // The file itself, also if another file has its path now.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = File::options();
    options.read(true);
    options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    options.open(path).ok()
}

/// Returns `None`: reads around the cache are implemented on Linux only.
#[cfg(not(target_os = "linux"))]
pub(super) fn open(_file: &File) -> Option<File> {
    None
}

/// Reads from an offset of a file that [`open`] has returned, at least the first `least` bytes of a buffer. Returns `false` if
/// the read is not possible: the address, the length or the offset is no multiple of a page, the blocks of the device are
/// larger, or the file system has no such reads.
///
/// The system copies from the disk to the memory of the process. A model that is larger than memory is therefore read at the
/// speed of the disk, and the read evicts nothing from the cache.
pub(super) fn read(file: &File, into: &mut [u8], start: u64, least: usize) -> io::Result<bool> {
    let places = [into.as_ptr().addr(), into.len(), start as usize];
    if places.iter().any(|at| !at.is_multiple_of(PAGE_BYTES)) {
        return Ok(false);
    }
    match read_at_least(file, into, start, least) {
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => Ok(false),
        read => read.map(|()| true),
    }
}

/// Reads at least the first `least` bytes of a buffer from an offset.
pub(super) fn read_at_least(file: &File, into: &mut [u8], at: u64, least: usize) -> io::Result<()> {
    let mut read = 0;
    while read < least {
        match read_at(file, &mut into[read..], at + read as u64) {
            Ok(0) => return Err(io::Error::new(UnexpectedEof, "failed to fill whole buffer")),
            Ok(more) => read += more,
            Err(error) if error.kind() == Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads some bytes from an offset.
#[cfg(unix)]
fn read_at(file: &File, into: &mut [u8], start: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, start)
}

/// Reads some bytes from an offset.
#[cfg(windows)]
fn read_at(file: &File, into: &mut [u8], start: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, start)
}
