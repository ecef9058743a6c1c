//! The same bytes with only system calls: the limits of disk, page cache and memory.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A variant of the plain calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    pub threads: usize,
    /// Bytes per call.
    pub piece: usize,
    /// Whether to read through a mapping and a copy instead of `read`.
    pub mapped: bool,
}

/// Runs work on some threads.
pub fn parallel<T: Send>(threads: usize, work: Vec<T>, run: impl Fn(T) + Sync) {
    let work = Mutex::new(work.into_iter());
    let next = || work.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(one) = next() {
                    run(one);
                }
            });
        }
    });
}

/// Writes files with the given contents and makes them and their names durable.
pub fn write(dir: &Path, files: &[Vec<&[u8]>], way: Way) {
    fs::create_dir(dir).unwrap();
    parallel(
        way.threads,
        files.iter().enumerate().collect(),
        |(number, contents)| {
            let mut file = File::create(dir.join(number.to_string())).unwrap();
            for piece in contents.iter().flat_map(|bytes| bytes.chunks(way.piece)) {
                file.write_all(piece).unwrap();
            }
            file.sync_all().unwrap();
        },
    );
    File::open(dir).unwrap().sync_all().unwrap();
}

/// Reads whole files into fresh memory.
pub fn read(files: &[PathBuf], way: Way) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = files
        .iter()
        .map(|file| vec![0; fs::metadata(file).unwrap().len() as usize])
        .collect();
    // Pieces of all files, so that two threads also share one large file.
    let mut work = Vec::new();
    for (path, memory) in files.iter().zip(&mut all) {
        // Whole pages, because a mapping starts at a page boundary.
        let share = memory.len().div_ceil(way.threads).next_multiple_of(1 << 20);
        let shares = memory.chunks_mut(share).enumerate();
        work.extend(shares.map(|(at, memory)| (path, at * share, memory)));
    }
    parallel(way.threads, work, |(path, start, memory)| {
        let file = File::open(path).unwrap();
        for (at, piece) in memory.chunks_mut(way.piece).enumerate() {
            let from = (start + at * way.piece) as u64;
            match way.mapped {
                true => tinderbox_memory::copy_mapped(&file, from, piece).unwrap(),
                false => file.read_exact_at(piece, from).unwrap(),
            }
        }
    });
    all
}

/// Copies files in pieces of 8 MiB on two threads, and makes the copies and their names durable.
pub fn copy(files: &[PathBuf], dir: &Path) {
    fs::create_dir(dir).unwrap();
    parallel(2, files.iter().collect(), |path: &PathBuf| {
        let from = File::open(path).unwrap();
        let mut to = File::create(dir.join(path.file_name().unwrap())).unwrap();
        let (bytes, mut piece) = (from.metadata().unwrap().len(), vec![0; 8 << 20]);
        for start in (0..bytes).step_by(8 << 20) {
            let piece = &mut piece[..(bytes - start).min(8 << 20) as usize];
            from.read_exact_at(piece, start).unwrap();
            to.write_all(piece).unwrap();
        }
        to.sync_all().unwrap();
    });
    File::open(dir).unwrap().sync_all().unwrap();
}

/// Makes a file and its name durable.
pub fn sync_with_parent(path: &Path) {
    for path in [path, path.parent().unwrap()] {
        File::open(path).unwrap().sync_all().unwrap();
    }
}
