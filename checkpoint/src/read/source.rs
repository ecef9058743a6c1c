//! Saved tensors as a source of parameter values.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::DType;
use tinderbox_deferred::{
    Loaded, Mismatch, Mismatches, Observer, Parameter, ParameterPath, ParameterTable, Request,
    Source, SourceError,
};
use tinderbox_fake::DynTensor;

use super::aliases::Alias;
use super::load::{Load, working_bytes};
use super::place::load_to;
use super::plan::Wanted;
use super::transfer::Transfer;
use super::transpose::reversed;
use super::{Checkpoint, LoadOptions, SavedTensors};
use crate::{LoadError, Role, StoredDType, TensorEntry};

/// The parameters of a checkpoint, or of pretrained weights, by the paths of a model, with the options of a load.
#[derive(Clone, Debug)]
pub struct CheckpointSource {
    pub(super) saved: SavedTensors,
    pub(super) options: LoadOptions,
    /// The saved name of every path, including tied names.
    names: BTreeMap<String, String>,
}

/// The saved tensors of some requests.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    /// The tensors that are loaded, in the order of the requests.
    pub(super) wanted: Vec<Wanted<'a>>,
    /// The saved tensors of other paths of the same parameters, in the same order.
    pub(super) others: Vec<Alias<'a>>,
}

impl SavedTensors {
    /// Creates a source of the parameters with these options. Reads nothing.
    pub(super) fn source(&self, options: LoadOptions) -> Result<CheckpointSource, LoadError> {
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        let own = self.tensors(Role::Model).map(|tensor| &tensor.name);
        let tied = self.tensors(Role::Model).flat_map(|tensor| &tensor.tied);
        let own = own.map(|name| (name, true));
        // The other names of a plain file are from its metadata, which may have another meaning.
        for (name, is_sure) in own.chain(tied.map(|name| (name, self.has_digests()))) {
            let path = options.renamed(name);
            let first = names.entry(path).or_insert_with(|| name.clone());
            if is_sure && first != name {
                return Err(LoadError::Renamed {
                    first: first.clone(),
                    second: name.clone(),
                    name: options.renamed(name),
                });
            }
        }
        Ok(CheckpointSource {
            saved: self.clone(),
            options,
            names,
        })
    }

    /// Creates a source with the default options.
    fn exactly(&self) -> CheckpointSource {
        let source = self.source(LoadOptions::default());
        source.expect("without renames, the names of a checkpoint are unique")
    }

    fn failed(&self, error: LoadError) -> SourceError {
        SourceError::Failed {
            described: self.describe(),
            source: Box::new(error),
        }
    }
}

impl Checkpoint {
    /// Creates a source of the parameters with these options. Reads nothing.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::Renamed`] if two tensors are renamed to the same name.
    pub fn source(&self, options: LoadOptions) -> Result<CheckpointSource, LoadError> {
        self.saved.source(options)
    }
}

impl CheckpointSource {
    /// Checks that the parameters of a model match the saved parameters. Reads nothing.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::Mismatch`] with every missing and extra parameter and every other shape and dtype
    /// that the options do not allow.
    pub fn check_model(&self, model: &[(ParameterPath, Vec<u64>, DType)]) -> Result<(), LoadError> {
        let mut wrong = Vec::new();
        for (path, shape, dtype) in model {
            let found = self.find_all(std::iter::once(path), shape);
            match found.first() {
                Some(found) => self.compare(*found, shape, *dtype, &mut wrong),
                None => wrong.push(Mismatch::Missing { path: path.clone() }),
            }
        }
        self.forgive(&mut wrong);
        wrong.extend(self.extra(model.iter().map(|(path, ..)| path)));
        if wrong.is_empty() {
            return Ok(());
        }
        let (path, mismatches) = (self.saved.place().to_owned(), Mismatches(wrong));
        Err(LoadError::Mismatch { path, mismatches })
    }

