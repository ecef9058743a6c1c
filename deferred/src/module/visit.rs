//! Finds every parameter of a module.

use std::any::Any;
use std::cell::RefCell;

use burn::module::{Module, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::{Bool, DType, Int, Shape, Tensor};
use tinderbox_fake::{DynTensor, TensorKind};

use crate::ParameterPath;

/// A parameter as it stands in a module that is recorded.
pub(crate) struct Found {
    pub(crate) path: ParameterPath,
    /// Types of the modules around it, as in [`crate::Parameter::modules`].
    pub(crate) modules: String,
    pub(crate) id: ParamId,
    pub(crate) kind: TensorKind,
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: DType,
    pub(crate) trainable: bool,
    pub(crate) value: DynTensor,
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

/// What every parameter of a module declares, in the order in which the module visits them. Giving a
/// lazy parameter its value gives it to its clones too, so this comes before [`find`].
pub(crate) fn declarations<M: Module>(module: &M) -> Vec<Declared> {
    struct Declarations(Vec<Declared>);
    impl Each for Declarations {
        fn parameter<T: Value>(&mut self, _: Place<'_>, param: &Param<T>) {
            self.0.push(Declared::of(param));
        }
    }
    walk(module, Declarations(Vec::new())).0
}

/// Every tensor parameter, in the order in which the module visits them. Gives each lazy one its
/// value, so that a recording sees how it is made; meanwhile its path stands in `at`.
pub(crate) fn find<M: Module>(
    module: &M,
    count: usize,
    at: &RefCell<Option<String>>,
) -> Vec<Found> {
    struct Finder<'a>(Vec<Found>, &'a RefCell<Option<String>>);
    impl Each for Finder<'_> {
        fn parameter<T: Value>(&mut self, place: Place<'_>, param: &Param<T>) {
            let path = self.1.take().unwrap_or_default();
            place.path.clone_into(self.1.borrow_mut().insert(path));
            let value = param.base();
            let trainable = value.is_require_grad();
            let value: DynTensor = value.into();
            let dtype = value.dtype();
            self.0.push(Found {
                path: ParameterPath::new(place.path),
                modules: place.modules.to_owned(),
                id: param.id,
                kind: TensorKind::of(dtype),
                shape: value.shape().iter().map(|d| *d as u64).collect(),
                dtype,
                trainable,
                value,
            });
        }
    }
    let found = walk(module, Finder(Vec::with_capacity(count), at)).0;
    at.take();
    found
}

/// The `Param<Tensor<D, K>>` of every parameter, for its mappers and training state, in visiting
/// order.
pub(crate) fn twins<M: Module>(module: &M) -> Vec<Box<dyn Any + Send + Sync>> {
    struct Twins(Vec<Box<dyn Any + Send + Sync>>);
    impl Each for Twins {
        fn parameter<T: Value>(&mut self, _: Place<'_>, param: &Param<T>) {
            self.0.push(Box::new(param.clone()));
        }
    }
    walk(module, Twins(Vec::new())).0
}

/// Path and value of every tensor parameter of a module, in visiting order. A lazy parameter is given
/// its value.
pub fn parameter_values<M: Module>(module: &M) -> Vec<(ParameterPath, DynTensor)> {
    struct Values(Vec<(ParameterPath, DynTensor)>);
    impl Each for Values {
        fn parameter<T: Value>(&mut self, place: Place<'_>, param: &Param<T>) {
            let path = ParameterPath::new(place.path);
            self.0.push((path, param.base().into()));
        }
    }
    walk(module, Values(Vec::new())).0
}

/// A tensor of any rank and kind in a `Param`.
trait Value: Parameter + Into<DynTensor> + Sync + 'static {}

impl<T: Parameter + Into<DynTensor> + Sync + 'static> Value for T {}

/// Where a parameter stands: its path, and the types of the modules around it.
struct Place<'a> {
    path: &'a str,
    modules: &'a str,
}

/// What is done with each parameter.
trait Each {
    fn parameter<T: Value>(&mut self, place: Place<'_>, param: &Param<T>);
}

fn walk<M: Module, E: Each>(module: &M, each: E) -> E {
    let mut walk = Walk {
        each,
        path: Dotted::default(),
        modules: Dotted::default(),
    };
    module.visit(&mut walk);
    walk.each
}

struct Walk<E> {
    each: E,
    path: Dotted,
    modules: Dotted,
}

impl<E: Each> Walk<E> {
    fn parameter<T: Value>(&mut self, param: &Param<T>) {
        let place = Place {
            path: &self.path.text,
            modules: &self.modules.text,
        };
        self.each.parameter(place, param);
    }
}

impl<E: Each> ModuleVisitor for Walk<E> {
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
        self.parameter(param);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.parameter(param);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.parameter(param);
    }
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
