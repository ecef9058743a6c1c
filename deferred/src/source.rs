//! Where parameter values come from.

use burn::tensor::{DType, Device};
use tinderbox_fake::{DynTensor, Region};

use crate::{Mismatch, ParameterPath, SourceError};

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
        if dtype != self.dtype && !(dtype.is_float() && self.dtype.is_float()) {
            mismatches.push(self.of_dtype(dtype));
        }
        // Against its own shape, since the other is reported already.
        if let Err(reason) = self.region.check_inside(&self.shape) {
            let path = path();
            mismatches.push(Mismatch::Region { path, reason });
        }
        mismatches
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
        if answer.dtype() != self.dtype {
            mismatches.push(self.of_dtype(answer.dtype()));
        }
        if answer.is_fake() {
            let path = self.path.clone();
            mismatches.push(Mismatch::Fake { path });
        }
        mismatches
    }

    fn of_dtype(&self, found: DType) -> Mismatch {
        let name = tinderbox_fake::dtype_name;
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
    fn load(&self, requests: &[Request]) -> Result<Vec<DynTensor>, SourceError>;

    /// A line for error messages, such as ``replay of seed 42`` or a directory.
    fn describe(&self) -> String;
}

impl<S: Source + ?Sized> Source for &S {
    fn load(&self, requests: &[Request]) -> Result<Vec<DynTensor>, SourceError> {
        (**self).load(requests)
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}

impl<S: Source + ?Sized> Source for std::sync::Arc<S> {
    fn load(&self, requests: &[Request]) -> Result<Vec<DynTensor>, SourceError> {
        (**self).load(requests)
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}
