//! Reads of a local file around the cache of the system.

use std::fs::File;
use std::io;
use std::ops::Range;

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
#[cfg(target_os = "linux")]
pub(super) fn read(
    file: &File,
    scratch: &mut Vec<u8>,
    start: u64,
    bytes: usize,
) -> io::Result<Option<Range<usize>>> {
    use std::os::unix::fs::FileExt;

    /// Offsets, lengths and addresses are multiples of this: at least the block of usual disks.
    const ALIGN: usize = 4096;

    let before = (start % ALIGN as u64) as usize;
    let all = (before + bytes).next_multiple_of(ALIGN);
    if scratch.len() < all + ALIGN {
        scratch.resize(all + ALIGN, 0);
    }
    let first = scratch.as_ptr().align_offset(ALIGN);
    let mut read = 0;
    // The last part may be shorter, at the end of the file.
    while read < before + bytes {
        let into = &mut scratch[first + read..first + all];
        match file.read_at(into, start - before as u64 + read as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The device has larger blocks, or the file system has no direct reads.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(first + before..first + before + bytes))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open(_file: &File) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn read(
    _file: &File,
    _scratch: &mut Vec<u8>,
    _start: u64,
    _bytes: usize,
) -> io::Result<Option<Range<usize>>> {
    Ok(None)
}
