//! AdamW with moments in 16 bits, and with Kahan summation of the updates.

use std::sync::Arc;

use burn::optim::grad_clipping::GradientClippingConfig;
use burn::optim::{DynOptimizer, LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_pack::Scalar;
use tinderbox_fake::DynTensor;

use super::groups::OptimizerConfig;

/// AdamW with moments and parameters that may have 16 bits: torchdistX's AnyPrecisionAdamW.
///
/// The moments are stored in their dtypes, and everything is computed in f32. With all dtypes f32 and without Kahan
/// summation it has the bits of Burn's `AdamW`.
///
/// Memory for each element of a parameter: the bytes of both moments, and of the parameter's dtype for Kahan summation.
/// Default: 6 bytes, for a first moment in bf16 and a second in f32, where AdamW has 8.
///
/// A second moment in bf16 needs a decay rate of at most 0.99. At 0.999, most additions of a step are smaller than the
/// rounding, so that the moment stays at about a quarter of its value in f32, and steps are up to twice as long.
///
/// Kahan summation keeps the part of each update that rounding to the parameter's dtype loses, and adds it to the next
/// update. Without it, an update of less than a 512th of a parameter in bf16 does not change the parameter.
///
/// ```
/// use tinderbox_pipeline::{AnyPrecisionAdamW, MomentDType};
///
/// let optimizer = AnyPrecisionAdamW::new()
///     .weight_decay(0.1)
///     .betas(0.9, 0.99)
///     .moments(MomentDType::Bf16, MomentDType::Bf16)
///     .kahan_summation(true);
/// // Pipeline::builder(..).optimizer(optimizer)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct AnyPrecisionAdamW {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    weight_decay: f32,
    first: MomentDType,
    second: MomentDType,
    is_kahan: bool,
}

/// The dtype of a moment. f16 is not supported: its smallest numbers are larger than the squares of small gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentDType {
    /// f32; f64 for a parameter in f64.
    Full,
    /// bf16.
    Bf16,
}

impl OptimizerConfig for AnyPrecisionAdamW {
    fn is_by_element(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn optimizer(&self) -> Arc<dyn DynOptimizer> {
        Arc::new(*self)
    }

    fn clipping(&self) -> Option<GradientClippingConfig> {
        None
    }
}

impl Default for AnyPrecisionAdamW {
    /// The defaults of Burn's `AdamWConfig`, and a first moment in bf16.
    fn default() -> Self {
        Self {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-5,
            weight_decay: 1e-4,
            first: MomentDType::Bf16,
            second: MomentDType::Full,
            is_kahan: false,
        }
    }
}

impl AnyPrecisionAdamW {
    /// Creates the optimizer with the defaults of Burn's `AdamWConfig`, and a first moment in bf16.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the decay rates of the first and the second moment. Default: 0.9 and 0.999.
    pub fn betas(mut self, beta_1: f32, beta_2: f32) -> Self {
        (self.beta_1, self.beta_2) = (beta_1, beta_2);
        self
    }

    /// Sets the number that is added to the root of the second moment. Default: 1e-5.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets the weight decay. Default: 1e-4.
    pub fn weight_decay(mut self, weight_decay: f32) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    /// Sets the dtypes of the first and the second moment. Default: bf16 and f32.
    pub fn moments(mut self, first: MomentDType, second: MomentDType) -> Self {
        (self.first, self.second) = (first, second);
        self
    }

