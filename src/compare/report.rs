//! The result of a comparison.

use std::collections::BTreeMap;
use std::fmt;

use burn::tensor::{DType, TensorData};
use serde::Serialize;
use tinderbox_deferred::{Parameter, ParameterPath, ParameterTable};
use tinderbox_pipeline::planner::table;

/// The number of roundings of the largest element of all gradients below which a difference is insignificant.
const ROUNDINGS: f64 = 8.0;

/// The results of a step.
pub(super) struct Step {
    pub(super) loss: f64,
    pub(super) gradients: BTreeMap<ParameterPath, TensorData>,
}

/// The losses of the two steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LossComparison {
    /// The loss in plain Burn.
    pub plain: f64,
    /// The loss in the pipeline.
    pub pipeline: f64,
}

/// The comparison of a parameter's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GradientComparison {
    /// Both steps have a gradient.
    Both {
        /// The maximum difference of two elements; infinite if one is NaN and the other is not the same NaN.
        largest_difference: f64,
        /// The maximum difference relative to the largest element of plain Burn's gradient. 0 if both
        /// gradients are 0.
        relative_difference: f64,
        /// Whether the difference is within a few roundings of the largest element of all gradients. A
        /// gradient that would be 0 without rounding, such as the gradient of the bias of attention keys,
        /// consists only of such differences.
        is_rounding: bool,
        /// Whether all bits are equal.
        is_bit_equal: bool,
    },
    /// The pipeline has no gradient.
    MissingInPipeline,
    /// Plain Burn has no gradient.
    MissingInPlain,
    /// Neither has a gradient: the parameter is frozen, or the loss does not depend on it.
    Neither,
}

/// The comparison of one parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ParameterComparison {
    /// The path of the parameter.
    pub path: ParameterPath,
    /// The shape of the parameter.
    pub shape: Vec<u64>,
    /// The gradients of the parameter.
    pub gradient: GradientComparison,
}

/// The comparison of a training step in plain Burn with a step in a pipeline, returned by
/// [`compare_with_burn`](super::compare_with_burn). Displays as a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The losses.
    pub loss: LossComparison,
    /// Every parameter, in model order, without clones.
    pub parameters: Vec<ParameterComparison>,
    /// The number of random operations of the forward, such as dropout, which draw different values in plain
    /// Burn.
    pub random_operations: usize,
    /// The number of micro-batches that plain Burn has processed one after the other. It is more than one only for a model that
    /// updates running states, such as the statistics of batch norm.
    pub micro_batches: usize,
}

impl Comparison {
    /// The relative difference within which two steps in f32 [agree](Self::agrees). They differ because the pipeline adds the
    /// gradients of micro-batches, and plain Burn the gradients of all samples.
    pub const TOLERANCE: f64 = 1e-4;

    pub(super) fn new(
        table: &ParameterTable,
        plain: Step,
        pipeline: Step,
        random_operations: usize,
        micro_batches: usize,
    ) -> Self {
        let largest = plain.gradients.values().map(size);
        let largest = largest.filter(|size| size.is_finite()).fold(0.0, f64::max);
        let compare = |parameter: &Parameter| {
            let path = &parameter.path;
            let pair = (plain.gradients.get(path), pipeline.gradients.get(path));
            ParameterComparison {
                path: path.clone(),
                shape: parameter.shape.clone(),
                gradient: match pair {
                    (Some(plain), Some(pipeline)) => compared(plain, pipeline, largest),
                    (Some(_), None) => GradientComparison::MissingInPipeline,
                    (None, Some(_)) => GradientComparison::MissingInPlain,
                    (None, None) => GradientComparison::Neither,
                },
            }
        };
        Self {
            loss: LossComparison {
                plain: plain.loss,
                pipeline: pipeline.loss,
            },
            parameters: table.distinct().map(compare).collect(),
            random_operations,
            micro_batches,
        }
    }

    /// Returns whether the loss and every gradient are equal within the [tolerance of f32](Self::TOLERANCE), no gradient is
    /// missing, and nothing is random.
    pub fn agrees(&self) -> bool {
        self.agrees_within(Self::TOLERANCE)
    }

    /// Returns whether the steps [agree](Self::agrees) within a tolerance, such as a higher one for mixed precision.
    pub fn agrees_within(&self, tolerance: f64) -> bool {
        self.random_operations == 0
            && self.loss_agrees(tolerance)
            && self.differing(tolerance).next().is_none()
    }

    /// Returns the parameters whose gradients differ by more than a tolerance, relative to their largest element, or are
    /// missing from one of the steps.
    pub fn differing(&self, tolerance: f64) -> impl Iterator<Item = &ParameterComparison> {
        let parameters = self.parameters.iter();
        parameters.filter(move |parameter| !parameter.gradient.verdict(tolerance).1)
    }

