//! A recorded operation, without Burn's type.

use burn::tensor::Distribution;
use burn_ir::{FloatOperationIr, NumericOperationIr, OperationIr, TensorIr};
use derive_more::From;

use super::ValueId;

/// A recorded operation.
#[derive(Clone, Copy, Debug, From)]
pub struct Operation<'a>(pub(super) &'a OperationIr);

impl<'a> Operation<'a> {
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
            OperationIr::NumericFloat(_, NumericOperationIr::DivScalar(op)) => Some(op.rhs.elem()),
            _ => None,
        }
    }
}
