//! A store that retries reads after temporary failures.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use super::{Found, Lock, Publication, PublishError, ReadFile, Store, WriteFile};
use crate::error::{ErrorClass, class_of_io};

/// The pauses before each retry, in milliseconds.
const PAUSES_MS: [u64; 3] = [20, 200, 1000];

/// No retry starts after this time: an operation that fails later has retried by itself.
const LONGEST: Duration = Duration::from_secs(10);

/// A store whose reads are retried. Writes are not retried: a write whose response was lost may have succeeded.
#[derive(Debug)]
pub(crate) struct Retrying(pub(crate) Arc<dyn Store>);

/// Retries a read until it succeeds, fails permanently, or the retries are exhausted.
fn retried<T>(place: &Path, mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let started = Instant::now();
    for pause_ms in PAUSES_MS {
        match read() {
            Err(error) if may_pass(&error) && started.elapsed() < LONGEST => {
                tracing::warn!(place = %place.display(), %error, "a read failed and is retried");
                thread::sleep(Duration::from_millis(pause_ms));
            }
            done => return done,
        }
    }
    read()
}

fn may_pass(error: &io::Error) -> bool {
    // An error with a source comes from the client of a bucket, which has retried by itself. A stale file stays stale.
    error.get_ref().is_none()
        && error.kind() != io::ErrorKind::StaleNetworkFileHandle
        && class_of_io(error) == ErrorClass::Transient
}

/// Forwards methods to the wrapped store.
macro_rules! forwarded {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {$(
        fn $name(&self $(, $argument: $type)*) -> $result {
            self.0.$name($($argument),*)
        }
    )*};
}

impl Store for Retrying {
    fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        retried(&self.place(dir), || self.0.list(dir))
    }

    fn look(&self, path: &str) -> io::Result<Found> {
        retried(&self.place(path), || self.0.look(path))
    }

    fn link_target(&self, path: &str) -> io::Result<Option<PathBuf>> {
        retried(&self.place(path), || self.0.link_target(path))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        let place = self.place(path);
        let file = retried(&place, || self.0.open(path))?;
        Ok(Box::new(RetryingFile { file, place }))
    }

    fn read_small(&self, path: &str, limit_bytes: u64) -> io::Result<Vec<u8>> {
        retried(&self.place(path), || self.0.read_small(path, limit_bytes))
    }

    forwarded! {
        fn place(&self, path: &str) -> PathBuf;
        fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>>;
        fn create_dir(&self, path: &str) -> io::Result<()>;
        fn rename(&self, from: &str, to: &str) -> io::Result<()>;
        fn exchange(&self, one: &str, other: &str) -> io::Result<()>;
        fn remove_file(&self, path: &str) -> io::Result<()>;
        fn remove_dir(&self, path: &str) -> io::Result<()>;
        fn sync_dir(&self, path: &str) -> io::Result<()>;
        fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock>;
        fn has_locks(&self) -> bool;
        fn try_lock(&self, path: &str) -> io::Result<Option<Lock>>;
        fn renames(&self) -> bool;
        fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()>;
        fn publish(&self, attempt: &str, step: &str, manifest: &[u8], publication: Publication)
            -> Result<Option<String>, PublishError>;
        fn retire(&self, step: &str, trash: &str) -> io::Result<()>;
        fn files_of(&self, step: &str, attempt: &str) -> String;
    }
}

#[derive(Debug)]
struct RetryingFile {
    file: Box<dyn ReadFile>,
    place: PathBuf,
}

impl ReadFile for RetryingFile {
    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()> {
        retried(&self.place, || self.file.read_exact_at(into, start))
    }

    fn read_uncached(&self, into: &mut [u8], start: u64, least: usize) -> io::Result<bool> {
        retried(&self.place, || self.file.read_uncached(into, start, least))
    }
}
