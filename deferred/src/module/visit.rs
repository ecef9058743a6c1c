//! Visits every parameter of a module.

use std::any::Any;
use std::cell::RefCell;

use burn::module::{Module, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::{Bool, Int, Shape, Tensor};
use tinderbox_fake::DynTensor;

use crate::{MaterializeError, ParameterPath};

/// A parameter of a recorded module.
pub(crate) struct Found {
    pub(crate) path: ParameterPath,
    /// Types of the modules around it, as in [`crate::Parameter::modules`].
    pub(crate) modules: String,
    pub(crate) id: ParamId,
    pub(crate) trainable: bool,
    pub(crate) value: DynTensor,
}

/// The declaration of a parameter that may not have a value yet. A lazy one in column layout
/// declares the shape in which it is saved, not the shape of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) lazy: bool,
    pub(crate) shape: Shape,
    /// Whether it is known to transform what it loads. Not looked for where the shape shows a transpose.
    pub(crate) is_mapped: bool,
}

impl Declared {
    pub(crate) fn of<T: Parameter>(param: &Param<T>) -> Self {
        let (lazy, shape) = (!param.is_initialized(), param.lazy_shape());
        let is_square = shape.num_dims() == 2 && shape[0] == shape[1];
        let hides_transpose = is_square || (shape.num_dims() == 2 && !lazy);
        Self {
            // Burn shows the mappers of a parameter in its debug text alone.
            is_mapped: hides_transpose && format!("{param:?}").contains("load: true"),
            lazy,
            shape,
        }
    }

    /// Whether a record contains the value, of this shape, transposed: the value of a linear layer in column layout.
    pub(crate) fn is_transposed(&self, value: &Shape) -> bool {
        self.is_mapped || (self.lazy && self.shape.num_dims() == 2 && self.shape != *value)
    }
}

/// Returns the declaration of every parameter of a module, in visiting order. Initializing a
/// lazy parameter also initializes its clones, so this has to be called before [`find`].
pub(crate) fn declarations<M: Module>(module: &M) -> Vec<Declared> {
    collect(module, |_, param| param.declared())
}

/// Returns every tensor parameter, in visiting order. Initializes each lazy one, so that its operations
/// are recorded; meanwhile its path is in `at`.
pub(crate) fn find<M: Module>(module: &M, at: &RefCell<Option<String>>) -> Vec<Found> {
    let found = collect(module, |place, param| {
        let path = at.take().unwrap_or_default();
        place.path.clone_into(at.borrow_mut().insert(path));
        let value = param.value();
        Found {
            path: ParameterPath::new(place.path),
            modules: place.modules.to_owned(),
            id: param.id(),
            trainable: param.is_trainable(),
            value,
        }
    });
    at.take();
    found
}

/// Returns the `Param<Tensor<D, K>>` of every parameter, for its mappers and training state, in visiting
/// order.
pub(super) fn params<M: Module>(module: &M) -> Vec<Box<dyn Any + Send + Sync>> {
    collect(module, |_, param| param.to_any())
}

/// Returns the id of every tensor parameter, in visiting order.
pub(super) fn ids<M: Module>(module: &M) -> Vec<ParamId> {
    collect(module, |_, param| param.id())
}

/// Returns path and value of every tensor parameter of a module, in visiting order. Lazy parameters are
/// initialized.
pub fn parameter_values<M: Module>(module: &M) -> Vec<(ParameterPath, DynTensor)> {
    collect(module, |place, param| {
        (ParameterPath::new(place.path), param.value())
    })
}

/// Returns an error if some parameters of a module are fake, before a forward panics in Burn.
///
/// # Errors
///
/// Names every fake parameter.
pub fn check_materialized<M: Module>(module: &M) -> Result<(), MaterializeError> {
    let fakes = collect(module, |place, param| {
        // A parameter without a value is not fake: it gets a real one at its first use.
        let is_fake = !param.declared().lazy && param.value().is_fake();
        is_fake.then(|| ParameterPath::new(place.path))
    });
    let paths: Vec<ParameterPath> = fakes.into_iter().flatten().collect();
    match paths.is_empty() {
        true => Ok(()),
        false => Err(MaterializeError::NotMaterialized { paths }),
    }
}

/// The `Param` of a tensor of any rank and kind.
trait AnyParam {
    fn id(&self) -> ParamId;
    fn declared(&self) -> Declared;
    /// Returns the value; a lazy parameter is initialized.
    fn value(&self) -> DynTensor;
    /// Returns whether the value is trainable; a lazy parameter is initialized.
    fn is_trainable(&self) -> bool;
    fn to_any(&self) -> Box<dyn Any + Send + Sync>;
}

impl<T: Parameter + Into<DynTensor> + Sync + 'static> AnyParam for Param<T> {
    fn id(&self) -> ParamId {
        self.id
    }

    fn declared(&self) -> Declared {
        Declared::of(self)
    }

    fn value(&self) -> DynTensor {
        self.base().into()
    }

    fn is_trainable(&self) -> bool {
        self.base().is_require_grad()
    }

    fn to_any(&self) -> Box<dyn Any + Send + Sync> {
        Box::new(self.clone())
    }
}

/// The place of a parameter: its path, and the types of the modules around it.
struct Place<'a> {
    path: &'a str,
    modules: &'a str,
}

/// Reads a value from each parameter, in visiting order.
fn collect<M: Module, T>(module: &M, read: impl FnMut(Place<'_>, &dyn AnyParam) -> T) -> Vec<T> {
    let mut walk = Walk {
        read,
        found: Vec::new(),
        path: Dotted::default(),
        modules: Dotted::default(),
    };
    module.visit(&mut walk);
    walk.found
}

struct Walk<T, F> {
    read: F,
    found: Vec<T>,
    path: Dotted,
    modules: Dotted,
}

impl<T, F: FnMut(Place<'_>, &dyn AnyParam) -> T> Walk<T, F> {
    fn parameter(&mut self, param: &dyn AnyParam) {
        let place = Place {
            path: &self.path.text,
            modules: &self.modules.text,
        };
        self.found.push((self.read)(place, param));
    }
}

impl<T, F: FnMut(Place<'_>, &dyn AnyParam) -> T> ModuleVisitor for Walk<T, F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(name);
        // Burn puts the kind before the name: `Struct:Linear`.
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

/// Names joined by dots, one for each entered module. Stored as text, because the path is
/// needed at every parameter.
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
