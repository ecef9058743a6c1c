//! Activation functions and softmax.
//!
//! FLOPs per element, with `exp`, `log`, `erf` and `tanh` as one each. These are counts of the
//! mathematical forms below; backends rearrange them.
//!
//! | operation | per element | form |
//! |---|---|---|
//! | relu | 1 | `max(x, 0)` |
//! | its gradient | 2 | a comparison and a choice |
//! | leaky relu, prelu | 3 | a comparison, a product and a choice |
//! | gelu | 5 | `x (1 + erf(x / sqrt 2)) / 2` (Hendrycks and Gimpel, arXiv:1606.08415) |
//! | its gradient | 11 | `g (cdf(x) + x pdf(x))`: 4 for `cdf`, 4 for `pdf`, 3 to combine |
//! | sigmoid | 4 | `1 / (1 + exp(-x))` |
//! | its gradient | 3 | `g y (1 - y)` |
//! | hard sigmoid | 4 | a product, a sum and two bounds |
//! | log sigmoid | 6 | `min(x, 0) - log1p(exp(-abs x))` |
//! | its gradient | 11 | `z = exp(-abs x)`: 3; `1 + z`, `z / (1 + z)`: 2; signs: 3; combined: 3 |
//! | softmax | 5 | a maximum, a difference, `exp`, a sum and a quotient |
//! | log softmax | 5, and 1 per row | a maximum, two differences, `exp` and a sum; `log` of the sum |
//! | softmin | 6 | the softmax of `-x` |
//!
//! The shifted forms of softmax are those of Blanchard, Higham and Higham,
//! doi:10.1093/imanum/draa038.

use burn_ir::ActivationOperationIr;

use super::count::OperationCost;
use super::elementwise::{binary, per_element, scalar, unary};
use super::size::rows_along;

/// FLOPs per element of a softmax.
const SOFTMAX: u64 = 5;

/// By the table of this module.
pub(super) fn activation(operation: &ActivationOperationIr) -> OperationCost {
    use ActivationOperationIr as A;
    match operation {
        A::Relu(op) => unary(op, 1),
        A::ReluBackward(op) => binary(op, 2),
        A::LeakyRelu(op) => scalar(op, 3),
        A::PRelu(op) => binary(op, 3),
        A::Gelu(op) => unary(op, 5),
        A::GeluBackward(op) => binary(op, 11),
        A::Sigmoid(op) => unary(op, 4),
        A::SigmoidBackward(op) => binary(op, 3),
        A::HardSigmoid(op) => per_element([&op.tensor], &op.out, 4),
        A::LogSigmoid(op) => unary(op, 6),
        A::LogSigmoidBackward(op) => binary(op, 11),
        A::Softmax(op) => per_element([&op.input], &op.out, SOFTMAX),
        A::LogSoftmax(op) => {
            per_element([&op.input], &op.out, SOFTMAX)
                + OperationCost::of_flops(rows_along(&op.input, op.axis))
        }
        A::Softmin(op) => per_element([&op.input], &op.out, SOFTMAX + 1),
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::{
        ActivationOperationIr as A, BinaryOpIr, DimOpIr, HardSigmoidOpIr, OperationIr, ScalarIr,
        ScalarOpIr, UnaryOpIr,
    };

    use crate::cost::fixture::{check, output, tensor};

    #[test]
    fn softmax_by_rows() {
        let dim = |axis| DimOpIr::create(tensor(0, &[3, 4, 5]), axis, output);
        check(OperationIr::Activation(A::Softmax(dim(2))), (300, 240, 240));
        // 12 rows along the last axis, 15 along the one before.
        check(
            OperationIr::Activation(A::LogSoftmax(dim(2))),
            (312, 240, 240),
        );
        check(
            OperationIr::Activation(A::LogSoftmax(dim(1))),
            (315, 240, 240),
        );
        check(OperationIr::Activation(A::Softmin(dim(0))), (360, 240, 240));
    }

    #[test]
    fn functions_of_one_tensor() {
        let unary = || UnaryOpIr::create(tensor(0, &[10]), output);
        for (operation, flops) in [
            (A::Relu(unary()), 10),
            (A::Gelu(unary()), 50),
            (A::Sigmoid(unary()), 40),
            (A::LogSigmoid(unary()), 60),
        ] {
            check(OperationIr::Activation(operation), (flops, 40, 40));
        }
        let slope = ScalarIr::Float(0.1);
        let leaky = ScalarOpIr::create(tensor(0, &[10]), slope, output);
        check(OperationIr::Activation(A::LeakyRelu(leaky)), (30, 40, 40));
        let hard = HardSigmoidOpIr::create(tensor(0, &[10]), slope, slope, output);
        check(OperationIr::Activation(A::HardSigmoid(hard)), (40, 40, 40));
    }

    #[test]
    fn gradients_read_two_tensors() {
        let binary = || BinaryOpIr::create(tensor(0, &[10]), tensor(1, &[10]), output);
        for (operation, flops) in [
            (A::ReluBackward(binary()), 20),
            (A::GeluBackward(binary()), 110),
            (A::SigmoidBackward(binary()), 30),
            (A::LogSigmoidBackward(binary()), 110),
            (A::PRelu(binary()), 30),
        ] {
            check(OperationIr::Activation(operation), (flops, 80, 40));
        }
    }
}
