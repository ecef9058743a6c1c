//! Assigns values to the parameters of a module.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleMapper, Param, ParamId, Parameter};
use burn::tensor::{Bool, Device, Int, Tensor, kind::Basic};
use tinderbox_fake::{DynTensor, FakeError};

use super::Declared;
use crate::{MaterializeError, ParameterPath};

/// The expected state of one parameter of a rebuilt module.
pub(crate) struct Expected<'a> {
    /// The `Param` of the fake counterpart: it has the mappers and the training state.
    pub(crate) twin: &'a (dyn Any + Send + Sync),
    /// The declaration of the fake counterpart before it had its value.
    pub(crate) declared: &'a Declared,
}

/// The value of a parameter.
pub(crate) struct Slot {
    pub(crate) value: DynTensor,
    /// The first of its clones, or itself: clones that train have one gradient, the sum of all uses.
    pub(crate) first: ParameterPath,
    /// Whether it is trainable.
    pub(crate) trainable: bool,
}

/// A rebuilt module whose parameters are all fake. The values that the closure created are freed, so their memory
/// can be used for others.
pub(crate) struct Emptied<M> {
    module: M,
    /// The device on which the closure created each parameter, or would have.
    places: BTreeMap<ParameterPath, Device>,
}

/// Assigns the fake value of its counterpart to each parameter.
///
/// # Errors
///
/// When the module has a parameter without a counterpart, or one of another type or shape: the closure that
/// built it behaves differently from call to call.
pub(crate) fn empty<'a, M: Module>(
    module: M,
    expected: impl Iterator<Item = (&'a ParameterPath, Expected<'a>)>,
) -> Result<Emptied<M>, MaterializeError> {
    let mut reset = ResetToFake {
        path: Vec::new(),
        expected: expected.collect(),
        places: BTreeMap::new(),
        first_devices: HashMap::new(),
        changed: None,
    };
    let module = module.map(&mut reset);
    let changed = reset.changed;
    match changed.or_else(|| reset.expected.into_keys().next().cloned()) {
        Some(path) => Err(MaterializeError::Unstable { path }),
        None => Ok(Emptied {
            module,
            places: reset.places,
        }),
    }
}

impl<M: Module> Emptied<M> {
    /// Assigns each slot's value to the parameter of its path, on that parameter's device. A parameter
    /// without a slot stays fake.
    ///
    /// # Errors
    ///
    /// When a value does not fit its parameter.
    pub(crate) fn fill(self, slots: BTreeMap<ParameterPath, Slot>) -> Result<M, MaterializeError> {
        let mut filler = Filler {
            path: Vec::new(),
            slots,
            places: self.places,
            leaves: HashMap::new(),
            failed: None,
        };
        let module = self.module.map(&mut filler);
        match filler.failed {
            Some(error) => Err(error),
            None => Ok(module),
        }
    }
}

struct ResetToFake<'a> {
    path: Vec<String>,
    expected: BTreeMap<&'a ParameterPath, Expected<'a>>,
    places: BTreeMap<ParameterPath, Device>,
    /// Clones of a running state share their value: a later one is already fake when it is visited.
    first_devices: HashMap<ParamId, Device>,
    changed: Option<ParameterPath>,
}

impl ResetToFake<'_> {
    fn put<const D: usize, K: Basic>(&mut self, param: Param<Tensor<D, K>>) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: Parameter + Sync + 'static,
    {
        let path = ParameterPath::new(self.path.join("."));
        let declared = Declared::of(&param);
        let expected = self.expected.remove(&path);
        let expected = expected.filter(|expected| *expected.declared == declared);
        let twin = expected.and_then(|e| e.twin.downcast_ref::<Param<Tensor<D, K>>>());
        let Some(twin) = twin else {
            self.changed.get_or_insert(path);
            return param;
        };
        let device = self.first_devices.entry(param.id);
        let device = device.or_insert_with(|| param.lazy_device()).clone();
        let id = param.id;
        let (_, fake, mapper) = twin.clone().consume();
        self.places.insert(path, device);
        // A lazy parameter would be initialized if it were asked for its mappers, so the counterpart's are used. One
        // that has a value may have got its training state from the kind of device that it is on.
        let mapper = match declared.lazy {
            true => mapper,
            false => param.consume().2,
        };
        Param::from_mapped_value(id, fake, mapper)
    }
}

struct Filler {
    path: Vec<String>,
    slots: BTreeMap<ParameterPath, Slot>,
    places: BTreeMap<ParameterPath, Device>,
    /// Values that train, by the first of their clones.
    leaves: HashMap<ParameterPath, DynTensor>,
    failed: Option<MaterializeError>,
}

impl Filler {
    fn put<const D: usize, K: Basic>(&mut self, param: Param<Tensor<D, K>>) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: Parameter + Sync + 'static,
    {
        let path = ParameterPath::new(self.path.join("."));
        let slot = self.slots.remove(&path);
        let Some((slot, device)) = slot.zip(self.places.remove(&path)) else {
            return param;
        };
        match self.value_on(&device, slot) {
            Ok(value) => {
                let (id, _, mapper) = param.consume();
                Param::from_mapped_value(id, value, mapper)
            }
            Err(source) => {
                let error = MaterializeError::Value { path, source };
                self.failed.get_or_insert(error);
                param
            }
        }
    }

    fn value_on<const D: usize, K: Basic>(
        &mut self,
        device: &Device,
        slot: Slot,
    ) -> Result<Tensor<D, K>, FakeError>
    where
        Tensor<D, K>: Parameter,
    {
        if !device.is_autodiff() || !slot.trainable {
            return slot.value.to_device(device)?.typed();
        }
        if let Some(leaf) = self.leaves.get(&slot.first) {
            return leaf.clone().typed();
        }
        let value: Tensor<D, K> = slot.value.to_device(device)?.typed()?;
        let value = value.set_require_grad(true);
        self.leaves.insert(slot.first, value.clone().into());
        Ok(value)
    }
}

/// A mapper that assigns a value to each parameter, by its path.
macro_rules! puts {
    ($mapper:ty) => {
        impl ModuleMapper for $mapper {
            fn enter_module(&mut self, name: &str, _: &str) {
                self.path.push(name.into());
            }

            fn exit_module(&mut self, _: &str, _: &str) {
                self.path.pop();
            }

            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                self.put(param)
            }

            fn map_int<const D: usize>(
                &mut self,
                param: Param<Tensor<D, Int>>,
            ) -> Param<Tensor<D, Int>> {
                self.put(param)
            }

            fn map_bool<const D: usize>(
                &mut self,
                param: Param<Tensor<D, Bool>>,
            ) -> Param<Tensor<D, Bool>> {
                self.put(param)
            }
        }
    };
}

pub(super) use puts;

puts!(ResetToFake<'_>);
puts!(Filler);
