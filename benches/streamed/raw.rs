//! Reads of files with only system calls, around the system's cache: the limit of the disk.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;

/// Bytes of a read: larger ones are not faster.
const PIECE: usize = 1 << 20;
/// Offsets and addresses of direct reads are multiples of this.
const ALIGN: usize = 4096;

/// Reads the safetensors files of a directory on several threads, each once, or again and again until so many bytes were read.
pub fn read(dir: &Path, threads: usize, bytes: Option<u64>) {
    let mut files = Vec::new();
    find(dir, &mut files);
    let mut left = bytes.unwrap_or_else(|| files.iter().map(|(_, bytes)| bytes).sum());
    for (file, size) in files.iter().cycle() {
        let now = left.min(*size);
        thread::scope(|scope| {
            for first in 0..threads {
                scope
                    .spawn(move || read_each(file, now, first, threads).expect("the file is read"));
            }
        });
        left -= now;
        if left == 0 {
            return;
        }
    }
}

/// Drops the files of a directory from the system's cache. Their pages would not be of the control group that reads them.
pub fn drop_cached(dir: &Path) {
    let mut files = Vec::new();
    find(dir, &mut files);
    for (file, _) in files {
        // Only pages that were written are dropped.
        file.sync_all().expect("the file is durable");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .expect("the system takes the advice");
    }
}

/// Opens the files under a directory, with their sizes.
fn find(dir: &Path, files: &mut Vec<(File, u64)>) {
    for entry in fs::read_dir(dir).expect("the directory exists") {
        let path = entry.expect("the directory is listed").path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|end| end == "safetensors") {
            let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
            let opened = File::options().read(true).custom_flags(direct).open(&path);
            // Some file systems have no direct reads.
            let file = opened.or_else(|_| File::open(&path));
            let file = file.expect("the file can be opened");
            let bytes = file.metadata().expect("the file is open").len();
            files.push((file, bytes));
        }
    }
}

/// Reads each piece of the first bytes of a file whose number is `first` more than a multiple of `step`.
fn read_each(file: &File, bytes: u64, first: usize, step: usize) -> io::Result<()> {
    let mut memory = vec![0; PIECE + ALIGN];
    let begin = memory.as_ptr().align_offset(ALIGN);
    let starts = (first * PIECE..).step_by(step * PIECE);
    for start in starts.take_while(|start| (*start as u64) < bytes) {
        // The last one is shorter.
        file.read_at(&mut memory[begin..begin + PIECE], start as u64)?;
    }
    Ok(())
}
