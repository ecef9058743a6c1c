//! Layer and batch normalization.
//!
//! Burn has one operation for each. Its other norms (group, instance and root-mean-square) are
//! recorded as the reductions and elementwise operations that they are made of, so those have no
//! count here. So is a batch normalization that finds its own statistics.

use burn_ir::{BatchNormOpIr, LayerNormOpIr};

use super::count::{Count, OperationCost};
use super::size::{elements, rows};

/// Over the innermost axis (Ba et al., arXiv:1607.06450).
///
/// Per element: a sum for the mean, a difference, a square and its sum for the variance, a quotient
/// and a product with the scale: six, and a seventh to add the shift, where there is one. Per row:
/// two divisions for the means, the epsilon and the square root.
impl Count for LayerNormOpIr {
    fn count(&self) -> OperationCost {
        const PER_ELEMENT: u64 = 6;
        const PER_ROW: u64 = 4;
        let per_element = PER_ELEMENT + u64::from(self.beta.is_some());
        // Rows of no elements take nothing.
        let rows = rows(&self.input).min(elements(&self.input));
        let flops = elements(&self.input).saturating_mul(per_element);
        OperationCost::of_flops(flops.saturating_add(rows.saturating_mul(PER_ROW)))
            .reads([&self.input, &self.gamma].into_iter().chain(&self.beta))
            .writes([&self.out])
    }
}

/// By statistics that are given (Ioffe and Szegedy, arXiv:1502.03167, algorithm 2).
///
/// Per element: a difference, a quotient, a product and a sum. Per channel: the epsilon and the
/// square root.
impl Count for BatchNormOpIr {
    fn count(&self) -> OperationCost {
        const PER_ELEMENT: u64 = 4;
        const PER_CHANNEL: u64 = 2;
        let of_elements = elements(&self.x).saturating_mul(PER_ELEMENT);
        let of_channels = elements(&self.variance).saturating_mul(PER_CHANNEL);
        OperationCost::of_flops(of_elements.saturating_add(of_channels))
            .reads([&self.x, &self.gamma, &self.beta, &self.mean, &self.variance])
            .writes([&self.out])
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::{ModuleOperationIr, OperationIr, ScalarIr};

    use super::*;
    use crate::cost::fixture::{check, output, tensor};

    #[test]
    fn layer_norm_by_elements_and_rows() {
        let (x, gamma, beta) = (tensor(0, &[2, 3, 8]), tensor(1, &[8]), tensor(2, &[8]));
        let norm = LayerNormOpIr::create(x.clone(), gamma.clone(), Some(beta), 1e-5, output);
        let operation = OperationIr::Module(ModuleOperationIr::LayerNorm(norm));
        check(operation, (48 * 7 + 6 * 4, 192 + 64, 192));
        let norm = LayerNormOpIr::create(x, gamma, None, 1e-5, output);
        let operation = OperationIr::Module(ModuleOperationIr::LayerNorm(norm));
        check(operation, (48 * 6 + 6 * 4, 192 + 32, 192));
    }

    #[test]
    fn rows_of_nothing_take_nothing() {
        let norm = LayerNormOpIr::create(tensor(0, &[5, 0]), tensor(1, &[0]), None, 1e-5, output);
        check(
            OperationIr::Module(ModuleOperationIr::LayerNorm(norm)),
            (0, 0, 0),
        );
    }

    #[test]
    fn batch_norm_by_elements_and_channels() {
        let channels = |id| tensor(id, &[3]);
        let norm = BatchNormOpIr::create(
            tensor(0, &[2, 3, 4, 4]),
            channels(1),
            channels(2),
            channels(3),
            channels(4),
            ScalarIr::Float(1e-5),
            output,
        );
        let operation = OperationIr::Module(ModuleOperationIr::BatchNorm(norm));
        check(operation, (96 * 4 + 3 * 2, 384 + 4 * 12, 384));
    }
}
