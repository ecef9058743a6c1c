//! A source that notes what is requested of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use tinderbox::checkpoint::CheckpointSource;
use tinderbox::deferred::{Observer, ParameterTable, Request};
use tinderbox::error::SourceError;
use tinderbox::{DynTensor, ParameterPath, Source};

/// The paths of one load.
pub type Load = BTreeSet<ParameterPath>;

pub struct Noted {
    pub source: CheckpointSource,
    pub loads: Arc<Mutex<Vec<Load>>>,
}

impl Source for Noted {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let paths = requests.iter().map(|request| request.path.clone());
        self.loads.lock().unwrap().push(paths.collect());
        self.source.load(requests, observer)
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
