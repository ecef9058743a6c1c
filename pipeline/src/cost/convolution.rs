//! Convolutions of one, two and three dimensions, transposed ones, and their gradients.
//!
//! A convolution takes two FLOPs for each weight that an element of the result meets: `2 x elements
//! of the result x input channels / groups x elements of the kernel` (Dumoulin and Visin,
//! arXiv:1603.07285, for the arithmetic of shapes; PyTorch's `conv_flop_count` for the count).
//! Stride, padding and dilation matter through the shape of the result alone: products with padding
//! count, as they do in that counter, and a bias does not, being what a sum starts from.
//!
//! A weight is `[output channels, input channels / groups, kernel..]`, so the factor of an element
//! of the result is the product of all its dimensions but the first. A transposed weight is `[input
//! channels, output channels / groups, kernel..]`, and its factor is one of the input's elements.
//!
//! Every gradient of these is the same set of products, summed in another order. It reads the two
//! tensors that it multiplies; of the third, Burn's operation reads the shape alone.

use burn_ir::{
    Conv1dBiasBackwardOpIr, Conv1dOpIr, Conv1dWeightBackwardOpIr, Conv1dXBackwardOpIr,
    Conv2dBiasBackwardOpIr, Conv2dOpIr, Conv2dWeightBackwardOpIr, Conv2dXBackwardOpIr,
    Conv3dBiasBackwardOpIr, Conv3dOpIr, Conv3dWeightBackwardOpIr, Conv3dXBackwardOpIr,
    ConvTranspose1dBiasBackwardOpIr, ConvTranspose1dOpIr, ConvTranspose1dWeightBackwardOpIr,
    ConvTranspose2dBiasBackwardOpIr, ConvTranspose2dOpIr, ConvTranspose2dWeightBackwardOpIr,
    ConvTranspose3dBiasBackwardOpIr, ConvTranspose3dOpIr, ConvTranspose3dWeightBackwardOpIr,
    TensorIr,
};

use super::count::{Count, OperationCost, counts};
use super::size::{dimensions, elements, product};

/// FLOPs of a convolution in which each element of a tensor meets all weights of its channel.
pub(super) fn products(meeting: &TensorIr, weight: &TensorIr) -> u64 {
    let per_element = product(dimensions(weight).skip(1));
    product([2, elements(meeting), per_element])
}

counts! {
    // Every element of the result meets the weights.
    Conv1dOpIr: |op| products(&op.out, &op.weight), [x, weight] + bias -> [out];
    Conv2dOpIr: |op| products(&op.out, &op.weight), [x, weight] + bias -> [out];
    Conv3dOpIr: |op| products(&op.out, &op.weight), [x, weight] + bias -> [out];
    // The gradients, from the elements of the result's gradient.
    Conv1dXBackwardOpIr: |op| products(&op.output_grad, &op.weight), [weight, output_grad] -> [out];
    Conv2dXBackwardOpIr: |op| products(&op.output_grad, &op.weight), [weight, output_grad] -> [out];
    Conv3dXBackwardOpIr: |op| products(&op.output_grad, &op.weight), [weight, output_grad] -> [out];
    Conv1dWeightBackwardOpIr: |op| products(&op.output_grad, &op.weight), [x, output_grad] -> [out];
    Conv2dWeightBackwardOpIr: |op| products(&op.output_grad, &op.weight), [x, output_grad] -> [out];
    Conv3dWeightBackwardOpIr: |op| products(&op.output_grad, &op.weight), [x, output_grad] -> [out];
    // Every element of the input meets the weights.
    ConvTranspose1dOpIr: |op| products(&op.x, &op.weight), [x, weight] + bias -> [out];
    ConvTranspose2dOpIr: |op| products(&op.x, &op.weight), [x, weight] + bias -> [out];
    ConvTranspose3dOpIr: |op| products(&op.x, &op.weight), [x, weight] + bias -> [out];
    ConvTranspose1dWeightBackwardOpIr: |op| products(&op.x, &op.weight), [x, output_grad] -> [out];
    ConvTranspose2dWeightBackwardOpIr: |op| products(&op.x, &op.weight), [x, output_grad] -> [out];
    ConvTranspose3dWeightBackwardOpIr: |op| products(&op.x, &op.weight), [x, output_grad] -> [out];
    // Sums over all that is not a channel.
    Conv1dBiasBackwardOpIr: |op| elements(&op.output_grad), [output_grad] -> [out];
    Conv2dBiasBackwardOpIr: |op| elements(&op.output_grad), [output_grad] -> [out];
    Conv3dBiasBackwardOpIr: |op| elements(&op.output_grad), [output_grad] -> [out];
    ConvTranspose1dBiasBackwardOpIr: |op| elements(&op.output_grad), [output_grad] -> [out];
    ConvTranspose2dBiasBackwardOpIr: |op| elements(&op.output_grad), [output_grad] -> [out];
    ConvTranspose3dBiasBackwardOpIr: |op| elements(&op.output_grad), [output_grad] -> [out];
}

