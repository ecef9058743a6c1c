//! Resized and resampled images.
//!
//! An element of the result is a weighted sum of the elements around a point: two FLOPs for each
//! tap. A filter of `t` taps in each dimension has `t x t`: 2 for bilinear, 4 for bicubic (Keys,
//! doi:10.1109/TASSP.1981.1163711), 6 for Lanczos with three lobes. The nearest element takes none.
//! The weights are the same for all batches and channels, or found once per row and column, and are
//! not counted. Filters that are applied one dimension after the other take fewer.
//!
//! Taps that fall on the same element read it once, and what falls between them is not read, so the
//! input is read at its size or at that of all taps, whichever is less.

use burn_ir::{GridSample2dOpIr, InterpolateBackwardOpIr, InterpolateModeIr, InterpolateOpIr};

use super::count::{Count, OperationCost};
use super::size::elements;

/// Elements of the input that an element of the result is made from.
fn taps(mode: &InterpolateModeIr) -> u64 {
    match mode {
        InterpolateModeIr::Nearest | InterpolateModeIr::NearestExact => 1,
        InterpolateModeIr::Bilinear => 2 * 2,
        InterpolateModeIr::Bicubic => 4 * 4,
        InterpolateModeIr::Lanczos3 => 6 * 6,
    }
}

/// FLOPs of an element of the result.
fn flops_per_element(mode: &InterpolateModeIr) -> u64 {
    match mode {
        InterpolateModeIr::Nearest | InterpolateModeIr::NearestExact => 0,
        weighted => 2 * taps(weighted),
    }
}

impl Count for InterpolateOpIr {
    fn count(&self) -> OperationCost {
        let mode = &self.options.mode;
        let result = elements(&self.out);
        OperationCost::of_flops(result.saturating_mul(flops_per_element(mode)))
            .reads_selected(&self.x, result.saturating_mul(taps(mode)), &[])
            .writes([&self.out])
    }
}

/// Each element of the result's gradient is spread over its taps: a product and an addition for
/// each, and for the nearest element an addition alone. Of the input only the shape is read.
impl Count for InterpolateBackwardOpIr {
    fn count(&self) -> OperationCost {
        let flops = flops_per_element(&self.options.mode).max(1);
        OperationCost::of_flops(elements(&self.grad).saturating_mul(flops))
            .reads([&self.grad])
            .writes([&self.out])
    }
}

/// A weighted sum as above, at points that a grid of `[batch, height, width, 2]` names. Each of its
/// coordinates takes three FLOPs more, from the range of -1 to 1 to that of the input's positions.
impl Count for GridSample2dOpIr {
    fn count(&self) -> OperationCost {
        const PER_COORDINATE: u64 = 3;
        let mode = &self.options.mode;
        let result = elements(&self.out);
        let weighted = result.saturating_mul(flops_per_element(mode));
        let coordinates = elements(&self.grid).saturating_mul(PER_COORDINATE);
        OperationCost::of_flops(weighted.saturating_add(coordinates))
            .reads_selected(
                &self.tensor,
                result.saturating_mul(taps(mode)),
                &[&self.grid],
            )
            .writes([&self.out])
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::DType;
    use burn_ir::{
        FloatOperationIr, GridSampleOptionsIr, GridSamplePaddingModeIr, InterpolateOptionsIr,
        ModuleOperationIr as M, OperationIr,
    };

    use super::*;
    use crate::cost::fixture::{check, output, tensor};

    fn options(mode: InterpolateModeIr) -> InterpolateOptionsIr {
        InterpolateOptionsIr {
            mode,
            align_corners: false,
        }
    }

    #[test]
    fn an_element_takes_two_flops_per_tap() {
        for (mode, flops) in [
            (InterpolateModeIr::Nearest, 0),
            (InterpolateModeIr::NearestExact, 0),
            (InterpolateModeIr::Bilinear, 8),
            (InterpolateModeIr::Bicubic, 32),
            (InterpolateModeIr::Lanczos3, 72),
        ] {
            let x = tensor(0, &[2, 3, 4, 4]);
            let resize = InterpolateOpIr::create(x.clone(), [8, 8], options(mode.clone()), output);
            check(
                OperationIr::Module(M::Interpolate(resize)),
                (384 * flops, 384, 1536),
            );
            let gradient = tensor(1, &[2, 3, 8, 8]);
            let back = InterpolateBackwardOpIr::create(x, gradient, [8, 8], options(mode), output);
            let expected = (384 * flops.max(1), 1536, 384);
            check(OperationIr::Module(M::InterpolateBackward(back)), expected);
        }
    }

    #[test]
    fn a_small_result_reads_a_part_of_its_input() {
        let x = tensor(0, &[1, 1, 100, 100]);
        let nearest = options(InterpolateModeIr::Nearest);
        let resize = InterpolateOpIr::create(x.clone(), [10, 10], nearest, output);
        check(OperationIr::Module(M::Interpolate(resize)), (0, 400, 400));
        let bilinear = options(InterpolateModeIr::Bilinear);
        let resize = InterpolateOpIr::create(x, [10, 10], bilinear, output);
        check(
            OperationIr::Module(M::Interpolate(resize)),
            (800, 1600, 400),
        );
    }

    #[test]
    fn a_grid_counts_its_coordinates() {
        let options = GridSampleOptionsIr {
            mode: InterpolateModeIr::Bilinear,
            padding_mode: GridSamplePaddingModeIr::Zeros,
            align_corners: false,
        };
        let (x, grid) = (tensor(0, &[2, 3, 8, 8]), tensor(1, &[2, 5, 5, 2]));
        let sample = GridSample2dOpIr::create(x, grid, options, output);
        let operation = OperationIr::Float(DType::F32, FloatOperationIr::GridSample2d(sample));
        check(operation, (150 * 8 + 100 * 3, 384 * 4 + 400, 600));
    }
}
