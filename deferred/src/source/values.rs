//! Values that are in memory.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::{DynTensor, FakeError};

use super::check_all;
use crate::{
    Mismatch, Mismatches, Observer, ParameterPath, ParameterTable, Request, Source, SourceError,
};

/// A source of values that are in memory, by path, such as a gathered model.
///
/// It rejects a model that lacks a parameter for one of them, and names every such value.
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
    fn answer(&self, request: &Request) -> Result<&DynTensor, Vec<Mismatch>> {
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
        let values = check_all(self, requests, |request| self.answer(request).cloned())?;
        let parts = values.into_iter().zip(requests);
        parts
            .map(|(value, request)| {
                let part = request.part_of(value)?;
                observer.completed(&request.path, part.bytes());
                Ok(part)
            })
            .collect::<Result<_, FakeError>>()
            .map_err(|source| SourceError::Failed {
                described: self.describe(),
                source: Box::new(source),
            })
    }

    /// Reports every value that the model has no parameter for, in addition to other mismatches.
    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        let wrong = requests
            .iter()
            .filter_map(|request| self.answer(request).err());
        let known: BTreeSet<&ParameterPath> = model.iter().map(|p| &p.path).collect();
        let extra = self.values.keys().filter(|path| !known.contains(path));
        let extra = extra.map(|path| Mismatch::Extra { path: path.clone() });
        Mismatches(wrong.flatten().chain(extra).collect()).none_in(|| self.describe())
    }

    fn describe(&self) -> String {
        format!("a set of {} values in memory", self.values.len())
    }
}
