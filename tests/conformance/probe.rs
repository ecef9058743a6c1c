//! A module, and parameters in front of it that show the gradients of its inputs.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};

use crate::inputs::Inputs;

/// A module whose float inputs have a parameter added to each: the parameter's gradient is the
/// input's, so a module without parameters of its own has gradients to compare too.
#[derive(Module, Debug)]
pub struct Probe<M: Module> {
    pub module: M,
    shifts: Vec<Param<Tensor<1>>>,
}

impl<M: Module> Probe<M> {
    /// Puts a shift of each size in front of a module. Shifts are small and not negative: inputs
    /// stay where a loss may demand them.
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

    /// The inputs as the module gets them.
    pub fn shift<I: Inputs>(&self, inputs: I) -> I {
        let mut shifts = self.shifts.iter();
        inputs.map_floats(&mut |tensor| {
            let shift = shifts.next().expect("a shift for every float tensor");
            tensor + shift.val()
        })
    }
}
