//! Progress of long work.

use std::fmt;
use std::sync::Arc;

use burn::tensor::Device;
use tinderbox_fake::DynTensor;

use crate::{ParameterPath, ParameterTable, Request, Source, SourceError};

/// Is notified how far a materialization or a load is: a progress bar, say.
///
/// Calls come from any thread, and in any order of the parameters.
pub trait Observer: Send + Sync {
    /// Values are about to be made or read: how many parameters, and bytes of all.
    fn begin(&self, parameters: usize, bytes: u64) {
        let _ = (parameters, bytes);
    }

    /// So many more bytes of values that are not yet complete were made or read; 0 for other work that takes its time.
    /// A source that makes each value at once reports [`made`](Self::made) only.
    fn advanced(&self, bytes: u64) {
        let _ = bytes;
    }

    /// One value is there.
    fn made(&self, path: &ParameterPath, bytes: u64) {
        let _ = (path, bytes);
    }

    /// Everything is there. Not called after an error.
    fn end(&self) {}
}

/// Ignores all events.
impl Observer for () {}

/// A source that tells an observer of all that is loaded from it, whoever loads: the ranks of a
/// pipeline, say, each of which begins and ends for itself.
#[derive(Clone)]
pub struct Observed<S> {
    source: S,
    observer: Arc<dyn Observer>,
}

impl<S: Source> Observed<S> {
    /// The source, with an observer.
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

/// Tells two observers of each value.
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
