//! Reads of a local file around the cache of the system.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::format::PAGE_BYTES as ALIGN;

/// Opens a file again, for reads around the cache; `None` where there are none.
#[cfg(target_os = "linux")]
pub(super) fn open(file: &File) -> Option<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    // The file itself, whatever is at its path now.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = File::options();
    options.read(true);
    options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    options.open(path).ok()
}

/// Returns where in `scratch` the bytes from an offset of a file are that was [opened](open) for this; `None` where there are no such
/// reads.
///
/// The system copies from the disk to the memory of the process, so that a model larger than the memory is read at the speed of
/// the disk, and evicts nothing.
pub(super) fn read(
    file: &File,
    scratch: &mut Vec<u8>,
    start: u64,
    bytes: usize,
) -> io::Result<Option<Range<usize>>> {
    let before = (start % ALIGN as u64) as usize;
    let all = (before + bytes).next_multiple_of(ALIGN);
    if scratch.len() < all + ALIGN {
        scratch.resize(all + ALIGN, 0);
    }
    let first = scratch.as_ptr().align_offset(ALIGN);
    let into = &mut scratch[first..first + all];
    if !read_aligned(file, into, start - before as u64, before + bytes)? {
        return Ok(None);
    }
    Ok(Some(first + before..first + before + bytes))
}

/// Fills memory from an offset of a file that was [opened](open) for this; returns `false` where that is not possible.
pub(super) fn fill(file: &File, into: &mut [u8], start: u64) -> io::Result<bool> {
    let places = [into.as_ptr().addr(), into.len(), start as usize];
    let is_aligned = places.iter().all(|place| place.is_multiple_of(ALIGN));
    Ok(is_aligned && read_aligned(file, into, start, into.len())?)
}

/// Reads at least so many bytes; returns `false` if the device has larger blocks, or the file system has no direct reads.
fn read_aligned(file: &File, into: &mut [u8], start: u64, least: usize) -> io::Result<bool> {
    let mut read = 0;
    // The last part may be shorter, at the end of the file.
    while read < least {
        match read_at(file, &mut into[read..], start + read as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => read += more,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => return Ok(false),
                _ => return Err(error),
            },
        }
    }
    Ok(true)
}

/// Not known on other systems.
#[cfg(not(target_os = "linux"))]
pub(super) fn open(_file: &File) -> Option<File> {
    None
}

/// Reads some bytes from an offset.
#[cfg(unix)]
pub(super) fn read_at(file: &File, into: &mut [u8], start: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, start)
}

/// Reads some bytes from an offset.
#[cfg(windows)]
pub(super) fn read_at(file: &File, into: &mut [u8], start: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, start)
}
