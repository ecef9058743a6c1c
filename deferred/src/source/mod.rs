//! Sources of parameter values.

mod constructed_by;
mod observed;
mod or_else;
mod uncached;
mod values;

use burn::tensor::{DType, Device};
use tinderbox_fake::{DynTensor, FakeError, Region, dtype_name, dtype_on};

use crate::table::can_cast;
use crate::{
    Mismatch, Mismatches, Observer, Parameter, ParameterPath, ParameterTable, SourceError,
};

pub use constructed_by::ConstructedBy;
pub use observed::Observed;
pub use or_else::OrElse;
pub use uncached::Uncached;
pub use values::Values;

/// A request for one value.
#[derive(Clone, Debug)]
pub struct Request {
    /// The parameter.
    pub path: ParameterPath,
    /// The paths of its clones in the model, under which a source may have its value as well. A source that has values
    /// under several of these paths must compare them.
    pub clones: Vec<ParameterPath>,
    /// The whole parameter's size per dimension.
    pub shape: Vec<u64>,
    /// The requested part of it.
    pub region: Region,
    /// The requested dtype.
    pub dtype: DType,
    /// The requested device.
    pub device: Device,
}

impl Request {
    /// Requests a whole parameter of a model in its own dtype, by its [original](Parameter::original) path.
    pub fn of(model: &ParameterTable, parameter: &Parameter, device: &Device) -> Self {
        let region = Region::whole(&parameter.shape);
        Self {
            path: parameter.original().clone(),
            clones: model.clones(parameter.original()).to_vec(),
            shape: parameter.shape.clone(),
            region: region.expect("a parameter's elements can be counted"),
            dtype: parameter.dtype,
            device: device.clone().without_autodiff(),
        }
    }

    /// Returns the paths under which a source may have the value, the original first.
    pub fn paths(&self) -> impl Iterator<Item = &ParameterPath> {
        std::iter::once(&self.path).chain(&self.clones)
    }

    /// Requests some rows of the whole parameter: those from one number up to another, exclusive.
    ///
    /// # Panics
    ///
    /// When the parameter has no dimension, or the second number is less than the first.
    #[must_use]
    pub fn rows(&self, from: u64, to: u64) -> Self {
        let mut offset = vec![0; self.shape.len()];
        let mut size = self.shape.clone();
        (offset[0], size[0]) = (from, to - from);
        let region = Region::new(offset, size).expect("a part of a region that can be counted");
        Self {
            region,
            ..self.clone()
        }
    }

    /// Returns the bytes of the requested value.
    pub fn bytes(&self) -> u64 {
        self.region.num_elements() * self.dtype.size() as u64
    }

    /// Returns all mismatches between the request and a whole value under a path, of this shape and dtype. Float dtypes
    /// are cast to each other, others must be equal.
    pub(crate) fn mismatches(
        &self,
        path: &ParameterPath,
        shape: &[u64],
        dtype: DType,
    ) -> Vec<Mismatch> {
        let path = || path.clone();
        let mut mismatches = Vec::new();
        if shape != self.shape {
            mismatches.push(Mismatch::Shape {
                path: path(),
                expected: self.shape.clone(),
                found: shape.to_vec(),
            });
        }
        if dtype != self.dtype && !can_cast(dtype, self.dtype) {
            mismatches.push(self.of_dtype(path(), dtype));
        }
        // Compared with the request's own shape, since the other mismatch is reported already.
        if let Err(reason) = self.region.check_inside(&self.shape) {
            let path = path();
            mismatches.push(Mismatch::Region { path, reason });
        }
        mismatches
    }

    /// Returns the requested part of the whole value, in memory of its own and in the requested dtype.
    pub(crate) fn part_of(&self, whole: DynTensor) -> Result<DynTensor, FakeError> {
        let part = match self.region.is_whole(&self.shape) {
            true => whole,
            false => whole.slice(&self.region).compact()?,
        };
        let part = part.to_device(&self.device)?;
        Ok(part.cast_float(self.dtype))
    }

    /// Returns all mismatches between the request and its value.
    pub(crate) fn mismatches_of(&self, answer: &DynTensor) -> Vec<Mismatch> {
        let found: Vec<u64> = answer.shape().iter().map(|d| *d as u64).collect();
        let mut mismatches = Vec::new();
        if found != self.region.size() {
            mismatches.push(Mismatch::Shape {
                path: self.path.clone(),
                expected: self.region.size().to_vec(),
                found,
            });
        }
        if answer.dtype() != dtype_on(self.dtype, &self.device) {
            mismatches.push(self.of_dtype(self.path.clone(), answer.dtype()));
        }
        if answer.is_fake() {
            let path = self.path.clone();
            mismatches.push(Mismatch::Fake { path });
        }
        mismatches
    }

    fn of_dtype(&self, path: ParameterPath, found: DType) -> Mismatch {
        let name = dtype_name;
        Mismatch::DType {
            path,
            expected: name(self.dtype).into(),
            found: name(found).into(),
        }
    }
}

