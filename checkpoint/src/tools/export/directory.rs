//! The files of an export, and the directory in which they appear.

use std::{path::Path, sync::Arc};

use tinderbox_deferred::Observer;

use super::tensors::{ExportTensor, Tensors};
use super::{ExportFormat, ExportLayout, ExportOptions, Exported};
use crate::format::{INDEX_FILE, encode_burnpack, encode_header, encode_index, padded};
use crate::layout::groups;
use crate::store::{Files, FoundKind, LocalStore, StoreExt, join, parent_of};
use crate::tools::ToolError;
use crate::{AttemptId, Checkpoint, LoadError, Role, SaveError, SaveTensor, StoredDType};

/// The name of a burnpack file.
const PACK_FILE: &str = "model.bpk";

/// Writes the parameters of a checkpoint, each tensor whole, to files of a [format](ExportFormat) in a new directory, with
/// names and layouts of a [library](super::ExportLayout). Omits optimizer state. Copies values unchanged.
///
/// The directory appears under its name atomically, after all contents are durable. Until then its name is
/// `.export-<32 hex digits>`, which remains if the process is killed.
///
/// Time: one pass over the parameters to read and one to write. A matrix that is transposed and larger than
/// [`ExportOptions::transpose_bytes`] is read once for each part of this size. Memory: a piece of 8 MiB, and one part of this
/// size.
///
/// # Errors
///
/// Returns an error if the checkpoint has no parameters, `to` is anything but a missing or empty directory, two
/// tensors would have one name, the types of the modules are required and not known, a block is damaged, or an I/O
/// operation fails.
pub fn export(
    checkpoint: &Checkpoint,
    to: &Path,
    options: &ExportOptions,
    progress: &dyn Observer,
) -> Result<Exported, ToolError> {
    let tensors = checkpoint.tensors(Role::Model);
    let tensors = tensors.map(|tensor| SaveTensor::of_saved(checkpoint, tensor, None));
    let tensors: Vec<SaveTensor> = tensors.collect();
    let mut options = options.clone();
    if options.modules.is_none() && options.layout == ExportLayout::PyTorch {
        options.modules = Some(checkpoint.manifest().modules());
    }
    write(&tensors, checkpoint.dir(), to, &options, progress)
}

/// Writes tensors that are not in a checkpoint, like [`export`]: the tensors with the role of a model, each whole. PyTorch's
/// names and layouts require [`ExportOptions::modules`].
///
/// Memory: in addition to the tensors, a host copy of one tensor that is on a device, and a part of
/// [`ExportOptions::transpose_bytes`].
///
/// # Errors
///
/// See [`export`]; also returns an error if a tensor is not whole, or a device fails.
pub fn export_tensors(
    tensors: &[SaveTensor],
    to: &Path,
    options: &ExportOptions,
    progress: &dyn Observer,
) -> Result<Exported, ToolError> {
    write(tensors, to, to, options, progress)
}

fn write(
    tensors: &[SaveTensor],
    from: &Path,
    to: &Path,
    options: &ExportOptions,
    progress: &dyn Observer,
) -> Result<Exported, ToolError> {
    let Tensors { all, tied } = Tensors::of(tensors, from, options)?;
    let (parent, name) = parent_of(to).ok_or_else(|| ToolError::TargetName {
        path: to.to_owned(),
    })?;
    let target = Target {
        options,
        progress,
        parent: Files(Arc::new(LocalStore::new(parent))),
        name: name.to_owned(),
        // Unique like the id of an attempt.
        temporary: format!(".export-{}", AttemptId::fresh()),
    };
    target.refuse_existing()?;
    let files = match options.format {
        ExportFormat::Safetensors => divide(&all, options.file_bytes),
        ExportFormat::Burnpack => vec![PlainFile {
            name: PACK_FILE.to_owned(),
            tensors: &all,
        }],
    };
    let bytes = all.iter().map(|tensor| tensor.values.bytes()).sum();
    progress.begin(all.len(), bytes);
    target.write(&files)?;
    progress.end();
    Ok(Exported {
        tied,
        files: files.into_iter().map(|file| file.name).collect(),
        tensors: all.len(),
        bytes,
    })
}

/// A file to write.
struct PlainFile<'a> {
    name: String,
    tensors: &'a [ExportTensor<'a>],
}

/// Divides tensors into files, in order.
fn divide<'a>(tensors: &'a [ExportTensor<'a>], limit_bytes: u64) -> Vec<PlainFile<'a>> {
    let bytes = |tensor: &ExportTensor<'_>| tensor.values.bytes();
    let is_full = |held: u64, _, at: usize| held.saturating_add(bytes(&tensors[at])) > limit_bytes;
    let files = groups(tensors, bytes, is_full);
    let count = files.len();
    let named = files.into_iter().zip(1..).map(|(tensors, number)| {
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{number:05}-of-{count:05}.safetensors"),
        };
        PlainFile { name, tensors }
    });
    named.collect()
}

