//! A model with one large random parameter.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Distribution, Shape, Tensor};

/// The shape, distribution and dtype of the parameter.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    pub rows: usize,
    pub columns: usize,
    pub distribution: Distribution,
    pub dtype: DType,
}

/// The model.
#[derive(Module, Debug)]
pub struct Table {
    weight: Param<Tensor<2>>,
}

impl Weight {
    /// Returns the size of the parameter in memory.
    pub fn bytes(&self) -> usize {
        self.rows * self.columns * self.dtype.size()
    }

    /// Creates the parameter with plain Burn.
    pub fn eager(&self, device: &Device) -> Tensor<2> {
        let shape = [self.rows, self.columns];
        Tensor::random(shape, self.distribution, (device, self.dtype))
    }

    /// Creates the model as a Burn author would write it.
    pub fn init(&self, device: &Device) -> Table {
        let weight = *self;
        let shape = Shape::new([self.rows, self.columns]);
        let init = move |device: &Device, _| weight.eager(device);
        let weight = Param::uninitialized(ParamId::new(), init, device.clone(), true, shape);
        Table { weight }
    }
}
