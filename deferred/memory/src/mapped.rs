//! Copies from a file through a memory mapping, for comparison with positioned reads.
//!
//! This needs `unsafe`: a mapping is memory that other processes may change. No reference to it is
//! created here; its bytes are copied as a system call would copy them.
#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
use std::{fs::File, io};

/// Fills the buffer from `start` in the file through a memory mapping of that part.
///
/// For comparisons only: if the file is truncated during the copy, the system kills this process, where a
/// positioned read returns an error.
///
/// # Errors
///
/// When the part can't be mapped, or the file ends before its end. `start` must be a multiple of the page size.
#[cfg(target_os = "linux")]
pub fn copy_mapped(file: &File, start: u64, into: &mut [u8]) -> io::Result<()> {
    if into.is_empty() {
        return Ok(());
    }
    let end = start.checked_add(into.len() as u64);
    if end.is_none_or(|end| file.metadata().is_ok_and(|found| found.len() < end)) {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    let mut options = memmap2::MmapOptions::new();
    let map = options.offset(start).len(into.len());
    let map = map.map_raw_read_only(file)?;
    // SAFETY: mapping and buffer have the same number of bytes and do not overlap, and no reference to the
    // mapping, whose bytes other processes may change, is created.
    unsafe { std::ptr::copy_nonoverlapping(map.as_ptr(), into.as_mut_ptr(), into.len()) };
    Ok(())
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::copy_mapped;

    #[test]
    fn a_part_of_a_file_is_copied() {
        let path = std::env::temp_dir().join(format!("tinderbox-mapped-{}", std::process::id()));
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i / 7) as u8).collect();
        let mut file = std::fs::File::create_new(&path).unwrap();
        file.write_all(&bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut part = vec![0; 5000];
        copy_mapped(&file, 4096, &mut part).unwrap();
        assert_eq!(part, bytes[4096..9096]);
        assert!(copy_mapped(&file, 8192, &mut part).is_err(), "past the end");
        copy_mapped(&file, 8192, &mut []).unwrap();
    }
}
