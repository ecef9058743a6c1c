//! Finds every parameter of a module.

use std::any::Any;
use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::{Bool, DType, Device, Int, Shape, Tensor};
use burn_ir::TensorId;
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
    /// Its tensor in the recording, or the device of a tensor that is not fake.
    pub(crate) tensor: Result<TensorId, String>,
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
/// value, so that a recording sees how it is made.
pub(crate) fn find<M: Module>(module: &M, count: usize) -> Vec<Found> {
    struct Finder {
        found: Vec<Found>,
        probes: Probes,
    }
    impl Each for Finder {
        fn parameter<T: Value>(&mut self, place: Place<'_>, param: &Param<T>) {
            let value: DynTensor = param.base().into();
            let dtype = value.dtype();
            self.found.push(Found {
                path: ParameterPath::new(place.path),
                modules: place.modules.to_owned(),
                id: param.id,
                kind: TensorKind::of(dtype),
                shape: value.shape().iter().map(|d| *d as u64).collect(),
                dtype,
                trainable: T::is_trainable(param, &mut self.probes),
                tensor: value
                    .captured_id()
                    .ok_or_else(|| value.meta().device.to_string()),
            });
        }
    }
    let found = Vec::with_capacity(count);
    let probes = Probes::default();
    walk(module, Finder { found, probes }).found
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
trait Value: Parameter + Into<DynTensor> + Sync + 'static {
    /// Whether the parameter is one that a module trains, also where its device tracks no gradients.
    fn is_trainable(param: &Param<Self>, probes: &mut Probes) -> bool;
}

/// Tensors with a gradient, one for each rank. They hold one element each and are never computed with.
#[derive(Default)]
struct Probes(BTreeMap<usize, DynTensor>);

impl Probes {
    fn of_rank<const D: usize>(&mut self) -> Tensor<D> {
        let probe = self.0.entry(D).or_insert_with(|| {
            let device = Device::flex().autodiff();
            Tensor::<D>::zeros([1; D], &device).require_grad().into()
        });
        let probe = probe.clone().typed();
        probe.expect("it was made with this rank")
    }
}

impl<const D: usize> Value for Tensor<D> {
    fn is_trainable(param: &Param<Self>, probes: &mut Probes) -> bool {
        // Burn keeps the setting to itself, and gives it to a tensor that is loaded: a probe that has a
        // gradient keeps it only in a parameter that trains. Recording with gradients would show it
        // too, but costs Burn a place in its table of gradients for every parameter.
        let probe = probes.of_rank::<D>();
        let (id, _, state) = param.clone().consume();
        let same = Param::from_mapped_value(id, probe.clone(), state).load_mapper(|probe| probe);
        same.transform_for_load(probe, id).is_require_grad()
    }
}

impl<const D: usize> Value for Tensor<D, Int> {
    fn is_trainable(_: &Param<Self>, _: &mut Probes) -> bool {
        false
    }
}

impl<const D: usize> Value for Tensor<D, Bool> {
    fn is_trainable(_: &Param<Self>, _: &mut Probes) -> bool {
        false
    }
}

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
