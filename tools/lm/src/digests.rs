//! Digests of the state of a run after each step.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use tinderbox::pipeline::StateDigest;

/// A file with a line of JSON for each step.
pub struct Digests(File);

impl Digests {
    /// Creates the file, or appends to the file of a resumed run, whose last line is removed if a kill has truncated it.
    pub fn open(path: &Path, is_resumed: bool) -> Result<Self> {
        let open = || {
            let mut file = OpenOptions::new();
            let file = file.create(true).append(true).open(path)?;
            let whole = match is_resumed {
                true => fs::read(path)?.iter().rposition(|byte| *byte == b'\n'),
                false => None,
            };
            file.set_len(whole.map_or(0, |last| last as u64 + 1))?;
            Ok::<_, std::io::Error>(file)
        };
        let file = open().with_context(|| format!("--digests {}", path.display()))?;
        Ok(Self(file))
    }

    pub fn add(&mut self, digest: &StateDigest) -> Result<()> {
        let line = serde_json::to_string(digest)? + "\n";
        self.0.write_all(line.as_bytes()).context("--digests")
    }
}
