//! Operations that make a tensor from nothing: constants and random numbers.
//!
//! A constant takes no arithmetic, and is written; memory that is only taken is not. A draw from a
//! generator counts one, like a function of the mathematical library. What it takes in truth depends
//! on the generator: ten integer operations and rotations for xoshiro256++ (Blackman and Vigna,
//! arXiv:1805.01407), ten rounds of multiplications for Philox-4x32-10 (Salmon et al.,
//! doi:10.1145/2063384.2063405).

use burn_backend::Distribution;
use burn_ir::{RandomOpIr, TensorIr};

use super::count::OperationCost;
use super::elementwise::per_element;

/// A tensor whose memory is taken, and not written.
pub(super) fn empty() -> OperationCost {
    OperationCost::default()
}

/// A tensor that is filled with a constant.
pub(super) fn filled(out: &TensorIr) -> OperationCost {
    OperationCost::default().writes([out])
}

/// A tensor of random numbers.
pub(super) fn random(operation: &RandomOpIr) -> OperationCost {
    per_element([], &operation.out, draw_flops(&operation.distribution))
}

/// FLOPs of an element: the draw, and what makes a number of the distribution from it.
fn draw_flops(distribution: &Distribution) -> u64 {
    match distribution {
        Distribution::Default => 1,
        // Compared with the probability.
        Distribution::Bernoulli(_) => 2,
        // Scaled, and shifted.
        Distribution::Uniform(..) | Distribution::Normal(..) => 3,
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::{DType, Shape};
    use burn_ir::{
        BaseOperationIr, CreationOpIr, FloatOperationIr, FullOpIr, NumericOperationIr, OperationIr,
        ScalarIr,
    };

    use super::*;
    use crate::cost::fixture::{check, output};

    #[test]
    fn random_numbers_are_drawn_and_shaped() {
        for (distribution, flops_per_element) in [
            (Distribution::Default, 1),
            (Distribution::Bernoulli(0.1), 2),
            (Distribution::Uniform(-1.0, 1.0), 3),
            (Distribution::Normal(0.0, 0.02), 3),
        ] {
            let random = RandomOpIr::create(Shape::new([4, 8]), DType::F32, distribution, output);
            let expected = (32 * flops_per_element, 0, 128);
            let float = FloatOperationIr::Random(random.clone());
            check(OperationIr::Float(DType::F32, float), expected);
            let int = NumericOperationIr::IntRandom(random);
            check(OperationIr::NumericInt(DType::I32, int), expected);
        }
    }

    #[test]
    fn constants_are_written_and_empty_tensors_are_not() {
        let create = || CreationOpIr::create(Shape::new([3, 5]), DType::F32, output);
        let base = |operation| OperationIr::BaseFloat(operation);
        check(base(BaseOperationIr::Zeros(create())), (0, 0, 60));
        check(base(BaseOperationIr::Ones(create())), (0, 0, 60));
        check(base(BaseOperationIr::Empty(create())), (0, 0, 0));
        let value = ScalarIr::Float(0.5);
        let full = FullOpIr::create(Shape::new([3, 5]), DType::F32, value, output);
        let full = NumericOperationIr::Full(full);
        check(OperationIr::NumericFloat(DType::F32, full), (0, 0, 60));
    }
}
