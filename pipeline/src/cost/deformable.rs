//! Deformable convolutions, whose kernels look at interpolated places.
//!
//! Every channel of the input is sampled once for each element of the kernel and each position of
//! the result, and the samples are convolved (Zhu et al., arXiv:1811.11168).

use burn_ir::{DeformConv2dBackwardOpIr, DeformConv2dOpIr, TensorIr};

use super::convolution::products;
use super::count::{Count, OperationCost};
use super::size::{axis_length, dimensions, elements, product, rows_along};

/// A product and a sum for each of the four neighbours that an element is interpolated from.
const BILINEAR: u64 = 8;

/// The elements that are sampled before they meet a weight: all input channels, at every element of
/// the kernel and position of the result.
fn sampled(x: &TensorIr, weight: &TensorIr, result: &TensorIr) -> u64 {
    const CHANNELS: usize = 1;
    // Axes 0 and 1 of a weight are channels, the rest is the kernel.
    let kernel = dimensions(weight).skip(2);
    let positions = rows_along(result, CHANNELS);
    product(kernel.chain([axis_length(x, CHANNELS), positions]))
}

/// A convolution of interpolated elements: eight FLOPs for each
/// sample, one more with a mask, and the convolution's own.
impl Count for DeformConv2dOpIr {
    fn count(&self) -> OperationCost {
        let per_sample = BILINEAR + u64::from(self.mask.is_some());
        let samples = sampled(&self.x, &self.weight, &self.out);
        let convolution = products(&self.out, &self.weight);
        OperationCost::of_flops(
            samples
                .saturating_mul(per_sample)
                .saturating_add(convolution),
        )
        .reads(
            [&self.x, &self.offset, &self.weight]
                .into_iter()
                .chain(&self.mask)
                .chain(&self.bias),
        )
        .writes([&self.out])
    }
}

/// The products of a convolution twice, for the samples' gradient and the weight's.
///
/// Each sample is interpolated again for the weight's gradient (8), differentiated by both
/// coordinates of its offset (16) and spread to its four neighbours (8). With a mask it is
/// multiplied once more, and gives a product and a sum to the mask's gradient (3). A bias is a sum
/// over the result's gradient, and only its shape is read.
impl Count for DeformConv2dBackwardOpIr {
    fn count(&self) -> OperationCost {
        const GRADIENTS: u64 = BILINEAR + 2 * BILINEAR + BILINEAR;
        const MASK: u64 = 3;
        let per_sample = GRADIENTS + u64::from(self.mask.is_some()) * MASK;
        let samples = sampled(&self.x, &self.weight, &self.out_grad);
        let convolution = products(&self.out_grad, &self.weight);
        let bias = self
            .bias_grad
            .as_ref()
            .map_or(0, |_| elements(&self.out_grad));
        let flops = samples
            .saturating_mul(per_sample)
            .saturating_add(convolution.saturating_mul(2))
            .saturating_add(bias);
        OperationCost::of_flops(flops)
            .reads(
                [&self.x, &self.offset, &self.weight, &self.out_grad]
                    .into_iter()
                    .chain(&self.mask),
            )
            .writes(
                [&self.input_grad, &self.offset_grad, &self.weight_grad]
                    .into_iter()
                    .chain(&self.mask_grad)
                    .chain(&self.bias_grad),
            )
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::{DeformableConv2dOptionsIr, ModuleOperationIr as M, OperationIr, TensorId};

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
    fn deformable_convolutions_sample_first() {
        let options = DeformableConv2dOptionsIr {
            stride: [1, 1],
            padding: [1, 1],
            dilation: [1, 1],
            weight_groups: 1,
            offset_groups: 1,
        };
        let (x, weight) = (tensor(0, &[2, 3, 4, 4]), tensor(1, &[5, 3, 3, 3]));
        let offset = tensor(2, &[2, 18, 4, 4]);
        let mask = tensor(3, &[2, 9, 4, 4]);
        let bias = tensor(4, &[5]);
        let (samples, products) = (2 * 16 * 3 * 9, 2 * (2 * 5 * 16) * 27);
        let forward = |mask, bias| {
            let (x, offset, weight) = (x.clone(), offset.clone(), weight.clone());
            DeformConv2dOpIr::create(x, offset, weight, mask, bias, options.clone(), output)
        };
        let plain = M::DeformableConv2d(Box::new(forward(None, None)));
        check_elements(plain, samples * 8 + products, 96 + 135 + 576, 160);
        let full = M::DeformableConv2d(Box::new(forward(Some(mask.clone()), Some(bias.clone()))));
        check_elements(full, samples * 9 + products, 96 + 135 + 576 + 288 + 5, 160);

        let mut next = 100;
        let backward = DeformConv2dBackwardOpIr::create(
            x.clone(),
            offset.clone(),
            weight.clone(),
            Some(mask),
            Some(bias),
            tensor(6, &[2, 5, 4, 4]),
            options.clone(),
            || {
                next += 1;
                TensorId::new(next)
            },
        );
        check_elements(
            M::DeformableConv2dBackward(Box::new(backward)),
            samples * 35 + 2 * products + 160,
            96 + 576 + 135 + 288 + 160,
            96 + 576 + 135 + 288 + 5,
        );
    }
}
