//! Materialization: values for the parameters of a deferred model, on a device.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;
use tinderbox_fake::{DynTensor, Region};

use crate::initializer::BACKEND_GENERATOR;
use crate::memory;
use crate::module::{PartialModule, fill, skipped_parameters};
use crate::source::{Loaded, one_per_request};
use crate::table::can_cast;
use crate::{
    Cast, Deferred, MaterializeError, MaterializeOptions, Mismatches, Observer, Parameter,
    ParameterPath, ParameterTable, Request, Source, SourceError,
};

impl<M: Module> Deferred<M> {
    /// Materializes the model with values from a source: `materialize(&device, &source)` the whole model on a device, and
    /// with [`MaterializeOptions`] the selected parameters. The other parameters remain fake:
    /// [`check_materialized`](crate::check_materialized) names them. Parameters keep their load and save
    /// mappers and their training state; on an autodiff device the trainable parameters require gradients.
    ///
    /// Plain `Tensor` fields and skipped fields are computed by the model itself, on the device.
    ///
    /// Memory: the model, and the working memory of the source: one tensor, for an initializer. Values that the closure
    /// creates eagerly are allocated before and freed when the parameters are materialized.
    ///
    /// # Errors
    ///
    /// When the source lacks a value, the closure creates another model than when it was recorded, or there is
    /// not enough memory.
    pub fn materialize<'a>(
        &self,
        options: impl Into<MaterializeOptions<'a>>,
        source: &dyn Source,
    ) -> Result<M, MaterializeError> {
        let options = &options.into();
        // A clone that is selected without its original needs the original's value.
        let table = self.parameters();
        let selected = table.iter().filter(|p| (options.selects)(p));
        let wanted: BTreeSet<&ParameterPath> = selected.map(Parameter::original).collect();
        let wanted = table.distinct().filter(|p| wanted.contains(&p.path));
        let requests = requests(table, wanted, options)?;
        source.check(table, &requests)?;
        memory::check(&requests, source, table.eager_bytes(), options.memory_check)?;
        self.check_stable()?;
        let unseen = skipped_parameters(&self.recorded.module);
        if !unseen.is_empty() {
            tracing::warn!(
                parameters = ?unseen,
                "parameters in fields that no visitor sees, as with `#[module(skip)]`, get no value from the source, but \
                 from the closure or at their first use"
            );
        }
        // The module is constructed first: a source that seeds the backend's generator leaves it as plain Burn would.
        let mut module = None;
        {
            // Draws of the closure must not be interleaved with the draws of an initializer on another thread.
            let _held = BACKEND_GENERATOR.lock();
            let device = &options.device;
            source.construct(device, &mut || module = Some(self.construct(device)));
        }
        let module = module.ok_or_else(|| SourceError::NotConstructed {
            described: source.describe(),
        })?;
        let recorded = &self.recorded;
        fill(module, &recorded.module, &recorded.declared, table, || {
            let loaded: BTreeMap<_, _> = load(requests, source, options)?.into_iter().collect();
            let value = |parameter: &Parameter| {
                let selected = Some(parameter).filter(|p| (options.selects)(p))?;
                loaded.get(selected.original()).cloned()
            };
            Ok(table.iter().map(value).collect())
        })
    }

    /// Materializes the selected parameters, all by default, without autodiff and without their module. The closure is
    /// not called. Clones are not materialized, only their original, if its path is selected.
    ///
    /// # Errors
    ///
    /// When the source lacks a value, or returns one of another shape or dtype.
    pub fn materialize_parameters<'a>(
        &self,
        options: impl Into<MaterializeOptions<'a>>,
        source: &dyn Source,
    ) -> Result<PartialModule, MaterializeError> {
        materialize_parameters(self.parameters(), options, source)
    }

    /// Materializes one parameter on a device, without autodiff.
    ///
    /// # Errors
    ///
    /// When the model or the source has no such parameter.
    pub fn materialize_tensor(
        &self,
        path: &str,
        device: &Device,
        source: &dyn Source,
    ) -> Result<DynTensor, MaterializeError> {
        let parameter = self.parameters().find(path)?;
        self.one(Request::of(self.parameters(), parameter, device), source)
    }

    /// Materializes a region of one parameter on a device, without autodiff: the bits of the same region of the
    /// whole parameter. Sources compute or read as little of the rest as they can; an initializer computes the
    /// [recipe of the region](crate::Recipe::region).
    ///
    /// # Errors
    ///
    /// When the model or the source has no such parameter, or the region is not inside it.
    pub fn materialize_region(
        &self,
        path: &str,
        region: &Region,
        device: &Device,
        source: &dyn Source,
    ) -> Result<DynTensor, MaterializeError> {
        let parameter = self.parameters().find(path)?;
        if let Err(source) = region.check_inside(&parameter.shape) {
            let path = parameter.path.clone();
            return Err(MaterializeError::Region { path, source });
        }
        let request = Request::of(self.parameters(), parameter, device);
        let region = region.clone();
        self.one(Request { region, ..request }, source)
    }

    fn one(&self, request: Request, source: &dyn Source) -> Result<DynTensor, MaterializeError> {
        let options = MaterializeOptions::on(&request.device);
        let requests = vec![request];
        memory::check(&requests, source, 0, options.memory_check)?;
        let values = load(requests, source, &options)?;
        let (_, value) = values.into_iter().next().expect("one value per request");
        Ok(value)
    }
}

