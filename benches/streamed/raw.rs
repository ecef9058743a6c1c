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

/// Reads the safetensors files of a directory, each in pieces on several threads.
pub fn read(dir: &Path, threads: usize) {
    for entry in fs::read_dir(dir).expect("the directory exists") {
        let path = entry.expect("the directory is listed").path();
        if path.is_dir() {
            read(&path, threads);
        } else if path.extension().is_some_and(|end| end == "safetensors") {
            let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
            let opened = File::options().read(true).custom_flags(direct).open(&path);
            // Some file systems have no direct reads.
            let file = opened.or_else(|_| File::open(&path));
            let file = file.expect("the file can be opened");
            thread::scope(|scope| {
                for first in 0..threads {
                    let file = &file;
                    scope.spawn(move || {
                        read_each(file, first, threads).expect("the file is read");
                    });
                }
            });
        }
    }
}

/// Reads each piece of a file whose number is `first` more than a multiple of `step`.
fn read_each(file: &File, first: usize, step: usize) -> io::Result<()> {
    let mut memory = vec![0; PIECE + ALIGN];
    let begin = memory.as_ptr().align_offset(ALIGN);
    let bytes = file.metadata()?.len();
    let starts = (first * PIECE..).step_by(step * PIECE);
    for start in starts.take_while(|start| (*start as u64) < bytes) {
        // The last one is shorter.
        file.read_at(&mut memory[begin..begin + PIECE], start as u64)?;
    }
    Ok(())
}
