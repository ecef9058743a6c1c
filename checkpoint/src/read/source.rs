//! A checkpoint as a source of parameter values.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::DType;
use tinderbox_deferred::{
    Mismatch, Mismatches, Observer, ParameterPath, Request, Source, SourceError,
};
use tinderbox_fake::DynTensor;

use super::{
    Checkpoint, LoadOptions,
    load::{Wanted, load},
    transfer::Transfer,
};
use crate::{LoadError, Role, StoredDType, TensorEntry};

/// The parameters of a checkpoint as a model calls them, with what a load of them allows.
#[derive(Clone, Debug)]
pub struct CheckpointSource {
    checkpoint: Checkpoint,
    options: LoadOptions,
    /// The saved name of every path; tied names included.
    names: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Its parameters as a source, with what a load allows. Reads nothing.
    ///
    /// # Errors
    ///
    /// [`LoadError::Renamed`] when two tensors get one name.
    pub fn source(&self, options: LoadOptions) -> Result<CheckpointSource, LoadError> {
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for tensor in self.tensors(Role::Model) {
            for name in std::iter::once(&tensor.name).chain(&tensor.tied) {
                let path = options.renamed(name);
                if let Some(first) = names.get(&path) {
                    return Err(LoadError::Renamed {
                        first: first.clone(),
                        second: name.clone(),
                        name: path,
                    });
                }
                names.insert(path, name.clone());
            }
        }
        Ok(CheckpointSource {
            checkpoint: self.clone(),
            options,
            names,
        })
    }

    /// Refuses a model whose parameters are not exactly the saved ones. Reads nothing.
    ///
    /// # Errors
    ///
    /// [`LoadError::Mismatch`] with every missing and extra parameter, shape and dtype.
    pub fn check_model(
        &self,
        parameters: &[(ParameterPath, Vec<u64>, DType)],
    ) -> Result<(), LoadError> {
        self.source(LoadOptions::default())?.check_model(parameters)
    }
}

impl CheckpointSource {
    /// Refuses a model whose parameters do not fit the saved ones. Reads nothing.
    ///
    /// # Errors
    ///
    /// [`LoadError::Mismatch`] with every missing and extra parameter, shape and dtype that is not
    /// allowed.
    pub fn check_model(
        &self,
        parameters: &[(ParameterPath, Vec<u64>, DType)],
    ) -> Result<(), LoadError> {
        let mut wrong = Vec::new();
        let mut used = BTreeSet::new();
        for (path, shape, dtype) in parameters {
            self.compare(path, shape, *dtype, &mut wrong);
            used.extend(self.find(path).map(|tensor| &tensor.name));
        }
        if self.options.allow_missing {
            wrong.retain(|mismatch| !matches!(mismatch, Mismatch::Missing { .. }));
        }
        if !self.options.allow_extra {
            let saved = self.checkpoint.tensors(Role::Model);
            let unused = saved.filter(|tensor| !used.contains(&tensor.name));
            wrong.extend(unused.map(|tensor| Mismatch::Extra {
                path: ParameterPath::new(self.options.renamed(&tensor.name)),
            }));
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(LoadError::Mismatch {
                path: self.checkpoint.dir().to_owned(),
                mismatches: Mismatches(wrong),
            }),
        }
    }

    pub(super) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub(super) fn thread_count(&self) -> usize {
        self.options.threads
    }

    /// The saved tensor that a path stands for.
    fn find(&self, path: &ParameterPath) -> Option<&TensorEntry> {
        let name = self.names.get(path.as_str())?;
        self.checkpoint.tensor(Role::Model, name)
    }

    /// Adds what is wrong with one wanted parameter; gives the saved one when nothing is.
    pub(super) fn compare(
        &self,
        path: &ParameterPath,
        shape: &[u64],
        dtype: DType,
        wrong: &mut Vec<Mismatch>,
    ) -> Option<&TensorEntry> {
        let before = wrong.len();
        let tensor = self.find(path);
        // What may have another shape counts as missing there.
        let fits = |tensor: &&TensorEntry| !self.options.allow_shape || tensor.shape == shape;
        let Some(tensor) = tensor.filter(fits) else {
            wrong.push(Mismatch::Missing { path: path.clone() });
            return None;
        };
        if tensor.shape != shape {
            wrong.push(Mismatch::Shape {
                path: path.clone(),
                expected: shape.to_vec(),
                found: tensor.shape.clone(),
            });
        }
        let same = StoredDType::of(dtype) == Some(tensor.dtype);
        let cast = || self.options.cast && Transfer::between(tensor.dtype, dtype).is_some();
        if !same && !cast() {
            wrong.push(Mismatch::DType {
                path: path.clone(),
                expected: dtype.name().to_owned(),
                found: tensor.dtype.burn().name().to_owned(),
            });
        }
        (wrong.len() == before).then_some(tensor)
    }

    /// What answers each request, or all that is wrong.
    pub(super) fn wanted(&self, requests: &[Request]) -> Result<Vec<Wanted<'_>>, SourceError> {
        let mut wrong = Vec::new();
        let mut wanted = Vec::with_capacity(requests.len());
        for request in requests {
            let path = &request.path;
            let tensor = self.compare(path, &request.shape, request.dtype, &mut wrong);
            wanted.extend(tensor.map(|tensor| Wanted {
                tensor,
                region: request.region.clone(),
                dtype: request.dtype,
            }));
            if let Err(reason) = request.region.check_inside(&request.shape) {
                wrong.push(Mismatch::Region {
                    path: path.clone(),
                    reason,
                });
            }
        }
        match wrong.is_empty() {
            true => Ok(wanted),
            false => Err(SourceError::Mismatch {
                described: self.describe(),
                mismatches: Mismatches(wrong),
            }),
        }
    }
}

impl Source for CheckpointSource {
    /// The requested regions of the saved parameters. Every request is checked before anything is
    /// read; each block that holds a requested element is read once and checked.
    ///
    /// Memory: the values, and one block per thread.
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let wanted = self.wanted(requests)?;
        let LoadOptions {
            threads, progress, ..
        } = &self.options;
        let data = load(&self.checkpoint, &wanted, *threads, &**progress);
        let data = data.map_err(|error| SourceError::Failed {
            described: self.describe(),
            source: Box::new(error),
        })?;
        let values = data.into_iter().zip(requests).map(|(data, request)| {
            let value = DynTensor::from_data(data, &request.device);
            observer.made(&request.path, value.bytes());
            value
        });
        Ok(values.collect())
    }

    fn describe(&self) -> String {
        format!("checkpoint {}", self.checkpoint.dir().display())
    }
}

impl Source for Checkpoint {
    /// As [`CheckpointSource`] with the default options.
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let source = self.source(LoadOptions::default());
        let source = source.map_err(|error| SourceError::Failed {
            described: self.describe(),
            source: Box::new(error),
        })?;
        source.load(requests, observer)
    }

    fn describe(&self) -> String {
        format!("checkpoint {}", self.dir().display())
    }
}
