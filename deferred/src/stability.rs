//! Checks that a model's closure creates the same model at every call.

use burn::module::Module;
use burn::tensor::DType;
use derive_more::Display;
use tinderbox_fake::{Difference, dtype_name};

use crate::deferred::Blueprint;
use crate::module::Declared;
use crate::{Deferred, DeferredError, Parameter, ParameterPath, ParameterTable};

/// The first difference between the first recording of a model and a later one.
#[derive(Clone, Debug, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum Change {
    /// A parameter was removed.
    #[display("parameter `{path}` no longer exists")]
    Missing {
        /// Its path.
        path: ParameterPath,
    },
    /// A parameter was added.
    #[display("parameter `{path}` is new")]
    Extra {
        /// Its path.
        path: ParameterPath,
    },
    /// A parameter is at the position of another one.
    #[display("parameter `{now}` is at the position of `{path}`")]
    Order {
        /// Path of the parameter that had the position.
        path: ParameterPath,
        /// Path of the parameter that has it now.
        now: ParameterPath,
    },
    /// A parameter has another shape.
    #[display("parameter `{path}` had shape {before:?} and has {now:?}")]
    Shape {
        /// Its path.
        path: ParameterPath,
        /// The shape before.
        before: Vec<u64>,
        /// The shape now.
        now: Vec<u64>,
    },
    /// A parameter has another dtype.
    #[display("parameter `{path}` had dtype {} and has {}", dtype_name(*before), dtype_name(*now))]
    DType {
        /// Its path.
        path: ParameterPath,
        /// The dtype before.
        before: DType,
        /// The dtype now.
        now: DType,
    },
    /// A parameter has another declaration in its module: the module's own type, whether it is
    /// trainable, lazy or a clone of another, the shape in which it is saved.
    #[display("parameter `{path}` differs in its {property}, which was {before} and is now {now}")]
    Property {
        /// Its path.
        path: ParameterPath,
        /// The property that differs.
        property: &'static str,
        /// The property before.
        before: String,
        /// The property now.
        now: String,
    },
    /// A parameter is computed by other operations, or from other data of the host.
    #[display("in the recipe of parameter `{path}`, {difference}")]
    Recipe {
        /// Its path.
        path: ParameterPath,
        /// The difference in its recipe.
        difference: Difference,
    },
    /// No parameter differs; the initialization differs in the computation of other values, such as a plain tensor
    /// field.
    #[display("outside the recipes of all parameters, {difference}")]
    Outside {
        /// The difference in the initialization.
        difference: Difference,
    },
}

impl<M: Module> Deferred<M> {
    /// Records the construction again and compares it with the first recording: operations,
    /// data from the host and parameters, floats bit by bit.
    ///
    /// Cost: as much as [`Deferred::new`], and about a microsecond for each operation.
    ///
    /// # Errors
    ///
    /// [`DeferredError::Unstable`] with the first parameter that differs, and how: the closure
    /// draws random values on the host, or behaves differently from call to call.
    pub fn check_stable(&self) -> Result<(), DeferredError> {
        let now = Blueprint::record(&*self.init, &self.options)?;
        match self.change(&now) {
            Some(change) => Err(DeferredError::Unstable {
                change: Box::new(change),
            }),
            None => Ok(()),
        }
    }

    fn change(&self, now: &Blueprint<M>) -> Option<Change> {
        let first = &self.recorded;
        let difference = first.graph.difference(&now.graph);
        // The graph has all computations; the declarations of lazy parameters are separate.
        let same = (&first.table, &first.declared) == (&now.table, &now.declared);
        if difference.is_none() && same {
            return None;
        }
        let pairs = first.table.iter().zip(&*now.table);
        let of_parameters = pairs.zip(first.declared.iter().zip(&*now.declared));
        let mut changes = of_parameters.map(|((before, after), (declared, declared_now))| {
            let recipe_change = || {
                let (graph, value) = (&first.graph, before.value);
                let difference = graph.recipe_difference(value, &now.graph, after.value)?;
                let path = before.path.clone();
                Some(Change::Recipe { path, difference })
            };
            path_change((before, &first.table), (after, &now.table))
                .or_else(|| property_change((before, declared), (after, declared_now)))
                .or_else(recipe_change)
        });
        let beyond = |table: &ParameterTable, other: &ParameterTable| {
            table.iter().nth(other.len()).map(|p| p.path.clone())
        };
        let missing = || beyond(&first.table, &now.table).map(|path| Change::Missing { path });
        let extra = || beyond(&now.table, &first.table).map(|path| Change::Extra { path });
        let found = changes.find_map(|change| change);
        found
            .or_else(missing)
            .or_else(extra)
            .or_else(|| difference.map(|difference| Change::Outside { difference }))
    }
}

fn path_change(
    (before, table): (&Parameter, &ParameterTable),
    (now, table_now): (&Parameter, &ParameterTable),
) -> Option<Change> {
    let (path, now) = (before.path.clone(), now.path.clone());
    match (table_now.get(&path), table.get(&now)) {
        _ if path == now => None,
        (None, _) => Some(Change::Missing { path }),
        (_, None) => Some(Change::Extra { path: now }),
        _ => Some(Change::Order { path, now }),
    }
}

fn property_change(
    (before, declared): (&Parameter, &Declared),
    (now, declared_now): (&Parameter, &Declared),
) -> Option<Change> {
    let path = before.path.clone();
    if before.shape != now.shape {
        let (before, now) = (before.shape.clone(), now.shape.clone());
        return Some(Change::Shape { path, before, now });
    }
    if before.dtype != now.dtype {
        let (before, now) = (before.dtype, now.dtype);
        return Some(Change::DType { path, before, now });
    }
    let properties = |p: &Parameter, declared: &Declared| {
        let trains = if p.trainable { "trainable" } else { "frozen" };
        let original = p.clone_of.as_ref().map(|path| format!("`{path}`"));
        [
            ("modules", p.modules.clone()),
            ("training state", trains.to_owned()),
            ("origin", format!("{:?}", p.origin).to_lowercase()),
            ("original", original.unwrap_or_else(|| "itself".to_owned())),
            ("declared shape", format!("{:?}", declared.shape.as_slice())),
        ]
    };
    let (before, now) = (properties(before, declared), properties(now, declared_now));
    let pairs = before.into_iter().zip(now);
    let mut differing = pairs.filter(|((_, before), (_, now))| before != now);
    let ((property, before), (_, now)) = differing.next()?;
    Some(Change::Property {
        path,
        property,
        before,
        now,
    })
}
