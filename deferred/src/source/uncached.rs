//! A source that is read around the system's cache.

use burn::tensor::Device;
use tinderbox_fake::DynTensor;

use super::forward;
use crate::{Observer, ParameterTable, Request, Source, SourceError};

/// A source each of whose loads is [uncached](Source::load_uncached).
#[derive(Clone, Debug)]
pub struct Uncached<S>(pub S);

impl<S: Source> Source for Uncached<S> {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.0.load_uncached(requests, observer)
    }

    forward!(self => self.0; check working_bytes construct describe);
}
