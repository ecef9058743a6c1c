//! Checks for implementations of [`Store`], with the feature `testing`.

use std::collections::BTreeSet;
use std::io::ErrorKind::{AlreadyExists, NotFound, UnexpectedEof, Unsupported};
use std::io::{self, ErrorKind};
use std::sync::Arc;

pub use tinderbox_deferred::testing::Violation;
use tinderbox_deferred::testing::{done, expect};

use crate::format::{MANIFEST_FILE, decode_part, encode_manifest, names};
use crate::store::{FoundKind, Publication, PublishError, Store, join};
use crate::{AttemptId, CheckpointMeta, FormatError};

/// Tests the contract of [`Store`] on an empty store; leaves files in it.
///
/// # Errors
///
/// Returns the first violation.
pub fn check_store(store: &Arc<dyn Store>) -> Result<(), Violation> {
    let store = &**store;
    expect_empty("the root of an empty store is missing or empty", store, "")?;
    for _ in 0..2 {
        let created = store.create_dir("");
        done("the root is created, also if it exists", created)?;
    }
    files(store)?;
    locks(store)?;
    publishing(store)
}

fn files(store: &dyn Store) -> Result<(), Violation> {
    // Some stores do not check that the file exists.
    let removed = store.remove_file("none").err();
    let removed: io::Result<()> = Err(removed.unwrap_or(NotFound.into()));
    let (opened, found) = (store.open("none"), store.look("none"));
    expect_error("opening a missing file is `NotFound`", NotFound, opened)?;
    expect_error("looking up a missing name is `NotFound`", NotFound, found)?;
    expect_error("removing a missing file is `NotFound`", NotFound, removed)?;
    done("a directory is created", store.create_dir("dir"))?;
    if store.renames() {
        let promise = "creating a directory never replaces another";
        expect_error(promise, AlreadyExists, store.create_dir("dir"))?;
    }
    let words = (0..3_000_017u32).map(|i| i.wrapping_mul(0x9e37_79b9));
    let bytes: Vec<u8> = words.map(|word| (word >> 24) as u8).collect();
    let mut file = done("a file is created", store.create("dir/large"))?;
    for piece in bytes.chunks(999_983) {
        done("bytes are appended", file.write_all(piece))?;
    }
    done("a file is finished", file.finish())?;
    let again = store.create("dir/large").and_then(|file| file.finish());
    let promise = "creating a file never replaces another";
    expect_error(promise, AlreadyExists, again)?;
    let file = done("a file is opened", store.open("dir/large"))?;
    let all = bytes.len();
    let size = all as u64;
    expect("an open file reports its size", file.bytes(), size)?;
    for (start, len) in [(0, all), (1_000_003, 5), (all - 1, 1), (7, 0)] {
        let mut part = vec![0; len];
        let read = file.read_exact_at(&mut part, start as u64);
        done("any range is read", read)?;
        let promise = "a range has the bytes that were written";
        expect(promise, part == bytes[start..start + len], true)?;
    }
    const PAGE: usize = 4096;
    let mut memory = vec![0; 3 * PAGE];
    let aligned = memory.as_ptr().align_offset(PAGE);
    let last = all / PAGE * PAGE;
    // A page, other addresses, offsets and lengths, and the end of the file.
    for (place, start, len, least) in [
        (0, PAGE, PAGE, PAGE),
        (1, PAGE, PAGE, PAGE),
        (0, 1, PAGE, PAGE),
        (0, 0, 5, 5),
        (0, last, PAGE, all - last),
    ] {
        let into = &mut memory[aligned + place..][..len];
        let read = file.read_uncached(into, start as u64, least);
        let promise = "bytes are read around the cache, or that is not possible";
        let is_valid = !done(promise, read)? || into[..least] == bytes[start..start + least];
        let promise = "bytes that are read around the cache are the bytes that were written";
        expect(promise, is_valid, true)?;
    }
    let past = file.read_exact_at(&mut [0; 2], size - 1);
    let promise = "reading past the end is `UnexpectedEof`";
    expect_error(promise, UnexpectedEof, past)?;
    let into = &mut memory[aligned..][..PAGE];
    let past = file.read_uncached(into, last as u64, all - last + 1);
    if !matches!(past, Ok(false)) {
        let promise = "reading past the end around the cache is `UnexpectedEof`, or not possible";
        expect_error(promise, UnexpectedEof, past)?;
    }

    for text in ["one", "another"] {
        let put = store.put("dir/small", text.as_bytes());
        done("a small file is put, also over an existing one", put)?;
        let found = done("a small file is looked up", store.look("dir/small"))?;
        let found = (&*found.name, found.kind, found.bytes);
        let expected = ("small", FoundKind::File, text.len() as u64);
        expect("a lookup returns name, kind and size", found, expected)?;
    }
    done("an empty file is put", store.put("dir/empty", b""))?;
    done("names are made durable", store.sync_dir("dir"))?;
    let listing = done("a directory is listed", store.list("dir"))?.into_iter();
    let names: BTreeSet<String> = listing.map(|found| found.name).collect();
    let expected = ["empty", "large", "small"].map(str::to_owned).into();
    let promise = "a listing contains the existing files and no temporary file";
    expect(promise, names, expected)?;
    if !store.renames() {
        let promise = "a store without renames returns `Unsupported`";
        let renamed = store.rename("dir/small", "dir/other");
        expect_error(promise, Unsupported, renamed)?;
        let exchanged = store.exchange("dir/small", "dir/large");
        expect_error(promise, Unsupported, exchanged)?;
    }
    for name in ["empty", "large", "small"] {
        done("a file is removed", store.remove_file(&join("dir", name)))?;
    }
    done("an empty directory is removed", store.remove_dir("dir"))?;
    expect_empty("a removed directory is gone", store, "dir")
}

