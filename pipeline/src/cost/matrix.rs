//! Products of matrices, linear layers and attention.
//!
//! A product of `m x k` and `k x n` takes `2 m n k` FLOPs: a multiplication and an addition for each
//! of `k` terms of `m n` sums (Golub and Van Loan, *Matrix Computations*, 4th ed., section 1.1).
//! A bias adds none: it is what the sum starts from, instead of zero. That is PyTorch's
//! `torch.utils.flop_counter` too, whose `addmm` counts as `mm`.

use burn_ir::{
    AttentionOpIr, LinearBiasBackwardOpIr, LinearOpIr, LinearWeightBackwardOpIr,
    LinearXBackwardOpIr, MatmulOpIr, TensorIr,
};

use super::count::{Count, OperationCost};
use super::size::{elements, length_from_end, product, rows};

/// FLOPs of as many sums of products as `out` has elements.
fn dot_products(out: &TensorIr, terms: u64) -> u64 {
    product([2, elements(out), terms])
}

/// `2 m n k` for each matrix of the result, whose batch dimensions are the broadcast ones. An input
/// that is broadcast is read at its own size.
impl Count for MatmulOpIr {
    fn count(&self) -> OperationCost {
        OperationCost::of_flops(dot_products(&self.out, length_from_end(&self.lhs, 0)))
            .reads([&self.lhs, &self.rhs])
            .writes([&self.out])
    }
}

/// `x` of `[.., d_input]` with a weight of `[d_input, d_output]`.
impl Count for LinearOpIr {
    fn count(&self) -> OperationCost {
        OperationCost::of_flops(dot_products(&self.out, length_from_end(&self.x, 0)))
            .reads([&self.x, &self.weight].into_iter().chain(&self.bias))
            .writes([&self.out])
    }
}

/// The gradient of the result with the transposed weight: as many FLOPs as forward.
impl Count for LinearXBackwardOpIr {
    fn count(&self) -> OperationCost {
        let d_output = length_from_end(&self.output_grad, 0);
        OperationCost::of_flops(dot_products(&self.out, d_output))
            .reads([&self.weight, &self.output_grad])
            .writes([&self.out])
    }
}

/// The transposed input with the gradient of the result, over all rows: as many FLOPs as forward.
impl Count for LinearWeightBackwardOpIr {
    fn count(&self) -> OperationCost {
        OperationCost::of_flops(dot_products(&self.out, rows(&self.x)))
            .reads([&self.x, &self.output_grad])
            .writes([&self.out])
    }
}

/// A sum over all rows.
impl Count for LinearBiasBackwardOpIr {
    fn count(&self) -> OperationCost {
        OperationCost::of_flops(elements(&self.output_grad))
            .reads([&self.output_grad])
            .writes([&self.out])
    }
}