#[cfg(test)]
mod tests {
    use burn_ir::{
        Conv1dOptionsIr, Conv2dOptionsIr, Conv3dOptionsIr, ConvTranspose1dOptionsIr,
        ConvTranspose2dOptionsIr, ConvTranspose3dOptionsIr, ModuleOperationIr as M, OperationIr,
        TensorId,
    };

    use super::*;
    use crate::cost::fixture::{check, output, tensor};

    /// FLOPs, elements read and elements written, all of them f32.
    #[track_caller]
    fn check_elements(operation: M, flops: u64, read: u64, written: u64) {
        check(
            OperationIr::Module(operation),
            (flops, read * 4, written * 4),
        );
    }

    #[test]
    fn one_dimension_with_stride_padding_and_dilation() {
        let options = Conv1dOptionsIr {
            stride: [2],
            padding: [(1, 1)],
            dilation: [2],
            groups: 1,
        };
        let (x, weight) = (tensor(0, &[2, 3, 16]), tensor(1, &[4, 3, 3]));
        let bias = tensor(2, &[4]);
        // (16 + 2 - 2 * 2 - 1) / 2 + 1 = 7 positions of 4 channels in 2 batches; 3 x 3 weights each.
        let conv = Conv1dOpIr::create(x.clone(), weight.clone(), None, options.clone(), output);
        let gradient = conv.out.clone();
        let flops = 2 * (2 * 4 * 7) * 9;
        check_elements(M::Conv1d(conv), flops, 96 + 36, 56);
        let some = Some(bias.clone());
        let conv = Conv1dOpIr::create(x.clone(), weight.clone(), some, options.clone(), output);
        check_elements(M::Conv1d(conv), flops, 96 + 36 + 4, 56);

        let gradient = TensorIr {
            id: TensorId::new(5),
            ..gradient
        };
        let of_x = Conv1dXBackwardOpIr::create(
            x.clone(),
            weight.clone(),
            gradient.clone(),
            options.clone(),
            output,
        );
        check_elements(M::Conv1dXBackward(of_x), flops, 36 + 56, 96);
        let of_weight =
            Conv1dWeightBackwardOpIr::create(x.clone(), weight, gradient.clone(), options, output);
        check_elements(M::Conv1dWeightBackward(of_weight), flops, 96 + 56, 36);
        let of_bias = Conv1dBiasBackwardOpIr::create(x, bias, gradient, output);
        check_elements(M::Conv1dBiasBackward(of_bias), 56, 56, 4);
    }

    #[test]
    fn two_dimensions_with_groups() {
        let options = |groups| Conv2dOptionsIr {
            stride: [1, 1],
            padding: [(1, 1), (0, 1)],
            dilation: [1, 1],
            groups,
        };
        let x = tensor(0, &[1, 8, 6, 5]);
        // 6 + 2 - 2 by 5 + 1 - 1 positions: 6 x 5 of 16 channels.
        let check_groups = |groups: usize, weight_dims: &[usize], per_element: u64| {
            let weight = tensor(1, weight_dims);
            let weights: u64 = elements(&weight);
            let conv = Conv2dOpIr::create(x.clone(), weight.clone(), None, options(groups), output);
            let gradient = TensorIr {
                id: TensorId::new(5),
                ..conv.out.clone()
            };
            let flops = 2 * (16 * 6 * 5) * per_element;
            check_elements(M::Conv2d(conv), flops, 240 + weights, 480);
            let of_x = Conv2dXBackwardOpIr::create(
                x.clone(),
                weight.clone(),
                gradient.clone(),
                options(groups),
                output,
            );
            check_elements(M::Conv2dXBackward(of_x), flops, weights + 480, 240);
            let of_weight = Conv2dWeightBackwardOpIr::create(
                x.clone(),
                weight,
                gradient.clone(),
                options(groups),
                output,
            );
            check_elements(
                M::Conv2dWeightBackward(of_weight),
                flops,
                240 + 480,
                weights,
            );
            let bias = tensor(2, &[16]);
            let of_bias = Conv2dBiasBackwardOpIr::create(x.clone(), bias, gradient, output);
            check_elements(M::Conv2dBiasBackward(of_bias), 480, 480, 16);
        };
        check_groups(1, &[16, 8, 3, 2], 8 * 6);
        check_groups(4, &[16, 2, 3, 2], 2 * 6);
        check_groups(8, &[16, 1, 3, 2], 6);
    }