    /// Sets whether the rounding error of each update is kept for the next, in the dtype of the parameter. Default: false.
    pub fn kahan_summation(self, is_kahan: bool) -> Self {
        Self { is_kahan, ..self }
    }
}

/// The state of [`AnyPrecisionAdamW`] for a parameter.
#[derive(Clone, Debug)]
pub struct AnyPrecisionState<const D: usize> {
    /// The number of steps.
    pub time: usize,
    /// The first moment.
    pub moment_1: Tensor<D>,
    /// The second moment.
    pub moment_2: Tensor<D>,
    /// The part of the last update that rounding has lost.
    pub compensation: Option<Tensor<D>>,
}

/// The names in a saved state.
const TIME: &str = "time";
const MOMENTS: [&str; 2] = ["moment_1", "moment_2"];
const COMPENSATION: &str = "compensation";

impl<const D: usize> RecordState for AnyPrecisionState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, TIME, Scalar::from(self.time));
        let moments = [&self.moment_1, &self.moment_2];
        let compensation = self.compensation.iter().map(|lost| (COMPENSATION, lost));
        for (name, tensor) in MOMENTS.into_iter().zip(moments).chain(compensation) {
            out.push_tensor(prefix, name, tensor.clone().into_data());
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let time = usize::try_from(source.take_scalar(prefix, TIME)?).ok()?;
        let mut tensor = |name| {
            // Burn's own constructor would convert it to the default dtype of the device.
            let tensor = DynTensor::from_data(source.take_tensor(prefix, name)?, device);
            tensor.typed().ok()
        };
        let [moment_1, moment_2] = MOMENTS.map(&mut tensor);
        Some(Self {
            time,
            moment_1: moment_1?,
            moment_2: moment_2?,
            compensation: tensor(COMPENSATION),
        })
    }
}