/// Two products, and the softmax between them.
///
/// With `s` scores, one per batch, head, query position and key position, and heads of `d` and
/// `d_v` elements: `2 s d` for the scores, `2 s d_v` for the weighted sum of values, `s` for the
/// scale and `5 s` for the softmax (maximum, difference, `exp`, sum and quotient). A mask, a causal
/// mask and a bias take `s` each, a soft cap `3 s` (quotient, `tanh` and product).
///
/// A causal mask saves nothing here: the formula is that of Vaswani et al. (arXiv:1706.03762,
/// section 3.2.1), the usual count (PyTorch's `sdpa_flop`) takes all positions, and whether a
/// backend leaves out masked tiles is its own affair. Benchmarks of FlashAttention
/// (arXiv:2307.08691, section 4.1) halve the count. The scores are not stored: a fused kernel keeps
/// them on the chip.
impl Count for AttentionOpIr {
    fn count(&self) -> OperationCost {
        const SCALE: u64 = 1;
        const SOFTMAX: u64 = 5;
        const SOFT_CAP: u64 = 3;
        let scores = rows(&self.query).saturating_mul(length_from_end(&self.key, 1));
        let scoring = product([2, scores, length_from_end(&self.query, 0)]);
        let weighting = product([2, scores, length_from_end(&self.value, 0)]);
        let per_score = SCALE
            + SOFTMAX
            + u64::from(self.options.softcap.is_some()) * SOFT_CAP
            + u64::from(self.mask.is_some())
            + u64::from(self.options.is_causal)
            + u64::from(self.attn_bias.is_some());
        let between = scores.saturating_mul(per_score);
        OperationCost::of_flops(scoring.saturating_add(weighting).saturating_add(between))
            .reads(
                [&self.query, &self.key, &self.value]
                    .into_iter()
                    .chain(&self.mask)
                    .chain(&self.attn_bias),
            )
            .writes([&self.out])
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::{BoolStore, DType};
    use burn_ir::{
        AttentionOptionsIr, FloatOperationIr, IntOperationIr, ModuleOperationIr, OperationIr,
        ScalarIr,
    };

    use super::*;
    use crate::cost::fixture::{check, indices, output, tensor, tensor_of};

    fn check_matmul(lhs: &[usize], rhs: &[usize], flops: u64, elements: (u64, u64)) {
        let matmul = MatmulOpIr::create(tensor(0, lhs), tensor(1, rhs), output);
        let operation = OperationIr::Float(DType::F32, FloatOperationIr::Matmul(matmul));
        check(operation, (flops, elements.0 * 4, elements.1 * 4));
        let matmul = MatmulOpIr::create(indices(0, lhs), indices(1, rhs), output);
        let operation = OperationIr::Int(IntOperationIr::Matmul(matmul));
        check(operation, (flops, elements.0 * 8, elements.1 * 8));
    }

    #[test]
    fn matmul_takes_two_flops_per_term() {
        check_matmul(&[2, 3], &[3, 5], 2 * 2 * 3 * 5, (6 + 15, 10));
        // A batch of 7 on both sides.
        check_matmul(&[7, 2, 3], &[7, 3, 5], 7 * 60, (42 + 105, 70));
        // One matrix for a batch of 7, and a batch of 4 x 7 from both sides.
        check_matmul(&[7, 2, 3], &[1, 3, 5], 7 * 60, (42 + 15, 70));
        check_matmul(&[4, 1, 2, 3], &[1, 7, 3, 5], 28 * 60, (24 + 105, 280));
    }

    #[test]
    fn empty_matrices_take_no_flops() {
        check_matmul(&[2, 0], &[0, 5], 0, (0, 10));
        check_matmul(&[0, 3], &[3, 5], 0, (15, 0));
    }

    #[test]
    fn a_matrix_with_itself_is_read_once() {
        let x = tensor(0, &[8, 8]);
        let matmul = MatmulOpIr::create(x.clone(), x, output);
        let operation = OperationIr::Float(DType::F32, FloatOperationIr::Matmul(matmul));
        check(operation, (2 * 512, 256, 256));
    }

    #[test]
    fn linear_and_its_gradients_take_the_same() {
        let module = OperationIr::Module;
        let (x, weight, bias) = (tensor(0, &[2, 3, 4]), tensor(1, &[4, 5]), tensor(2, &[5]));
        let gradient = tensor(3, &[2, 3, 5]);
        let flops = 2 * 6 * 4 * 5;
        let plain = LinearOpIr::create(x.clone(), weight.clone(), None, output);
        let expected = (flops, (24 + 20) * 4, 30 * 4);
        check(module(ModuleOperationIr::Linear(plain)), expected);
        let biased = LinearOpIr::create(x.clone(), weight.clone(), Some(bias), output);
        let expected = (flops, (24 + 20 + 5) * 4, 30 * 4);
        check(module(ModuleOperationIr::Linear(biased)), expected);

        let of_x = LinearXBackwardOpIr::create(weight, gradient.clone(), output);
        let expected = (flops, (20 + 30) * 4, 24 * 4);
        check(module(ModuleOperationIr::LinearXBackward(of_x)), expected);
        let of_weight = LinearWeightBackwardOpIr::create(x, gradient.clone(), output);
        let expected = (flops, (24 + 30) * 4, 20 * 4);
        check(
            module(ModuleOperationIr::LinearWeightBackward(of_weight)),
            expected,
        );
        let of_bias = LinearBiasBackwardOpIr::create(gradient, output);
        let expected = (30, 30 * 4, 5 * 4);
        check(
            module(ModuleOperationIr::LinearBiasBackward(of_bias)),
            expected,
        );
    }

    fn attention(options: AttentionOptionsIr, mask: bool, bias: bool) -> OperationIr {
        // Two batches of three heads; 5 queries and 7 keys of 11 elements, values of 13.
        let scores = [2, 3, 5, 7];
        let mask_dtype = DType::Bool(BoolStore::Native);
        OperationIr::Module(ModuleOperationIr::Attention(AttentionOpIr::create(
            tensor(0, &[2, 3, 5, 11]),
            tensor(1, &[2, 3, 7, 11]),
            tensor(2, &[2, 3, 7, 13]),
            mask.then(|| tensor_of(3, &scores, mask_dtype)),
            bias.then(|| tensor(4, &scores)),
            options,
            output,
        )))
    }

    #[test]
    fn attention_is_two_products_and_a_softmax() {
        let options = |softcap: bool, is_causal| AttentionOptionsIr {
            scale: None,
            softcap: softcap.then_some(ScalarIr::Float(30.0)),
            is_causal,
        };
        // 2 * 3 * 5 * 7 scores: 22 and 26 for the products, 6 for scale and softmax.
        let flops = 210 * (22 + 26 + 6);
        let read = (330 + 462 + 546) * 4;
        let written = 390 * 4;
        check(
            attention(options(false, false), false, false),
            (flops, read, written),
        );
        let causal = flops + 210;
        check(
            attention(options(false, true), false, false),
            (causal, read, written),
        );
        let capped = flops + 3 * 210;
        check(
            attention(options(true, false), false, false),
            (capped, read, written),
        );
        let all = flops + (3 + 1 + 1 + 1) * 210;
        let all_read = read + 210 + 840;
        check(
            attention(options(true, true), true, true),
            (all, all_read, written),
        );
    }

    #[test]
    fn attention_with_one_projection_reads_it_once() {
        let x = tensor(0, &[1, 1, 4, 8]);
        let options = AttentionOptionsIr {
            scale: None,
            softcap: None,
            is_causal: false,
        };
        let attention = AttentionOpIr::create(x.clone(), x.clone(), x, None, None, options, output);
        let operation = OperationIr::Module(ModuleOperationIr::Attention(attention));
        check(operation, (16 * (16 + 16 + 6), 128, 128));
    }
}
