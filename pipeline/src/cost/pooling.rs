//! Pooling, its gradients, and windows that are laid out.
//!
//! A pooled element takes as many FLOPs as its window has elements: `k - 1` additions and a division
//! for an average, `k` comparisons (the first with minus infinity) for a maximum. Windows that
//! reach over the edge count whole, as convolutions do. An average's gradient gives a part to every
//! element of the window, the same `k`; a maximum's goes to the one element that its index names.
//! Gradients read the shape of the forward's input, and not its values.
//!
//! Adaptive windows differ in size: window `i` of `n` over `m` elements goes from `floor(i m / n)`
//! to `ceil((i + 1) m / n)`. Together they have `m + n - gcd(m, n)` elements, which follows from the
//! sum of `floor(i m / n)` (Graham, Knuth and Patashnik, *Concrete Mathematics*, 2nd ed., 3.32).

use burn_ir::{
    AdaptiveAvgPool1dBackwardOpIr, AdaptiveAvgPool1dOpIr, AdaptiveAvgPool2dBackwardOpIr,
    AdaptiveAvgPool2dOpIr, AdaptiveAvgPool3dBackwardOpIr, AdaptiveAvgPool3dOpIr,
    AvgPool1dBackwardOpIr, AvgPool1dOpIr, AvgPool2dBackwardOpIr, AvgPool2dOpIr, MaxPool1dOpIr,
    MaxPool1dWithIndicesBackwardOpIr, MaxPool1dWithIndicesOpIr, MaxPool2dOpIr,
    MaxPool2dWithIndicesBackwardOpIr, MaxPool2dWithIndicesOpIr, TensorIr, Unfold4dOpIr,
};

use super::count::{Count, OperationCost, counts};
use super::size::{dimensions, elements, product};

/// The lengths of a window, by dimension.
trait Window {
    fn elements(&self) -> u64;
}

impl Window for usize {
    fn elements(&self) -> u64 {
        *self as u64
    }
}

impl<const D: usize> Window for [usize; D] {
    fn elements(&self) -> u64 {
        product(self.iter().map(|length| *length as u64))
    }
}

/// FLOPs of windows around as many positions as a tensor has elements.
fn windows(positions: &TensorIr, window: &impl Window) -> u64 {
    elements(positions).saturating_mul(window.elements())
}

counts! {
    // Windows of one size.
    AvgPool1dOpIr: |op| windows(&op.out, &op.kernel_size), [x] -> [out];
    AvgPool2dOpIr: |op| windows(&op.out, &op.kernel_size), [x] -> [out];
    MaxPool1dOpIr: |op| windows(&op.out, &op.kernel_size), [x] -> [out];
    MaxPool2dOpIr: |op| windows(&op.out, &op.kernel_size), [x] -> [out];
    MaxPool1dWithIndicesOpIr: |op| windows(&op.out, &op.kernel_size), [x] -> [out, out_indices];
    MaxPool2dWithIndicesOpIr: |op| windows(&op.out, &op.kernel_size), [x] -> [out, out_indices];
    // A part of the gradient for every element of the window.
    AvgPool1dBackwardOpIr: |op| windows(&op.grad, &op.kernel_size), [grad] -> [out];
    AvgPool2dBackwardOpIr: |op| windows(&op.grad, &op.kernel_size), [grad] -> [out];
    // All of it for the one that was largest.
    MaxPool1dWithIndicesBackwardOpIr: |op| elements(&op.grad), [grad, indices] -> [out];
    MaxPool2dWithIndicesBackwardOpIr: |op| elements(&op.grad), [grad, indices] -> [out];
    // Windows of the sizes that fit.
    AdaptiveAvgPool1dOpIr: |op| adaptive_windows(&op.x, &op.out), [x] -> [out];
    AdaptiveAvgPool2dOpIr: |op| adaptive_windows(&op.x, &op.out), [x] -> [out];
    AdaptiveAvgPool3dOpIr: |op| adaptive_windows(&op.x, &op.out), [x] -> [out];
    AdaptiveAvgPool1dBackwardOpIr: |op| adaptive_windows(&op.x, &op.grad), [grad] -> [out];
    AdaptiveAvgPool2dBackwardOpIr: |op| adaptive_windows(&op.x, &op.grad), [grad] -> [out];
    AdaptiveAvgPool3dBackwardOpIr: |op| adaptive_windows(&op.x, &op.grad), [grad] -> [out];
    // Windows laid out one after the other are a copy. Burn's default is a convolution with ones and
    // zeros where there is padding or dilation; what is counted is the result, not that way to it.
    Unfold4dOpIr: |op| 0, [x] -> [out];
}