/// Values of parameters, by path and region: a replay of the recorded initialization, a checkpoint,
/// a gathered model.
pub trait Source: Send + Sync {
    /// Loads the requested values, in the order of the requests.
    ///
    /// # Errors
    ///
    /// All requests that can't be served are named in one [`SourceError::Mismatch`], and so are all
    /// [values that differ](Mismatch::Differ) under the paths of one parameter; either all values are returned or none.
    ///
    /// The observer is notified of each complete value; `&()` ignores all events.
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError>;

    /// As [`load`](Self::load), for values that are loaded again and again, of which the system's cache of files can't hold all:
    /// a source of files reads around it. By default the same.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    fn load_uncached(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        self.load(requests, observer)
    }

    /// Checks a model and the requests before anything is computed, for example for values that a source has
    /// and the model does not. Accepts everything by default; requests that
    /// [`load`](Self::load) rejects need not be rejected here.
    ///
    /// # Errors
    ///
    /// All mismatches, in one [`SourceError::Mismatch`].
    fn check(&self, _model: &ParameterTable, _requests: &[Request]) -> Result<(), SourceError> {
        Ok(())
    }

    /// Returns the bytes, as far as known, that a load temporarily needs in addition to the values, for an error before
    /// anything is computed. 0 by default.
    fn working_bytes(&self, _requests: &[Request]) -> u64 {
        0
    }

    /// Runs the closure that constructs a model whose parameters this source loads. A source that
    /// has a seed can seed the backend's generator first, so that values that the closure draws
    /// outside of parameters are the same each time.
    fn construct(&self, _device: &Device, construct: &mut dyn FnMut()) {
        construct();
    }

    /// Returns a description for error messages, such as ``replay of seed 42`` or a directory.
    fn describe(&self) -> String;

    /// Combines this source with another for the parameters that it lacks: for example a checkpoint, and a replay for
    /// parameters that were added to the model since.
    fn or_else<S: Source>(self, other: S) -> OrElse<Self, S>
    where
        Self: Sized,
    {
        OrElse::new(self, other, None)
    }

    /// As [`or_else`](Self::or_else), for the parameters of these modules only: a parameter elsewhere that this source
    /// lacks is an error, such as one whose name in a file was renamed wrongly.
    fn or_else_in<S: Source>(self, modules: &[&str], other: S) -> OrElse<Self, S>
    where
        Self: Sized,
    {
        let modules = modules.iter().map(|module| (*module).to_owned()).collect();
        OrElse::new(self, other, Some(modules))
    }

    /// Combines the values of this source with the construction of another: for example saved values, and a replay
    /// that seeds the values that the constructor draws outside of parameters.
    fn constructed_by<C: Source>(self, constructor: C) -> ConstructedBy<Self, C>
    where
        Self: Sized,
    {
        ConstructedBy::new(self, constructor)
    }
}

/// Implements methods of a source by the methods of another source.
macro_rules! forward {
    ($self:ident => $to:expr; $($method:ident)*) => { $(forward!(@$method $self, $to);)* };
    (@load $self:ident, $to:expr) => {
        fn load(
            &$self,
            requests: &[Request],
            observer: &dyn Observer,
        ) -> Result<Vec<DynTensor>, SourceError> {
            $to.load(requests, observer)
        }
    };
    (@load_uncached $self:ident, $to:expr) => {
        fn load_uncached(
            &$self,
            requests: &[Request],
            observer: &dyn Observer,
        ) -> Result<Vec<DynTensor>, SourceError> {
            $to.load_uncached(requests, observer)
        }
    };
    (@check $self:ident, $to:expr) => {
        fn check(&$self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
            $to.check(model, requests)
        }
    };
    (@working_bytes $self:ident, $to:expr) => {
        fn working_bytes(&$self, requests: &[Request]) -> u64 {
            $to.working_bytes(requests)
        }
    };
    (@construct $self:ident, $to:expr) => {
        fn construct(&$self, device: &Device, construct: &mut dyn FnMut()) {
            $to.construct(device, construct);
        }
    };
    (@describe $self:ident, $to:expr) => {
        fn describe(&$self) -> String {
            $to.describe()
        }
    };
}

use forward;

impl<S: Source + ?Sized> Source for &S {
    forward!(self => (**self); load load_uncached check working_bytes construct describe);
}

impl<S: Source + ?Sized> Source for Box<S> {
    forward!(self => (**self); load load_uncached check working_bytes construct describe);
}

impl<S: Source + ?Sized> Source for std::sync::Arc<S> {
    forward!(self => (**self); load load_uncached check working_bytes construct describe);
}

/// Returns the value for each request, or all mismatches in one error.
pub(crate) fn check_all<T>(
    source: &impl Source,
    requests: &[Request],
    check: impl Fn(&Request) -> Result<T, Vec<Mismatch>>,
) -> Result<Vec<T>, SourceError> {
    let mut mismatches = Mismatches::default();
    let mut found = Vec::with_capacity(requests.len());
    for request in requests {
        match check(request) {
            Ok(answer) => found.push(answer),
            Err(more) => mismatches.0.extend(more),
        }
    }
    mismatches.none_in(|| source.describe())?;
    Ok(found)
}
