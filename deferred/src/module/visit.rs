//! Finds every parameter of a module.

use std::any::Any;

use burn::module::{Module, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::{Bool, Int, Tensor};
use tinderbox_fake::DynTensor;

use crate::ParameterPath;

/// A parameter as it stands in a module.
pub(crate) struct Found {
    pub(crate) path: ParameterPath,
    /// Type of the struct or enum that owns it, such as `Linear`.
    pub(crate) owner: String,
    pub(crate) id: ParamId,
    pub(crate) value: DynTensor,
    /// Whether it had no value before it was looked at.
    pub(crate) lazy: bool,
    pub(crate) trainable: bool,
    /// The `Param<Tensor<D, K>>` itself, for its mappers and training state.
    pub(crate) param: Box<dyn Any + Send + Sync>,
}

/// Every tensor parameter, in the order in which the module visits them. Gives each lazy one its
/// value, so that a recording sees how it is made.
pub(crate) fn find<M: Module>(module: &M) -> Vec<Found> {
    let mut finder = Finder::default();
    module.visit(&mut finder);
    finder.found
}

/// Path and value of every tensor parameter of a module, in visiting order. A lazy parameter is given
/// its value.
pub fn parameter_values<M: Module>(module: &M) -> Vec<(ParameterPath, DynTensor)> {
    let found = find(module).into_iter();
    found.map(|found| (found.path, found.value)).collect()
}

#[derive(Default)]
struct Finder {
    path: Vec<String>,
    containers: Vec<String>,
    found: Vec<Found>,
}

impl Finder {
    fn note<T>(&mut self, param: &Param<T>)
    where
        T: Parameter + Into<DynTensor> + Sync + 'static,
    {
        let lazy = !param.is_initialized();
        let value = param.base();
        let container = self.containers.last().map_or("", String::as_str);
        self.found.push(Found {
            path: ParameterPath::new(self.path.join(".")),
            owner: container
                .split_once(':')
                .map_or(container, |(_, name)| name)
                .into(),
            id: param.id,
            trainable: value.is_require_grad(),
            value: value.into(),
            lazy,
            param: Box::new(param.clone()),
        });
    }
}

impl ModuleVisitor for Finder {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(name.into());
        self.containers.push(container.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
        self.containers.pop();
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
