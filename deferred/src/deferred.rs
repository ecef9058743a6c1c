//! A model that was constructed without memory.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_fake::{DynTensor, Graph, Mode, RecordOptions, Region, record};

use crate::module::{Declared, PartialModule, Slot, fill, find};
use crate::random::Seed;
use crate::{
    DeferredError, MaterializeError, Mismatch, Mismatches, Origin, Parameter, ParameterPath,
    ParameterTable, Replay, Request, Source, SourceError,
};

/// How a model is made, for use on any thread.
type Init<M> = Arc<dyn Fn(&Device) -> M + Send + Sync>;

/// A model whose parameters are fake: it knows how each would be made, and holds none.
///
/// Made from the closure that constructs the model, `|device| config.init(device)`. It is never
/// consumed: it can be materialized many times, in parts, on any device.
#[derive(Clone)]
pub struct Deferred<M> {
    init: Init<M>,
    module: M,
    graph: Arc<Graph>,
    table: Arc<ParameterTable>,
    twins: Arc<Vec<Twin>>,
    options: RecordOptions,
}

/// The fake `Param` of one parameter, and what it was before it had its fake value.
struct Twin {
    param: Box<dyn Any + Send + Sync>,
    declared: Declared,
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
        let ((module, found), recording) = record(&options, |device| {
            let module = init(device);
            let found = find(&module);
            (module, found)
        })?;

        let mut first_of = HashMap::new();
        let mut seen = std::collections::HashSet::new();
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
            let first: &mut ParameterPath = first_of
                .entry(found.id)
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
            init: Arc::new(init),
            module,
            graph: Arc::new(recording.into_graph()),
            table: Arc::new(ParameterTable::new(parameters)),
            twins: Arc::new(twins),
            options,
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

    /// The whole model on a device, with values from a source. Parameters keep their load and save
    /// mappers and their training state; on an autodiff device the trainable ones require gradients.
    ///
    /// Plain `Tensor` fields and skipped fields are made by the model itself, on the device.
    ///
    /// # Errors
    ///
    /// When the source lacks a value, or the closure makes another model than it did before.
    pub fn materialize(&self, device: &Device, source: &dyn Source) -> Result<M, MaterializeError> {
        self.materialize_where(device, source, |_| true)
    }

    /// The model on a device, with values for the selected parameters. The others stay fake:
    /// [`check_lit`](crate::check_lit) names them.
    ///
    /// # Errors
    ///
    /// As [`Deferred::materialize`].
    pub fn materialize_where(
        &self,
        device: &Device,
        source: &dyn Source,
        select: impl Fn(&Parameter) -> bool,
    ) -> Result<M, MaterializeError> {
        let mut values = self.load(device, source, &select)?;
        let slots = self
            .table
            .iter()
            .zip(self.twins.iter())
            .map(|(parameter, twin)| {
                let first = parameter.clone_of.as_ref().unwrap_or(&parameter.path);
                let value = match select(parameter) {
                    true => values.get(first).cloned(),
                    false => None,
                };
                let slot = Slot {
                    value,
                    twin: twin.param.as_ref(),
                    declared: &twin.declared,
                    trainable: parameter.trainable,
                };
                (parameter.path.clone(), slot)
            });
        let slots = slots.collect();
        values.clear();
        fill(self.construct(device), slots)
    }

    /// The selected parameters on a device, without autodiff and without their module; the closure is
    /// not called. Of clones, the first is taken.
    ///
    /// # Errors
    ///
    /// When the source lacks a value, or gives one of another shape or dtype.
    pub fn materialize_parameters(
        &self,
        device: &Device,
        source: &dyn Source,
        select: impl Fn(&Parameter) -> bool,
    ) -> Result<PartialModule, MaterializeError> {
        materialize_parameters(&self.table, device, source, select)
    }

    fn load(
        &self,
        device: &Device,
        source: &dyn Source,
        select: &impl Fn(&Parameter) -> bool,
    ) -> Result<BTreeMap<ParameterPath, DynTensor>, MaterializeError> {
        // A clone that is selected without its original needs the original's value.
        let wanted: std::collections::BTreeSet<&ParameterPath> = self
            .table
            .iter()
            .filter(|parameter| select(parameter))
            .map(|parameter| parameter.clone_of.as_ref().unwrap_or(&parameter.path))
            .collect();
        let selected = self.table.distinct();
        let selected = selected.filter(|parameter| wanted.contains(&parameter.path));
        Ok(load(selected, device, source)?.into_iter().collect())
    }
}

/// The selected parameters of a table on a device, without autodiff, as a module of their own.
///
/// # Errors
///
/// When the source lacks a value, or gives one of another shape or dtype.
pub fn materialize_parameters(
    table: &ParameterTable,
    device: &Device,
    source: &dyn Source,
    select: impl Fn(&Parameter) -> bool,
) -> Result<PartialModule, MaterializeError> {
    let selected = table.distinct().filter(|parameter| select(parameter));
    let values = load(selected, device, source)?;
    PartialModule::new(values).map_err(|source| MaterializeError::Rank { source })
}

/// The values of parameters on a device, without autodiff, as the source promises them.
fn load<'a>(
    selected: impl Iterator<Item = &'a Parameter>,
    device: &Device,
    source: &dyn Source,
) -> Result<Vec<(ParameterPath, DynTensor)>, SourceError> {
    let device = device.clone().without_autodiff();
    let requests: Vec<Request> = selected
        .map(|parameter| Request {
            path: parameter.path.clone(),
            shape: parameter.shape.clone(),
            region: Region::of_shape(
                &parameter
                    .shape
                    .iter()
                    .map(|d| *d as usize)
                    .collect::<Vec<_>>(),
            ),
            dtype: parameter.dtype,
            device: device.clone(),
        })
        .collect();
    let values = source.load(&requests)?;
    if values.len() != requests.len() {
        return Err(SourceError::Count {
            described: source.describe(),
            expected: requests.len(),
            found: values.len(),
        });
    }
    let answers = requests.iter().zip(&values);
    let mismatches: Vec<Mismatch> = answers.flat_map(|(r, v)| r.mismatches_of(v)).collect();
    if !mismatches.is_empty() {
        return Err(SourceError::Mismatch {
            described: source.describe(),
            mismatches: Mismatches(mismatches),
        });
    }
    let paths = requests.into_iter().map(|request| request.path);
    Ok(paths.zip(values).collect())
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
