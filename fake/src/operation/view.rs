//! A recorded operation, without Burn's type.

use burn::tensor::Distribution;
use burn_ir::{FloatOperationIr, NumericOperationIr, OperationIr, ScalarIr, TensorIr};

use super::encode::encode_attributes;
use super::{ValueId, describe, describe_with_inputs, operation_name};

/// A recorded operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a>(pub(super) &'a OperationIr);

impl<'a> From<&'a OperationIr> for Operation<'a> {
    fn from(operation: &'a OperationIr) -> Self {
        Self(operation)
    }
}

impl<'a> Operation<'a> {
    /// Returns the name, such as `Float.Matmul`.
    pub fn name(self) -> String {
        operation_name(self.0)
    }

    /// Returns name, arguments and outputs, such as `Float.Random(Uniform(-0.1, 0.1)) -> f32[4, 8]`.
    pub fn describe(self) -> String {
        describe(self.0)
    }

    /// Returns name, arguments, outputs and inputs, such as `Float.Matmul() -> f32[4, 8] of %1 f32[4, 2], %2 f32[2, 8]`.
    pub fn describe_with_inputs(self) -> String {
        describe_with_inputs(self.0)
    }

    /// Returns the values that the operation of a graph computes.
    ///
    /// # Panics
    ///
    /// When the operation belongs to no graph.
    pub fn outputs(self) -> impl Iterator<Item = ValueId> + use<'a> {
        let value = |out| ValueId::of_tensor(out).expect("the ids of a graph are dense");
        self.0.outputs().map(value)
    }

    /// Returns the output and the distribution of an operation that draws random values; `None` for all others.
    pub fn random(self) -> Option<(&'a TensorIr, Distribution)> {
        match self.0 {
            OperationIr::Float(_, FloatOperationIr::Random(random))
            | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(random)) => {
                Some((&random.out, random.distribution))
            }
            _ => None,
        }
    }

    /// Returns the number by which the operation divides a float tensor; `None` for all other operations.
    pub fn divisor(self) -> Option<f64> {
        match self.0 {
            OperationIr::NumericFloat(_, NumericOperationIr::DivScalar(division)) => {
                match division.rhs {
                    ScalarIr::Float(by) => Some(by),
                    ScalarIr::Int(by) => Some(by as f64),
                    ScalarIr::UInt(by) => Some(by as f64),
                    ScalarIr::Bool(_) => None,
                }
            }
            _ => None,
        }
    }

    /// Appends all of the operation but the ids of its tensors as bytes: two operations have the same bytes only if they
    /// compute the same of the same operands.
    pub fn write_attributes(self, bytes: &mut Vec<u8>) {
        encode_attributes(self.0, bytes);
    }
}
