//! Digests of what a run has after each step.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use tinderbox::StateDigest;

/// A file with a line of JSON for each step.
pub struct Digests(File);

impl Digests {
    /// Creates the file, or continues the file of a run that is resumed, without the line that a kill may have cut.
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
