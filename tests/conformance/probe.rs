//! A module with additional parameters that capture the gradients of its inputs.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};

use crate::inputs::Inputs;

/// A module with a parameter added to each float input: the parameter's gradient is the gradient of the input, so a
/// module without parameters has gradients to compare too.
#[derive(Module, Debug)]
pub struct Probe<M: Module> {
    pub module: M,
    shifts: Vec<Param<Tensor<1>>>,
}

impl<M: Module> Probe<M> {
    /// Adds a shift of each size to the inputs of a module. Shifts are small and not negative, so that inputs
    /// stay within the domain of a loss.
    pub fn new(module: M, sizes: &[usize], device: &Device) -> Self {
        let initializer = Initializer::Uniform {
            min: 0.0,
            max: 0.01,
        };
        let shifts = sizes.iter().map(|size| initializer.init([*size], device));
        Self {
            module,
            shifts: shifts.collect(),
        }
    }

    /// Returns the inputs of the module.
    pub fn shift<I: Inputs>(&self, inputs: I) -> I {
        let mut shifts = self.shifts.iter();
        inputs.map_floats(&mut |tensor| {
            let shift = shifts.next().expect("a shift for every float tensor");
            tensor + shift.val()
        })
    }
}
