//! Where parameter values come from.

use burn::tensor::{DType, Device};
use tinderbox_fake::{DynTensor, Region};

use crate::{ParameterPath, SourceError};

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
