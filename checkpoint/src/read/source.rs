//! A checkpoint as a source of parameter values.

use tinderbox_deferred::{Mismatch, Mismatches, Observer, Request, Source, SourceError};
use tinderbox_fake::DynTensor;

use super::{Checkpoint, checkpoint::Reader};

impl Source for Checkpoint {
    /// The requested regions of the saved parameters. Every request is checked before anything is
    /// read; each block that holds a requested element is read and checked.
    ///
    /// Memory: the values, and one region and one block on the host.
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let mut wrong = Vec::new();
        let mut tensors = Vec::with_capacity(requests.len());
        for request in requests {
            let path = &request.path;
            tensors.extend(self.compare(path, &request.shape, request.dtype, &mut wrong));
            if let Err(reason) = request.region.check_inside(&request.shape) {
                wrong.push(Mismatch::Region {
                    path: path.clone(),
                    reason,
                });
            }
        }
        if !wrong.is_empty() {
            return Err(SourceError::Mismatch {
                described: self.describe(),
                mismatches: Mismatches(wrong),
            });
        }
        let mut reader = Reader::new(self);
        requests
            .iter()
            .zip(tensors)
            .map(|(request, tensor)| {
                let data = reader
                    .read(tensor, &request.region, request.dtype)
                    .map_err(|error| SourceError::Failed {
                        described: self.describe(),
                        source: Box::new(error),
                    })?;
                let value = DynTensor::from_data(data, &request.device);
                observer.made(&request.path, value.bytes());
                Ok(value)
            })
            .collect()
    }

    fn describe(&self) -> String {
        format!("checkpoint {}", self.dir().display())
    }
}
