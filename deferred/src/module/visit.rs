//! Visits every parameter of a module.

use std::cell::RefCell;

use burn::module::{Flag, Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Gradients, Int, Tensor};
use tinderbox_fake::{DynTensor, TensorKind};

use super::param::{AnyParam, Declared};
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

/// Returns the declaration of every parameter of a module, in visiting order. Initializing a
/// lazy parameter also initializes its clones, so this has to be called before [`find`].
pub(crate) fn declarations<M: Module>(module: &M) -> Vec<Declared> {
    collect(module, |_, param| param.declared())
}

/// Returns every tensor parameter, in visiting order. Initializes each lazy parameter, so that its operations are recorded.
/// During an initialization, `at` has the path of the parameter.
pub(crate) fn find<M: Module>(module: &M, at: &RefCell<Option<String>>) -> Vec<Found> {
    let found = collect(module, |place, param| {
        let path = at.take().unwrap_or_default();
        place.path.clone_into(at.borrow_mut().insert(path));
        Found {
            path: ParameterPath::new(place.path),
            modules: place.modules.to_owned(),
            id: place.id,
            trainable: param.is_trainable(),
            value: param.value(),
        }
    });
    at.take();
    found
}

/// Returns the id of every tensor parameter, in visiting order.
pub(super) fn ids<M: Module>(module: &M) -> Vec<ParamId> {
    collect(module, |place, _| place.id)
}

/// Returns path and value of every tensor parameter of a module, in visiting order. Lazy parameters are
/// initialized.
pub fn parameter_values<M: Module>(module: &M) -> Vec<(ParameterPath, DynTensor)> {
    collect(module, |place, param| {
        (ParameterPath::new(place.path), param.value())
    })
}

/// Returns path and gradient of every parameter that has a gradient, in visiting order.
#[doc(hidden)]
pub fn parameter_gradients<M: Module>(
    module: &M,
    gradients: &Gradients,
) -> Vec<(ParameterPath, DynTensor)> {
    let mut values = parameter_values(module);
    values.retain(|(_, value)| value.kind() == TensorKind::Float);
    let found = values.into_iter().filter_map(|(path, value)| {
        // A gradient is looked up by the node of its tensor, so the rank does not matter.
        let gradient = Tensor::<1>::from_dispatch(value.into()).grad(gradients)?;
        Some((path, gradient.into()))
    });
    found.collect()
}

/// Returns an error if some parameters of a module are fake, before a forward panics in Burn.
///
/// # Errors
///
/// Names every fake parameter.
pub fn check_materialized<M: Module>(module: &M) -> Result<(), MaterializeError> {
    let fakes = collect(module, |place, param| {
        // A parameter without a value is not fake: it gets a real one at its first use.
        let is_fake = !param.is_lazy() && param.value().is_fake();
        is_fake.then(|| ParameterPath::new(place.path))
    });
    let paths: Vec<ParameterPath> = fakes.into_iter().flatten().collect();
    match paths.is_empty() {
        true => Ok(()),
        false => Err(MaterializeError::NotMaterialized { paths }),
    }
}

/// A parameter or a flag.
pub(super) enum Visited<'a> {
    Tensor(&'a dyn AnyParam),
    Flag(&'a Param<Flag>),
}

/// The place of a parameter or a flag.
pub(super) struct Place<'a> {
    pub(super) id: ParamId,
    pub(super) path: &'a str,
    /// The types of the modules around it, joined by dots.
    modules: &'a str,
}

impl Place<'_> {
    /// Returns the type of the module that it is a field of.
    pub(super) fn owner(&self) -> &str {
        self.modules.rsplit('.').next().unwrap_or_default()
    }
}

/// The names of the modules around a place, the outermost first, joined by dots.
#[derive(Default)]
pub(super) struct Names {
    /// Stored as text, because it is needed at every parameter.
    pub(super) text: String,
    starts: Vec<usize>,
}

impl Names {
    pub(super) fn enter(&mut self, name: &str) {
        self.starts.push(self.text.len());
        if self.starts.len() > 1 {
            self.text.push('.');
        }
        self.text.push_str(name);
    }

    pub(super) fn exit(&mut self) {
        self.text.truncate(self.starts.pop().unwrap_or(0));
    }
}

/// Reads a value from each tensor parameter, in visiting order.
pub(super) fn collect<M: Module, T>(
    module: &M,
    mut read: impl FnMut(&Place<'_>, &dyn AnyParam) -> T,
) -> Vec<T> {
    collect_all(module, |place, visited| match visited {
        Visited::Tensor(param) => Some(read(place, param)),
        Visited::Flag(_) => None,
    })
}

/// Reads a value from each parameter and each flag that has one, in visiting order.
pub(super) fn collect_all<M: Module, T>(
    module: &M,
    read: impl FnMut(&Place<'_>, Visited<'_>) -> Option<T>,
) -> Vec<T> {
    let mut walk = Walk {
        read,
        found: Vec::new(),
        path: Names::default(),
        modules: Names::default(),
    };
    module.visit(&mut walk);
    walk.found
}

struct Walk<T, F> {
    read: F,
    found: Vec<T>,
    path: Names,
    modules: Names,
}

impl<T, F: FnMut(&Place<'_>, Visited<'_>) -> Option<T>> Walk<T, F> {
    fn read(&mut self, id: ParamId, visited: Visited<'_>) {
        let place = Place {
            id,
            path: &self.path.text,
            modules: &self.modules.text,
        };
        self.found.extend((self.read)(&place, visited));
    }
}

impl<T, F: FnMut(&Place<'_>, Visited<'_>) -> Option<T>> ModuleVisitor for Walk<T, F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name);
        // Kind and type, such as `Struct:Linear`.
        let kind_and_type = container.split_once(':');
        self.modules
            .enter(kind_and_type.map_or(container, |(_, name)| name));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
        self.modules.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.read(param.id, Visited::Tensor(param));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.read(param.id, Visited::Tensor(param));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.read(param.id, Visited::Tensor(param));
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.read(flag.id, Visited::Flag(flag));
    }
}
