//! Changes the parameters of a module.

use burn::module::{Flag, Module, ModuleMapper, Param, ParamId, Parameter as BurnParameter};
use burn::tensor::{Bool, Int, Tensor};
use tinderbox_fake::DynTensor;

use super::param::AnyParam;
use super::visit::Names;
use crate::{Parameter, ParameterPath, ParameterTable};

/// A parameter or a flag, which is changed in place.
pub(super) enum Changed<'a> {
    Tensor(&'a mut dyn AnyParam),
    Flag(&'a mut Param<Flag>),
}

/// Changes every parameter and flag of a module, in visiting order, by a closure that gets its path.
pub(super) fn change<M: Module>(module: M, change: &mut dyn FnMut(&str, Changed<'_>)) -> M {
    let path = Names::default();
    module.map(&mut Walk { path, change })
}

struct Walk<'a> {
    path: Names,
    change: &'a mut dyn FnMut(&str, Changed<'_>),
}

impl Walk<'_> {
    fn changed<T: BurnParameter>(&mut self, mut param: Param<T>) -> Param<T>
    where
        Param<T>: AnyParam,
    {
        (self.change)(&self.path.text, Changed::Tensor(&mut param));
        param
    }
}

impl ModuleMapper for Walk<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn map_flag(&mut self, mut flag: Param<Flag>) -> Param<Flag> {
        (self.change)(&self.path.text, Changed::Flag(&mut flag));
        flag
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.changed(param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.changed(param)
    }

    fn map_bool<const D: usize>(&mut self, old: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.changed(old)
    }
}

/// Gives every parameter of a module another value of its type, computed from its value. Ids do not change.
pub(super) fn map_values<M: Module>(module: M, mut map: impl FnMut(DynTensor) -> DynTensor) -> M {
    change(module, &mut |_, changed| {
        if let Changed::Tensor(param) = changed {
            // A value of another type is not used.
            let _ = param.replace(param.id(), map(param.value()));
        }
    })
}

/// Returns a copy of a module in which some flags are disabled, by their index in visiting order and their id. The copy
/// shares all else with the module.
pub(super) fn disable_flags<M: Module>(
    module: &M,
    mut which: impl FnMut(usize, ParamId) -> bool,
) -> M {
    let mut index = 0;
    change(module.clone(), &mut |_, changed| {
        let Changed::Flag(flag) = changed else {
            return;
        };
        if which(index, flag.id) {
            *flag = flag.clone().with_value(false);
        }
        index += 1;
    })
}

/// Replaces every parameter of a module, in the order of its table. `replace` returns whether a parameter is the one of the
/// table.
///
/// # Errors
///
/// The path of the first parameter that is not in the table at its index, or not the expected one; without such, the
/// first that is missing.
pub(super) fn replace_all<M: Module>(
    module: M,
    table: &ParameterTable,
    mut replace: impl FnMut(&Parameter, &mut dyn AnyParam) -> bool,
) -> Result<M, ParameterPath> {
    let mut table = table.iter();
    let mut changed = None;
    let module = change(module, &mut |path, visited| {
        let Changed::Tensor(param) = visited else {
            return;
        };
        let expected = table.next().filter(|p| p.path.as_str() == path);
        if !expected.is_some_and(|parameter| replace(parameter, param)) {
            changed.get_or_insert_with(|| ParameterPath::new(path));
        }
    });
    let missing = table.next().map(|parameter| parameter.path.clone());
    match changed.or(missing) {
        Some(path) => Err(path),
        None => Ok(module),
    }
}