    #[test]
    fn three_dimensions() {
        let options = Conv3dOptionsIr {
            stride: [1, 2, 2],
            padding: [0, 1, 1],
            dilation: [1, 1, 1],
            groups: 1,
        };
        let (x, weight) = (tensor(0, &[2, 3, 4, 6, 6]), tensor(1, &[5, 3, 2, 3, 3]));
        // 3 x 3 x 3 positions of 5 channels in 2 batches.
        let conv = Conv3dOpIr::create(x.clone(), weight.clone(), None, options.clone(), output);
        let gradient = TensorIr {
            id: TensorId::new(5),
            ..conv.out.clone()
        };
        let (of_result, of_weight) = (2 * 5 * 27, 5 * 3 * 18);
        let flops = 2 * of_result * (3 * 18);
        check_elements(M::Conv3d(conv), flops, 864 + of_weight, of_result);
        let backward = Conv3dXBackwardOpIr::create(
            x.clone(),
            weight.clone(),
            gradient.clone(),
            options.clone(),
            output,
        );
        check_elements(
            M::Conv3dXBackward(backward),
            flops,
            of_weight + of_result,
            864,
        );
        let backward =
            Conv3dWeightBackwardOpIr::create(x.clone(), weight, gradient.clone(), options, output);
        check_elements(
            M::Conv3dWeightBackward(backward),
            flops,
            864 + of_result,
            of_weight,
        );
        let bias = tensor(2, &[5]);
        let of_bias = Conv3dBiasBackwardOpIr::create(x, bias, gradient, output);
        check_elements(M::Conv3dBiasBackward(of_bias), of_result, of_result, 5);
    }

    #[test]
    fn transposed_convolutions_count_from_their_input() {
        let options = ConvTranspose2dOptionsIr {
            stride: [2, 2],
            padding: [1, 1],
            padding_out: [1, 1],
            dilation: [1, 1],
            groups: 2,
        };
        let (x, weight) = (tensor(0, &[3, 4, 5, 5]), tensor(1, &[4, 3, 3, 3]));
        // (5 - 1) * 2 - 2 + 2 + 1 + 1 = 10 positions a side, of 3 * 2 channels.
        let flops = 2 * (3 * 4 * 25) * (3 * 9);
        let conv =
            ConvTranspose2dOpIr::create(x.clone(), weight.clone(), None, options.clone(), output);
        let gradient = TensorIr {
            id: TensorId::new(5),
            ..conv.out.clone()
        };
        check_elements(M::ConvTranspose2d(conv), flops, 300 + 108, 1800);
        let of_weight = ConvTranspose2dWeightBackwardOpIr::create(
            x.clone(),
            weight,
            gradient.clone(),
            options,
            output,
        );
        check_elements(
            M::ConvTranspose2dWeightBackward(of_weight),
            flops,
            300 + 1800,
            108,
        );
        let of_bias = ConvTranspose2dBiasBackwardOpIr::create(x, tensor(2, &[6]), gradient, output);
        check_elements(M::ConvTranspose2dBiasBackward(of_bias), 1800, 1800, 6);
    }

    #[test]
    fn transposed_convolutions_of_one_and_three_dimensions() {
        let options = ConvTranspose1dOptionsIr {
            stride: [3],
            padding: [0],
            padding_out: [0],
            dilation: [1],
            groups: 1,
        };
        let (x, weight) = (tensor(0, &[2, 3, 4]), tensor(1, &[3, 5, 2]));
        // (4 - 1) * 3 + 1 + 1 = 11 positions of 5 channels.
        let bias = Some(tensor(2, &[5]));
        let conv = ConvTranspose1dOpIr::create(
            x.clone(),
            weight.clone(),
            bias.clone(),
            options.clone(),
            output,
        );
        check_elements(M::ConvTranspose1d(conv), 2 * 24 * 10, 24 + 30 + 5, 110);
        let gradient = tensor(3, &[2, 5, 11]);
        let of_weight = ConvTranspose1dWeightBackwardOpIr::create(
            x.clone(),
            weight,
            gradient.clone(),
            options,
            output,
        );
        let operation = M::ConvTranspose1dWeightBackward(of_weight);
        check_elements(operation, 2 * 24 * 10, 24 + 110, 30);
        let of_bias = ConvTranspose1dBiasBackwardOpIr::create(x, tensor(2, &[5]), gradient, output);
        check_elements(M::ConvTranspose1dBiasBackward(of_bias), 110, 110, 5);
        let options = ConvTranspose3dOptionsIr {
            stride: [1; 3],
            padding: [0; 3],
            padding_out: [0; 3],
            dilation: [1; 3],
            groups: 1,
        };
        let (x, weight) = (tensor(0, &[1, 2, 3, 3, 3]), tensor(1, &[2, 4, 2, 2, 2]));
        let conv =
            ConvTranspose3dOpIr::create(x.clone(), weight.clone(), None, options.clone(), output);
        check_elements(M::ConvTranspose3d(conv), 2 * 54 * 32, 54 + 64, 256);
        let gradient = tensor(3, &[1, 4, 4, 4, 4]);
        let of_weight = ConvTranspose3dWeightBackwardOpIr::create(
            x.clone(),
            weight,
            gradient.clone(),
            options,
            output,
        );
        let operation = M::ConvTranspose3dWeightBackward(of_weight);
        check_elements(operation, 2 * 54 * 32, 54 + 256, 64);
        let of_bias = ConvTranspose3dBiasBackwardOpIr::create(x, tensor(2, &[4]), gradient, output);
        check_elements(M::ConvTranspose3dBiasBackward(of_bias), 256, 256, 4);
    }
}
