//! A checkpoint as a source of parameter values.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::DType;
use tinderbox_deferred::{
    Mismatch, Mismatches, Observer, ParameterPath, ParameterTable, Request, Source, SourceError,
};
use tinderbox_fake::DynTensor;

use super::{
    Checkpoint, LoadOptions,
    load::{Reading, Wanted, working_bytes},
    place::load_to,
    transfer::Transfer,
    transpose::reversed,
};
use crate::{LoadError, Role, StoredDType, TensorEntry};

/// The parameters of a checkpoint by the paths of a model, with the options of a load.
#[derive(Clone, Debug)]
pub struct CheckpointSource {
    pub(super) checkpoint: Checkpoint,
    pub(super) options: LoadOptions,
    /// The saved name of every path, including tied names.
    names: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Creates a source of the parameters with these options. Reads nothing.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::Renamed`] if two tensors are renamed to the same name.
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

    /// Checks that the parameters of a model are exactly the saved ones. Reads nothing.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::Mismatch`] with every missing and extra parameter and every other shape and
    /// dtype.
    pub fn check_model(
        &self,
        parameters: &[(ParameterPath, Vec<u64>, DType)],
    ) -> Result<(), LoadError> {
        self.source(LoadOptions::default())?.check_model(parameters)
    }
}