    /// Returns saved parameters that the model does not have, unless the options allow them.
    fn extra<'a>(&self, model: impl Iterator<Item = &'a ParameterPath>) -> Vec<Mismatch> {
        if self.options.allow_extra {
            return Vec::new();
        }
        let used = model.filter_map(|path| self.find(path));
        let used: BTreeSet<&String> = used.map(|tensor| &tensor.name).collect();
        let saved = self.saved.tensors(Role::Model);
        let unused = saved.filter(|tensor| !used.contains(&tensor.name));
        let unused = unused.map(|tensor| self.options.renamed(&tensor.name));
        let unused = unused.filter(|name| !self.options.ignored.contains(name));
        let paths = unused.map(ParameterPath::new);
        paths.map(|path| Mismatch::Extra { path }).collect()
    }

    /// Returns the saved tensor of a path.
    fn find(&self, path: &ParameterPath) -> Option<&TensorEntry> {
        let name = self.names.get(path.as_str())?;
        self.saved.tensor(Role::Model, name)
    }

    /// Returns the saved tensors of the paths of one parameter. A tensor with another shape is returned only if it does not
    /// count as missing.
    fn find_all<'a>(
        &'a self,
        paths: impl Iterator<Item = &'a ParameterPath>,
        shape: &[u64],
    ) -> Vec<(&'a ParameterPath, &'a TensorEntry)> {
        let mut found: Vec<(&ParameterPath, &TensorEntry)> = Vec::new();
        for path in paths {
            if let Some(tensor) = self.find(path)
                && (!self.options.allow_other_shapes || self.shape_of(path, tensor) == shape)
                && found.iter().all(|(_, other)| other.name != tensor.name)
            {
                found.push((path, tensor));
            }
        }
        found
    }

    /// Returns the shape of a saved tensor as the model has it.
    fn shape_of(&self, path: &ParameterPath, tensor: &TensorEntry) -> Vec<u64> {
        let mut shape = tensor.shape.clone();
        if self.options.transposed(path.as_str(), &shape) {
            shape.reverse();
        }
        shape
    }

    /// Adds the mismatches between a saved tensor and a parameter.
    fn compare(
        &self,
        (path, tensor): (&ParameterPath, &TensorEntry),
        shape: &[u64],
        dtype: DType,
        wrong: &mut Vec<Mismatch>,
    ) {
        let found = self.shape_of(path, tensor);
        if found != shape {
            wrong.push(Mismatch::Shape {
                path: path.clone(),
                expected: shape.to_vec(),
                found,
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
    }

    /// Returns the saved tensors of the requests, and all mismatches.
    fn compare_all<'a>(&'a self, requests: &'a [Request]) -> (Found<'a>, Vec<Mismatch>) {
        let mut wrong = Vec::new();
        let mut all = Found::default();
        for request in requests {
            let before = wrong.len();
            let found = self.find_all(request.paths(), &request.shape);
            for found in &found {
                self.compare(*found, &request.shape, request.dtype, &mut wrong);
            }
            if let Err(reason) = request.region.check_inside(&request.shape) {
                wrong.push(Mismatch::Region {
                    path: request.path.clone(),
                    reason,
                });
            }
            let Some((path, tensor)) = found.first().copied() else {
                let path = request.path.clone();
                wrong.push(Mismatch::Missing { path });
                continue;
            };
            if wrong.len() > before {
                continue;
            }
            for (other, tensor) in &found[1..] {
                all.others.push(Alias {
                    at: all.wanted.len(),
                    path,
                    other,
                    wanted: self.wanted(request, other, tensor),
                });
            }
            all.wanted.push(self.wanted(request, path, tensor));
        }
        (all, wrong)
    }

    /// Returns the requested part of a saved tensor.
    fn wanted<'a>(
        &self,
        request: &Request,
        path: &ParameterPath,
        tensor: &'a TensorEntry,
    ) -> Wanted<'a> {
        let transposed = self.options.transposed(path.as_str(), &tensor.shape);
        Wanted {
            tensor,
            region: match transposed {
                true => reversed(&request.region),
                false => request.region.clone(),
            },
            dtype: request.dtype,
            transposed,
        }
    }

    /// Returns the saved tensors of the requests; the caller may obtain missing ones from another source.
    pub(super) fn lookup<'a>(&'a self, requests: &'a [Request]) -> Result<Found<'a>, SourceError> {
        let (found, mut wrong) = self.compare_all(requests);
        self.forgive(&mut wrong);
        Mismatches(wrong).none_in(|| self.describe())?;
        Ok(found)
    }

    fn read(&self, requests: &[Request], observer: &dyn Observer, uncached: bool) -> Loaded {
        let (Found { wanted, others }, wrong) = self.compare_all(requests);
        Mismatches(wrong).none_in(|| self.describe())?;
        let devices: Vec<_> = requests.iter().map(|request| &request.device).collect();
        let loading = Load {
            threads: self.options.reader_threads(),
            uncached,
            progress: observer,
            ..Load::of(&self.saved)
        };
        let mut differ = Vec::new();
        let mut others = others.iter().peekable();
        let values = load_to(loading, &wanted, &devices, |at, data| {
            // In the order of the requests.
            while let Some(alias) = others.next_if(|alias| alias.at == at) {
                if !alias.is_equal(loading, &wanted[at], &data)? {
                    differ.push(Mismatch::Differ {
                        path: alias.path.clone(),
                        other: alias.other.clone(),
                    });
                }
            }
            let value = DynTensor::from_data(data, devices[at]);
            observer.completed(&requests[at].path, value.bytes());
            Ok(value)
        });
        let values = values.map_err(|error| self.saved.failed(error))?;
        Mismatches(differ).none_in(|| self.describe())?;
        Ok(values)
    }

    /// Removes missing parameters from the mismatches if the options allow them.
    fn forgive(&self, wrong: &mut Vec<Mismatch>) {
        if self.options.allow_missing {
            wrong.retain(|mismatch| !matches!(mismatch, Mismatch::Missing { .. }));
        }
    }
}

