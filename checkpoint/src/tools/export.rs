//! Export of a checkpoint's parameters to a plain Hugging Face directory, or to a file of Burn.

use std::{
    cmp::Reverse,
    path::{Path, PathBuf},
};

use super::ToolError;
use crate::{
    Checkpoint, Role, SaveError, StoredDType, TensorEntry,
    format::{AttemptId, INDEX_FILE, encode_burnpack, encode_header, encode_index, padded},
    store::{FoundKind, LocalStore, Store, existing, join, remove_tree},
    write::failed,
};
use tinderbox_deferred::Observer;

/// The default maximum file size in bytes, as in Hugging Face's tools.
const FILE_BYTES: u64 = 5_000_000_000;
/// The name of a burnpack file.
const PACK_FILE: &str = "model.bpk";

/// The files of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// `model.safetensors`, or several files and `model.safetensors.index.json`.
    #[default]
    Safetensors,
    /// `model.bpk`, a burnpack file, which `ModuleRecord` and `BurnpackStore` of Burn load. A `Linear` in column layout,
    /// whose weight Burn's records contain transposed, can't be exported: its weight is written as it is.
    Burnpack,
}

/// Options of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// The files. By default `safetensors`.
    pub format: ExportFormat,
    /// Maximum number of tensor bytes in a `safetensors` file; a larger tensor has its own file.
    pub file_bytes: u64,
}

impl Default for ExportOptions {
    /// Files of 5 GB.
    fn default() -> Self {
        Self {
            format: ExportFormat::default(),
            file_bytes: FILE_BYTES,
        }
    }
}

/// The result of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Names of the files with tensors, sorted.
    pub files: Vec<String>,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Tied names, each with the name under which the tensor was written. Hugging Face's form can't represent
    /// them: the configuration of the model specifies tied weights.
    pub tied: Vec<(String, String)>,
}

/// Writes the parameters of a checkpoint, each tensor whole, to files of a [format](ExportFormat) in a new
/// directory. Omits optimizer state. Copies values unchanged: a Burn `Linear` stays `[in, out]`, whereas
/// PyTorch has `[out, in]`.
///
/// The directory appears under its name atomically, after all contents are durable. Until then its name is
/// `.export-<32 hex digits>`, which remains if the process is killed.
///
/// Time: one pass over the parameters to read and one to write. Memory: a piece of 8 MiB.
///
/// # Errors
///
/// Returns an error if the checkpoint has no parameters, `to` is anything but a missing or empty directory, a
/// block is damaged, or an I/O operation fails.
pub fn export(
    checkpoint: &Checkpoint,
    to: &Path,
    options: &ExportOptions,
    progress: &dyn Observer,
) -> Result<Exported, ToolError> {
    let mut tensors: Vec<&TensorEntry> = checkpoint.tensors(Role::Model).collect();
    if tensors.is_empty() {
        return Err(ToolError::NoParameters {
            path: checkpoint.dir().to_owned(),
        });
    }
    // Wide elements first, so that every tensor is aligned in its file.
    tensors.sort_by_key(|tensor| (Reverse(tensor.dtype.size_bytes()), &tensor.name));
    let target = Target::of(to)?;
    target.refuse_existing()?;
    let files = match options.format {
        ExportFormat::Safetensors => divide(&tensors, options.file_bytes),
        ExportFormat::Burnpack => vec![PlainFile {
            name: PACK_FILE.to_owned(),
            tensors: tensors.clone(),
        }],
    };
    let bytes = tensors.iter().map(|tensor| tensor.bytes()).sum();
    progress.begin(tensors.len(), bytes);
    target.write(checkpoint, &files, options.format, progress)?;
    progress.end();
    let tied = tensors.iter().flat_map(|tensor| {
        let names = tensor.tied.iter();
        names.map(|name| (name.clone(), tensor.name.clone()))
    });
    Ok(Exported {
        tied: tied.collect(),
        files: files.into_iter().map(|file| file.name).collect(),
        tensors: tensors.len(),
        bytes,
    })
}

/// A file to write.
struct PlainFile<'a> {
    name: String,
    tensors: Vec<&'a TensorEntry>,
}

/// Divides tensors into files, in order.
fn divide<'a>(tensors: &[&'a TensorEntry], limit_bytes: u64) -> Vec<PlainFile<'a>> {
    let mut files: Vec<Vec<&TensorEntry>> = Vec::new();
    let mut bytes = 0u64;
    for tensor in tensors.iter().copied() {
        let more = tensor.bytes();
        match files.last_mut() {
            Some(file) if bytes.saturating_add(more) <= limit_bytes => file.push(tensor),
            _ => {
                files.push(vec![tensor]);
                bytes = 0;
            }
        }
        bytes = bytes.saturating_add(more);
    }
    let count = files.len();
    let name = |number: usize| match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
    };
    let files = files.into_iter().enumerate();
    files
        .map(|(number, tensors)| PlainFile {
            name: name(number),
            tensors,
        })
        .collect()
}

/// A directory to create.
struct Target {
    /// The parent directory.
    parent: LocalStore,
    name: String,
    temporary: String,
}

