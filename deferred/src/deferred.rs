//! A model that is constructed without memory for its parameters.

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

/// A model with fake parameters. It has the operations that compute each parameter, and no values.
///
/// [`Deferred::new`] creates it from the closure that constructs the model, `|device| config.init(device)`. A deferred
/// model is never consumed: it can be materialized many times, in parts, on any device.
#[derive(Clone)]
pub struct Deferred<M> {
    pub(crate) init: Arc<dyn Fn(&Device) -> M + Send + Sync>,
    pub(crate) options: RecordOptions,
    pub(crate) recorded: Blueprint<M>,
}

/// Two parameters with one `ParamId`. The second parameter is a clone of the first, perhaps with a value that was changed
/// later. [`independent_copy`](crate::independent_copy) makes copies with new ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedId {
    /// The first parameter, in visiting order.
    pub first: ParameterPath,
    /// The second parameter.
    pub second: ParameterPath,
}

/// The result of one recorded call of a model's closure.
#[derive(Clone)]
pub(crate) struct Blueprint<M> {
    /// The module that the closure returned, with fake parameters.
    pub(crate) module: M,
    pub(crate) model: RecordedModel,
    pub(crate) shared_id: Option<SharedId>,
    /// The properties of each parameter before its first use, which initializes a lazy parameter.
    pub(crate) declared: Arc<Vec<Declared>>,
}

impl<M: Module> Blueprint<M> {
    /// Calls the closure under recording, and initializes all lazy parameters.
    pub(crate) fn record(
        init: &dyn Fn(&Device) -> M,
        options: &RecordOptions,
    ) -> Result<Self, DeferredError> {
        // The path of the parameter that is being initialized, for the error of a failed initialization.
        let current = RefCell::default();
        let recorded = record(options, |device| {
            let module = init(device);
            let declared = declarations(&module);
            // After the declarations, because it initializes lazy parameters.
            let found = find(&module, &current);
            (module, declared, found)
        });
        let recorded = recorded.map_err(|source| match current.take().map(ParameterPath::new) {
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

/// Returns the first two parameters that share an id, if one of them trains or both have the same value. Two other
/// parameters with one id are independent, because nothing looks them up by their id. For example, a copy of a running
/// state keeps the id and gets its own values.
fn shared_id(found: &[Found]) -> Option<SharedId> {
    let mut first_of = HashMap::with_capacity(found.len());
    found.iter().find_map(|found| {
        let first: &Found = first_of.entry(found.id).or_insert(found);
        let trains = first.trainable || found.trainable;
        let is_shared = trains || first.value.captured_id() == found.value.captured_id();
        (first.path != found.path && is_shared).then(|| SharedId {
            first: first.path.clone(),
            second: found.path.clone(),
        })
    })
}

/// Returns the table of the found parameters, each with its value in the recording. This function is not generic over the
/// model, so that it is compiled once.
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
    // The first parameter with each id and value. Clones have both in common, unless the value of one was changed later.
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
    /// Constructs the model on a recording device, which executes nothing. Cost: milliseconds, independent of the size of
    /// the parameters.
    ///
    /// # Errors
    ///
    /// When the closure panics, or reads the data of a tensor; when a parameter is not on the recording device; when two
    /// parameters have the same path.
    pub fn new(init: impl Fn(&Device) -> M + Send + Sync + 'static) -> Result<Self, DeferredError> {
        Self::with_options(RecordOptions::default(), init)
    }

    /// Constructs the model as [`new`](Self::new) does, as if on another device: with the default dtypes and the name of
    /// the options.
    ///
    /// # Errors
    ///
    /// The errors of [`Deferred::new`].
    pub fn with_options(
        options: RecordOptions,
        init: impl Fn(&Device) -> M + Send + Sync + 'static,
    ) -> Result<Self, DeferredError> {
        // In training mode, because only a tensor that tracks gradients shows whether a parameter is trainable.
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

    /// Returns the table of the parameters, in visiting order.
    pub fn parameters(&self) -> &Arc<ParameterTable> {
        &self.recorded.model.parameters
    }

    /// Returns the recorded operations that compute the initial values.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.recorded.model.graph
    }

    /// Returns the options of the recording.
    pub fn options(&self) -> &RecordOptions {
        &self.options
    }

    /// Records the construction again with other options, for example other default dtypes, and returns the table of its
    /// parameters.
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

    /// Returns the first two parameters that share a `ParamId`, if one of them trains or both have the same value. The keys
    /// of Burn's gradients and optimizers are these ids. So plain Burn trains only one of the two parameters, with the
    /// gradient of the other.
    pub fn shared_id(&self) -> Option<&SharedId> {
        self.recorded.shared_id.as_ref()
    }

    /// Calls the closure again, on any device. Lazy parameters of the new module are not initialized.
    pub fn construct(&self, device: &Device) -> M {
        (self.init)(device)
    }

    /// Returns the table of the parameters and the recorded initialization. They do not need the code of the model, and can
    /// be written to a file.
    pub fn recorded_model(&self) -> RecordedModel {
        self.recorded.model.clone()
    }

    /// Returns the source of initial values: from a seed, it computes each parameter as the model's initialization would.
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
