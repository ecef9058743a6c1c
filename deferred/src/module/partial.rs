//! A subset of a model's parameters, as a module.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::{Bool, Device, Float, Int, Tensor, kind::Basic};
use tinderbox_fake::{DynTensor, FakeError, TensorKind};

use crate::ParameterPath;

/// Parameters of a model under their original paths, such as those of one rank. It is a Burn module, so
/// Burn's visitors, stores, gradient clipping and parameter groups work on it.
#[derive(Clone, Debug, Default)]
pub struct PartialModule {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    path: ParameterPath,
    id: ParamId,
    value: DynTensor,
}

/// The largest rank of a parameter. Burn's own optimizers do not support higher ranks either.
const MAX_RANK: usize = 8;

/// Runs an expression on an entry's `Param`. Burn's tensors have rank and kind in their type, and a module visits
/// typed parameters.
macro_rules! typed {
    ($entry:expr, $param:ident => $run:expr) => {
        typed!($entry, $param => $run; 1 2 3 4 5 6 7 8)
    };
    ($entry:expr, $param:ident => $run:expr; $($rank:literal)*) => {{
        let Entry { id, value, .. } = $entry;
        let fits = "an entry's value has this type";
        match (value.shape().num_dims(), value.kind()) {
            $(($rank, TensorKind::Float) => {
                let $param: Param<Tensor<$rank>> = Param::initialized(id, value.typed().expect(fits));
                $run
            }
            ($rank, TensorKind::Int) => {
                let $param: Param<Tensor<$rank, Int>> = Param::initialized(id, value.typed().expect(fits));
                $run
            }
            ($rank, TensorKind::Bool) => {
                let $param: Param<Tensor<$rank, Bool>> = Param::initialized(id, value.typed().expect(fits));
                $run
            })*
            _ => unreachable!("an entry's value has rank 1 to {MAX_RANK}"),
        }
    }};
}

impl Entry {
    fn new(path: ParameterPath, id: ParamId, value: DynTensor) -> Result<Self, FakeError> {
        if !(1..=MAX_RANK).contains(&value.shape().num_dims()) {
            value.clone().typed::<MAX_RANK, Float>()?;
        }
        Ok(Self { path, id, value })
    }

    fn names(&self) -> Vec<String> {
        let names = self.path.as_str().split('.');
        names.map(str::to_owned).collect()
    }
}

impl PartialModule {
    /// Creates a module of these parameters, in this order.
    ///
    /// # Errors
    ///
    /// When a value has rank 0 or more than 8.
    pub fn new(
        values: impl IntoIterator<Item = (ParameterPath, DynTensor)>,
    ) -> Result<Self, FakeError> {
        let entries = values
            .into_iter()
            .map(|(path, value)| Entry::new(path, ParamId::new(), value));
        Ok(Self {
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the paths, in order.
    pub fn paths(&self) -> impl Iterator<Item = &ParameterPath> {
        self.entries.iter().map(|entry| &entry.path)
    }

    /// Returns paths and values, in order. Values are shared, not copied.
    pub fn values(&self) -> impl Iterator<Item = (&ParameterPath, DynTensor)> {
        let entries = self.entries.iter();
        entries.map(|entry| (&entry.path, entry.value.clone()))
    }

    /// Returns the value at an index.
    ///
    /// # Panics
    ///
    /// When the index is out of range.
    pub fn value(&self, position: usize) -> DynTensor {
        self.entries[position].value.clone()
    }

    /// Replaces the value of a parameter; its id stays the same.
    ///
    /// # Errors
    ///
    /// When the value has rank 0 or more than 8.
    ///
    /// # Panics
    ///
    /// When the index is out of range.
    pub fn replace(&mut self, position: usize, value: DynTensor) -> Result<(), FakeError> {
        let entry = &mut self.entries[position];
        *entry = Entry::new(entry.path.clone(), entry.id, value)?;
        Ok(())
    }

    /// Returns the index of a parameter.
    pub fn position(&self, path: &ParameterPath) -> Option<usize> {
        self.entries.iter().position(|entry| &entry.path == path)
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

    /// Replaces the `Param` of each parameter.
    fn each(self, replace: impl FnMut(Entry) -> (ParamId, DynTensor)) -> Self {
        let paths: Vec<ParameterPath> = self.paths().cloned().collect();
        let replaced = self.entries.into_iter().map(replace);
        let entries = paths.into_iter().zip(replaced);
        let entries = entries.map(|(path, (id, value))| Entry { path, id, value });
        Self {
            entries: entries.collect(),
        }
    }
}

/// Returns what an entry has of a `Param`.
fn parts<const D: usize, K: Basic>(param: &Param<Tensor<D, K>>) -> (ParamId, DynTensor)
where
    Tensor<D, K>: Parameter,
{
    (param.id, param.val().into())
}

/// The container type that is passed to visitors on the way to a parameter: the original types are not known.
const CONTAINER: &str = "Struct:PartialModule";

impl Module for PartialModule {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        let entries = self.entries.iter().cloned();
        entries.fold(
            devices,
            |devices, entry| typed!(entry, p => p.collect_devices(devices)),
        )
    }

    fn fork(self, device: &Device) -> Self {
        self.each(|entry| typed!(entry, p => parts(&p.fork(device))))
    }

    fn to_device(self, device: &Device) -> Self {
        self.each(|entry| typed!(entry, p => parts(&Module::to_device(p, device))))
    }

    fn train(self) -> Self {
        self.each(|entry| typed!(entry, p => parts(&p.train())))
    }

    fn valid(&self) -> Self {
        self.clone()
            .each(|entry| typed!(entry, p => parts(&p.valid())))
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for entry in &self.entries {
            let names = entry.names();
            names
                .iter()
                .for_each(|name| visitor.enter_module(name, CONTAINER));
            typed!(entry.clone(), p => Module::visit(&p, visitor));
            names
                .iter()
                .rev()
                .for_each(|name| visitor.exit_module(name, CONTAINER));
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        self.each(|entry| {
            let names = entry.names();
            names
                .iter()
                .for_each(|name| mapper.enter_module(name, CONTAINER));
            let mapped = typed!(entry, p => parts(&Module::map(p, mapper)));
            names
                .iter()
                .rev()
                .for_each(|name| mapper.exit_module(name, CONTAINER));
            mapped
        })
    }
}
