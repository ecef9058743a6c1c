//! Whether a model's closure makes the same model at every call.

use std::fmt;

use burn::module::Module;
use burn::tensor::DType;
use tinderbox_fake::{Difference, Graph, dtype_name};

use crate::deferred::Blueprint;
use crate::{Deferred, DeferredError, Parameter, ParameterPath, ParameterTable};

/// The first difference between a model as it was recorded first and as its closure makes it now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A parameter is gone.
    Missing {
        /// Its path.
        path: ParameterPath,
    },
    /// A parameter is new.
    Extra {
        /// Its path.
        path: ParameterPath,
    },
    /// A parameter stands where another one stood.
    Order {
        /// Path of the one that stood there.
        path: ParameterPath,
        /// Path of the one that stands there now.
        now: ParameterPath,
    },
    /// A parameter has another shape.
    Shape {
        /// Its path.
        path: ParameterPath,
        /// The shape that it had.
        before: Vec<u64>,
        /// The shape that it has.
        now: Vec<u64>,
    },
    /// A parameter has another dtype.
    DType {
        /// Its path.
        path: ParameterPath,
        /// The dtype that it had.
        before: DType,
        /// The dtype that it has.
        now: DType,
    },
    /// A parameter differs in what its module says of it: the module's own type, whether it is
    /// trainable, lazy or a clone of another, the shape that it is saved with.
    Property {
        /// Its path.
        path: ParameterPath,
        /// What differs.
        property: &'static str,
        /// What it was.
        before: String,
        /// What it is.
        now: String,
    },
    /// A parameter is made by other operations, or from other data of the host.
    Recipe {
        /// Its path.
        path: ParameterPath,
        /// Where its recipe differs.
        difference: Difference,
    },
    /// No parameter differs; the initialization does what makes none, such as a plain tensor field,
    /// in another way.
    Outside {
        /// Where the initialization differs.
        difference: Difference,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => write!(f, "parameter `{path}` is gone"),
            Self::Extra { path } => write!(f, "parameter `{path}` is new"),
            Self::Order { path, now } => {
                write!(f, "parameter `{now}` stands where `{path}` stood")
            }
            Self::Shape { path, before, now } => {
                write!(f, "parameter `{path}` had shape {before:?} and has {now:?}")
            }
            Self::DType { path, before, now } => write!(
                f,
                "parameter `{path}` had dtype {} and has {}",
                dtype_name(*before),
                dtype_name(*now)
            ),
            Self::Property {
                path,
                property,
                before,
                now,
            } => write!(
                f,
                "parameter `{path}` differs in its {property}, which was {before} and is now {now}"
            ),
            Self::Recipe { path, difference } => {
                write!(f, "in the recipe of parameter `{path}`, {difference}")
            }
            Self::Outside { difference } => {
                write!(f, "beside the recipes of all parameters, {difference}")
            }
        }
    }
}

impl<M: Module> Deferred<M> {
    /// Records the construction once more and compares it with the first recording: operations,
    /// data from the host and parameters, floats bit by bit.
    ///
    /// Cost: that of [`Deferred::new`] and about a microsecond for each operation.
    ///
    /// # Errors
    ///
    /// [`DeferredError::Unstable`] names the first parameter that differs, and how: the closure
    /// draws from the host's randomness, or behaves differently from call to call.
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
        let difference = self.graph.difference(&now.graph);
        if difference.is_none() && *self.table == now.table {
            // The graph shows all that is made; what a lazy parameter says of itself is beside it.
            if *self.declared == now.declared {
                return None;
            }
        }
        let pairs = self.table.iter().zip(&now.table);
        let of_parameters = pairs.zip(self.declared.iter().zip(&now.declared));
        let mut changes = of_parameters.map(|((before, after), (declared, declared_now))| {
            path_change(before, after, &self.table, &now.table)
                .or_else(|| property_change(before, after))
                .or_else(|| {
                    let shapes = (&declared.shape, &declared_now.shape);
                    (shapes.0 != shapes.1).then(|| Change::Property {
                        path: before.path.clone(),
                        property: "declared shape",
                        before: format!("{:?}", shapes.0.as_slice()),
                        now: format!("{:?}", shapes.1.as_slice()),
                    })
                })
                .or_else(|| recipe_change(before, &self.graph, after, &now.graph))
        });
        let last = || {
            let (before, now) = (&self.table, &now.table);
            let missing = before.iter().nth(now.len()).map(|p| p.path.clone());
            let extra = now.iter().nth(before.len()).map(|p| p.path.clone());
            let missing = missing.map(|path| Change::Missing { path });
            missing.or_else(|| extra.map(|path| Change::Extra { path }))
        };
        changes
            .find_map(|change| change)
            .or_else(last)
            .or_else(|| difference.map(|difference| Change::Outside { difference }))
    }
}

fn path_change(
    before: &Parameter,
    now: &Parameter,
    table: &ParameterTable,
    table_now: &ParameterTable,
) -> Option<Change> {
    if before.path == now.path {
        return None;
    }
    Some(if table_now.get(&before.path).is_none() {
        Change::Missing {
            path: before.path.clone(),
        }
    } else if table.get(&now.path).is_none() {
        Change::Extra {
            path: now.path.clone(),
        }
    } else {
        Change::Order {
            path: before.path.clone(),
            now: now.path.clone(),
        }
    })
}

fn property_change(before: &Parameter, now: &Parameter) -> Option<Change> {
    let path = || before.path.clone();
    if before.shape != now.shape {
        return Some(Change::Shape {
            path: path(),
            before: before.shape.clone(),
            now: now.shape.clone(),
        });
    }
    if before.dtype != now.dtype {
        return Some(Change::DType {
            path: path(),
            before: before.dtype,
            now: now.dtype,
        });
    }
    let properties = |p: &Parameter| {
        let clone_of = p.clone_of.as_ref();
        [
            ("modules", p.modules.clone()),
            ("training state", trainable(p.trainable).to_owned()),
            ("origin", format!("{:?}", p.origin).to_lowercase()),
            (
                "original",
                clone_of.map_or("itself".into(), |path| format!("`{path}`")),
            ),
        ]
    };
    let pairs = properties(before).into_iter().zip(properties(now));
    let mut differing = pairs.filter(|((_, before), (_, now))| before != now);
    let ((property, before), (_, now)) = differing.next()?;
    Some(Change::Property {
        path: path(),
        property,
        before,
        now,
    })
}

fn trainable(trainable: bool) -> &'static str {
    match trainable {
        true => "trainable",
        false => "frozen",
    }
}

fn recipe_change(
    before: &Parameter,
    graph: &Graph,
    now: &Parameter,
    graph_now: &Graph,
) -> Option<Change> {
    let difference = graph.recipe_difference(before.value, graph_now, now.value)?;
    Some(Change::Recipe {
        path: before.path.clone(),
        difference,
    })
}
