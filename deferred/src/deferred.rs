//! A model that is constructed without memory.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_fake::{Graph, Mode, RecordOptions, Recording, Region, TensorKind, record};

use crate::module::{Declared, Found, declarations, find};
use crate::random::Seed;
use crate::{
    DeferredError, Initializer, Origin, Parameter, ParameterPath, ParameterTable, RecordedModel,
};

/// A model with fake parameters: it has the recipe of each parameter, and no values.
///
/// Created from the closure that constructs the model, `|device| config.init(device)`. It is never
/// consumed: it can be materialized many times, in parts, on any device.
#[derive(Clone)]
pub struct Deferred<M> {
    pub(crate) init: Arc<dyn Fn(&Device) -> M + Send + Sync>,
    pub(crate) options: RecordOptions,
    pub(crate) recorded: Blueprint<M>,
}

/// Two parameters with one `ParamId`: the second is a clone of the first, or was one before its value was changed.
/// [`independent_copy`](crate::independent_copy) makes copies with new ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedId {
    /// The first, in visiting order.
    pub first: ParameterPath,
    /// The second.
    pub second: ParameterPath,
}

/// The recording of one call of a model's closure.
#[derive(Clone)]
pub(crate) struct Blueprint<M> {
    pub(crate) module: M,
    pub(crate) model: RecordedModel,
    pub(crate) shared_id: Option<SharedId>,
    /// The declaration of each parameter before it had its fake value.
    pub(crate) declared: Arc<Vec<Declared>>,
}

impl<M: Module> Blueprint<M> {
    pub(crate) fn record(
        init: &dyn Fn(&Device) -> M,
        options: &RecordOptions,
    ) -> Result<Self, DeferredError> {
        // The parameter that is being initialized, for an error.
        let at = RefCell::default();
        let recorded = record(options, |device| {
            let module = init(device);
            let declared = declarations(&module);
            let found = find(&module, &at);
            (module, declared, found)
        });
        let recorded = recorded.map_err(|source| match at.take().map(ParameterPath::new) {
            Some(path) => DeferredError::Parameter { path, source },
            None => source.into(),
        });
        let ((module, declared, found), recording) = recorded?;
        Ok(Self {
            module,
            shared_id: shared_id(&found),
            model: RecordedModel {
                parameters: Arc::new(table(found, &declared, &recording)?),
                graph: Arc::new(recording.into_graph()),
            },
            declared: Arc::new(declared),
        })
    }
}

/// Returns the first two parameters with one id, if one of them trains or both have one value. Otherwise they are
/// independent: a copy of a running state keeps its id.
fn shared_id(found: &[Found]) -> Option<SharedId> {
    let mut first_of = HashMap::with_capacity(found.len());
    found.iter().find_map(|found| {
        let first: &Found = first_of.entry(found.id).or_insert(found);
        let trains = first.trainable || found.trainable;
        let is_one = trains || first.value.captured_id() == found.value.captured_id();
        (first.path != found.path && is_one).then(|| SharedId {
            first: first.path.clone(),
            second: found.path.clone(),
        })
    })
}

/// Returns the table of the found parameters, each with its value in the recording. Not generic, so that it is compiled
/// once for all models.
fn table(
    found: Vec<Found>,
    declared: &[Declared],
    recording: &Recording,
) -> Result<ParameterTable, DeferredError> {
    assert_eq!(
        declared.len(),
        found.len(),
        "a module visits the same parameters each time"
    );
    // Clones share their id and their value. A clone that was changed later has another value.
    let mut firsts = HashMap::with_capacity(found.len());
    let mut parameters: Vec<Parameter> = Vec::with_capacity(found.len());
    for (found, declared) in found.into_iter().zip(declared) {
        let path = found.path;
        let Some(value) = recording.value(&found.value) else {
            let device = found.value.meta().device.to_string();
            return Err(DeferredError::NotRecorded { path, device });
        };
        let first = *firsts.entry((found.id, value)).or_insert(parameters.len());
        let (shape, dtype) = (found.value.shape(), found.value.dtype());
        parameters.push(Parameter {
            clone_of: parameters.get(first).map(|first| first.path.clone()),
            path,
            modules: found.modules,
            kind: TensorKind::of(dtype),
            bytes: found.value.bytes(),
            shape: Region::of_shape(&shape).size().to_vec(),
            dtype,
            trainable: found.trainable,
            origin: match declared.lazy {
                true => Origin::Lazy,
                false => Origin::Eager,
            },
            saved_transposed: declared.is_transposed(&shape),
            value,
        });
    }
    let mut seen = HashSet::with_capacity(parameters.len());
    if let Some(twice) = parameters.iter().find(|p| !seen.insert(p.path.as_str())) {
        let path = twice.path.clone();
        return Err(DeferredError::SamePath { path });
    }
    Ok(ParameterTable::new(parameters))
}

impl<M: Module> Deferred<M> {
    /// Constructs the model on a recording device. Cost: milliseconds, independent of the size of the parameters.
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
    /// The errors of [`Deferred::new`].
    pub fn with_options(
        options: RecordOptions,
        init: impl Fn(&Device) -> M + Send + Sync + 'static,
    ) -> Result<Self, DeferredError> {
        // With gradients, because only then does a parameter show whether it is trainable.
        let options = options.in_mode(Mode::Training);
        Ok(Self {
            recorded: Blueprint::record(&init, &options)?,
            init: Arc::new(init),
            options,
        })
    }

    /// Returns the fake module: its parameters have shapes and no data.
    pub fn module(&self) -> &M {
        &self.recorded.module
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &Arc<ParameterTable> {
        &self.recorded.model.parameters
    }

    /// Returns the recorded initialization.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.recorded.model.graph
    }

    /// Returns the options of the recording.
    pub fn options(&self) -> &RecordOptions {
        &self.options
    }

    /// Returns the parameters of the model on a device with other default dtypes. Records the construction again.
    ///
    /// # Errors
    ///
    /// The errors of [`Deferred::new`].
    pub fn parameters_with(
        &self,
        other: &RecordOptions,
    ) -> Result<Arc<ParameterTable>, DeferredError> {
        Ok(Blueprint::record(&*self.init, other)?.model.parameters)
    }

    /// Returns the first two parameters with one `ParamId`, if one of them trains or both have one value. Burn's gradients
    /// and optimizers are keyed by the id, so plain Burn trains one of them, with the gradient of the other.
    pub fn shared_id(&self) -> Option<&SharedId> {
        self.recorded.shared_id.as_ref()
    }

    /// Constructs the model again on a device. Its lazy parameters are not initialized.
    pub fn construct(&self, device: &Device) -> M {
        (self.init)(device)
    }

    /// Returns the table of the parameters and the recorded initialization, which have a file form and do not need the code
    /// of the model.
    pub fn recorded_model(&self) -> RecordedModel {
        self.recorded.model.clone()
    }

    /// Returns the source that computes each parameter as the model's initialization would, from a seed.
    pub fn initializer(&self, seed: Seed) -> Initializer {
        self.recorded.model.initializer(seed)
    }
}

impl<M> fmt::Debug for Deferred<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecordedModel { parameters, graph } = &self.recorded.model;
        f.debug_struct("Deferred")
            .field("parameters", &parameters.len())
            .field("bytes", &parameters.bytes())
            .field("operations", &graph.nodes().len())
            .finish_non_exhaustive()
    }
}

/// Prints the [`Summary`](crate::Summary).
impl<M> fmt::Display for Deferred<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recorded.model.parameters.fmt(f)
    }
}
