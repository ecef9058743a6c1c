//! A distribution as the kernels' arguments.

use burn::tensor::{DType, Distribution};
use half::{bf16, f16};

use super::narrow::{Narrow, Storage};
use super::wide::Wide;
use crate::random::RandomError;
use crate::random::distribution::{FloatRange, IntegerRange, Threshold};
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
        let [half, brain] = [f16::ONE.to_bits(), bf16::ONE.to_bits()].map(u32::from);
        Ok(match dtype {
            DType::F64 => wide_floats(f64::sampler(distribution)?),
            DType::F32 | DType::Flex32 => {
                floats(f32::sampler(distribution)?, Storage::F32, 1f32.to_bits())
            }
            DType::F16 => floats(f16::sampler(distribution)?, Storage::F16, half),
            DType::BF16 => floats(bf16::sampler(distribution)?, Storage::Bf16, brain),
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

    /// Returns the task of a sampler, given the values for each kind of it (uniform, Bernoulli, normal), the bits of one,
    /// and the parameters of its range and of a mean and a standard deviation.
    fn of<Range, Word: Into<u64>, Real>(
        sampler: Sampler<Range, Word, Real>,
        [uniform, bernoulli, normal]: [Values; 3],
        one: u64,
        of_range: impl FnOnce(Range) -> [u64; 4],
        of_normal: impl FnOnce(Real, Real) -> [u64; 4],
    ) -> Self {
        let (values, parameters) = match sampler {
            Sampler::Uniform(range) => (uniform, of_range(range)),
            Sampler::Bernoulli(Threshold { below, always }) => {
                (bernoulli, [below.into(), always.into(), one, 0])
            }
            Sampler::Normal { mean, std } => (normal, of_normal(mean, std)),
        };
        Self { values, parameters }
    }
}

fn floats(sampler: NarrowSampler, storage: Storage, one: u32) -> Task {
    let kinds = [
        Narrow::Uniform(storage),
        Narrow::Bernoulli,
        Narrow::Normal(storage),
    ];
    let bits = |values: [f32; 4]| values.map(|value| u64::from(value.to_bits()));
    let range = |of: FloatRange<f32>| bits([of.low, of.width, of.limit, 0.0]);
    let normal = |mean: f32, std| bits([mean, std, 0.0, 0.0]);
    Task::of(
        sampler,
        kinds.map(Values::Narrow),
        one.into(),
        range,
        normal,
    )
}

fn integers<T: Into<f64>>(
    sampler: Sampler<IntegerRange<u32>, u32, f64>,
    lowest: T,
    highest: T,
) -> Task {
    let (lowest, highest) = (lowest.into(), highest.into());
    let signed = lowest < 0.0;
    let kinds = [
        Narrow::Range,
        Narrow::Bernoulli,
        Narrow::CutNormal { signed },
    ];
    let range = |of: IntegerRange<u32>| [u64::from(of.low), of.last.into(), 0, 0];
    let normal = |mean: f64, std| [mean, std, lowest, highest].map(f64::to_bits);
    Task::of(sampler, kinds.map(Values::Narrow), 1, range, normal)
}

fn wide_floats(sampler: Sampler<FloatRange<f64>, u64, f64>) -> Task {
    let kinds = [Wide::Uniform, Wide::Bernoulli, Wide::Normal];
    let range = |of: FloatRange<f64>| [of.low, of.width, of.limit, 0.0].map(f64::to_bits);
    let normal = |mean: f64, std| [mean, std, 0.0, 0.0].map(f64::to_bits);
    Task::of(
        sampler,
        kinds.map(Values::Wide),
        1f64.to_bits(),
        range,
        normal,
    )
}

fn wide_integers(sampler: Sampler<IntegerRange<u64>, u64, f64>, signed: bool) -> Task {
    let kinds = [Wide::Range, Wide::Bernoulli, Wide::CutNormal { signed }];
    let range = |of: IntegerRange<u64>| [of.low, of.last, 0, 0];
    let normal = |mean: f64, std| [mean, std, 0.0, 0.0].map(f64::to_bits);
    Task::of(sampler, kinds.map(Values::Wide), 1, range, normal)
}