    fn loss_agrees(&self, tolerance: f64) -> bool {
        let LossComparison { plain, pipeline } = self.loss;
        relative((plain - pipeline).abs(), plain.abs()) <= tolerance
    }

    fn row(&self, parameter: &ParameterComparison) -> [String; 5] {
        let (verdict, _) = parameter.gradient.verdict(Self::TOLERANCE);
        let (difference, relative) = match parameter.gradient {
            GradientComparison::Both {
                largest_difference: largest,
                relative_difference: relative,
                ..
            } => (format!("{largest:.2e}"), format!("{relative:.2e}")),
            _ => (String::new(), String::new()),
        };
        [
            parameter.path.to_string(),
            format!("{:?}", parameter.shape),
            difference,
            relative,
            verdict.to_owned(),
        ]
    }
}

impl GradientComparison {
    /// Returns the verdict in words, and whether it is an agreement.
    fn verdict(self, tolerance: f64) -> (&'static str, bool) {
        match self {
            Self::Both {
                relative_difference,
                is_rounding,
                is_bit_equal,
                ..
            } => match is_bit_equal {
                true => ("equal bits", true),
                false if relative_difference <= tolerance => ("agrees", true),
                false if is_rounding => ("rounding", true),
                false => ("differs", false),
            },
            Self::MissingInPipeline => ("missing in the pipeline", false),
            Self::MissingInPlain => ("missing in plain Burn", false),
            Self::Neither => ("none", true),
        }
    }
}

/// Returns a difference relative to a size.
fn relative(difference: f64, size: f64) -> f64 {
    let quotient = difference / size;
    if difference == 0.0 { 0.0 } else { quotient }
}

/// Returns the distance from 1 to the next number of a float type.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => 2.0_f64.powi(-10),
        DType::BF16 => 2.0_f64.powi(-7),
        _ => f64::from(f32::EPSILON),
    }
}

/// Returns the absolute value of the largest element that is not NaN.
fn size(gradient: &TensorData) -> f64 {
    gradient.iter::<f64>().map(f64::abs).fold(0.0, f64::max)
}

fn compared(plain: &TensorData, pipeline: &TensorData, largest_of_all: f64) -> GradientComparison {
    let is_bit_equal = plain.dtype() == pipeline.dtype() && plain.as_bytes() == pipeline.as_bytes();
    let difference = |(a, b): (f64, f64)| match (a - b).abs() {
        // Infinities can be equal, and so can the bits of NaNs.
        _ if a == b || is_bit_equal => 0.0,
        difference if difference.is_nan() => f64::INFINITY,
        difference => difference,
    };
    let differences = plain.iter().zip(pipeline.iter()).map(difference);
    let (largest, size) = (differences.fold(0.0, f64::max), size(plain));
    GradientComparison::Both {
        largest_difference: largest,
        relative_difference: match largest.is_finite() && size.is_finite() || is_bit_equal {
            true => relative(largest, size),
            false => f64::INFINITY,
        },
        is_rounding: largest <= ROUNDINGS * epsilon(plain.dtype()) * largest_of_all,
        is_bit_equal,
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.random_operations > 0 {
            writeln!(
                f,
                "the forward has {} random operations, such as dropout, which draw different values in plain Burn: \
                 differences are expected, and the comparison proves nothing; trace the model with a probability of 0",
                self.random_operations
            )?;
        }
        if self.micro_batches > 1 {
            writeln!(
                f,
                "the forward updates running states, such as the statistics of batch norm: plain Burn has processed the same \
                 {} micro-batches one after the other",
                self.micro_batches
            )?;
        }
        let header = ["parameter", "shape", "difference", "relative", "gradient"];
        let rows = self.parameters.iter().map(|parameter| self.row(parameter));
        let table = table(header, rows, |at| matches!(at, 2 | 3));
        writeln!(f, "{table}")?;
        let LossComparison { plain, pipeline } = self.loss;
        let difference = (plain - pipeline).abs();
        let (all, tolerance) = (self.parameters.len(), Self::TOLERANCE);
        let differing = self.differing(tolerance).count();
        let verdict = match self.loss_agrees(tolerance) {
            true => "",
            false => ", differs",
        };
        writeln!(
            f,
            "loss: plain Burn {plain:.9}, pipeline {pipeline:.9}, difference {difference:.2e}{verdict}"
        )?;
        write!(
            f,
            "gradients: {differing} of {all} differ by more than {tolerance:.0e} of their largest element"
        )
    }
}