/// Checks that a directory does not exist, or has no entries.
fn expect_empty(promise: &'static str, store: &dyn Store, dir: &str) -> Result<(), Violation> {
    let listed = store.list(dir);
    match listed.as_deref() {
        Ok([]) => Ok(()),
        _ => expect_error(promise, NotFound, listed),
    }
}

fn locks(store: &dyn Store) -> Result<(), Violation> {
    done("a directory is created", store.create_dir("locks"))?;
    let lock = store.create_locked("locks/one", b"mine");
    let lock = done("a locked file is created", lock)?;
    let again = store.create_locked("locks/one", b"yours");
    let promise = "creating a locked file never replaces another";
    expect_error(promise, AlreadyExists, again)?;
    let held = store.try_lock("locks/one");
    if matches!(&held, Err(error) if error.kind() == Unsupported && !store.has_locks()) {
        return Ok(());
    }
    let held = done("a lock is requested", held)?;
    expect("a lock that is held is not acquired", held.is_none(), true)?;
    drop(lock);
    let free = store.try_lock("locks/one");
    if !store.has_locks() {
        let promise = "a store without locks does not report a lock as free";
        return expect_error(promise, Unsupported, free);
    }
    let free = done("a lock is requested", free)?;
    expect("a released lock is acquired", free.is_some(), true)
}

/// An attempt to save a step, published by a test.
struct Trial {
    id: AttemptId,
    dir: String,
    manifest: Vec<u8>,
}

impl Trial {
    /// Creates a checkpoint without tensors, and a file that identifies its attempt.
    fn new(store: &dyn Store, step: u64) -> Result<Self, Violation> {
        let manifest = CheckpointMeta::new(step, 1).manifest();
        let manifest = done("a manifest is created", manifest)?;
        let id = manifest.attempt;
        let dir = names::attempt_dir(step, id);
        let manifest = done("a manifest is encoded", encode_manifest(&manifest))?;
        done("a directory is created", store.create_dir(&dir))?;
        let put = store.put(&join(&dir, "data"), dir.as_bytes());
        done("a file is put", put)?;
        Ok(Self { id, dir, manifest })
    }

    fn publish(&self, to: &dyn Store, step: &str, how: Publication) -> io::Result<Option<String>> {
        let published = to.publish(&self.dir, step, &self.manifest, how);
        published.map_err(|error| match error {
            PublishError::Unpublished { source, .. }
            | PublishError::NotDurable { source }
            | PublishError::Unknown { source } => source,
        })
    }

    /// Checks that its file is in this directory.
    fn expect_in(&self, store: &dyn Store, dir: &str) -> Result<(), Violation> {
        let data = store.read_small(&join(dir, "data"), 1000);
        let data = done("the files of an attempt are read", data)?;
        let same = data == self.dir.as_bytes();
        expect("the files are of one attempt", same, true)
    }

    /// Checks that the published step is this attempt.
    fn expect_published(&self, store: &dyn Store, step: &str) -> Result<(), Violation> {
        let manifest = store.read_small(&join(step, MANIFEST_FILE), 10_000);
        let manifest = done("a published manifest is read", manifest)?;
        let same = manifest == self.manifest;
        expect("the published manifest belongs to the attempt", same, true)?;
        self.expect_in(store, &store.files_of(step, &self.dir))
    }
}

fn publishing(store: &dyn Store) -> Result<(), Violation> {
    let step = names::step_dir(7);
    let trial = || Trial::new(store, 7);
    let (one, two, three) = (trial()?, trial()?, trial()?);
    let published = one.publish(store, &step, Publication::New);
    let replaced = done("an attempt is published", published)?;
    expect("publishing a new step replaces nothing", replaced, None)?;
    one.expect_published(store, &step)?;
    let over = two.publish(store, &step, Publication::New);
    let over = over.map_err(|error| match error.kind() {
        ErrorKind::DirectoryNotEmpty => AlreadyExists.into(),
        _ => error,
    });
    let promise = "a step is never published over another";
    expect_error(promise, AlreadyExists, over)?;
    one.expect_published(store, &step)?;
    let now = match three.publish(store, &step, Publication::Replacement) {
        Err(error) if error.kind() == Unsupported => &one,
        replaced => {
            let promise = "a step is replaced, or replacing is `Unsupported`";
            let replaced = done(promise, replaced)?;
            let promise = "publishing returns the location of the replaced files";
            let found = "nothing".to_owned();
            let replaced = replaced.ok_or(Violation { promise, found })?;
            one.expect_in(store, &replaced)?;
            &three
        }
    };
    now.expect_published(store, &step)?;
    let files = store.files_of(&step, &now.dir);
    let trash = names::removed_dir(7, now.id);
    done("a step is retired", store.retire(&step, &trash))?;
    let retired = store.open(&join(&step, MANIFEST_FILE));
    expect_error("a retired step has no manifest", NotFound, retired)?;
    now.expect_in(store, if store.renames() { &trash } else { &files })
}

fn expect_error<T>(
    promise: &'static str,
    expected: ErrorKind,
    result: io::Result<T>,
) -> Result<(), Violation> {
    let found = match result {
        Err(error) if error.kind() == expected => return Ok(()),
        Err(error) => format!("error `{error}`"),
        Ok(_) => "no error".to_owned(),
    };
    Err(Violation { promise, found })
}

/// Decodes the file in which a rank lists its files, tensors and scalars.
///
/// # Errors
///
/// Returns an error if it does not match the format.
pub fn check_part(bytes: &[u8]) -> Result<(), FormatError> {
    decode_part(bytes).map(drop)
}