impl CheckpointSource {
    /// Checks that the parameters of a model match the saved ones. Reads nothing.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::Mismatch`] with every missing and extra parameter and every other shape and dtype
    /// that the options do not allow.
    pub fn check_model(
        &self,
        parameters: &[(ParameterPath, Vec<u64>, DType)],
    ) -> Result<(), LoadError> {
        let mut wrong = Vec::new();
        for (path, shape, dtype) in parameters {
            self.compare(path, shape, *dtype, &mut wrong);
        }
        self.forgive(&mut wrong);
        wrong.extend(self.extra(parameters.iter().map(|(path, ..)| path)));
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(LoadError::Mismatch {
                path: self.checkpoint.dir().to_owned(),
                mismatches: Mismatches(wrong),
            }),
        }
    }

    /// Returns saved parameters that the model does not have, unless the options allow them.
    fn extra<'a>(&self, model: impl Iterator<Item = &'a ParameterPath>) -> Vec<Mismatch> {
        if self.options.allow_extra {
            return Vec::new();
        }
        let used = model.filter_map(|path| self.find(path));
        let used: BTreeSet<&String> = used.map(|tensor| &tensor.name).collect();
        let saved = self.checkpoint.tensors(Role::Model);
        let unused = saved.filter(|tensor| !used.contains(&tensor.name));
        let unused = unused.map(|tensor| self.options.renamed(&tensor.name));
        unused
            .filter(|name| !self.options.is_ignored(name))
            .map(|name| Mismatch::Extra {
                path: ParameterPath::new(name),
            })
            .collect()
    }

    /// Returns the saved tensor of a path.
    fn find(&self, path: &ParameterPath) -> Option<&TensorEntry> {
        let name = self.names.get(path.as_str())?;
        self.checkpoint.tensor(Role::Model, name)
    }

    /// Adds the mismatches of one requested parameter; returns the saved one if there are none.
    pub(super) fn compare(
        &self,
        path: &ParameterPath,
        shape: &[u64],
        dtype: DType,
        wrong: &mut Vec<Mismatch>,
    ) -> Option<&TensorEntry> {
        let before = wrong.len();
        let tensor = self.find(path);
        // The shape as the model has it.
        let shape_of = |tensor: &TensorEntry| {
            let mut shape = tensor.shape.clone();
            if self.options.transposed(path.as_str(), &shape) {
                shape.reverse();
            }
            shape
        };
        // With `allow_shape`, another shape counts as missing.
        let fits = |tensor: &&TensorEntry| !self.options.allow_shape || shape_of(tensor) == shape;
        let Some(tensor) = tensor.filter(fits) else {
            wrong.push(Mismatch::Missing { path: path.clone() });
            return None;
        };
        if shape_of(tensor) != shape {
            wrong.push(Mismatch::Shape {
                path: path.clone(),
                expected: shape.to_vec(),
                found: shape_of(tensor),
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

    /// Returns the saved tensor of each request, and all mismatches.
    fn compare_all(&self, requests: &[Request]) -> (Vec<Wanted<'_>>, Vec<Mismatch>) {
        let mut wrong = Vec::new();
        let mut wanted = Vec::with_capacity(requests.len());
        for request in requests {
            let path = &request.path;
            let tensor = self.compare(path, &request.shape, request.dtype, &mut wrong);
            if let Some(tensor) = tensor {
                let transposed = self.options.transposed(path.as_str(), &tensor.shape);
                let region = match transposed {
                    true => reversed(&request.region),
                    false => Ok(request.region.clone()),
                };
                wanted.extend(region.map(|region| Wanted {
                    tensor,
                    region,
                    dtype: request.dtype,
                    transposed,
                }));
            }
            if let Err(reason) = request.region.check_inside(&request.shape) {
                wrong.push(Mismatch::Region {
                    path: path.clone(),
                    reason,
                });
            }
        }
        (wanted, wrong)
    }

    /// Returns the saved tensor of each request; the caller may obtain missing ones from another source.
    pub(super) fn wanted_here(&self, requests: &[Request]) -> Result<Vec<Wanted<'_>>, SourceError> {
        let (wanted, mut wrong) = self.compare_all(requests);
        self.forgive(&mut wrong);
        Mismatches(wrong).none_in(|| self.describe())?;
        Ok(wanted)
    }

    fn read(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
        uncached: bool,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let (wanted, wrong) = self.compare_all(requests);
        Mismatches(wrong).none_in(|| self.describe())?;
        let devices: Vec<_> = requests.iter().map(|request| &request.device).collect();
        let threads = self.options.threads;
        let values = load_to(
            &self.checkpoint,
            &wanted,
            &devices,
            Reading { threads, uncached },
            observer,
            |place, value| observer.completed(&requests[place].path, value.bytes()),
        );
        values.map_err(|error| SourceError::Failed {
            described: self.describe(),
            source: Box::new(error),
        })
    }

    /// Removes missing parameters from the mismatches if the options allow them.
    fn forgive(&self, wrong: &mut Vec<Mismatch>) {
        if self.options.allow_missing {
            wrong.retain(|mismatch| !matches!(mismatch, Mismatch::Missing { .. }));
        }
    }
}

impl Source for CheckpointSource {
    /// Loads the requested regions of the saved parameters. Checks every request before reading; each block
    /// that contains a requested element is read once, and checked if it has a digest.
    ///
    /// Memory: the values and one block per thread; up to 272 KiB more for each thread that transposes. Values for a
    /// device other than the CPU pass through host memory in groups of 64 MiB plus one value, at most six at
    /// a time.
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.read(requests, observer, false)
    }

    fn load_uncached(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.read(requests, observer, true)
    }

    /// Returns all mismatches: of the requests, and parameters that the model does not have.
    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        let (_, mut wrong) = self.compare_all(requests);
        self.forgive(&mut wrong);
        wrong.extend(self.extra(model.iter().map(|parameter| &parameter.path)));
        if self.options.is_record {
            // A square weight would be loaded transposed without an error.
            let requested: BTreeSet<&ParameterPath> = requests.iter().map(|r| &r.path).collect();
            let transposed = model.iter().filter(|parameter| parameter.saved_transposed);
            let wanted = transposed.filter(|parameter| requested.contains(&parameter.path));
            let given = wanted.filter(|parameter| {
                let shape = &parameter.shape;
                !self.options.transposed(parameter.path.as_str(), shape)
                    && self.find(&parameter.path).is_some()
            });
            wrong.extend(given.map(|parameter| Mismatch::Transposed {
                path: parameter.path.clone(),
            }));
        }
        Mismatches(wrong).none_in(|| self.describe())
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        let (wanted, _) = self.compare_all(requests);
        working_bytes(&self.checkpoint, &wanted, self.options.threads)
    }

    fn describe(&self) -> String {
        self.checkpoint.describe()
    }
}

impl Checkpoint {
    fn exactly(&self) -> Result<CheckpointSource, SourceError> {
        let source = self.source(LoadOptions::default());
        source.map_err(|error| SourceError::Failed {
            described: self.describe(),
            source: Box::new(error),
        })
    }
}

impl Source for Checkpoint {
    /// As [`CheckpointSource`] with the default options.
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.exactly()?.load(requests, observer)
    }

    fn load_uncached(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.exactly()?.load_uncached(requests, observer)
    }

    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        self.exactly()?.check(model, requests)
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        let source = self.exactly();
        source.map_or(0, |source| source.working_bytes(requests))
    }

    fn describe(&self) -> String {
        self.describe()
    }
}