/// Elements of all windows between `[batch, channels, positions..]` of an input and of a result.
fn adaptive_windows(input: &TensorIr, result: &TensorIr) -> u64 {
    const BATCH_AND_CHANNELS: usize = 2;
    let outer = dimensions(result).take(BATCH_AND_CHANNELS);
    let lengths = dimensions(input)
        .zip(dimensions(result))
        .skip(BATCH_AND_CHANNELS);
    product(outer.chain(lengths.map(|(from, to)| adaptive_length(from, to))))
}

/// The lengths of all windows of a dimension, together.
fn adaptive_length(from: u64, to: u64) -> u64 {
    if from == 0 || to == 0 {
        return 0;
    }
    (from - greatest_common_divisor(from, to)).saturating_add(to)
}

fn greatest_common_divisor(mut larger: u64, mut smaller: u64) -> u64 {
    while smaller != 0 {
        (larger, smaller) = (smaller, larger % smaller);
    }
    larger
}

#[cfg(test)]
mod tests {
    use burn_backend::DType;
    use burn_ir::{ModuleOperationIr as M, OperationIr, TensorId, Unfold4dOptionsIr};

    use super::*;
    use crate::cost::fixture::{check, indices, output, tensor};

    fn ids() -> impl FnMut() -> TensorId {
        let mut next = 100;
        move || {
            next += 1;
            TensorId::new(next)
        }
    }

    #[test]
    fn a_pooled_element_takes_its_window() {
        // 4 x 4 windows of 3 x 2, and their elements again for the gradient.
        let x = tensor(0, &[2, 3, 9, 8]);
        let (kernel, stride, padding) = ([3, 2], [2, 2], [0, 0]);
        let pool = AvgPool2dOpIr::create(x.clone(), kernel, stride, padding, true, false, output);
        check(
            OperationIr::Module(M::AvgPool2d(pool)),
            (96 * 6, 432 * 4, 96 * 4),
        );
        let gradient = tensor(1, &[2, 3, 4, 4]);
        let back = AvgPool2dBackwardOpIr::create(
            x.clone(),
            gradient.clone(),
            kernel,
            stride,
            padding,
            true,
            false,
            output,
        );
        check(
            OperationIr::Module(M::AvgPool2dBackward(back)),
            (96 * 6, 96 * 4, 432 * 4),
        );

        let (dilation, dtype) = ([1, 1], DType::I64);
        let pool =
            MaxPool2dOpIr::create(x.clone(), kernel, stride, padding, dilation, false, output);
        check(
            OperationIr::Module(M::MaxPool2d(pool)),
            (96 * 6, 432 * 4, 96 * 4),
        );
        let pool = MaxPool2dWithIndicesOpIr::create(
            x.clone(),
            kernel,
            stride,
            padding,
            dilation,
            false,
            dtype,
            ids(),
        );
        let expected = (96 * 6, 432 * 4, 96 * (4 + 8));
        check(OperationIr::Module(M::MaxPool2dWithIndices(pool)), expected);
        let back = MaxPool2dWithIndicesBackwardOpIr::create(
            x,
            gradient,
            indices(2, &[2, 3, 4, 4]),
            kernel,
            stride,
            padding,
            dilation,
            false,
            output,
        );
        let expected = (96, 96 * (4 + 8), 432 * 4);
        check(
            OperationIr::Module(M::MaxPool2dWithIndicesBackward(back)),
            expected,
        );
    }

