//! Requests for values.

use burn::tensor::{DType, Device};
use tinderbox_fake::{DynTensor, FakeError, Region, dtype_name, dtype_on};

use crate::table::can_cast;
use crate::{Mismatch, Parameter, ParameterPath, ParameterTable};

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

    /// Requests rows `from..to` of the whole parameter.
    ///
    /// # Panics
    ///
    /// When the parameter has no dimension, or `to` is less than `from`.
    #[must_use]
    pub fn rows(&self, from: u64, to: u64) -> Self {
        let whole = Region::whole(&self.shape).expect("a parameter's elements can be counted");
        Self {
            region: whole.with_range(0, from..to),
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
        let mut mismatches = Vec::new();
        if shape != self.shape {
            mismatches.push(of_shape(path, &self.shape, shape));
        }
        if dtype != self.dtype && !can_cast(dtype, self.dtype) {
            mismatches.push(self.of_dtype(path, dtype));
        }
        // Compared with the request's own shape, since the other mismatch is reported already.
        if let Err(reason) = self.region.check_inside(&self.shape) {
            let path = path.clone();
            mismatches.push(Mismatch::Region { path, reason });
        }
        mismatches
    }

    /// Returns the requested part of the whole value, in separate memory and in the requested dtype.
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
            mismatches.push(of_shape(&self.path, self.region.size(), &found));
        }
        if answer.dtype() != dtype_on(self.dtype, &self.device) {
            mismatches.push(self.of_dtype(&self.path, answer.dtype()));
        }
        if answer.is_fake() {
            let path = self.path.clone();
            mismatches.push(Mismatch::Fake { path });
        }
        mismatches
    }

    fn of_dtype(&self, path: &ParameterPath, found: DType) -> Mismatch {
        Mismatch::DType {
            path: path.clone(),
            expected: dtype_name(self.dtype).into(),
            found: dtype_name(found).into(),
        }
    }
}

fn of_shape(path: &ParameterPath, expected: &[u64], found: &[u64]) -> Mismatch {
    Mismatch::Shape {
        path: path.clone(),
        expected: expected.to_vec(),
        found: found.to_vec(),
    }
}
