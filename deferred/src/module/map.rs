//! Replaces the parameters of a module.

use burn::module::{Module, ModuleMapper, Param, Parameter as BurnParameter};
use burn::tensor::{Bool, Int, Tensor, kind::Basic};

use crate::{Parameter, ParameterPath, ParameterTable};

/// A parameter that was replaced, or as it was if it is not the expected one.
pub(super) type Replaced<T> = Result<Param<T>, Param<T>>;

/// The replacement of parameters.
pub(super) trait Replace {
    /// Replaces the `Param` of one parameter of a table.
    fn replace<const D: usize, K: Basic>(
        &mut self,
        parameter: &Parameter,
        param: Param<Tensor<D, K>>,
    ) -> Replaced<Tensor<D, K>>
    where
        Tensor<D, K>: BurnParameter + Sync + 'static;
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
    let mut walk = Walk {
        path: Vec::new(),
        table: table.iter(),
        replace,
        changed: None,
    };
    let module = module.map(&mut walk);
    let missing = walk.table.next().map(|parameter| parameter.path.clone());
    match walk.changed.or(missing) {
        Some(path) => Err(path),
        None => Ok(module),
    }
}

struct Walk<'a, R> {
    path: Vec<String>,
    table: std::slice::Iter<'a, Parameter>,
    replace: &'a mut R,
    changed: Option<ParameterPath>,
}

impl<R: Replace> Walk<'_, R> {
    fn put<const D: usize, K: Basic>(&mut self, param: Param<Tensor<D, K>>) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: BurnParameter + Sync + 'static,
    {
        let path = self.path.join(".");
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

impl<R: Replace> ModuleMapper for Walk<'_, R> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.put(param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.put(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.put(param)
    }
}