impl Source for CheckpointSource {
    /// Loads the requested regions of the saved parameters. Checks every request before it reads. Reads each block that
    /// contains a requested element once, and checks it if it has a digest. If a parameter has several saved tensors, under
    /// several of its paths, reads the requested part of each and compares them; parts that are equal are compared once.
    ///
    /// Memory: the values and one block per thread; a piece of 8 MiB per thread to compare; up to 272 KiB more for each thread
    /// that transposes. Values for a device other than the CPU pass through host memory in groups of 64 MiB plus one value, at
    /// most six at a time.
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        self.read(requests, observer, false)
    }

    fn load_uncached(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        self.read(requests, observer, true)
    }

    /// Returns all mismatches: of the requests, and parameters that the model does not have.
    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        let (_, mut wrong) = self.compare_all(requests);
        self.forgive(&mut wrong);
        wrong.extend(self.extra(model.iter().map(|parameter| &parameter.path)));
        if self.options.is_record {
            // A square weight would be loaded transposed without an error.
            let requested: BTreeSet<_> = requests.iter().flat_map(Request::paths).collect();
            for Parameter { path, shape, .. } in model.iter().filter(|one| one.saved_transposed) {
                let is_given = requested.contains(path) && self.find(path).is_some();
                if is_given && !self.options.transposed(path.as_str(), shape) {
                    let path = path.clone();
                    wrong.push(Mismatch::Transposed { path });
                }
            }
        }
        Mismatches(wrong).none_in(|| self.describe())
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        let (Found { wanted, others }, _) = self.compare_all(requests);
        let threads = self.options.reader_threads();
        let compared = others.iter().map(|alias| alias.working_bytes(threads));
        working_bytes(&self.saved, &wanted, threads).saturating_add(compared.max().unwrap_or(0))
    }

    fn describe(&self) -> String {
        self.saved.describe()
    }
}

impl Source for Checkpoint {
    /// Loads like a [`CheckpointSource`] with the default options.
    fn load(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        self.saved.exactly().load(requests, observer)
    }

    fn load_uncached(&self, requests: &[Request], observer: &dyn Observer) -> Loaded {
        self.saved.exactly().load_uncached(requests, observer)
    }

    fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
        self.saved.exactly().check(model, requests)
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        self.saved.exactly().working_bytes(requests)
    }

    fn describe(&self) -> String {
        self.saved.describe()
    }
}
