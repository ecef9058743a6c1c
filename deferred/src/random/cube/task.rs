//! A distribution as the kernels' arguments.

use burn::tensor::{DType, Distribution};
use half::{bf16, f16};

use super::values::{Storage, Values};
use crate::random::RandomError;
use crate::random::distribution::{FloatRange, IntegerRange, Threshold};
use crate::random::element::{Sample, Sampler};
use crate::random::float::NarrowSampler;

/// The kind of values, and the parameters, as bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Task {
    pub(super) values: Values,
    pub(super) parameters: [u64; 4],
}

impl Task {
    /// Returns the task for a distribution over a dtype.
    ///
    /// # Errors
    ///
    /// The errors of the CPU's code: when the distribution's parameters are invalid, or random values of this dtype are
    /// not supported.
    pub(super) fn new(distribution: Distribution, dtype: DType) -> Result<Self, RandomError> {
        let bits = |value: f32| u64::from(value.to_bits());
        let narrow = |sampler: NarrowSampler, storage, one| floats(sampler, storage, one, bits);
        let [half, brain] = [f16::ONE.to_bits(), bf16::ONE.to_bits()].map(u64::from);
        Ok(match dtype {
            DType::F64 => {
                let sampler = f64::sampler(distribution)?;
                floats(sampler, Storage::F64, 1f64.to_bits(), f64::to_bits)
            }
            DType::F32 | DType::Flex32 => {
                narrow(f32::sampler(distribution)?, Storage::F32, bits(1.0))
            }
            DType::F16 => narrow(f16::sampler(distribution)?, Storage::F16, half),
            DType::BF16 => narrow(bf16::sampler(distribution)?, Storage::Bf16, brain),
            DType::I64 => integers(
                i64::sampler(distribution)?,
                i64::MIN as f64,
                i64::MAX as f64,
            ),
            DType::I32 => integers(i32::sampler(distribution)?, i32::MIN, i32::MAX),
            DType::I16 => integers(i16::sampler(distribution)?, i16::MIN, i16::MAX),
            DType::I8 => integers(i8::sampler(distribution)?, i8::MIN, i8::MAX),
            DType::U64 => integers(u64::sampler(distribution)?, 0.0, u64::MAX as f64),
            DType::U32 => integers(u32::sampler(distribution)?, u32::MIN, u32::MAX),
            DType::U16 => integers(u16::sampler(distribution)?, u16::MIN, u16::MAX),
            DType::U8 => integers(u8::sampler(distribution)?, u8::MIN, u8::MAX),
            DType::Bool(_) | DType::QFloat(_) => return Err(RandomError::Unsupported { dtype }),
        })
    }
}

fn floats<F, W: Into<u64>>(
    sampler: Sampler<FloatRange<F>, W, F>,
    storage: Storage,
    one: u64,
    bits: impl Fn(F) -> u64,
) -> Task {
    let (values, parameters) = match sampler {
        Sampler::Uniform(FloatRange { low, width, limit }) => {
            let range = [bits(low), bits(width), bits(limit), 0];
            (Values::Uniform(storage), range)
        }
        Sampler::Bernoulli(threshold) => bernoulli(threshold, one),
        Sampler::Normal { mean, std } => (Values::Normal(storage), [bits(mean), bits(std), 0, 0]),
    };
    Task { values, parameters }
}

fn integers<W: Into<u64>, T: Into<f64>>(
    sampler: Sampler<IntegerRange<W>, W, f64>,
    lowest: T,
    highest: T,
) -> Task {
    let (values, parameters) = match sampler {
        Sampler::Uniform(range) => (Values::Range, [range.low.into(), range.last.into(), 0, 0]),
        Sampler::Bernoulli(threshold) => bernoulli(threshold, 1),
        Sampler::Normal { mean, std } => {
            let (lowest, highest): (f64, f64) = (lowest.into(), highest.into());
            let signed = lowest < 0.0;
            let parameters = [mean, std, lowest, highest].map(f64::to_bits);
            (Values::CutNormal { signed }, parameters)
        }
    };
    Task { values, parameters }
}

fn bernoulli<W: Into<u64>>(threshold: Threshold<W>, one: u64) -> (Values, [u64; 4]) {
    let Threshold { below, always } = threshold;
    (Values::Bernoulli, [below.into(), always.into(), one, 0])
}