/// Materializes the selected parameters of a table, all by default, without autodiff, as a module of their own.
///
/// # Errors
///
/// When the source lacks a value, returns one of another shape or dtype, or there is not enough memory.
pub fn materialize_parameters<'a>(
    table: &ParameterTable,
    options: impl Into<MaterializeOptions<'a>>,
    source: &dyn Source,
) -> Result<PartialModule, MaterializeError> {
    let options = options.into();
    let selected = table.distinct().filter(|p| (options.selects)(p));
    let requests = requests(table, selected, &options)?;
    source.check(table, &requests)?;
    memory::check(&requests, source, 0, options.memory_check)?;
    let values = load(requests, source, &options)?;
    Ok(PartialModule::new(values)?)
}

fn requests<'a>(
    table: &ParameterTable,
    parameters: impl Iterator<Item = &'a Parameter>,
    options: &MaterializeOptions<'_>,
) -> Result<Vec<Request>, MaterializeError> {
    let mut casts = Vec::new();
    let mut requests = Vec::new();
    for parameter in parameters {
        let from = parameter.dtype;
        let to = (options.dtype_of)(parameter).unwrap_or(from);
        if from != to && !can_cast(from, to) {
            let path = parameter.path.clone();
            casts.push(Cast { path, from, to });
        }
        let mut request = Request::of(table, parameter, &options.device);
        request.dtype = to;
        requests.push(request);
    }
    match casts.is_empty() {
        true => Ok(requests),
        false => Err(MaterializeError::Cast { casts }),
    }
}

/// Loads the requested values and checks that they match the requests.
fn load(
    requests: Vec<Request>,
    source: &dyn Source,
    options: &MaterializeOptions<'_>,
) -> Result<Vec<(ParameterPath, DynTensor)>, SourceError> {
    let bytes: u64 = requests.iter().map(Request::bytes).sum();
    let parameters = requests.len();
    let span = tracing::info_span!("materialize", parameters, bytes, source = source.describe());
    let _entered = span.enter();
    let started = Instant::now();
    options.observer.begin(parameters, bytes);
    let values = read_values(&requests, source, options.observer)?;
    options.observer.end();
    let seconds = started.elapsed().as_secs_f64();
    tracing::info!(parameters, bytes, seconds, "materialized");
    let paths = requests.into_iter().map(|request| request.path);
    Ok(paths.zip(values).collect())
}

/// Returns the values of a source for the requests, checked to match them.
///
/// # Errors
///
/// When the source fails, or returns other values than were requested.
pub fn read_values(requests: &[Request], source: &dyn Source, observer: &dyn Observer) -> Loaded {
    let values = one_per_request(source, requests, source.load(requests, observer)?)?;
    let answers = requests.iter().zip(&values);
    let mismatches = answers.flat_map(|(r, v)| r.mismatches_of(v)).collect();
    Mismatches(mismatches).none_in(|| source.describe())?;
    Ok(values)
}
