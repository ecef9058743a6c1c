//! The tensors of an export: their names, layouts and order.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap, path::Path};

use burn::tensor::TensorData;
use tinderbox_deferred::ParameterPath;

use super::{ExportFormat, ExportLayout, ExportOptions};
use crate::format::{BATCHES_TRACKED, PyTorchForm, check_tensor_name, path_in, tracks_batches};
use crate::read::renamed;
use crate::tools::ToolError;
use crate::{ModuleTypes, Role, SaveError, SaveTensor, StoredDType, check_tiling};

/// A tensor to write.
pub(super) struct ExportTensor<'a> {
    pub(super) name: String,
    pub(super) dtype: StoredDType,
    pub(super) shape: Vec<u64>,
    pub(super) values: Cow<'a, SaveTensor>,
    pub(super) is_transposed: bool,
}

/// The tensors of an export in the order in which they are written, and each tied name with the name under which its tensor is
/// written.
pub(super) struct Tensors<'a> {
    pub(super) all: Vec<ExportTensor<'a>>,
    pub(super) tied: Vec<(String, String)>,
}

impl<'a> Tensors<'a> {
    /// Names the parameters among the tensors of a checkpoint or a model, which errors describe by `place`. Reads no values.
    pub(super) fn of(
        tensors: &'a [SaveTensor],
        place: &Path,
        options: &ExportOptions,
    ) -> Result<Self, ToolError> {
        let parameters = tensors.iter().filter(|tensor| tensor.role == Role::Model);
        let parameters: Vec<&SaveTensor> = parameters.collect();
        if parameters.is_empty() {
            let path = place.to_owned();
            return Err(ToolError::NoParameters { path });
        }
        let modules = pytorch_modules(&parameters, place, options)?;
        let in_layout = |path: &ParameterPath| {
            let module_type = modules.and_then(|modules| modules.get(path.module()));
            let form = module_type.map(|of| PyTorchForm::of(of, path.leaf()));
            let name = form.map_or_else(
                || path.to_string(),
                |form| path_in(path.module(), form.name),
            );
            let is_transposed = form.is_some_and(|form| form.transposed);
            (renamed(&options.renames, &name), is_transposed, module_type)
        };
        let (mut all, mut tied) = (Vec::new(), Vec::new());
        for tensor in parameters {
            let path = ParameterPath::new(&*tensor.name);
            let (name, is_transposed, module_type) = in_layout(&path);
            let other = tensor.tied.iter().map(|tied| {
                let (tied, ..) = in_layout(&ParameterPath::new(&**tied));
                (tied, name.clone())
            });
            tied.extend(other);
            if module_type.is_some_and(|of| tracks_batches(of, path.leaf())) {
                let name = renamed(&options.renames, &path_in(path.module(), BATCHES_TRACKED));
                let count = TensorData::new(vec![0_i64], [0_usize; 0]);
                let count = SaveTensor::whole(&*name, Role::Model, count);
                all.push(export_tensor(Cow::Owned(count), name, false)?);
            }
            all.push(export_tensor(Cow::Borrowed(tensor), name, is_transposed)?);
        }
        check_names(&all)?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        // Wide elements come first, so that every tensor is aligned in its file.
        all.sort_by_key(|tensor| Reverse(tensor.dtype.size_bytes()));
        tied.sort();
        Ok(Self { all, tied })
    }
}

fn export_tensor(
    values: Cow<'_, SaveTensor>,
    name: String,
    is_transposed: bool,
) -> Result<ExportTensor<'_>, ToolError> {
    let dtype = values.check()?;
    check_tiling(&values.shape, &[&values.region]).map_err(|source| SaveError::Layout {
        tensor: values.name.clone(),
        source,
    })?;
    let mut shape = values.shape.clone();
    // Other shapes have one layout.
    let is_transposed = is_transposed && shape.len() == 2;
    if is_transposed {
        shape.reverse();
    }
    Ok(ExportTensor {
        name,
        dtype,
        shape,
        values,
        is_transposed,
    })
}

/// Rejects names that are invalid, or that two tensors would have.
fn check_names(tensors: &[ExportTensor<'_>]) -> Result<(), ToolError> {
    let mut seen: BTreeMap<&str, &ExportTensor<'_>> = BTreeMap::new();
    for tensor in tensors {
        check_tensor_name(&tensor.name).map_err(|source| SaveError::Name {
            tensor: tensor.values.name.clone(),
            source,
        })?;
        if let Some(first) = seen.insert(&tensor.name, tensor) {
            return Err(ToolError::SameName {
                first: first.values.name.clone(),
                second: tensor.values.name.clone(),
                name: tensor.name.clone(),
            });
        }
    }
    Ok(())
}

/// Returns the types of the modules in PyTorch's layout. Rejects an export to this layout without the type of every parameter's
/// module.
fn pytorch_modules<'a>(
    parameters: &[&SaveTensor],
    place: &Path,
    options: &'a ExportOptions,
) -> Result<Option<&'a ModuleTypes>, ToolError> {
    if options.layout == ExportLayout::Burn {
        return Ok(None);
    }
    if options.format != ExportFormat::Safetensors {
        return Err(ToolError::PyTorchFormat);
    }
    let path = || place.to_owned();
    let known = options.modules.as_ref().filter(|types| !types.is_empty());
    let modules = known.ok_or_else(|| ToolError::NoModules { path: path() })?;
    let names = parameters.iter().map(|tensor| &tensor.name);
    let is_unknown = |name: &&String| {
        let path = ParameterPath::new(&***name);
        modules.get(path.module()).is_none()
    };
    let tensors: Vec<String> = names.filter(is_unknown).cloned().collect();
    match tensors.is_empty() {
        true => Ok(Some(modules)),
        false => Err(ToolError::OtherModel {
            path: path(),
            tensors,
        }),
    }
}
