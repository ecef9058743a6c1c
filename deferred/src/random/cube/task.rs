//! A distribution as the kernels' arguments.

use burn::tensor::{DType, Distribution};
use half::{bf16, f16};

use super::narrow::{Narrow, Storage};
use super::wide::Wide;
use crate::random::RandomError;
use crate::random::distribution::{FloatRange, IntegerRange};
use crate::random::element::{Sample, Sampler};
use crate::random::float::NarrowSampler;

/// Elements of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Values {
    /// Four, of up to 32 bits.
    Narrow(Narrow),
    /// Two, of 64 bits.
    Wide(Wide),
}

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
    /// As on the CPU: when the distribution's parameters are invalid, or random values of this dtype are not
    /// supported.
    pub(super) fn new(distribution: Distribution, dtype: DType) -> Result<Self, RandomError> {
        let narrow = |sampler, storage, one: u32| narrow_floats(sampler, storage, one.into());
        Ok(match dtype {
            DType::F64 => wide_floats(f64::sampler(distribution)?),
            DType::F32 | DType::Flex32 => {
                narrow(f32::sampler(distribution)?, Storage::F32, 1f32.to_bits())
            }
            DType::F16 => {
                let one = f16::ONE.to_bits().into();
                narrow(f16::sampler(distribution)?, Storage::F16, one)
            }
            DType::BF16 => {
                let one = bf16::ONE.to_bits().into();
                narrow(bf16::sampler(distribution)?, Storage::Bf16, one)
            }
            DType::I64 => wide_integers(i64::sampler(distribution)?, true),
            DType::U64 => wide_integers(u64::sampler(distribution)?, false),
            DType::I32 => integers(i32::sampler(distribution)?, i32::MIN, i32::MAX),
            DType::I16 => integers(i16::sampler(distribution)?, i16::MIN, i16::MAX),
            DType::I8 => integers(i8::sampler(distribution)?, i8::MIN, i8::MAX),
            DType::U32 => integers(u32::sampler(distribution)?, u32::MIN, u32::MAX),
            DType::U16 => integers(u16::sampler(distribution)?, u16::MIN, u16::MAX),
            DType::U8 => integers(u8::sampler(distribution)?, u8::MIN, u8::MAX),
            DType::Bool(_) | DType::QFloat(_) => return Err(RandomError::Unsupported { dtype }),
        })
    }
}

fn narrow_task(values: Narrow, parameters: [u64; 4]) -> Task {
    let values = Values::Narrow(values);
    Task { values, parameters }
}

fn wide_task(values: Wide, parameters: [u64; 4]) -> Task {
    let values = Values::Wide(values);
    Task { values, parameters }
}

fn narrow_floats(sampler: NarrowSampler, storage: Storage, one: u64) -> Task {
    let bits = |value: f32| u64::from(value.to_bits());
    match sampler {
        Sampler::Uniform(FloatRange { low, width, limit }) => {
            let parameters = [bits(low), bits(width), bits(limit), 0];
            narrow_task(Narrow::Uniform(storage), parameters)
        }
        Sampler::Bernoulli(threshold) => {
            let parameters = [threshold.below.into(), threshold.always.into(), one, 0];
            narrow_task(Narrow::Bernoulli, parameters)
        }
        Sampler::Normal { mean, std } => {
            narrow_task(Narrow::Normal(storage), [bits(mean), bits(std), 0, 0])
        }
    }
}

fn integers<T: Into<f64>>(
    sampler: Sampler<IntegerRange<u32>, u32, f64>,
    lowest: T,
    highest: T,
) -> Task {
    match sampler {
        Sampler::Uniform(IntegerRange { low, last }) => {
            narrow_task(Narrow::Range, [low.into(), last.into(), 0, 0])
        }
        Sampler::Bernoulli(threshold) => {
            let parameters = [threshold.below.into(), threshold.always.into(), 1, 0];
            narrow_task(Narrow::Bernoulli, parameters)
        }
        Sampler::Normal { mean, std } => {
            let (lowest, highest) = (lowest.into(), highest.into());
            let signed = lowest < 0.0;
            let parameters = [mean, std, lowest, highest].map(f64::to_bits);
            narrow_task(Narrow::CutNormal { signed }, parameters)
        }
    }
}

fn wide_floats(sampler: Sampler<FloatRange<f64>, u64, f64>) -> Task {
    match sampler {
        Sampler::Uniform(FloatRange { low, width, limit }) => {
            wide_task(Wide::Uniform, [low, width, limit, 0.0].map(f64::to_bits))
        }
        Sampler::Bernoulli(threshold) => {
            let one = 1f64.to_bits();
            let parameters = [threshold.below, threshold.always.into(), one, 0];
            wide_task(Wide::Bernoulli, parameters)
        }
        Sampler::Normal { mean, std } => {
            wide_task(Wide::Normal, [mean, std, 0.0, 0.0].map(f64::to_bits))
        }
    }
}

fn wide_integers(sampler: Sampler<IntegerRange<u64>, u64, f64>, signed: bool) -> Task {
    match sampler {
        Sampler::Uniform(IntegerRange { low, last }) => wide_task(Wide::Range, [low, last, 0, 0]),
        Sampler::Bernoulli(threshold) => {
            let parameters = [threshold.below, threshold.always.into(), 1, 0];
            wide_task(Wide::Bernoulli, parameters)
        }
        Sampler::Normal { mean, std } => {
            let parameters = [mean, std, 0.0, 0.0].map(f64::to_bits);
            wide_task(Wide::CutNormal { signed }, parameters)
        }
    }
}
