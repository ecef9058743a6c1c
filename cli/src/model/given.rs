//! The file or directory that a command is given: opened as what its first bytes show, or named if the command does not read
//! it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use tinderbox_checkpoint::LoadError;
use tinderbox_deferred::RecordedModel;

use crate::ckpt::{Weights, open_weights, step_of};
use crate::outcome::Missing;
use crate::terminal::unexpected;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file of tensors: `safetensors`, burnpack or an index.
    Weights,
    /// The file of a recorded model.
    Recorded,
    Json,
    /// A file of another program, by its name.
    Foreign(&'static str),
    Unknown,
}

/// The name of the file in which PyTorch saves a model without `safetensors`.
const PICKLED: &str = "a pickled file of PyTorch";

/// The first bytes of kinds. A zip archive is PyTorch's own form since version 1.6; before, it was the pickle itself.
const FIRST: [(&[u8], Kind); 10] = [
    (b"NRUB", Kind::Weights),
    // CBOR: a map with four entries, and the first key.
    (b"\xa4\x66format", Kind::Recorded),
    (b"PK\x03\x04", Kind::Foreign(PICKLED)),
    (b"\x80\x02", Kind::Foreign(PICKLED)),
    (b"\x80\x03", Kind::Foreign(PICKLED)),
    (b"\x80\x04", Kind::Foreign(PICKLED)),
    (b"\x80\x05", Kind::Foreign(PICKLED)),
    (b"GGUF", Kind::Foreign("a GGUF file")),
    (b"\x93NUMPY", Kind::Foreign("a file of NumPy")),
    (b"\x89HDF", Kind::Foreign("an HDF5 file")),
];

impl Kind {
    /// Returns the kind of a file. A file of tensors may be damaged.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        /// The bytes that tell the kinds apart, and some spaces before a text.
        const BYTES: u64 = 64;
        if has_end(path, &[".index.json"]) {
            return Ok(Self::Weights);
        }
        let mut first = Vec::new();
        let file = File::open(path);
        let read = file.and_then(|file| file.take(BYTES).read_to_end(&mut first));
        read.with_context(|| format!("{} can't be read", path.display()))?;
        Ok(Self::of_first(&first))
    }

    /// Returns the kind of a file with these first bytes.
    fn of_first(first: &[u8]) -> Self {
        /// The longest header that readers of `safetensors` accept.
        const MOST_HEADER_BYTES: u64 = 100_000_000;
        // The length of a header, and its first character, which a truncated file lacks.
        if let Some((length, header)) = first.split_first_chunk()
            && u64::from_le_bytes(*length) <= MOST_HEADER_BYTES
            && header.first().is_none_or(|byte| *byte == b'{')
        {
            return Self::Weights;
        }
        // With the byte order mark that some editors write.
        let text = first.strip_prefix("\u{feff}".as_bytes()).unwrap_or(first);
        if text.trim_ascii_start().starts_with(b"{") {
            return Self::Json;
        }
        let mut known = FIRST.iter();
        let found = known.find(|(bytes, _)| first.starts_with(bytes));
        found.map_or(Self::Unknown, |(_, kind)| *kind)
    }
}

/// Returns whether the name of a file ends with one of these.
fn has_end(path: &Path, ends: &[&str]) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| ends.iter().any(|end| name.ends_with(end)))
}

/// Opens files of weights, or a checkpoint: a step of a run, by default the newest.
pub(super) fn weights(from: &Path, step: Option<u64>) -> anyhow::Result<Weights> {
    if let Some(name) = hub_name(from) {
        let (_, model) = name.split_once('/').unwrap_or(("", name));
        bail!(Missing(format!(
            "{} does not exist; a model of the Hugging Face Hub is downloaded first: `hf download {name} --local-dir {model}`, \
             then use {model}",
            from.display()
        )));
    }
    open_weights(from, step).map_err(|error| {
        let named = match error.downcast_ref() {
            Some(LoadError::Header { path, .. }) => refusal(path),
            Some(LoadError::NoModel { path }) => refusal_of_dir(path),
            _ => None,
        };
        named.unwrap_or(error)
    })
}

/// Returns the name of a model on the Hugging Face Hub, such as `meta-llama/Llama-3`, if the path is one and can't be of this
/// machine.
fn hub_name(from: &Path) -> Option<&str> {
    /// Ends of names of files.
    const OF_FILES: [&str; 6] = [".safetensors", ".bpk", ".json", ".bin", ".pt", ".pth"];
    let text = from.to_str()?;
    let mut sites = ["https://huggingface.co/", "hf://"].into_iter();
    let of_site = sites.find_map(|site| text.strip_prefix(site));
    let name = of_site.unwrap_or(text);
    let (owner, model) = name.split_once('/')?;
    let is_part = |part: &str| {
        let mut letters = part.chars();
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        !part.starts_with('.') && !part.is_empty() && letters.all(is_letter)
    };
    // The directory of a run may be misspelt.
    let is_local = has_end(from, &OF_FILES) || step_of(model).is_some();
    let is_here = of_site.is_none() && (is_local || Path::new(owner).exists());
    (is_part(owner) && is_part(model) && !is_here).then_some(name)
}

