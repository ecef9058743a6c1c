//! Options and result of an export.

use regex::Regex;
use tinderbox_deferred::ParameterTable;

use crate::ModuleTypes;

/// The default maximum file size in bytes, as in Hugging Face's tools.
const FILE_BYTES: u64 = 5_000_000_000;
/// The default memory for a part of a transposed matrix, in bytes: most matrices are one part.
const TRANSPOSE_BYTES: u64 = 256 << 20;

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

/// The names and layouts of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportLayout {
    /// The names and layouts of the model, unchanged.
    #[default]
    Burn,
    /// The names and layouts of PyTorch's modules, the reverse of [`LoadOptions::pytorch`](crate::LoadOptions::pytorch): the
    /// weight of a `Linear` is transposed to `[out, in]`, `gamma` and `beta` of a `BatchNorm`, `GroupNorm`, `InstanceNorm`,
    /// `LayerNorm` or `RmsNorm` are `weight` and `bias`. A `BatchNorm` also gets the number of batches that it has seen,
    /// `num_batches_tracked`, which a model of PyTorch has: always 0, because Burn does not count them. PyTorch uses the number
    /// only with `momentum=None`.
    PyTorch,
}

/// Options of an export.
#[derive(Clone, Debug)]
#[must_use]
pub struct ExportOptions {
    /// The files. By default `safetensors`.
    pub format: ExportFormat,
    /// Names and layouts. By default the names and layouts of the model.
    pub layout: ExportLayout,
    /// The types of the model's modules, which determine [`ExportLayout::PyTorch`]. By default the types in the checkpoint.
    pub modules: Option<ModuleTypes>,
    /// Patterns with replacements: the first match of each pattern in every name is replaced, one pattern after the other, as
    /// in [`LoadOptions::rename`](crate::LoadOptions::rename). The patterns match the names of the [layout](Self::layout).
    pub renames: Vec<(Regex, String)>,
    /// Maximum number of tensor bytes in a `safetensors` file; a larger tensor has its own file.
    pub file_bytes: u64,
    /// Memory for a part of a transposed matrix in bytes. A larger matrix of a checkpoint is read once for each part, because
    /// the rows of the transposed matrix are the columns of the stored matrix.
    pub transpose_bytes: u64,
}

impl Default for ExportOptions {
    /// Names and layouts of the model, files of 5 GB, 256 MiB to transpose.
    fn default() -> Self {
        Self {
            format: ExportFormat::default(),
            layout: ExportLayout::default(),
            modules: None,
            renames: Vec::new(),
            file_bytes: FILE_BYTES,
            transpose_bytes: TRANSPOSE_BYTES,
        }
    }
}

impl ExportOptions {
    /// Selects PyTorch's names and layouts for the parameters of this model, see [`ExportLayout::PyTorch`].
    pub fn pytorch(mut self, model: &ParameterTable) -> Self {
        self.layout = ExportLayout::PyTorch;
        self.modules = Some(ModuleTypes::of(model));
        self
    }

    /// Adds a [rename](Self::renames); `$1` and `${name}` in the replacement refer to groups.
    pub fn rename(mut self, pattern: Regex, replacement: impl Into<String>) -> Self {
        self.renames.push((pattern, replacement.into()));
        self
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
    /// Tied names, each with the name under which the tensor was written. Hugging Face's form has no tied names: the
    /// configuration of the model specifies tied weights.
    pub tied: Vec<(String, String)>,
}
