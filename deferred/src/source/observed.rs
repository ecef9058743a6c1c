//! A source that reports to an observer.

use std::sync::Arc;

use burn::tensor::Device;
use tinderbox_fake::DynTensor;

use super::forward;
use crate::{Observer, ParameterPath, ParameterTable, Request, Source, SourceError};

/// A source that reports everything that is loaded from it to an observer, whoever the caller is, for example the
/// ranks of a pipeline, each of which begins and ends on its own.
#[derive(Clone, derive_more::Debug)]
pub struct Observed<S> {
    source: S,
    #[debug(skip)]
    observer: Arc<dyn Observer>,
}

impl<S: Source> Observed<S> {
    /// Creates a source with an observer.
    pub fn new(source: S, observer: Arc<dyn Observer>) -> Self {
        Self { source, observer }
    }

    /// Reports what `load` loads.
    fn reported(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
        load: impl FnOnce(&dyn Observer) -> Result<Vec<DynTensor>, SourceError>,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let bytes = requests.iter().map(Request::bytes).sum();
        self.observer.begin(requests.len(), bytes);
        let values = load(&Both(observer, &*self.observer))?;
        self.observer.end();
        Ok(values)
    }
}

impl<S: Source> Source for Observed<S> {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.reported(requests, observer, |both| self.source.load(requests, both))
    }

    fn load_uncached(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.reported(requests, observer, |both| {
            self.source.load_uncached(requests, both)
        })
    }

    forward!(self => self.source; check working_bytes construct describe);
}

/// Reports each value to two observers.
struct Both<'a>(&'a dyn Observer, &'a dyn Observer);

impl Observer for Both<'_> {
    fn advanced(&self, bytes: u64) {
        self.0.advanced(bytes);
        self.1.advanced(bytes);
    }

    fn completed(&self, path: &ParameterPath, bytes: u64) {
        self.0.completed(path, bytes);
        self.1.completed(path, bytes);
    }
}
