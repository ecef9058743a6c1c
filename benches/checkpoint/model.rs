//! A model of equal tensors.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Distribution, Shape, Tensor};
use tinderbox_fake::DynTensor;

/// Number of tensors.
pub const TENSORS: usize = 64;

/// The model.
#[derive(Module, Debug)]
pub struct Weights {
    weights: Vec<Param<Tensor<2>>>,
}

impl Weights {
    /// Creates a model of the given size in MiB, not materialized.
    pub fn init(mib: usize, device: &Device) -> Self {
        let shape = Shape::new([(mib << 20) / 4 / TENSORS / 1024, 1024]);
        let weight = |_| {
            let of = shape.clone();
            let init = move |device: &Device, _| {
                Tensor::random(of.clone(), Distribution::Uniform(-1.0, 1.0), device)
            };
            Param::uninitialized(ParamId::new(), init, device.clone(), true, shape.clone())
        };
        Self {
            weights: (0..TENSORS).map(weight).collect(),
        }
    }

    /// Creates the same model, not materialized.
    pub fn empty(&self) -> Self {
        let bytes: u64 = self
            .tensors()
            .iter()
            .map(|(_, tensor)| tensor.bytes())
            .sum();
        Self::init((bytes >> 20) as usize, &Device::flex())
    }

    /// Returns all tensors with their paths.
    pub fn tensors(&self) -> Vec<(String, DynTensor)> {
        let named = self.weights.iter().enumerate();
        named
            .map(|(number, weight)| (format!("weights.{number}"), weight.val().into()))
            .collect()
    }
}

/// Returns the bytes of a tensor, without a copy.
pub fn host_bytes(tensor: &DynTensor) -> &[u8] {
    tensor.host_bytes().expect("a contiguous tensor on the CPU")
}

/// Reads a byte of every page.
pub fn touch(tensors: &[(String, DynTensor)]) {
    for (_, tensor) in tensors {
        let bytes = host_bytes(tensor).iter().step_by(4096);
        std::hint::black_box(bytes.fold(0u8, |sum, byte| sum ^ byte));
    }
}
