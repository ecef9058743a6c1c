//! Values that are in memory.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::Device;
use tinderbox_fake::{DynTensor, FakeError};

use super::{Loaded, check_all};
use crate::{
    Mismatch, Mismatches, Observer, ParameterPath, ParameterTable, Request, Source, SourceError,
};

/// A source of values that are in memory, by path, such as a gathered model.
///
/// It rejects a model that lacks a parameter for one of them, and names every such value. Values under several paths of
/// one parameter must have the same bits in the requested dtype; loading reads each of them.
#[derive(Clone, Debug, Default)]
pub struct Values {
    values: BTreeMap<ParameterPath, DynTensor>,
}

impl FromIterator<(ParameterPath, DynTensor)> for Values {
    fn from_iter<I: IntoIterator<Item = (ParameterPath, DynTensor)>>(values: I) -> Self {
        let values = values.into_iter().collect();
        Self { values }
    }
}

impl Values {
    fn answer(&self, request: &Request) -> Result<&DynTensor, Vec<Mismatch>> {
        let value_at = |path| Some((path, self.values.get(path)?));
        let found: Vec<(&ParameterPath, _)> = request.paths().filter_map(value_at).collect();
        let Some((path, value)) = found.first() else {
            let path = request.path.clone();
            return Err(vec![Mismatch::Missing { path }]);
        };
        let mut mismatches = Vec::new();
        for (path, value) in &found {
            let shape: Vec<u64> = value.shape().iter().map(|d| *d as u64).collect();
            mismatches.extend(request.mismatches(path, &shape, value.dtype()));
            if value.is_fake() {
                let path = (*path).clone();
                mismatches.push(Mismatch::Fake { path });
            }
        }
        if mismatches.is_empty() && found.len() > 1 {
            // On the CPU, because the memory of the device was not checked yet. What can't be read fails when it is loaded.
            let here = Request {
                device: Device::flex(),
                ..request.clone()
            };
            let bits = |value: &DynTensor| here.part_of(value.clone()).ok()?.into_data().ok();
            let first = bits(value);
            let others = found[1..].iter();
            let differ = others.filter(|(_, other)| bits(other) != first);
            mismatches.extend(differ.map(|(other, _)| Mismatch::Differ {
                path: (*path).clone(),
                other: (*other).clone(),
            }));
        }
        match mismatches.is_empty() {
            true => Ok(value),
            false => Err(mismatches),
        }
    }
}

impl Source for Values {
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        let values = check_all(self, requests, |request| self.answer(request).cloned())?;
        let parts = values.into_iter().zip(requests);
        let parts = parts.map(|(value, request)| {
            let part = request.part_of(value)?;
            observer.completed(&request.path, part.bytes());
            Ok(part)
        });
        let parts: Result<_, FakeError> = parts.collect();
        parts.map_err(|source| SourceError::Failed {
            described: self.describe(),
            source: Box::new(source),
        })
    }

    /// Reports every value that the model has no parameter for, in addition to other mismatches.
    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        let wrong = requests.iter().filter_map(|r| self.answer(r).err());
        let known: BTreeSet<&ParameterPath> = model.iter().map(|p| &p.path).collect();
        let extra = self.values.keys().filter(|path| !known.contains(path));
        let extra = extra.map(|path| Mismatch::Extra { path: path.clone() });
        Mismatches(wrong.flatten().chain(extra).collect()).none_in(|| self.describe())
    }

    fn describe(&self) -> String {
        format!("a set of {} values in memory", self.values.len())
    }
}
