//! Puts values into the parameters of a module.

use std::any::Any;
use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Parameter};
use burn::tensor::{Bool, Int, Tensor, kind::Basic};
use tinderbox_fake::{DynTensor, FakeError};

use super::Declared;
use crate::{MaterializeError, ParameterPath};

/// What one parameter of a rebuilt module becomes.
pub(crate) struct Slot<'a> {
    /// The value; `None` leaves the parameter fake.
    pub(crate) value: Option<DynTensor>,
    /// The fake twin's `Param`: it has the mappers and the training state.
    pub(crate) twin: &'a (dyn Any + Send + Sync),
    /// What the fake twin declared before it had its value.
    pub(crate) declared: &'a Declared,
    /// Whether it trains.
    pub(crate) trainable: bool,
}

/// Puts each slot's value into the parameter of its path.
///
/// # Errors
///
/// When the module has a parameter without a slot, or one of another type or shape: the closure that
/// built it behaves differently from call to call.
pub(crate) fn fill<M: Module>(
    module: M,
    slots: BTreeMap<ParameterPath, Slot<'_>>,
) -> Result<M, MaterializeError> {
    let mut filler = Filler {
        path: Vec::new(),
        slots,
        failed: None,
    };
    let module = module.map(&mut filler);
    if let Some(error) = filler.failed {
        return Err(error);
    }
    match filler.slots.into_keys().next() {
        Some(path) => Err(MaterializeError::Unstable { path }),
        None => Ok(module),
    }
}

struct Filler<'a> {
    path: Vec<String>,
    slots: BTreeMap<ParameterPath, Slot<'a>>,
    failed: Option<MaterializeError>,
}

impl Filler<'_> {
    fn put<const D: usize, K: Basic>(&mut self, param: Param<Tensor<D, K>>) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: Parameter + Sync + 'static,
    {
        let path = ParameterPath::new(self.path.join("."));
        let declared = Declared::of(&param);
        let slot = self.slots.remove(&path);
        let slot = slot.filter(|slot| *slot.declared == declared);
        let twin = slot.and_then(|slot| {
            Some((
                slot.twin.downcast_ref::<Param<Tensor<D, K>>>()?.clone(),
                slot,
            ))
        });
        let Some((twin, slot)) = twin else {
            self.failed
                .get_or_insert(MaterializeError::Unstable { path });
            return param;
        };
        let (_, fake, mapper) = twin.consume();
        let Some(value) = slot.value else {
            return Param::from_mapped_value(param.id, fake, mapper);
        };
        let device = param.lazy_device();
        match value.to_device(&device).and_then(DynTensor::typed::<D, K>) {
            Ok(value) => {
                let value = match device.is_autodiff() {
                    true => value.set_require_grad(slot.trainable),
                    false => value,
                };
                Param::from_mapped_value(param.id, value, mapper)
            }
            Err(source) => {
                self.fail(path, source);
                param
            }
        }
    }

    fn fail(&mut self, path: ParameterPath, source: FakeError) {
        self.failed
            .get_or_insert(MaterializeError::Value { path, source });
    }
}

impl ModuleMapper for Filler<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.put(param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.put(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.put(param)
    }
}

/// Refuses a module some of whose parameters are fake, before a forward panics in Burn.
///
/// # Errors
///
/// Names every fake parameter.
pub fn check_lit<M: Module>(module: &M) -> Result<(), MaterializeError> {
    let mut fakes = Fakes::default();
    module.visit(&mut fakes);
    match fakes.paths.is_empty() {
        true => Ok(()),
        false => Err(MaterializeError::NotLit { paths: fakes.paths }),
    }
}

#[derive(Default)]
struct Fakes {
    path: Vec<String>,
    paths: Vec<ParameterPath>,
}

impl Fakes {
    fn note<T: Parameter + Into<DynTensor>>(&mut self, param: &Param<T>) {
        // A parameter without a value is not fake: it gets a real one at its first use.
        if param.is_initialized() && param.base().into().is_fake() {
            self.paths.push(ParameterPath::new(self.path.join(".")));
        }
    }
}

impl ModuleVisitor for Fakes {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.note(param);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.note(param);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.note(param);
    }
}