/// Returns the error of a file of another kind than weights; `None` for weights, which are damaged.
fn refusal(path: &Path) -> Option<anyhow::Error> {
    /// The kind of file that is expected.
    const WANTED: &str = "a safetensors or burnpack file";
    let name = path.display();
    Some(match Kind::of(path).ok()? {
        Kind::Weights => return None,
        Kind::Unknown if has_end(path, &[".safetensors", ".bpk"]) => return None,
        Kind::Unknown => anyhow!("{name} is not {WANTED}"),
        Kind::Recorded => anyhow!(
            "{name} is the file of a recorded model, which has no values: `tinderbox model init` computes and saves them"
        ),
        Kind::Json => {
            let text = fs::read(path).ok()?;
            let named = unexpected(path, &text, WANTED, &[]);
            named.unwrap_or_else(|| anyhow!("{name} is JSON: expected {WANTED}"))
        }
        Kind::Foreign(PICKLED) => anyhow!(
            "{name} is {PICKLED}, and only safetensors and burnpack files are read: download the model as safetensors, or \
             convert the file in Python: `safetensors.torch.save_file(torch.load(\"{name}\"), \"model.safetensors\")`"
        ),
        Kind::Foreign(kind) => anyhow!("{name} is {kind}: expected {WANTED}"),
    })
}

/// Returns the error of a directory whose files other programs have written.
fn refusal_of_dir(dir: &Path) -> Option<anyhow::Error> {
    let entries = fs::read_dir(dir).ok()?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
    files.sort();
    let is_foreign = |path: &&PathBuf| matches!(Kind::of(path), Ok(Kind::Foreign(_)));
    refusal(files.iter().find(is_foreign)?)
}

/// Reads the file of a recorded model.
pub(super) fn recorded_model(path: &Path) -> anyhow::Result<RecordedModel> {
    let name = path.display();
    let advice = "expected the file of a recorded model, which a program writes with `Deferred::recorded_model`";
    ensure!(!path.is_dir(), "{name} is a directory: {advice}");
    match Kind::of(path)? {
        Kind::Recorded | Kind::Unknown => Ok(RecordedModel::load(path)?),
        Kind::Weights => {
            bail!("{name} has values, which `tinderbox model convert` saves: {advice}")
        }
        Kind::Json => bail!("{name} is JSON: {advice}"),
        Kind::Foreign(kind) => bail!("{name} is {kind}: {advice}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell_kinds_apart() {
        for (first, expected) in [
            (&b"\x80\x02\0\0\0\0\0\0{\"w\":"[..], Kind::Weights),
            (b"\x80\x02\0\0\0\0\0\0", Kind::Weights),
            (b"{\0\0\0\0\0\0\0{\"w\":", Kind::Weights),
            (b"NRUB\x01\0", Kind::Weights),
            (
                b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P",
                Kind::Foreign(PICKLED),
            ),
            (b"\x80\x04\x95\x1e\0\0\0\0\0\0\0", Kind::Foreign(PICKLED)),
            (b"PK\x03\x04\0\0\x08\x08\0\0", Kind::Foreign(PICKLED)),
            (b"\xef\xbb\xbf {\"a\":1}", Kind::Json),
            (b"{}", Kind::Json),
            (b"\xa4\x66format", Kind::Recorded),
            (b"short", Kind::Unknown),
            (b"", Kind::Unknown),
        ] {
            assert_eq!(Kind::of_first(first), expected, "{first:?}");
        }
    }

    #[test]
    fn names_of_a_hub_are_distinguished_from_paths() {
        for (path, expected) in [
            ("meta-llama/Llama-3.1-8B", Some("meta-llama/Llama-3.1-8B")),
            ("https://huggingface.co/a/b", Some("a/b")),
            ("hf://a/b", Some("a/b")),
            ("src/model", None),
            ("./model", None),
            ("/model", None),
            ("a/b/c", None),
            ("models/a.safetensors", None),
            ("rnus/step-00000040", None),
            ("gpt2", None),
            ("s3://bucket/run", None),
        ] {
            assert_eq!(hub_name(Path::new(path)), expected, "{path}");
        }
    }
}
