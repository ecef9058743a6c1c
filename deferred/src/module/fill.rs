//! Assigns values to the parameters of a module.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, Param, ParamId};
use burn::tensor::Device;
use tinderbox_fake::{DynTensor, FakeError};

use super::map::{ParamTensor, Replace, Replaced, replace_all};
use super::visit::{AnyParam, Declared, collect};
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
    let counterparts = collect(recorded, |_, param| param.to_any());
    let mut reset = ResetToFake {
        expected: counterparts.iter().zip(declared),
        devices: Vec::with_capacity(table.len()),
        first_devices: HashMap::new(),
    };
    let module = replace_all(module, table, &mut reset).map_err(unstable)?;
    let mut filler = Filler {
        values: values()?.into_iter().zip(reset.devices),
        leaves: HashMap::new(),
        failed: None,
    };
    let module = replace_all(module, table, &mut filler);
    match filler.failed {
        Some(error) => Err(error),
        None => module.map_err(unstable),
    }
}

struct ResetToFake<I> {
    /// The `Param` of each fake counterpart, which has the mappers and the training state, and its declaration before it had
    /// a value.
    expected: I,
    devices: Vec<Device>,
    /// Clones of a running state share their value: a later one is already fake when it is visited.
    first_devices: HashMap<ParamId, Device>,
}

impl<'a, I> Replace for ResetToFake<I>
where
    I: Iterator<Item = (&'a Box<dyn Any + Send + Sync>, &'a Declared)>,
{
    fn replace<T: ParamTensor>(&mut self, _: &Parameter, param: Param<T>) -> Replaced<T> {
        let declared = param.declared();
        let expected = self.expected.next();
        let counterpart = expected.filter(|(_, expected)| **expected == declared);
        let counterpart = counterpart.and_then(|(any, _)| any.downcast_ref::<Param<T>>());
        let Some(counterpart) = counterpart else {
            return Err(param);
        };
        let device = self.first_devices.entry(param.id);
        let device = device.or_insert_with(|| param.lazy_device());
        self.devices.push(device.clone());
        let id = param.id;
        let (_, fake, mapper) = counterpart.clone().consume();
        // Reading the mappers of a lazy parameter would initialize it, so the mappers of the counterpart are used. A
        // parameter with a value may have its training state from the kind of device that it is on.
        let mapper = match declared.lazy {
            true => mapper,
            false => param.consume().2,
        };
        Ok(Param::from_mapped_value(id, fake, mapper))
    }
}

struct Filler<I> {
    values: I,
    /// Values that train, by the first of their clones, which have one gradient: the sum of all uses.
    leaves: HashMap<ParameterPath, DynTensor>,
    failed: Option<MaterializeError>,
}

impl<I: Iterator<Item = (Option<DynTensor>, Device)>> Replace for Filler<I> {
    fn replace<T: ParamTensor>(&mut self, parameter: &Parameter, param: Param<T>) -> Replaced<T> {
        let Some((Some(value), device)) = self.values.next() else {
            return Ok(param);
        };
        match self.value_on(&device, parameter, value) {
            Ok(value) => {
                let (id, _, mapper) = param.consume();
                Ok(Param::from_mapped_value(id, value, mapper))
            }
            Err(source) => {
                let path = parameter.path.clone();
                let error = MaterializeError::Value { path, source };
                self.failed.get_or_insert(error);
                Ok(param)
            }
        }
    }
}

impl<I> Filler<I> {
    fn value_on<T: ParamTensor>(
        &mut self,
        device: &Device,
        parameter: &Parameter,
        value: DynTensor,
    ) -> Result<T, FakeError> {
        if !device.is_autodiff() || !parameter.trainable {
            return T::of(value.to_device(device)?);
        }
        if let Some(leaf) = self.leaves.get(parameter.original()) {
            return T::of(leaf.clone());
        }
        let value = T::of(value.to_device(device)?)?.set_require_grad(true);
        let first = parameter.original().clone();
        self.leaves.insert(first, value.clone().into());
        Ok(value)
    }
}
