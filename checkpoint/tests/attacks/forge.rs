//! Modifies golden checkpoints and recomputes their digests.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tinderbox_checkpoint::{Checkpoint, Digest, FormatError, HeaderError, LoadError};
use tinderbox_checkpoint_tests::{TIMEOUT, chain, load, names};

use crate::python;

/// `mask` and `norm.gamma` of [`Victim::whole`].
pub const SMALL: &str = "model-rank-00000-00001.safetensors";
/// The first file of rank 0 in both golden checkpoints.
pub const FIRST: &str = "model-rank-00000.safetensors";

/// A copy of a golden checkpoint in its own run directory.
pub struct Victim {
    run: TempDir,
    pub dir: PathBuf,
}

impl Victim {
    /// Creates whole tensors in three files of one rank; step 11.
    pub fn whole() -> Self {
        Self::of("version-1.2", 11)
    }

    /// Creates tensor `w` in two chunks of each of two ranks; step 12.
    pub fn chunks() -> Self {
        Self::of("version-1.2-chunks", 12)
    }

    /// Creates a checkpoint like [`Victim::whole`], in version 1.0, which has the plan in the manifest.
    pub fn first_version() -> Self {
        Self::of("version-1", 11)
    }

    fn of(golden: &str, step: u64) -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR"));
        let from = from.join("golden").join(golden);
        let run = tempfile::tempdir().unwrap();
        let dir = run.path().join(format!("step-{step:08}"));
        fs::create_dir(&dir).unwrap();
        for name in names(&from) {
            // Not `fs::copy`: the copy must be writable even if the original is not.
            fs::write(dir.join(&name), fs::read(from.join(&name)).unwrap()).unwrap();
        }
        Self { run, dir }
    }

    /// Returns the run directory.
    pub fn run(&self) -> &Path {
        self.run.path()
    }

    /// Returns the body of the manifest.
    pub fn body(&self) -> Value {
        body_of(&fs::read(self.dir.join("manifest.json")).unwrap())
    }

    /// Replaces the body of the manifest.
    pub fn seal(&self, body: &[u8]) {
        fs::write(self.dir.join("manifest.json"), sealed(body)).unwrap();
    }

    /// Modifies the body of the manifest.
    pub fn reseal(&self, change: impl FnOnce(&mut Value)) {
        let mut body = self.body();
        change(&mut body);
        self.seal(body.to_string().as_bytes());
    }

    /// Replaces one value of the manifest, found by a JSON pointer.
    pub fn set(&self, at: &str, value: Value) {
        self.reseal(|body| {
            *body.pointer_mut(at).expect(at) = value;
        });
    }

    /// Replaces the first occurrence of a text in the body, which has no whitespace.
    pub fn replace(&self, from: &str, to: &str) {
        let body = self.body().to_string();
        assert!(body.contains(from), "{from} is not in {body}");
        self.seal(body.replacen(from, to, 1).as_bytes());
    }

    /// Returns the error of opening and loading it.
    pub fn error(&self) -> LoadError {
        python::check_refused(&self.dir);
        let found = Checkpoint::open(&self.dir).and_then(|checkpoint| load(&checkpoint));
        found.expect_err("the attack is found")
    }

    /// Returns the error of the manifest.
    pub fn manifest_error(&self) -> FormatError {
        python::check_refused(&self.dir);
        match Checkpoint::open(&self.dir).expect_err("the attack is found") {
            LoadError::Manifest { path, source } => {
                assert_eq!(path, self.dir.join("manifest.json"));
                source
            }
            error => panic!("{}", chain(&error)),
        }
    }

    /// Modifies the header of a file, including its length, and lists it with the correct size and digest.
    pub fn replace_header(&self, file: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
        let path = self.dir.join(file);
        let old = fs::read(&path).unwrap();
        self.reseal(|body| {
            let entry = position(&body["files"], file);
            let entry = &mut body["files"][entry];
            let old_len = entry["header_bytes"].as_u64().unwrap() as usize;
            let header = change(old[..old_len].to_vec());
            let new = [&header[..], &old[old_len..]].concat();
            entry["size_bytes"] = new.len().into();
            entry["header_bytes"] = header.len().into();
            entry["header_digest"] = Digest::of(&header).to_string().into();
            for tensor in body["tensors"].as_array_mut().unwrap() {
                let chunks = tensor["chunks"].as_array_mut().unwrap();
                for chunk in chunks.iter_mut().filter(|c| c["file"] == file) {
                    let start = chunk["start_bytes"].as_u64().unwrap() as usize;
                    chunk["start_bytes"] = (start - old_len + header.len()).into();
                }
            }
            fs::write(&path, new).unwrap();
        });
    }

    /// Modifies the JSON of the header of a file.
    pub fn replace_header_json(&self, file: &str, change: impl FnOnce(String) -> String) {
        self.replace_header(file, |header| {
            let json = change(String::from_utf8(header[8..].to_vec()).unwrap());
            let len = (json.len() as u64).to_le_bytes();
            [&len[..], json.as_bytes()].concat()
        });
    }

    /// Returns the error of the header of a file.
    pub fn header_error(&self, file: &str) -> HeaderError {
        match self.error() {
            LoadError::Header { path, source } => {
                assert_eq!(path, self.dir.join(file));
                source
            }
            error => panic!("{}", chain(&error)),
        }
    }
}

/// Returns the index of the entry with this name.
pub fn position(list: &Value, name: &str) -> usize {
    let list = list.as_array().unwrap();
    list.iter().position(|one| one["name"] == name).expect(name)
}

/// Returns a sealed document, as the writer of the format creates it.
pub fn sealed(body: &[u8]) -> Vec<u8> {
    let digest = Digest::of(body).to_string();
    let start = format!("{{\"xxh3_128\":\"{digest}\",\"body\":");
    [start.as_bytes(), body, b"}\n"].concat()
}

/// Returns the body of a sealed document.
pub fn body_of(bytes: &[u8]) -> Value {
    let mut whole: Value = serde_json::from_slice(bytes).unwrap();
    whole["body"].take()
}

/// Returns nested arrays.
pub fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// Returns a digest that matches nothing.
pub fn zeros() -> Value {
    json!("0".repeat(32))
}

/// Returns the JSON error of a format error, as text.
pub fn json_text(error: FormatError) -> String {
    match error {
        FormatError::Json { source } | FormatError::Field { source, .. } => source.to_string(),
        error => panic!("{}", chain(&error)),
    }
}

/// Returns the result of a function, or fails if it blocks.
pub fn unblocked<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        // The receiver is dropped after the timeout.
        let _ = send.send(run());
    });
    receive.recv_timeout(TIMEOUT).expect("it does not block")
}
