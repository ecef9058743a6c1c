//! Checks that a model's closure creates the same model at every call.

use burn::module::Module;
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
    /// A parameter has another property: its shape or dtype, the types of the modules around it, the shape in which it is
    /// saved, or whether it is trainable, lazy or a clone of another parameter.
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
    /// No parameter differs. The initialization computes another value differently, such as a plain tensor field.
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
    /// Cost: the cost of [`Deferred::new`], and about a microsecond for each operation.
    ///
    /// # Errors
    ///
    /// [`DeferredError::Unstable`] with the first difference, when the closure draws random values on the host, or behaves
    /// differently from call to call.
    pub fn check_stable(&self) -> Result<(), DeferredError> {
        let now = Blueprint::record(&*self.init, &self.options)?;
        match self.change(&now).map(Box::new) {
            Some(change) => Err(DeferredError::Unstable { change }),
            None => Ok(()),
        }
    }

    fn change(&self, now: &Blueprint<M>) -> Option<Change> {
        let first = &self.recorded;
        let (graph, graph_now) = (&first.model.graph, &now.model.graph);
        let (table, table_now) = (&first.model.parameters, &now.model.parameters);
        let difference = graph.difference(graph_now);
        // The graph has all computations; the declarations of lazy parameters are separate.
        let same = (table, &first.declared) == (table_now, &now.declared);
        if difference.is_none() && same {
            return None;
        }
        let pairs = table.iter().zip(&**table_now);
        let of_parameters = pairs.zip(first.declared.iter().zip(&*now.declared));
        let mut changes = of_parameters.map(|((before, after), (declared, declared_now))| {
            let recipe_change = || {
                let difference = graph.recipe_difference(before.value, graph_now, after.value)?;
                let path = before.path.clone();
                Some(Change::Recipe { path, difference })
            };
            path_change((before, table), (after, table_now))
                .or_else(|| property_change((before, declared), (after, declared_now)))
                .or_else(recipe_change)
        });
        let beyond = |table: &ParameterTable, other: &ParameterTable| {
            table.iter().nth(other.len()).map(|p| p.path.clone())
        };
        let missing = || beyond(table, table_now).map(|path| Change::Missing { path });
        let extra = || beyond(table_now, table).map(|path| Change::Extra { path });
        let outside = || difference.map(|difference| Change::Outside { difference });
        let found = changes.find_map(|change| change);
        found.or_else(missing).or_else(extra).or_else(outside)
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
    let properties = |p: &Parameter, declared: &Declared| {
        let trains = if p.trainable { "trainable" } else { "frozen" };
        let original = p.clone_of.as_ref().map(|path| format!("`{path}`"));
        [
            ("shape", format!("{:?}", p.shape)),
            ("dtype", dtype_name(p.dtype).to_owned()),
            ("modules", p.modules.clone()),
            ("training state", trains.to_owned()),
            ("origin", format!("{:?}", p.origin).to_lowercase()),
            ("original", original.unwrap_or_else(|| "itself".to_owned())),
            ("declared shape", format!("{:?}", declared.shape.as_slice())),
        ]
    };
    let path = before.path.clone();
    let now = properties(now, declared_now);
    let pairs = properties(before, declared).into_iter().zip(now);
    let mut differing = pairs.filter(|((_, before), (_, now))| before != now);
    let ((property, before), (_, now)) = differing.next()?;
    Some(Change::Property {
        path,
        property,
        before,
        now,
    })
}
