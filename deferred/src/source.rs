//! Where parameter values come from.

use burn::tensor::{DType, Device};
use tinderbox_fake::{DynTensor, FakeError, Region, dtype_name, dtype_on};

use crate::{
    ConstructedBy, Mismatch, Mismatches, Observer, OrElse, ParameterPath, ParameterTable,
    SourceError,
};

/// Whether values of a dtype are cast to another.
pub(crate) fn can_cast(from: DType, to: DType) -> bool {
    let is_float = |dtype| matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
    is_float(from) && is_float(to)
}

/// One value that is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which parameter.
    pub path: ParameterPath,
    /// The whole parameter's size per dimension.
    pub shape: Vec<u64>,
    /// Which part of it.
    pub region: Region,
    /// In which dtype.
    pub dtype: DType,
    /// On which device.
    pub device: Device,
}

impl Request {
    /// Bytes of the value that answers it.
    pub fn bytes(&self) -> u64 {
        self.region.num_elements() * self.dtype.size() as u64
    }

    /// All that keeps a whole value of this shape and dtype from answering the request. Float dtypes
    /// are cast to each other, others must be equal.
    pub(crate) fn mismatches(&self, shape: &[u64], dtype: DType) -> Vec<Mismatch> {
        let path = || self.path.clone();
        let mut mismatches = Vec::new();
        if shape != self.shape {
            mismatches.push(Mismatch::Shape {
                path: path(),
                expected: self.shape.clone(),
                found: shape.to_vec(),
            });
        }
        if dtype != self.dtype && !can_cast(dtype, self.dtype) {
            mismatches.push(self.of_dtype(dtype));
        }
        // Against its own shape, since the other is reported already.
        if let Err(reason) = self.region.check_inside(&self.shape) {
            let path = path();
            mismatches.push(Mismatch::Region { path, reason });
        }
        mismatches
    }

    /// The requested part of the whole value, in memory of its own and in the requested dtype.
    pub(crate) fn part_of(&self, whole: DynTensor) -> Result<DynTensor, FakeError> {
        let part = match self.region.is_whole(&self.shape) {
            true => whole,
            false => whole.slice(&self.region).compact()?,
        };
        let part = part.to_device(&self.device)?;
        Ok(part.cast_float(self.dtype))
    }

    /// All that is wrong with an answer to the request.
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
            mismatches.push(self.of_dtype(answer.dtype()));
        }
        if answer.is_fake() {
            let path = self.path.clone();
            mismatches.push(Mismatch::Fake { path });
        }
        mismatches
    }

    fn of_dtype(&self, found: DType) -> Mismatch {
        let name = dtype_name;
        Mismatch::DType {
            path: self.path.clone(),
            expected: name(self.dtype).into(),
            found: name(found).into(),
        }
    }
}

/// Values of parameters, by path and region: a replay of the recorded initialization, a checkpoint,
/// a gathered model.
pub trait Source: Send + Sync {
    /// The requested values, in the order of the requests.
    ///
    /// # Errors
    ///
    /// All requests that can't be answered are named in one [`SourceError::Mismatch`]; nothing is
    /// returned unless everything is there.
    ///
    /// The observer is notified of each value when it is there; `&()` ignores all events.
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError>;

    /// Refuses a model, and what will be asked for of it, before anything is made: for what a source has
    /// and the model has not, say. Takes everything, unless the source knows better; what
    /// [`load`](Self::load) refuses need not be refused here.
    ///
    /// # Errors
    ///
    /// All that does not fit, in one [`SourceError::Mismatch`].
    fn check(&self, _model: &ParameterTable, _requests: &[Request]) -> Result<(), SourceError> {
        Ok(())
    }

    /// Bytes that [`load`](Self::load) takes for a while beside the values: a lower bound, for an
    /// error before anything is made. 0 unless the source knows better.
    fn working_bytes(&self, _requests: &[Request]) -> u64 {
        0
    }

    /// Runs the closure that constructs a model whose parameters this source gives. A source that
    /// has a seed can seed the backend's generator before it, so that what the closure draws
    /// outside of parameters is the same each time.
    fn construct(&self, _device: &Device, construct: &mut dyn FnMut()) {
        construct();
    }

    /// A line for error messages, such as ``replay of seed 42`` or a directory.
    fn describe(&self) -> String;

    /// This source, and another for the parameters that it lacks: a checkpoint, and a replay for what was
    /// added to the model since.
    fn or_else<S: Source>(self, other: S) -> OrElse<Self, S>
    where
        Self: Sized,
    {
        OrElse::new(self, other)
    }

    /// The values of this source, in a model that is constructed as another source has it: saved values, and a replay
    /// that seeds what the constructor draws outside of parameters.
    fn constructed_by<C: Source>(self, constructor: C) -> ConstructedBy<Self, C>
    where
        Self: Sized,
    {
        ConstructedBy::new(self, constructor)
    }
}

/// What a pointer to a source does.
macro_rules! pointer {
    ($($pointer:ty),*) => {$(
        impl<S: Source + ?Sized> Source for $pointer {
            fn load(
                &self,
                requests: &[Request],
                observer: &dyn Observer,
            ) -> Result<Vec<DynTensor>, SourceError> {
                (**self).load(requests, observer)
            }

            fn check(&self, model: &ParameterTable, requests: &[Request]) -> Result<(), SourceError> {
                (**self).check(model, requests)
            }

            fn working_bytes(&self, requests: &[Request]) -> u64 {
                (**self).working_bytes(requests)
            }

            fn construct(&self, device: &Device, construct: &mut dyn FnMut()) {
                (**self).construct(device, construct);
            }

            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    )*};
}

pointer!(&S, Box<S>, std::sync::Arc<S>);

/// What answers each request, or all that can't be answered in one error.
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