    #[test]
    fn one_dimension() {
        let x = tensor(0, &[2, 3, 10]);
        let pool = AvgPool1dOpIr::create(x.clone(), 4, 2, 0, true, false, output);
        check(OperationIr::Module(M::AvgPool1d(pool)), (24 * 4, 240, 96));
        let gradient = tensor(1, &[2, 3, 4]);
        let back = AvgPool1dBackwardOpIr::create(
            x.clone(),
            gradient.clone(),
            4,
            2,
            0,
            true,
            false,
            output,
        );
        check(
            OperationIr::Module(M::AvgPool1dBackward(back)),
            (24 * 4, 96, 240),
        );
        let pool =
            MaxPool1dWithIndicesOpIr::create(x.clone(), 4, 2, 0, 1, false, DType::I32, ids());
        let expected = (24 * 4, 240, 96 + 96);
        check(OperationIr::Module(M::MaxPool1dWithIndices(pool)), expected);
        let back = MaxPool1dWithIndicesBackwardOpIr::create(
            x.clone(),
            gradient,
            indices(2, &[2, 3, 4]),
            4,
            2,
            0,
            1,
            false,
            output,
        );
        let expected = (24, 24 * (4 + 8), 240);
        check(
            OperationIr::Module(M::MaxPool1dWithIndicesBackward(back)),
            expected,
        );
        let pool = MaxPool1dOpIr::create(x, 4, 2, 0, 1, false, output);
        check(OperationIr::Module(M::MaxPool1d(pool)), (24 * 4, 240, 96));
    }

    #[test]
    fn adaptive_windows_of_one_size() {
        // 6 to 3 and 8 to 4: windows of 2 x 2.
        let pool = AdaptiveAvgPool2dOpIr::create(tensor(0, &[2, 3, 6, 8]), [3, 4], output);
        check(
            OperationIr::Module(M::AdaptiveAvgPool2d(pool)),
            (72 * 4, 288 * 4, 72 * 4),
        );
        let (x, gradient) = (tensor(0, &[2, 3, 6, 8]), tensor(1, &[2, 3, 3, 4]));
        let back = AdaptiveAvgPool2dBackwardOpIr::create(x, gradient, output);
        check(
            OperationIr::Module(M::AdaptiveAvgPool2dBackward(back)),
            (288, 288, 1152),
        );
        // 10 to 4: four windows of three, 10 + 4 - 2.
        let (x, gradient) = (tensor(0, &[2, 3, 10]), tensor(1, &[2, 3, 4]));
        let pool = AdaptiveAvgPool1dOpIr::create(x.clone(), 4, output);
        check(
            OperationIr::Module(M::AdaptiveAvgPool1d(pool)),
            (6 * 12, 240, 96),
        );
        let back = AdaptiveAvgPool1dBackwardOpIr::create(x, gradient, output);
        check(
            OperationIr::Module(M::AdaptiveAvgPool1dBackward(back)),
            (6 * 12, 96, 240),
        );
        // To one position: every element once.
        let pool = AdaptiveAvgPool3dOpIr::create(tensor(0, &[1, 2, 3, 4, 5]), [1, 1, 1], output);
        check(
            OperationIr::Module(M::AdaptiveAvgPool3d(pool)),
            (120, 480, 8),
        );
        let (x, gradient) = (tensor(0, &[1, 2, 3, 4, 5]), tensor(1, &[1, 2, 1, 1, 1]));
        let back = AdaptiveAvgPool3dBackwardOpIr::create(x, gradient, output);
        check(
            OperationIr::Module(M::AdaptiveAvgPool3dBackward(back)),
            (120, 8, 480),
        );
    }

    #[test]
    fn adaptive_windows_by_their_definition() {
        for from in 1..40_u64 {
            for to in 1..40_u64 {
                let window = |i: u64| ((i + 1) * from).div_ceil(to) - i * from / to;
                let expected: u64 = (0..to).map(window).sum();
                assert_eq!(adaptive_length(from, to), expected, "{from} to {to}");
            }
        }
        assert_eq!(adaptive_length(0, 3), 0);
        assert_eq!(adaptive_length(3, 0), 0);
        assert_eq!(adaptive_length(u64::MAX, u64::MAX - 1), u64::MAX);
    }

    #[test]
    fn laid_out_windows_are_a_copy() {
        let options = Unfold4dOptionsIr {
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
        };
        // 9 positions of 3 x 2 x 2 elements.
        let unfold = Unfold4dOpIr::create(tensor(0, &[1, 3, 4, 4]), [2, 2], options, output);
        check(
            OperationIr::Module(M::Unfold4d(unfold)),
            (0, 48 * 4, 108 * 4),
        );
    }
}
