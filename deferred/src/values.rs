//! Values that are in memory already.

use std::collections::BTreeMap;

use tinderbox_fake::{DynTensor, FakeError};

use crate::{Mismatch, Mismatches, Observer, ParameterPath, Request, Source, SourceError};

/// Values that are in memory already, by path: a gathered model, say.
#[derive(Clone, Debug, Default)]
pub struct Values {
    values: BTreeMap<ParameterPath, DynTensor>,
}

impl FromIterator<(ParameterPath, DynTensor)> for Values {
    fn from_iter<I: IntoIterator<Item = (ParameterPath, DynTensor)>>(values: I) -> Self {
        Self {
            values: values.into_iter().collect(),
        }
    }
}

impl Values {
    fn check(&self, request: &Request) -> Result<&DynTensor, Vec<Mismatch>> {
        let path = || request.path.clone();
        let Some(value) = self.values.get(&request.path) else {
            return Err(vec![Mismatch::Missing { path: path() }]);
        };
        let shape: Vec<u64> = value.shape().iter().map(|d| *d as u64).collect();
        let mut mismatches = request.mismatches(&shape, value.dtype());
        if value.is_fake() {
            mismatches.push(Mismatch::Fake { path: path() });
        }
        match mismatches.is_empty() {
            true => Ok(value),
            false => Err(mismatches),
        }
    }
}

impl Source for Values {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let mut mismatches = Mismatches::default();
        let mut values = Vec::with_capacity(requests.len());
        for request in requests {
            match self.check(request) {
                Ok(value) => values.push(value.clone()),
                Err(found) => mismatches.0.extend(found),
            }
        }
        if !mismatches.0.is_empty() {
            return Err(SourceError::Mismatch {
                described: self.describe(),
                mismatches,
            });
        }
        let parts = values.into_iter().zip(requests);
        parts
            .map(|(value, request)| {
                let part = request.part_of(value)?;
                observer.made(&request.path, part.bytes());
                Ok(part)
            })
            .collect::<Result<_, FakeError>>()
            .map_err(|source| SourceError::Failed {
                described: self.describe(),
                source: Box::new(source),
            })
    }

    fn describe(&self) -> String {
        format!("{} values in memory", self.values.len())
    }
}
