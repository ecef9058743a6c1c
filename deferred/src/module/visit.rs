//! Finds every parameter of a module.

use std::any::Any;

use burn::module::{Module, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::{Bool, Int, Shape, Tensor};
use tinderbox_fake::DynTensor;

use crate::ParameterPath;

/// A parameter as it stands in a module.
pub(crate) struct Found {
    pub(crate) path: ParameterPath,
    /// Types of the modules around it, as in [`crate::Parameter::modules`].
    pub(crate) modules: String,
    pub(crate) id: ParamId,
    pub(crate) value: DynTensor,
    /// What it was before anything looked at it.
    pub(crate) declared: Declared,
    pub(crate) trainable: bool,
    /// The `Param<Tensor<D, K>>` itself, for its mappers and training state.
    pub(crate) param: Box<dyn Any + Send + Sync>,
}

/// What a parameter says of itself while it may not have a value yet. A lazy one in column layout
/// declares the shape that it is saved with, not the one that it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) lazy: bool,
    pub(crate) shape: Shape,
}

impl Declared {
    pub(crate) fn of<T: Parameter>(param: &Param<T>) -> Self {
        Self {
            lazy: !param.is_initialized(),
            shape: param.lazy_shape(),
        }
    }
}

/// Every tensor parameter, in the order in which the module visits them. Gives each lazy one its
/// value, so that a recording sees how it is made.
pub(crate) fn find<M: Module>(module: &M) -> Vec<Found> {
    // Giving a lazy parameter its value gives it to its clones too, so all declare themselves first.
    let mut declarations = Declarations::default();
    module.visit(&mut declarations);
    let mut finder = Finder {
        found: Vec::with_capacity(declarations.0.len()),
        declared: declarations.0.into_iter(),
        ..Finder::default()
    };
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
struct Declarations(Vec<Declared>);

impl ModuleVisitor for Declarations {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(Declared::of(param));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.push(Declared::of(param));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.push(Declared::of(param));
    }
}

#[derive(Default)]
struct Finder {
    declared: std::vec::IntoIter<Declared>,
    path: Dotted,
    modules: Dotted,
    found: Vec<Found>,
}

/// Names joined by dots, one pushed for each module that is entered. Kept as text, because a path is
/// asked for at every parameter.
#[derive(Default)]
struct Dotted {
    text: String,
    /// Length of the text before each name.
    lengths: Vec<usize>,
}

impl Dotted {
    fn push(&mut self, name: &str) {
        let first = self.lengths.is_empty();
        self.lengths.push(self.text.len());
        if !first {
            self.text.push('.');
        }
        self.text.push_str(name);
    }

    fn pop(&mut self) {
        let length = self.lengths.pop();
        self.text.truncate(length.unwrap_or(0));
    }
}

impl Finder {
    fn note<T>(&mut self, param: &Param<T>)
    where
        T: Parameter + Into<DynTensor> + Sync + 'static,
    {
        let declared = self.declared.next();
        let declared = declared.expect("a module visits the same parameters each time");
        let value = param.base();
        self.found.push(Found {
            path: ParameterPath::new(self.path.text.as_str()),
            modules: self.modules.text.clone(),
            id: param.id,
            trainable: value.is_require_grad(),
            value: value.into(),
            declared,
            param: Box::new(param.clone()),
        });
    }
}

impl ModuleVisitor for Finder {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(name);
        // Burn says what it is before the name: `Struct:Linear`.
        let kind = container
            .split_once(':')
            .map_or(container, |(_, name)| name);
        self.modules.push(kind);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
        self.modules.pop();
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
