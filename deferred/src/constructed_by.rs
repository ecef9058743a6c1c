//! A source that combines the values of one source with the construction of another.

use burn::tensor::Device;
use tinderbox_fake::DynTensor;

use crate::{Observer, ParameterTable, Request, Source, SourceError};

/// The values of one source, in models that are constructed for another one; see
/// [`constructed_by`](Source::constructed_by).
#[derive(Clone, Debug)]
pub struct ConstructedBy<S, C> {
    values: S,
    constructor: C,
}

impl<S: Source, C: Source> ConstructedBy<S, C> {
    pub(crate) fn new(values: S, constructor: C) -> Self {
        Self {
            values,
            constructor,
        }
    }
}

impl<S: Source, C: Source> Source for ConstructedBy<S, C> {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.values.load(requests, observer)
    }

    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        self.values.check(model, requests)
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        self.values.working_bytes(requests)
    }

    fn construct(&self, device: &Device, construct: &mut dyn FnMut()) {
        self.constructor.construct(device, construct);
    }

    fn describe(&self) -> String {
        self.values.describe()
    }
}