impl Target {
    fn of(path: &Path) -> Result<Self, ToolError> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| ToolError::TargetName {
            path: path.to_owned(),
        })?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Ok(Self {
            parent: LocalStore::new(parent),
            name: name.to_owned(),
            // Unique like the id of an attempt.
            temporary: format!(".export-{}", AttemptId::fresh()),
        })
    }

    /// Rejects anything but an empty directory; returns whether there is one.
    fn refuse_existing(&self) -> Result<bool, ToolError> {
        let (parent, name) = (&self.parent, &*self.name);
        let found = existing(parent.look(name)).map_err(failed(parent, "look at", name))?;
        let taken = match found {
            None => return Ok(false),
            Some(found) if found.kind == FoundKind::Dir => {
                let listing = parent.list(name).map_err(failed(parent, "list", name))?;
                !listing.is_empty()
            }
            Some(_) => true,
        };
        match taken {
            false => Ok(true),
            true => Err(ToolError::TargetExists {
                path: parent.place(name),
            }),
        }
    }

    /// Writes all files and renames the directory; removes its output on failure.
    fn write(
        &self,
        checkpoint: &Checkpoint,
        files: &[PlainFile<'_>],
        format: ExportFormat,
        progress: &dyn Observer,
    ) -> Result<(), ToolError> {
        let (store, dir) = (&self.parent, &*self.temporary);
        store.create_root().map_err(failed(store, "create", ""))?;
        store
            .create_dir(dir)
            .map_err(failed(store, "create", dir))?;
        let written = (|| {
            for file in files {
                self.write_file(checkpoint, file, format, progress)?;
            }
            if files.len() > 1 {
                self.write_index(files)?;
            }
            store.sync_dir(dir).map_err(failed(store, "sync", dir))?;
            self.appear()
        })();
        if written.is_err() {
            // Reports the first error.
            let _ = remove_tree(store, dir, "");
        }
        written
    }

    fn write_file(
        &self,
        checkpoint: &Checkpoint,
        plain: &PlainFile<'_>,
        format: ExportFormat,
        progress: &dyn Observer,
    ) -> Result<(), ToolError> {
        let (store, path) = (&self.parent, join(&self.temporary, &plain.name));
        let listed: Vec<(&str, StoredDType, &[u64])> = plain
            .tensors
            .iter()
            .map(|tensor| (&*tensor.name, tensor.dtype, &*tensor.shape))
            .collect();
        let header = match format {
            // Hugging Face's loader requires a format in the metadata.
            ExportFormat::Safetensors => encode_header(&[("format", "pt")], &listed),
            ExportFormat::Burnpack => encode_burnpack(&listed),
        };
        let header = header.map_err(|source| ToolError::Header {
            path: store.place(&path),
            source,
        })?;
        let mut file = store
            .create(&path)
            .map_err(failed(store, "create", &path))?;
        file.write_all(&header)
            .map_err(failed(store, "write", &path))?;
        let mut end = 0_u64;
        for tensor in &plain.tensors {
            if format == ExportFormat::Burnpack {
                let padding = vec![0; (padded(end) - end) as usize];
                file.write_all(&padding)
                    .map_err(failed(store, "write", &path))?;
                end = padded(end) + tensor.bytes();
            }
            for data in checkpoint.read_in_pieces(tensor, &tensor.region()) {
                let data = data?;
                let bytes = data.as_bytes();
                file.write_all(bytes)
                    .map_err(failed(store, "write", &path))?;
                progress.advanced(bytes.len() as u64);
            }
        }
        Ok(file.finish().map_err(failed(store, "write", &path))?)
    }

    fn write_index(&self, files: &[PlainFile<'_>]) -> Result<(), ToolError> {
        let (store, path) = (&self.parent, join(&self.temporary, INDEX_FILE));
        let parameters = files.iter().flat_map(|file| {
            let tensors = file.tensors.iter();
            tensors.map(|tensor| (&*tensor.name, &*file.name, tensor.bytes()))
        });
        let bytes = encode_index(parameters).map_err(SaveError::Meta)?;
        let put = store.put(&path, &bytes);
        Ok(put.map_err(failed(store, "write", &path))?)
    }

    /// Renames the directory, atomically.
    fn appear(&self) -> Result<(), ToolError> {
        let (store, name) = (&self.parent, &*self.name);
        if self.refuse_existing()? {
            store
                .remove_dir(name)
                .map_err(failed(store, "remove", name))?;
        }
        store
            .rename(&self.temporary, name)
            .map_err(failed(store, "create", name))?;
        Ok(store.sync_dir("").map_err(failed(store, "sync", ""))?)
    }
}

#[cfg(test)]
mod tests {
    use tinderbox_fake::Region;

    use super::*;
    use crate::Chunk;

    #[test]
    fn files_are_filled_in_order() {
        let tensors: Vec<TensorEntry> = [4, 4, 8, 20, 0, 4].map(tensor).into();
        let tensors: Vec<&TensorEntry> = tensors.iter().collect();
        let check = |limit, expected: &[&[u64]]| {
            let files = divide(&tensors, limit);
            let bytes = |file: &PlainFile<'_>| -> Vec<u64> {
                file.tensors.iter().map(|t| t.bytes()).collect()
            };
            let found: Vec<Vec<u64>> = files.iter().map(bytes).collect();
            assert_eq!(found, expected, "{limit}");
            files[files.len() - 1].name.clone()
        };
        assert_eq!(check(100, &[&[4, 4, 8, 20, 0, 4]]), "model.safetensors");
        let last = check(8, &[&[4, 4], &[8], &[20], &[0, 4]]);
        assert_eq!(last, "model-00004-of-00004.safetensors");
        check(0, &[&[4], &[4], &[8], &[20], &[0], &[4]]);
    }

    fn tensor(bytes: u64) -> TensorEntry {
        let tensor = TensorEntry {
            name: "w".to_owned(),
            tied: Vec::new(),
            role: Role::Model,
            dtype: StoredDType::U8,
            shape: vec![bytes],
            chunks: Vec::new(),
        };
        let chunk = Chunk {
            region: Region::whole(&[bytes]).unwrap(),
            file: String::new(),
            start_bytes: 0,
            len_bytes: bytes,
            digests: Vec::new(),
        };
        TensorEntry {
            chunks: vec![chunk],
            ..tensor
        }
    }
}
