//! Changes the parameters of a module.

use burn::module::{Flag, Module, ModuleMapper, Param, ParamId, Parameter as BurnParameter};
use burn::tensor::{Bool, Device, Int, Tensor, kind::Basic};
use tinderbox_fake::{DynTensor, FakeError, is_fake};

use super::visit::Names;
use crate::{Parameter, ParameterPath, ParameterTable};

/// A tensor of any rank and kind, as the value of a parameter.
pub(super) trait ParamTensor: BurnParameter + Into<DynTensor> + Sync + 'static {
    /// Returns a tensor that is known to have this rank and kind.
    ///
    /// # Errors
    ///
    /// When it has another rank or kind.
    fn of(tensor: DynTensor) -> Result<Self, FakeError>;

    /// Returns a tensor without elements.
    fn without_elements() -> Self;

    /// Returns a tensor with the same elements. In a recording it is another value, because two running states with one
    /// id and one value are clones, and the id can't be changed.
    fn copied(self) -> Self;
}

impl<const D: usize, K: Basic> ParamTensor for Tensor<D, K>
where
    Self: BurnParameter + Sync + 'static,
{
    fn of(tensor: DynTensor) -> Result<Self, FakeError> {
        tensor.typed()
    }

    fn without_elements() -> Self {
        Tensor::empty([0; D], &Device::flex())
    }

    fn copied(self) -> Self {
        if !is_fake(&self) {
            return self;
        }
        let (dims, elements) = (self.dims(), self.shape().num_elements());
        match D {
            1 => self.reshape([1, elements]).reshape(dims),
            _ => self.reshape([elements]).reshape(dims),
        }
    }
}

/// A change of parameters and flags, the same for every rank and kind.
pub(super) trait Change {
    /// Changes a parameter at a path.
    fn param<T: ParamTensor>(&mut self, path: &str, param: Param<T>) -> Param<T>;

    /// Changes a flag.
    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag
    }
}

/// Changes every parameter and flag of a module, in visiting order.
pub(super) fn change<M: Module>(module: M, change: &mut impl Change) -> M {
    let path = Names::default();
    module.map(&mut Walk { path, change })
}

struct Walk<'a, C> {
    path: Names,
    change: &'a mut C,
}

impl<C: Change> ModuleMapper for Walk<'_, C> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.change.flag(flag)
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.change.param(&self.path.text, param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.change.param(&self.path.text, param)
    }

    fn map_bool<const D: usize>(&mut self, old: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.change.param(&self.path.text, old)
    }
}

/// Gives every parameter of a module another value of its type, computed from its value. Ids do not change.
pub(super) fn map_values<M: Module>(module: M, map: impl FnMut(DynTensor) -> DynTensor) -> M {
    change(module, &mut MapValues(map))
}

struct MapValues<F>(F);

impl<F: FnMut(DynTensor) -> DynTensor> Change for MapValues<F> {
    fn param<T: ParamTensor>(&mut self, _: &str, param: Param<T>) -> Param<T> {
        match T::of(self.0(param.base().into())) {
            Ok(value) => Param::initialized(param.id, value),
            Err(_) => param,
        }
    }
}

/// Returns a copy of a module in which some flags are disabled, by their index in visiting order and their id. The copy
/// shares all else with the module.
pub(super) fn disable_flags<M: Module>(module: &M, which: impl FnMut(usize, ParamId) -> bool) -> M {
    let index = 0;
    module.clone().map(&mut DisableFlags { index, which })
}

struct DisableFlags<F> {
    index: usize,
    which: F,
}

impl<F: FnMut(usize, ParamId) -> bool> ModuleMapper for DisableFlags<F> {
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.index += 1;
        match (self.which)(self.index - 1, flag.id) {
            true => flag.with_value(false),
            false => flag,
        }
    }
}

/// A parameter that was replaced, or as it was if it is not the expected one.
pub(super) type Replaced<T> = Result<Param<T>, Param<T>>;

/// The replacement of parameters.
pub(super) trait Replace {
    /// Replaces the `Param` of one parameter of a table.
    fn replace<T: ParamTensor>(&mut self, parameter: &Parameter, param: Param<T>) -> Replaced<T>;
}

/// Replaces every parameter of a module, in the order of its table.
///
/// # Errors
///
/// The path of the first parameter that is not in the table at its index, or not the expected one; without such, the
/// first that is missing.
pub(super) fn replace_all<M: Module>(
    module: M,
    table: &ParameterTable,
    replace: &mut impl Replace,
) -> Result<M, ParameterPath> {
    let mut all = ReplaceAll {
        table: table.iter(),
        replace,
        changed: None,
    };
    let module = change(module, &mut all);
    let missing = all.table.next().map(|parameter| parameter.path.clone());
    match all.changed.or(missing) {
        Some(path) => Err(path),
        None => Ok(module),
    }
}

struct ReplaceAll<'a, R> {
    table: std::slice::Iter<'a, Parameter>,
    replace: &'a mut R,
    changed: Option<ParameterPath>,
}

impl<R: Replace> Change for ReplaceAll<'_, R> {
    fn param<T: ParamTensor>(&mut self, path: &str, param: Param<T>) -> Param<T> {
        let expected = self.table.next();
        let replaced = match expected.filter(|parameter| parameter.path.as_str() == path) {
            Some(parameter) => self.replace.replace(parameter, param),
            None => Err(param),
        };
        replaced.unwrap_or_else(|param| {
            self.changed.get_or_insert(ParameterPath::new(path));
            param
        })
    }
}