impl Optimizer for AnyPrecisionAdamW {
    type State<const D: usize> = AnyPrecisionState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AnyPrecisionState<D>>,
    ) -> (Tensor<D>, Option<AnyPrecisionState<D>>) {
        let own = tensor.dtype();
        // The operations have the order of Burn's AdamW.
        let wide = match own {
            DType::F64 => FloatDType::F64,
            _ => FloatDType::F32,
        };
        let (value, grad) = (tensor.clone().cast(wide), grad.cast(wide));
        let moment = |old: Option<Tensor<D>>, beta: f32, new: Tensor<D>| {
            let new = new.mul_scalar(1.0 - beta);
            match old {
                Some(old) => old.cast(wide).mul_scalar(beta).add(new),
                None => new,
            }
        };
        let time = state.as_ref().map_or(1, |old| old.time + 1);
        let (old_1, old_2, compensation) = match state {
            Some(old) => (Some(old.moment_1), Some(old.moment_2), old.compensation),
            None => (None, None, None),
        };
        let stored = |dtype| match dtype {
            MomentDType::Full => wide,
            MomentDType::Bf16 => FloatDType::BF16,
        };
        let moment_1 = moment(old_1, self.beta_1, grad.clone()).cast(stored(self.first));
        let moment_2 = moment(old_2, self.beta_2, grad.square()).cast(stored(self.second));
        let correction = |beta: f32| 1.0 - beta.powi(i32::try_from(time).unwrap_or(i32::MAX));
        let corrected = |of: &Tensor<D>, beta| of.clone().cast(wide).div_scalar(correction(beta));
        let deviation = corrected(&moment_2, self.beta_2).sqrt();
        let delta = corrected(&moment_1, self.beta_1).div(deviation.add_scalar(self.epsilon));
        let mut decayed = value.clone();
        let decay = lr * f64::from(self.weight_decay);
        if decay != 0.0 {
            decayed = decayed.mul_scalar(1.0 - decay);
        }
        let (updated, compensation) = match self.is_kahan {
            false => ((decayed - delta.mul_scalar(lr)).cast(own), None),
            true => {
                let mut update = (decayed - value.clone()) - delta.mul_scalar(lr);
                if let Some(lost) = compensation {
                    update = update + lost.cast(wide);
                }
                let rounded = (value.clone() + update.clone()).cast(own);
                let lost = update - (rounded.clone().cast(wide) - value);
                (rounded, Some(lost.cast(own)))
            }
        };
        let state = AnyPrecisionState {
            time,
            moment_1,
            moment_2,
            compensation,
        };
        (updated, Some(state))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        AnyPrecisionState {
            time: state.time,
            moment_1: state.moment_1.to_device(device),
            moment_2: state.moment_2.to_device(device),
            compensation: state.compensation.map(|lost| lost.to_device(device)),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;
    use half::bf16;

    use super::*;

    const STEPS: i32 = 60;
    const LR: f64 = 3e-3;

    fn gradients(step: i32) -> Vec<f32> {
        let gradient = |k: i32| ((step * 5 + k * 3) as f32).sin() * (1.0 + k as f32);
        (0..8).map(gradient).collect()
    }

    fn initial() -> Vec<bf16> {
        (1..9).map(|k| bf16::from_f32(k as f32 * 0.37)).collect()
    }

    /// Trains with the optimizer; returns the values after the last step.
    fn found(optimizer: AnyPrecisionAdamW) -> Vec<bf16> {
        let device = Device::flex();
        let of = |data| -> Tensor<1> {
            let tensor = DynTensor::from_data(data, &device).typed();
            tensor.expect("a vector of floats")
        };
        let mut value = of(TensorData::new(initial(), [8]));
        let mut state = None;
        for step in 1..=STEPS {
            let gradient = of(TensorData::new(gradients(step), [8])).cast(FloatDType::BF16);
            (value, state) = optimizer.step(LR, value, gradient, state);
            assert_eq!(value.dtype(), DType::BF16);
        }
        value.into_data().try_to_vec().expect("it is bf16")
    }

    /// Computes the same element by element.
    fn expected(rounds_moments: bool, is_kahan: bool) -> Vec<bf16> {
        let stored = |x: f32| match rounds_moments {
            true => bf16::from_f32(x).to_f32(),
            false => x,
        };
        let mut values = initial();
        let (mut m, mut v, mut lost) = ([0.0_f32; 8], [0.0_f32; 8], [bf16::ZERO; 8]);
        for step in 1..=STEPS {
            for (k, gradient) in gradients(step).into_iter().enumerate() {
                let gradient = bf16::from_f32(gradient).to_f32();
                m[k] = stored(m[k] * 0.9 + gradient * (1.0 - 0.9_f32));
                v[k] = stored(v[k] * 0.999 + gradient * gradient * (1.0 - 0.999_f32));
                let first = m[k] / (1.0 - 0.9_f32.powi(step));
                let second = v[k] / (1.0 - 0.999_f32.powi(step));
                let delta = first / (second.sqrt() + 1e-5);
                let value = values[k].to_f32();
                let decayed = value * (1.0 - LR * f64::from(1e-4_f32)) as f32;
                let step = delta * LR as f32;
                if is_kahan {
                    let update = (decayed - value) - step + lost[k].to_f32();
                    values[k] = bf16::from_f32(value + update);
                    lost[k] = bf16::from_f32(update - (values[k].to_f32() - value));
                } else {
                    values[k] = bf16::from_f32(decayed - step);
                }
            }
        }
        values
    }

    #[test]
    fn steps_match_the_formulas() {
        for (dtype, rounds) in [(MomentDType::Full, false), (MomentDType::Bf16, true)] {
            for is_kahan in [false, true] {
                let optimizer = AnyPrecisionAdamW::new().moments(dtype, dtype);
                let found = found(optimizer.kahan_summation(is_kahan));
                assert_eq!(found, expected(rounds, is_kahan), "{dtype:?} {is_kahan}");
            }
        }
    }

    /// Without Kahan summation, updates of less than half a unit in the last place are lost.
    #[test]
    fn kahan_summation_keeps_small_updates() {
        let device = Device::flex();
        let after = |is_kahan| {
            let optimizer = AnyPrecisionAdamW::new().weight_decay(0.0);
            let optimizer = optimizer.moments(MomentDType::Full, MomentDType::Full);
            let optimizer = optimizer.kahan_summation(is_kahan);
            let ones = || Tensor::<1>::ones([1], &device).cast(FloatDType::BF16);
            let (mut value, mut state) = (ones(), None);
            for _ in 0..1000 {
                (value, state) = optimizer.step(1e-4, value, ones(), state);
            }
            value.into_scalar::<f32>()
        };
        assert_eq!(after(false), 1.0);
        let with = after(true);
        // A unit in the last place.
        assert!((with - 0.9).abs() < 0.004, "{with}");
    }
}
