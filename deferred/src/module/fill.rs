//! Assigns values to the parameters of a module.

use std::collections::HashMap;

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_fake::{DynTensor, FakeError};

use super::map::replace_all;
use super::param::{Declared, as_leaf};
use super::visit::collect;
use crate::{MaterializeError, Parameter, ParameterPath, ParameterTable};

/// Assigns values to the parameters of a rebuilt module, in the order of the table, each on the device where the closure
/// created its parameter, or would create it. Parameters without a value are fake.
///
/// Before the values are computed, each parameter gets the fake value of its counterpart in the recorded module. This frees
/// the values that the closure created, so that their memory can be reused.
///
/// # Errors
///
/// When the module has a parameter without a counterpart, or one of another type or shape: the closure that
/// built it behaves differently from call to call. When a value can't be computed, or does not fit its parameter.
pub(crate) fn fill<M: Module>(
    module: M,
    recorded: &M,
    declared: &[Declared],
    table: &ParameterTable,
    values: impl FnOnce() -> Result<Vec<Option<DynTensor>>, MaterializeError>,
) -> Result<M, MaterializeError> {
    let unstable = |path| MaterializeError::Unstable { path };
    // The `Param` of each fake counterpart has the mappers and the training state.
    let counterparts = collect(recorded, |_, param| param.to_any());
    let mut expected = counterparts.iter().zip(declared);
    let mut devices: Vec<Device> = Vec::with_capacity(table.len());
    // Clones of a running state share their value: a later one is already fake when it is visited.
    let mut first_devices = HashMap::new();
    let module = replace_all(module, table, |_, param| {
        let declared = param.declared();
        let counterpart = expected.next().filter(|(_, known)| **known == declared);
        let device = first_devices.entry(param.id());
        devices.push(device.or_insert_with(|| param.device()).clone());
        counterpart.is_some_and(|(counterpart, _)| param.reset_to(&**counterpart))
    });
    let module = module.map_err(unstable)?;
    let mut values = values()?.into_iter().zip(devices);
    // Values that train, by the first of their clones, which have one gradient: the sum of all uses.
    let mut leaves = HashMap::new();
    let mut failed = None;
    let module = replace_all(module, table, |parameter, param| {
        let Some((Some(value), device)) = values.next() else {
            return true;
        };
        let value = value_on(&device, parameter, value, &mut leaves);
        if let Err(source) = value.and_then(|value| param.assign(value)) {
            let path = parameter.path.clone();
            failed.get_or_insert(MaterializeError::Value { path, source });
        }
        true
    });
    match failed {
        Some(error) => Err(error),
        None => module.map_err(unstable),
    }
}

/// Returns the value of a parameter on its device, as a leaf if it trains there.
fn value_on(
    device: &Device,
    parameter: &Parameter,
    value: DynTensor,
    leaves: &mut HashMap<ParameterPath, DynTensor>,
) -> Result<DynTensor, FakeError> {
    if !device.is_autodiff() || !parameter.trainable {
        return value.to_device(device);
    }
    if let Some(leaf) = leaves.get(parameter.original()) {
        return Ok(leaf.clone());
    }
    let leaf = as_leaf(value.to_device(device)?);
    leaves.insert(parameter.original().clone(), leaf.clone());
    Ok(leaf)
}