/// Converts an error of a save whose cause is an error of a load to the error of the load.
fn of_values(error: SaveError) -> ToolError {
    match error {
        SaveError::Value { tensor, source } => match source.downcast::<LoadError>() {
            Ok(source) => ToolError::Load(*source),
            Err(source) => SaveError::Value { tensor, source }.into(),
        },
        error => error.into(),
    }
}

/// A directory to create.
struct Target<'a> {
    options: &'a ExportOptions,
    progress: &'a dyn Observer,
    /// The parent directory.
    parent: Files,
    name: String,
    temporary: String,
}

impl Target<'_> {
    /// Rejects anything but an empty directory; returns whether there is one.
    fn refuse_existing(&self) -> Result<bool, ToolError> {
        let (parent, name) = (&self.parent, &*self.name);
        let path = parent.place(name);
        match parent.find(name)?.map(|found| found.kind) {
            None => Ok(false),
            Some(FoundKind::Dir) if parent.entries(name)?.is_empty() => Ok(true),
            Some(_) => Err(ToolError::TargetExists { path }),
        }
    }

    /// Writes all files and renames the directory; removes its output on failure.
    fn write(&self, files: &[PlainFile<'_>]) -> Result<(), ToolError> {
        let (store, dir, name) = (&self.parent, &*self.temporary, &*self.name);
        store.create_dir("").map_err(store.failed("create", ""))?;
        store.create_dir(dir).map_err(store.failed("create", dir))?;
        let written = (|| -> Result<(), ToolError> {
            for file in files {
                self.write_file(file)?;
            }
            if files.len() > 1 {
                let parameters = files.iter().flat_map(|file| {
                    let tensors = file.tensors.iter();
                    tensors.map(|tensor| (&*tensor.name, &*file.name, tensor.values.bytes()))
                });
                let bytes = encode_index(parameters).map_err(SaveError::Meta)?;
                store.write(&join(dir, INDEX_FILE), &bytes)?;
            }
            store.sync(dir)?;
            if self.refuse_existing()? {
                let removed = store.remove_dir(name);
                removed.map_err(store.failed("remove", name))?;
            }
            let renamed = store.rename(dir, name);
            renamed.map_err(store.failed("create", name))?;
            Ok(store.sync("")?)
        })();
        if written.is_err() {
            // Reports the first error.
            let _ = store.remove_tree(dir, "");
        }
        written
    }

    fn write_file(&self, plain: &PlainFile<'_>) -> Result<(), ToolError> {
        let path = join(&self.temporary, &plain.name);
        let listed = plain.tensors.iter();
        let listed = listed.map(|tensor| (&*tensor.name, tensor.dtype, &*tensor.shape));
        let listed: Vec<(&str, StoredDType, &[u64])> = listed.collect();
        let header = match self.options.format {
            // Hugging Face's loader requires a format in the metadata.
            ExportFormat::Safetensors => encode_header(&[("format", "pt")], &listed),
            ExportFormat::Burnpack => encode_burnpack(&listed),
        };
        let header = header.map_err(|source| ToolError::Header {
            path: self.parent.place(&path),
            source,
        })?;
        let mut file = self.parent.begin(path)?;
        file.write_all(&header)?;
        let mut end = 0_u64;
        for tensor in plain.tensors {
            if self.options.format == ExportFormat::Burnpack {
                file.write_all(&vec![0; (padded(end) - end) as usize])?;
                end = padded(end) + tensor.values.bytes();
            }
            let put = |bytes: &[u8]| {
                file.write_all(bytes)?;
                self.progress.advanced(bytes.len() as u64);
                Ok(())
            };
            let (values, part_bytes) = (&tensor.values, self.options.transpose_bytes);
            let written = match tensor.is_transposed {
                true => values.for_each_transposed_piece(part_bytes, put),
                false => values.for_each_piece(put),
            };
            written.map_err(of_values)?;
        }
        Ok(file.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use burn::tensor::TensorData;

    use super::*;

    #[test]
    fn files_are_filled_in_order() {
        let tensors: Vec<ExportTensor<'_>> = [4, 4, 8, 20, 0, 4].map(tensor).into();
        let check = |limit, expected: &[&[u64]]| {
            let files = divide(&tensors, limit);
            let bytes = |file: &PlainFile<'_>| -> Vec<u64> {
                file.tensors.iter().map(|t| t.values.bytes()).collect()
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

    fn tensor(bytes: u64) -> ExportTensor<'static> {
        let data = TensorData::new(vec![0_u8; bytes as usize], [bytes as usize]);
        let saved = SaveTensor::whole("w", Role::Model, data);
        ExportTensor {
            name: "w".to_owned(),
            dtype: StoredDType::U8,
            shape: vec![bytes],
            values: Cow::Owned(saved),
            is_transposed: false,
        }
    }
}
