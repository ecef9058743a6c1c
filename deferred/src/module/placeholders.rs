//! A module that is recorded with a distinct value for every parameter.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ParamId};
use burn::tensor::{Device, Shape};
use tinderbox_fake::DynTensor;

use super::batch_norms::BatchNorms;
use super::layers::TrainingLayer;
use super::map::{disable_flags, map_values, replace_all};
use super::param::{AnyParam, as_leaf};
use super::visit::{ids, parameter_values};
use crate::{Parameter, ParameterPath, ParameterTable};

/// A module under recording whose parameters are placeholders, one for each parameter: values that are neither outputs of
/// operations of the constructor nor its constants. Operations that read a parameter in such a recording read its
/// placeholder, so a program of these operations can only get the parameter as an input. A tensor with a gradient that the
/// constructor uses for two parameters without `detach` is one node of plain Burn's autodiff, and two placeholders here.
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
    /// Burn's batch norms.
    batch_norms: BatchNorms,
    /// Whether it is recorded with gradients.
    is_training: bool,
}

impl<M: Module> Placeholders<M> {
    /// Replaces the value of each parameter of a module that was constructed on a recording device by a
    /// placeholder of its shape and dtype in the table. Lazy parameters are not initialized.
    ///
    /// The placeholders of some running states are outside of autodiff, where Burn moves recorded tensors to the device
    /// that they are on: the running states of batch norms, which move them, and with `moves_states` all. A forward can
    /// query whether a state is in autodiff.
    ///
    /// # Errors
    ///
    /// Returns the path of the first parameter that is not in the table at its index.
    pub fn put(
        module: M,
        table: &ParameterTable,
        device: &Device,
        moves_states: bool,
    ) -> Result<Self, ParameterPath> {
        let mut put = PutPlaceholders::default();
        let constructed: BTreeSet<ParamId> = ids(&module).into_iter().collect();
        let mut module = replace_all(module, table, |parameter, param| put.put(parameter, param))?;
        // A running state accepts the value that a mapper returns, and keeps its id.
        let now = ids(&module).into_iter().enumerate();
        let running = now.filter(|(_, id)| constructed.contains(id));
        let running: Vec<usize> = running.map(|(position, _)| position).collect();
        let mut values = put.values;
        let batch_norms = match running.is_empty() {
            true => BatchNorms::default(),
            false => BatchNorms::of(&module),
        };
        let is_plain = |at: &usize| moves_states || batch_norms.parameters.contains(at);
        let plain_states: Vec<usize> = running.iter().copied().filter(is_plain).collect();
        for position in &plain_states {
            values[*position] = values[*position].clone().without_autodiff();
        }
        if !plain_states.is_empty() {
            let mut placeholders = values.iter();
            let put = |value| placeholders.next().cloned().unwrap_or(value);
            module = map_values(module, put);
        }
        Ok(Self {
            running,
            batch_norms,
            module,
            values,
            constructed: put.constructed,
            is_training: device.is_autodiff(),
        })
    }

    /// Applies the updates of running states that forwards have left. Returns the index and the value of each state whose
    /// value is no longer its placeholder. The module must not be used for another forward after this call.
    pub fn updated_states(&self) -> Vec<(usize, DynTensor)> {
        if self.running.is_empty() {
            return Vec::new();
        }
        // Burn puts floats into autodiff itself, and fails for recorded floats outside of it.
        let enter = DynTensor::in_autodiff;
        // Burn applies the updates when a module changes between training and validation; copies share the states.
        match self.is_training {
            true => drop(map_values(self.module.clone(), enter).train()),
            false => drop(self.module.valid()),
        }
        let now = parameter_values(&self.module);
        let states = self.running.iter().map(|at| (*at, now[*at].1.clone()));
        let is_updated = |(at, value): &(usize, DynTensor)| {
            value.captured_id() != self.values[*at].captured_id()
        };
        states.filter(is_updated).collect()
    }

    /// Returns the running states that do not belong to Burn's batch norms.
    pub fn own_states(&self) -> impl Iterator<Item = usize> {
        let running = self.running.iter().copied();
        running.filter(|position| !self.batch_norms.parameters.contains(position))
    }

    /// Returns the module with batch norms that do not train: they neither read their pending statistics nor
    /// update them. It shares its parameters and running states with this one.
    pub fn with_fixed_batch_norms(&self) -> M {
        disable_flags(&self.module, |_, id| self.batch_norms.flags.contains(&id))
    }

    /// Returns the module with a layer that does not act. It shares its parameters and running states with this one.
    pub fn without_layer(&self, layer: &TrainingLayer) -> M {
        disable_flags(&self.module, |index, _| index == layer.flag)
    }
}

#[derive(Default)]
struct PutPlaceholders {
    /// The placeholders of parameters that have clones, or may have.
    made: BTreeMap<ParameterPath, DynTensor>,
    values: Vec<DynTensor>,
    constructed: Vec<Option<DynTensor>>,
}

impl PutPlaceholders {
    /// Replaces a parameter by its placeholder. Returns whether it has the type of the table.
    fn put(&mut self, parameter: &Parameter, param: &mut dyn AnyParam) -> bool {
        let constructed = (!param.is_lazy()).then(|| param.value());
        let dims = parameter.shape.iter();
        let dims: Option<Vec<usize>> = dims.map(|size| usize::try_from(*size).ok()).collect();
        let shape = Shape::from(dims.expect("a recorded shape fits this machine"));
        let is_other = |v: &DynTensor| v.shape() != shape || v.dtype() != parameter.dtype;
        let is_changed = constructed.as_ref().is_some_and(is_other);
        let device = param.device();
        let first = parameter.clone_of.as_ref();
        let known = first.and_then(|first| self.made.get(first).cloned());
        let mut value = known.unwrap_or_else(|| DynTensor::zeros(shape, parameter.dtype, &device));
        if parameter.trainable && device.is_autodiff() && first.is_none() {
            value = as_leaf(value);
        }
        if is_changed || param.replace(ParamId::new(), value.clone()).is_err() {
            return false;
        }
        self.made.insert(parameter.path.clone(), value.clone());
        self.values.push(value);
        self.constructed.push(constructed);
        true
    }
}
