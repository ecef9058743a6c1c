//! A model that was constructed without memory.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_fake::{Graph, Mode, RecordOptions, record};

use crate::module::{Declared, find};
use crate::random::Seed;
use crate::{DeferredError, Origin, Parameter, ParameterPath, ParameterTable, Replay};

/// How a model is made, for use on any thread.
type Init<M> = Arc<dyn Fn(&Device) -> M + Send + Sync>;

/// A model whose parameters are fake: it knows how each would be made, and holds none.
///
/// Made from the closure that constructs the model, `|device| config.init(device)`. It is never
/// consumed: it can be materialized many times, in parts, on any device.
#[derive(Clone)]
pub struct Deferred<M> {
    pub(crate) init: Init<M>,
    module: M,
    pub(crate) graph: Arc<Graph>,
    pub(crate) table: Arc<ParameterTable>,
    pub(crate) twins: Arc<Vec<Twin>>,
    pub(crate) options: RecordOptions,
    /// Set when a second recording was the same as this one.
    pub(crate) stable: Arc<OnceLock<()>>,
}

/// The fake `Param` of one parameter, and what it was before it had its fake value.
pub(crate) struct Twin {
    pub(crate) param: Box<dyn Any + Send + Sync>,
    pub(crate) declared: Declared,
}

/// What one call of a model's closure recorded.
pub(crate) struct Blueprint<M> {
    pub(crate) module: M,
    pub(crate) graph: Graph,
    pub(crate) table: ParameterTable,
    pub(crate) twins: Vec<Twin>,
}

impl<M: Module> Blueprint<M> {
    pub(crate) fn record(
        init: &dyn Fn(&Device) -> M,
        options: &RecordOptions,
    ) -> Result<Self, DeferredError> {
        let ((module, found), recording) = record(options, |device| {
            let module = init(device);
            let found = find(&module);
            (module, found)
        })?;

        let mut first_of = HashMap::new();
        let mut seen = HashSet::new();
        let mut parameters = Vec::with_capacity(found.len());
        let mut twins = Vec::with_capacity(found.len());
        for found in found {
            if !seen.insert(found.path.clone()) {
                return Err(DeferredError::SamePath { path: found.path });
            }
            let value = found
                .value
                .captured_id()
                .and_then(|id| recording.value_of(id))
                .ok_or_else(|| DeferredError::NotRecorded {
                    path: found.path.clone(),
                    device: found.value.meta().device.to_string(),
                })?;
            // Clones share their id and their value. One that was changed since has its own value.
            let first: &mut ParameterPath = first_of
                .entry((found.id, value))
                .or_insert_with(|| found.path.clone());
            parameters.push(Parameter {
                clone_of: (*first != found.path).then(|| first.clone()),
                path: found.path,
                owner: found.owner,
                kind: found.value.kind(),
                shape: found.value.shape().iter().map(|d| *d as u64).collect(),
                dtype: found.value.dtype(),
                bytes: found.value.bytes(),
                trainable: found.trainable,
                origin: if found.declared.lazy {
                    Origin::Lazy
                } else {
                    Origin::Eager
                },
                value,
            });
            twins.push(Twin {
                param: found.param,
                declared: found.declared,
            });
        }
        Ok(Self {
            module,
            graph: recording.into_graph(),
            table: ParameterTable::new(parameters),
            twins,
        })
    }
}

impl<M: Module> Deferred<M> {
    /// Constructs the model on a device that records: milliseconds, whatever its size.
    ///
    /// # Errors
    ///
    /// When the closure panics or reads the data of a tensor, or two parameters have one path.
    pub fn new(init: impl Fn(&Device) -> M + Send + Sync + 'static) -> Result<Self, DeferredError> {
        Self::with_options(RecordOptions::default(), init)
    }

    /// Constructs the model as if on another device: with its default dtypes and its name.
    ///
    /// # Errors
    ///
    /// As [`Deferred::new`].
    pub fn with_options(
        options: RecordOptions,
        init: impl Fn(&Device) -> M + Send + Sync + 'static,
    ) -> Result<Self, DeferredError> {
        // With gradients, because a parameter shows only there whether it is trainable.
        let options = options.in_mode(Mode::Training);
        let blueprint = Blueprint::record(&init, &options)?;
        Ok(Self {
            init: Arc::new(init),
            module: blueprint.module,
            graph: Arc::new(blueprint.graph),
            table: Arc::new(blueprint.table),
            twins: Arc::new(blueprint.twins),
            options,
            stable: Arc::default(),
        })
    }

    /// The fake module: its parameters have shapes and no data.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The parameters.
    pub fn parameters(&self) -> &Arc<ParameterTable> {
        &self.table
    }

    /// The recorded initialization.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// How the model was recorded.
    pub fn options(&self) -> &RecordOptions {
        &self.options
    }

    /// Constructs the model again on a device. Its lazy parameters hold no values yet.
    pub fn construct(&self, device: &Device) -> M {
        (self.init)(device)
    }

    /// The source that makes each parameter as the model would, from a seed.
    pub fn replay(&self, seed: Seed) -> Replay {
        Replay::new(self.graph.clone(), self.table.clone(), seed)
    }
}

impl<M> fmt::Debug for Deferred<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred")
            .field("parameters", &self.table.len())
            .field("bytes", &self.table.bytes())
            .field("operations", &self.graph.nodes().len())
            .finish_non_exhaustive()
    }
}

/// The table of parameters.
impl<M> fmt::Display for Deferred<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}
