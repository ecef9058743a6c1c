//! Values for the parameters of a deferred model, on a device.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_fake::{DynTensor, Region};

use crate::module::{PartialModule, Slot, fill};
use crate::{
    Deferred, MaterializeError, Mismatch, Mismatches, Parameter, ParameterPath, ParameterTable,
    Request, Source, SourceError,
};

impl<M: Module> Deferred<M> {
    /// The whole model on a device, with values from a source. Parameters keep their load and save
    /// mappers and their training state; on an autodiff device the trainable ones require gradients.
    ///
    /// Plain `Tensor` fields and skipped fields are made by the model itself, on the device.
    ///
    /// # Errors
    ///
    /// When the source lacks a value, or the closure makes another model than it did before.
    pub fn materialize(&self, device: &Device, source: &dyn Source) -> Result<M, MaterializeError> {
        self.materialize_where(device, source, |_| true)
    }

    /// The model on a device, with values for the selected parameters. The others stay fake:
    /// [`check_lit`](crate::check_lit) names them.
    ///
    /// # Errors
    ///
    /// As [`Deferred::materialize`].
    pub fn materialize_where(
        &self,
        device: &Device,
        source: &dyn Source,
        select: impl Fn(&Parameter) -> bool,
    ) -> Result<M, MaterializeError> {
        let mut values = self.load(device, source, &select)?;
        let slots = self
            .table
            .iter()
            .zip(self.twins.iter())
            .map(|(parameter, twin)| {
                let first = parameter.clone_of.as_ref().unwrap_or(&parameter.path);
                let value = match select(parameter) {
                    true => values.get(first).cloned(),
                    false => None,
                };
                let slot = Slot {
                    value,
                    twin: twin.param.as_ref(),
                    declared: &twin.declared,
                    trainable: parameter.trainable,
                };
                (parameter.path.clone(), slot)
            });
        let slots = slots.collect();
        values.clear();
        fill(self.construct(device), slots)
    }

    /// The selected parameters on a device, without autodiff and without their module; the closure is
    /// not called. Of clones, the first is taken.
    ///
    /// # Errors
    ///
    /// When the source lacks a value, or gives one of another shape or dtype.
    pub fn materialize_parameters(
        &self,
        device: &Device,
        source: &dyn Source,
        select: impl Fn(&Parameter) -> bool,
    ) -> Result<PartialModule, MaterializeError> {
        materialize_parameters(&self.table, device, source, select)
    }

    fn load(
        &self,
        device: &Device,
        source: &dyn Source,
        select: &impl Fn(&Parameter) -> bool,
    ) -> Result<BTreeMap<ParameterPath, DynTensor>, MaterializeError> {
        // A clone that is selected without its original needs the original's value.
        let wanted: BTreeSet<&ParameterPath> = self
            .table
            .iter()
            .filter(|parameter| select(parameter))
            .map(|parameter| parameter.clone_of.as_ref().unwrap_or(&parameter.path))
            .collect();
        let selected = self.table.distinct();
        let selected = selected.filter(|parameter| wanted.contains(&parameter.path));
        Ok(load(selected, device, source)?.into_iter().collect())
    }
}

/// The selected parameters of a table on a device, without autodiff, as a module of their own.
///
/// # Errors
///
/// When the source lacks a value, or gives one of another shape or dtype.
pub fn materialize_parameters(
    table: &ParameterTable,
    device: &Device,
    source: &dyn Source,
    select: impl Fn(&Parameter) -> bool,
) -> Result<PartialModule, MaterializeError> {
    let selected = table.distinct().filter(|parameter| select(parameter));
    let values = load(selected, device, source)?;
    PartialModule::new(values).map_err(|source| MaterializeError::Rank { source })
}

/// The values of parameters on a device, without autodiff, as the source promises them.
fn load<'a>(
    selected: impl Iterator<Item = &'a Parameter>,
    device: &Device,
    source: &dyn Source,
) -> Result<Vec<(ParameterPath, DynTensor)>, SourceError> {
    let device = device.clone().without_autodiff();
    let requests: Vec<Request> = selected
        .map(|parameter| Request {
            path: parameter.path.clone(),
            shape: parameter.shape.clone(),
            region: Region::of_shape(
                &parameter
                    .shape
                    .iter()
                    .map(|d| *d as usize)
                    .collect::<Vec<_>>(),
            ),
            dtype: parameter.dtype,
            device: device.clone(),
        })
        .collect();
    let values = source.load(&requests)?;
    if values.len() != requests.len() {
        return Err(SourceError::Count {
            described: source.describe(),
            expected: requests.len(),
            found: values.len(),
        });
    }
    let answers = requests.iter().zip(&values);
    let mismatches: Vec<Mismatch> = answers.flat_map(|(r, v)| r.mismatches_of(v)).collect();
    if !mismatches.is_empty() {
        return Err(SourceError::Mismatch {
            described: source.describe(),
            mismatches: Mismatches(mismatches),
        });
    }
    let paths = requests.into_iter().map(|request| request.path);
    Ok(paths.zip(values).collect())
}
