//! Checks for implementations of [`Store`], with the feature `testing`.

use std::{
    collections::BTreeSet,
    io::{self, ErrorKind},
    sync::Arc,
};

pub use tinderbox_deferred::testing::Violation;
use tinderbox_deferred::testing::{done, expect};

use crate::{
    AttemptId, BlockSize, FormatError, Manifest,
    format::{
        MANIFEST_FILE, attempt_dir_name, decode_part, encode_manifest, removed_dir_name,
        step_dir_name,
    },
    store::{FoundKind, PublishError, Store, join},
};

/// Tests the contract of [`Store`] on an empty store; leaves files in it.
///
/// # Errors
///
/// Returns the first violation.
pub fn check_store(store: &Arc<dyn Store>) -> Result<(), Violation> {
    let store = &**store;
    expect_error(
        "the root of an empty store is missing or empty",
        |kind| kind == ErrorKind::NotFound,
        match store.list("") {
            Ok(found) if found.is_empty() => Err(io::Error::from(ErrorKind::NotFound)),
            listed => listed,
        },
    )?;
    for _ in 0..2 {
        done(
            "the root is created, also if it exists",
            store.create_root(),
        )?;
    }
    files(store)?;
    locks(store)?;
    publishing(store)
}

fn files(store: &dyn Store) -> Result<(), Violation> {
    let missing = |kind| kind == ErrorKind::NotFound;
    expect_error(
        "opening a missing file is `NotFound`",
        missing,
        store.open("none"),
    )?;
    expect_error(
        "looking up a missing name is `NotFound`",
        missing,
        store.look("none"),
    )?;
    match store.remove_file("none") {
        // Some stores do not check.
        Ok(()) => {}
        removed => expect_error("removing a missing file is `NotFound`", missing, removed)?,
    }
    done("a directory is created", store.create_dir("dir"))?;
    let bytes: Vec<u8> = (0..3_000_017u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    let mut file = done("a file is created", store.create("dir/large"))?;
    for piece in bytes.chunks(999_983) {
        done("bytes are appended", file.write_all(piece))?;
    }
    done("a file is finished", file.finish())?;
    let taken = |kind| kind == ErrorKind::AlreadyExists;
    let again = store.create("dir/large").and_then(|file| file.finish());
    expect_error("creating a file never replaces another", taken, again)?;
    done(
        "a file has a time, or the store does not know it",
        store.modified("dir/large"),
    )?;
    match store.modified("none") {
        // Some stores do not know times.
        Ok(None) => {}
        found => expect_error("a missing file has no time", missing, found)?,
    }
    let file = done("a file is opened", store.open("dir/large"))?;
    expect(
        "an open file reports its size",
        file.bytes(),
        bytes.len() as u64,
    )?;
    for (start, len) in [
        (0, bytes.len()),
        (1_000_003, 5),
        (bytes.len() - 1, 1),
        (7, 0),
    ] {
        let mut part = vec![0; len];
        done(
            "any range is read",
            file.read_exact_at(&mut part, start as u64),
        )?;
        let expected = &bytes[start..start + len];
        expect(
            "a range has the bytes that were written",
            part == expected,
            true,
        )?;
        let mut scratch = Vec::new();
        let found = done(
            "any range is read around the cache",
            file.read_uncached(&mut scratch, start as u64, len),
        )?;
        expect(
            "a range around the cache has the bytes that were written",
            &scratch[found] == expected,
            true,
        )?;
    }
    const PAGE: usize = 4096;
    let mut memory = vec![0; 3 * PAGE];
    let aligned = memory.as_ptr().align_offset(PAGE);
    for (place, start, len) in [(0, PAGE, PAGE), (1, PAGE, PAGE), (0, 1, PAGE), (0, 0, 5)] {
        let into = &mut memory[aligned + place..][..len];
        let is_read = done(
            "memory is filled around the cache, or that is not possible",
            file.read_direct(into, start as u64),
        )?;
        expect(
            "memory that was filled around the cache has the bytes that were written",
            !is_read || *into == bytes[start..start + len],
            true,
        )?;
    }
    let (last, ended) = (bytes.len() as u64 - 1, |kind| {
        kind == ErrorKind::UnexpectedEof
    });
    let past = file.read_exact_at(&mut [0; 2], last);
    expect_error("reading past the end is `UnexpectedEof`", ended, past)?;
    let past = file.read_uncached(&mut Vec::new(), last, 2);
    expect_error(
        "reading past the end around the cache is `UnexpectedEof`",
        ended,
        past,
    )?;

    for text in ["one", "another"] {
        done(
            "a small file is put, also over an existing one",
            store.put("dir/small", text.as_bytes()),
        )?;
        let found = done("a small file is looked up", store.look("dir/small"))?;
        let expected = ("small", FoundKind::File, text.len() as u64);
        expect(
            "a lookup returns name, kind and size",
            (&*found.name, found.kind, found.bytes),
            expected,
        )?;
    }
    done("an empty file is put", store.put("dir/empty", b""))?;
    done("names are made durable", store.sync_dir("dir"))?;
    let names = names_in(store, "dir")?;
    let expected = ["empty", "large", "small"].map(str::to_owned);
    expect(
        "a listing contains the existing files and no temporary file",
        names,
        expected.into(),
    )?;
    if !store.renames() {
        let unsupported = |kind| kind == ErrorKind::Unsupported;
        let promise = "a store without renames returns `Unsupported`";
        let renamed = store.rename("dir/small", "dir/other");
        expect_error(promise, unsupported, renamed)?;
        let exchanged = store.exchange("dir/small", "dir/large");
        expect_error(promise, unsupported, exchanged)?;
    }
    for name in ["empty", "large", "small"] {
        done("a file is removed", store.remove_file(&join("dir", name)))?;
    }
    done("an empty directory is removed", store.remove_dir("dir"))?;
    let gone = store.list("dir").map(|found| found.len());
    match gone {
        Ok(0) => Ok(()),
        listed => expect_error("a removed directory is gone", missing, listed),
    }
}

fn locks(store: &dyn Store) -> Result<(), Violation> {
    done("a directory is created", store.create_dir("locks"))?;
    let lock = done(
        "a locked file is created",
        store.create_locked("locks/one", b"mine"),
    )?;
    let taken = |kind| kind == ErrorKind::AlreadyExists;
    expect_error(
        "creating a locked file never replaces another",
        taken,
        store.create_locked("locks/one", b"yours"),
    )?;
    for shared in [false, true] {
        match store.try_lock("locks/one", shared) {
            Err(error) if error.kind() == ErrorKind::Unsupported && !store.has_locks() => {
                return Ok(());
            }
            held => {
                let held = done("a lock is requested", held)?;
                expect("a lock that is held is not acquired", held.is_none(), true)?;
            }
        }
    }
    drop(lock);
    let free = store.try_lock("locks/one", false);
    if !store.has_locks() {
        let unsupported = |kind| kind == ErrorKind::Unsupported;
        return expect_error(
            "a store without locks does not report a lock as free",
            unsupported,
            free,
        );
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
        let id = AttemptId::fresh();
        let dir = attempt_dir_name(step, id);
        let manifest = manifest(step, id).map_err(|error| Violation {
            promise: "a manifest is encoded",
            found: format!("error `{error}`"),
        })?;
        done("a directory is created", store.create_dir(&dir))?;
        done(
            "a file is put",
            store.put(&join(&dir, "data"), dir.as_bytes()),
        )?;
        Ok(Self { id, dir, manifest })
    }

    fn publish(&self, store: &dyn Store, step: &str, replace: bool) -> io::Result<Option<String>> {
        store
            .publish(&self.dir, step, &self.manifest, replace)
            .map_err(source)
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

fn manifest(step: u64, attempt: AttemptId) -> Result<Vec<u8>, FormatError> {
    encode_manifest(&Manifest::empty(attempt, step, 1, BlockSize::default()))
}

fn publishing(store: &dyn Store) -> Result<(), Violation> {
    let step = step_dir_name(7);
    let [one, two, three] = [
        Trial::new(store, 7)?,
        Trial::new(store, 7)?,
        Trial::new(store, 7)?,
    ];
    let replaced = done("an attempt is published", one.publish(store, &step, false))?;
    expect("publishing a new step replaces nothing", replaced, None)?;
    one.expect_published(store, &step)?;
    let there = |kind| {
        matches!(
            kind,
            ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty
        )
    };
    expect_error(
        "a step is never published over another",
        there,
        two.publish(store, &step, false),
    )?;
    one.expect_published(store, &step)?;
    let now = match three.publish(store, &step, true) {
        Err(error) if error.kind() == ErrorKind::Unsupported => &one,
        replaced => {
            let replaced = done(
                "a step is replaced, or replacing is `Unsupported`",
                replaced,
            )?;
            let replaced = replaced.ok_or(Violation {
                promise: "publishing returns the location of the replaced files",
                found: "nothing".to_owned(),
            })?;
            one.expect_in(store, &replaced)?;
            &three
        }
    };
    now.expect_published(store, &step)?;
    let files = store.files_of(&step, &now.dir);
    let trash = removed_dir_name(7, now.id);
    done("a step is retired", store.retire(&step, &trash))?;
    let gone = |kind| kind == ErrorKind::NotFound;
    expect_error(
        "a retired step has no manifest",
        gone,
        store.open(&join(&step, MANIFEST_FILE)),
    )?;
    now.expect_in(store, if store.renames() { &trash } else { &files })
}

fn names_in(store: &dyn Store, dir: &str) -> Result<BTreeSet<String>, Violation> {
    let listing = done("a directory is listed", store.list(dir))?;
    Ok(listing.into_iter().map(|found| found.name).collect())
}

fn source(error: PublishError) -> io::Error {
    match error {
        PublishError::Unpublished { source, .. }
        | PublishError::NotDurable { source }
        | PublishError::Unknown { source } => source,
    }
}

fn expect_error<T>(
    promise: &'static str,
    expected: impl Fn(ErrorKind) -> bool,
    result: io::Result<T>,
) -> Result<(), Violation> {
    match result {
        Err(error) if expected(error.kind()) => Ok(()),
        Err(error) => Err(Violation {
            promise,
            found: format!("error `{error}`"),
        }),
        Ok(_) => Err(Violation {
            promise,
            found: "no error".to_owned(),
        }),
    }
}

/// Decodes the file in which a rank lists what it has written.
///
/// # Errors
///
/// Returns an error if it does not match the format.
pub fn check_part(bytes: &[u8]) -> Result<(), FormatError> {
    decode_part(bytes).map(drop)
}
