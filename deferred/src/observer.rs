//! Progress of long operations.

use std::fmt;
use std::sync::Arc;

use burn::tensor::Device;
use tinderbox_fake::DynTensor;

use crate::{ParameterPath, ParameterTable, Request, Source, SourceError};

/// Receives the progress of a materialization or a load, for example for a progress bar.
///
/// Methods are called from any thread, and in any order of the parameters.
pub trait Observer: Send + Sync {
    /// Called before values are computed or read, with the number of parameters and the bytes of all.
    fn begin(&self, parameters: usize, bytes: u64) {
        let _ = (parameters, bytes);
    }

    /// Called after more bytes of incomplete values were computed or read; 0 for other work that takes time.
    /// A source that computes each value in one step only reports [`made`](Self::made).
    fn advanced(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Called after one value is complete.
    fn made(&self, path: &ParameterPath, bytes: u64) {
        let _ = (path, bytes);
    }

    /// Called after all values are complete. Not called after an error.
    fn end(&self) {}
}

/// Ignores all events.
impl Observer for () {}

/// A source that reports everything that is loaded from it to an observer, whoever the caller is, for example the
/// ranks of a pipeline, each of which begins and ends on its own.
#[derive(Clone)]
pub struct Observed<S> {
    source: S,
    observer: Arc<dyn Observer>,
}

impl<S: Source> Observed<S> {
    /// Creates a source with an observer.
    pub fn new(source: S, observer: Arc<dyn Observer>) -> Self {
        Self { source, observer }
    }
}

impl<S: Source> fmt::Debug for Observed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed")
            .field(&self.source.describe())
            .finish()
    }
}

impl<S: Source> Source for Observed<S> {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let bytes = requests.iter().map(Request::bytes).sum();
        self.observer.begin(requests.len(), bytes);
        let both = Both(observer, &*self.observer);
        let values = self.source.load(requests, &both)?;
        self.observer.end();
        Ok(values)
    }

    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        self.source.check(model, requests)
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        self.source.working_bytes(requests)
    }

    fn construct(&self, device: &Device, construct: &mut dyn FnMut()) {
        self.source.construct(device, construct);
    }

    fn describe(&self) -> String {
        self.source.describe()
    }
}

/// Reports each value to two observers.
struct Both<'a>(&'a dyn Observer, &'a dyn Observer);

impl Observer for Both<'_> {
    fn advanced(&self, bytes: u64) {
        self.0.advanced(bytes);
        self.1.advanced(bytes);
    }

    fn made(&self, path: &ParameterPath, bytes: u64) {
        self.0.made(path, bytes);
        self.1.made(path, bytes);
    }
}
