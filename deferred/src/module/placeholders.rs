//! A module that is recorded with a distinct value for every parameter.

use std::collections::BTreeMap;

use burn::module::{Module, Param, ParamId, Parameter as BurnParameter};
use burn::tensor::{Shape, Tensor, kind::Basic};
use tinderbox_fake::DynTensor;

use super::map::{Replace, Replaced, replace_all};
use super::visit::{ids, parameter_values};
use crate::{Parameter, ParameterPath, ParameterTable};

/// A module under recording whose parameters are placeholders: values that are not the output of any operation of the
/// constructor and not its constants, one for each parameter. Operations that read a parameter in such a recording read
/// its placeholder, so a program of these operations can only get the parameter as an input.
#[derive(Debug)]
pub struct Placeholders<M> {
    /// The module.
    pub module: M,
    /// The placeholder of each parameter, in the order of the table. Clones of one parameter share theirs.
    pub values: Vec<DynTensor>,
    /// The value that the constructor gave each parameter; `None` for a parameter that is initialized at its first use.
    pub constructed: Vec<Option<DynTensor>>,
    /// The indices of running states, which a forward may update.
    pub running: Vec<usize>,
}

impl<M: Module> Placeholders<M> {
    /// Replaces the value of each parameter of a module that was constructed on a recording device by a
    /// placeholder of its shape and dtype in the table. Lazy parameters are not initialized.
    ///
    /// # Errors
    ///
    /// The path of the first parameter that is not in the table at its index.
    pub fn put(module: M, table: &ParameterTable) -> Result<Self, ParameterPath> {
        let mut put = PutPlaceholders {
            made: BTreeMap::new(),
            ids: Vec::new(),
            values: Vec::new(),
            constructed: Vec::new(),
        };
        let module = replace_all(module, table, &mut put)?;
        // A running state accepts the value that a mapper returns, and keeps its id.
        let now = ids(&module);
        let ids = now.iter().zip(&put.ids);
        Ok(Self {
            running: ids
                .enumerate()
                .filter_map(|(position, (now, before))| (now == before).then_some(position))
                .collect(),
            module,
            values: put.values,
            constructed: put.constructed,
        })
    }

    /// Returns the indices of the running states whose value is not their placeholder: those that a forward before the
    /// last one has updated.
    pub fn updated_states(&self) -> Vec<usize> {
        let now = parameter_values(&self.module);
        let is_updated = |at: &usize| now[*at].1.captured_id() != self.values[*at].captured_id();
        self.running.iter().copied().filter(is_updated).collect()
    }
}

struct PutPlaceholders {
    /// The placeholders of parameters that have clones, or may have.
    made: BTreeMap<ParameterPath, DynTensor>,
    ids: Vec<ParamId>,
    values: Vec<DynTensor>,
    constructed: Vec<Option<DynTensor>>,
}

impl Replace for PutPlaceholders {
    fn replace<const D: usize, K: Basic>(
        &mut self,
        parameter: &Parameter,
        param: Param<Tensor<D, K>>,
    ) -> Replaced<Tensor<D, K>>
    where
        Tensor<D, K>: BurnParameter + Sync + 'static,
    {
        let constructed = param.is_initialized().then(|| param.base());
        let dims = parameter.shape.iter();
        let dims: Option<Vec<usize>> = dims.map(|size| usize::try_from(*size).ok()).collect();
        let shape = Shape::from(dims.expect("a recorded shape fits this machine"));
        let is_changed = constructed
            .as_ref()
            .is_some_and(|value| value.shape() != shape || value.dtype() != parameter.dtype);
        let device = param.lazy_device();
        let first = parameter.clone_of.as_ref();
        let known = first.and_then(|first| self.made.get(first).cloned());
        let placeholder =
            known.unwrap_or_else(|| DynTensor::zeros(shape, parameter.dtype, &device));
        let typed = placeholder.typed::<D, K>().ok().filter(|_| !is_changed);
        let Some(value) = typed else {
            return Err(param);
        };
        let value = match parameter.trainable && device.is_autodiff() && first.is_none() {
            true => BurnParameter::set_require_grad(value, true),
            false => value,
        };
        let path = parameter.path.clone();
        self.made.insert(path, value.clone().into());
        self.ids.push(param.id);
        self.values.push(value.clone().into());
        self.constructed.push(constructed.map(DynTensor::from));
        Ok(Param::initialized(ParamId::new(), value))
    }
}
