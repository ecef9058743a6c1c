//! A subset of a model's parameters, as a module.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Device, Int, Tensor};
use tinderbox_fake::{DynTensor, FakeError, TensorKind};

use crate::ParameterPath;

/// Parameters of a model under their original paths, such as the parameters of one rank. It is a Burn module, so
/// Burn's visitors, stores, gradient clipping and parameter groups work on it.
#[derive(Clone, Debug, Default)]
pub struct PartialModule {
    entries: Vec<(ParameterPath, AnyParam)>,
}

/// A parameter of any rank and kind. Burn's tensors have both in their type, and a module visits
/// typed parameters, so each combination is a variant.
macro_rules! any_param {
    ($($rank:literal: $float:ident $int:ident $bool:ident),*) => {
        #[derive(Clone, Debug, derive_more::From)]
        enum AnyParam {
            $($float(Param<Tensor<$rank>>),
              $int(Param<Tensor<$rank, Int>>),
              $bool(Param<Tensor<$rank, Bool>>)),*
        }

        /// Runs an expression on the typed parameter inside.
        macro_rules! each {
            ($any:expr, $param:ident => $run:expr) => {
                match $any {
                    $(AnyParam::$float($param) => $run,
                      AnyParam::$int($param) => $run,
                      AnyParam::$bool($param) => $run),*
                }
            };
        }

        impl AnyParam {
            fn new(id: ParamId, value: DynTensor) -> Result<Self, FakeError> {
                Ok(match (value.shape().num_dims(), value.kind()) {
                    $(($rank, TensorKind::Float) => {
                        Self::$float(Param::initialized(id, value.typed()?))
                    }
                    ($rank, TensorKind::Int) => Self::$int(Param::initialized(id, value.typed()?)),
                    ($rank, TensorKind::Bool) => Self::$bool(Param::initialized(id, value.typed()?)),)*
                    // Burn's own optimizers do not support higher ranks either.
                    _ => return value.typed().map(|t| Self::F8(Param::initialized(id, t))),
                })
            }
        }
    };
}

any_param!(
    1: F1 I1 B1, 2: F2 I2 B2, 3: F3 I3 B3, 4: F4 I4 B4,
    5: F5 I5 B5, 6: F6 I6 B6, 7: F7 I7 B7, 8: F8 I8 B8
);

impl PartialModule {
    /// Creates a module of these parameters, in this order.
    ///
    /// # Errors
    ///
    /// When a value has rank 0 or more than 8.
    pub fn new(
        values: impl IntoIterator<Item = (ParameterPath, DynTensor)>,
    ) -> Result<Self, FakeError> {
        let entries = values.into_iter();
        let entries = entries.map(|(path, v)| Ok((path, AnyParam::new(ParamId::new(), v)?)));
        let entries = entries.collect::<Result<_, FakeError>>()?;
        Ok(Self { entries })
    }

    /// Returns the paths, in order.
    pub fn paths(&self) -> impl Iterator<Item = &ParameterPath> {
        self.entries.iter().map(|(path, _)| path)
    }

    /// Returns paths and values, in order. Values are shared, not copied.
    pub fn values(&self) -> impl Iterator<Item = (&ParameterPath, DynTensor)> {
        let entries = self.entries.iter();
        entries.map(|(path, param)| (path, each!(param, p => p.val().into())))
    }

    /// Returns the path at an index.
    ///
    /// # Panics
    ///
    /// When the index is out of range.
    pub fn path(&self, position: usize) -> &ParameterPath {
        &self.entries[position].0
    }

    /// Returns the value at an index.
    ///
    /// # Panics
    ///
    /// When the index is out of range.
    pub fn value(&self, position: usize) -> DynTensor {
        each!(&self.entries[position].1, p => p.val().into())
    }

    /// Returns the dtype of the value at an index.
    ///
    /// # Panics
    ///
    /// When the index is out of range.
    pub fn dtype(&self, position: usize) -> DType {
        each!(&self.entries[position].1, p => p.dtype())
    }

    /// Replaces the value of a parameter and keeps its id.
    ///
    /// # Errors
    ///
    /// When the value has rank 0 or more than 8.
    ///
    /// # Panics
    ///
    /// When the index is out of range.
    pub fn replace(&mut self, position: usize, value: DynTensor) -> Result<(), FakeError> {
        let (_, param) = &mut self.entries[position];
        *param = AnyParam::new(each!(&*param, p => p.id), value)?;
        Ok(())
    }

    /// Returns the index of a parameter.
    pub fn position(&self, path: &ParameterPath) -> Option<usize> {
        self.paths().position(|known| known == path)
    }

    /// Returns the number of parameters.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the bytes of all values.
    pub fn bytes(&self) -> u64 {
        self.values().map(|(_, value)| value.bytes()).sum()
    }

    fn each(self, mut change: impl FnMut(&ParameterPath, AnyParam) -> AnyParam) -> Self {
        let entries = self.entries.into_iter().map(|(path, param)| {
            let param = change(&path, param);
            (path, param)
        });
        let entries = entries.collect();
        Self { entries }
    }
}

/// The container type that is passed to visitors on the way to a parameter: the original types are not known.
const TYPE: &str = "Struct:PartialModule";

impl Module for PartialModule {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        let params = self.entries.iter().map(|(_, param)| param);
        params.fold(
            devices,
            |devices, param| each!(param, p => p.collect_devices(devices)),
        )
    }

    fn fork(self, device: &Device) -> Self {
        self.each(|_, param| each!(param, p => p.fork(device).into()))
    }

    fn to_device(self, device: &Device) -> Self {
        self.each(|_, param| each!(param, p => Module::to_device(p, device).into()))
    }

    fn train(self) -> Self {
        self.each(|_, param| each!(param, p => p.train().into()))
    }

    fn valid(&self) -> Self {
        self.clone()
            .each(|_, param| each!(param, p => p.valid().into()))
    }

    fn materialize(self) -> Self {
        self.each(|_, param| each!(param, p => p.materialize().into()))
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for (path, param) in &self.entries {
            let names = || path.as_str().split('.');
            names().for_each(|name| visitor.enter_module(name, TYPE));
            each!(param, p => Module::visit(p, visitor));
            let left = names().rev();
            left.for_each(|name| visitor.exit_module(name, TYPE));
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        self.each(|path, param| {
            let names = || path.as_str().split('.');
            names().for_each(|name| mapper.enter_module(name, TYPE));
            let param = each!(param, p => Module::map(p, mapper).into());
            let left = names().rev();
            left.for_each(|name| mapper.exit_module(name, TYPE));
            param
        })
    }
}
