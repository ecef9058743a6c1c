//! A factor on the loss that keeps small gradients of 16 bits from becoming zero.

/// A factor on the loss, divided out of the gradients before they are clipped and used.
///
/// A step whose gradients are not finite changes nothing, on any rank, and the factor is halved; after a number of
/// steps without such it is doubled. Factors are powers of two, so that they cost no precision. As with a clip by the
/// norm of all gradients, every rank waits for all others before its update. The factor stays between 2^-24 and 2^24.
///
/// Source: P. Micikevicius et al., "Mixed Precision Training", ICLR 2018; the first factor and the interval are near
/// those of PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    factor: f64,
    /// Steps without a failure until the factor grows; `None` when it never changes.
    interval: Option<u64>,
    /// Steps since the last failure or growth.
    steps: u64,
}

/// What the factor stays between.
const LEAST: f64 = 1.0 / 16_777_216.0;
const MOST: f64 = 16_777_216.0;

impl LossScale {
    /// A factor that begins at 2^15, the largest power of two in f16, and is doubled after 2,000 finite steps in a row.
    pub fn dynamic() -> Self {
        Self {
            factor: 32_768.0,
            interval: Some(2_000),
            steps: 0,
        }
    }

    /// A factor that stays: the power of two that is next to this number; 1 where it is not a positive number. A step
    /// whose gradients are not finite still changes nothing.
    pub fn fixed(factor: f64) -> Self {
        let exponent = match factor > 0.0 && factor.is_finite() {
            true => factor.log2().round(),
            false => 0.0,
        };
        Self {
            factor: exponent.exp2().clamp(LEAST, MOST),
            interval: None,
            steps: 0,
        }
    }

    /// The same, to be doubled after this many finite steps in a row (at least 1), and halved after a step that is not.
    #[must_use]
    pub fn growing_after(self, steps: u64) -> Self {
        Self {
            interval: Some(steps.max(1)),
            ..self
        }
    }

    /// The factor of the next step.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Finite steps in a row since the factor changed.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The same scale with the factor and the count of an earlier run; a fixed one stays what it is.
    #[must_use]
    pub fn resumed(self, factor: f64, steps: u64) -> Self {
        match self.interval {
            None => self,
            Some(_) => Self {
                factor: Self::fixed(factor).factor,
                steps,
                ..self
            },
        }
    }

    /// Notes how a step ended.
    pub(super) fn after_step(&mut self, finite: bool) {
        let Some(interval) = self.interval else {
            return;
        };
        self.steps = if finite { self.steps + 1 } else { 0 };
        if !finite {
            self.factor = (self.factor / 2.0).max(LEAST);
        } else if self.steps >= interval {
            self.factor = (self.factor * 2.0).min(MOST);
            self.steps = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_and_falls() {
        let mut scale = LossScale::dynamic().growing_after(3);
        let mut seen = Vec::new();
        for finite in [true, false, true, true, true, true, false] {
            scale.after_step(finite);
            seen.push(scale.factor().log2());
        }
        assert_eq!(seen, [15.0, 14.0, 14.0, 14.0, 15.0, 15.0, 14.0]);
    }

    #[test]
    fn it_stays_in_range_and_a_power_of_two() {
        assert_eq!(LossScale::fixed(1000.0).factor(), 1024.0);
        for wrong in [0.0, -3.0, f64::NAN, f64::INFINITY] {
            assert_eq!(LossScale::fixed(wrong).factor(), 1.0);
        }
        let mut scale = LossScale::fixed(1e300).growing_after(1);
        assert_eq!(scale.factor(), MOST);
        scale.after_step(true);
        assert_eq!(scale.factor(), MOST);
        for _ in 0..100 {
            scale.after_step(false);
        }
        assert_eq!(scale.factor(), LEAST);
    }

    #[test]
    fn a_fixed_one_stays() {
        let mut scale = LossScale::fixed(8.0);
        scale.after_step(false);
        assert_eq!(scale.resumed(64.0, 3), LossScale::fixed(8.0));
        let resumed = LossScale::dynamic().resumed(64.0, 3);
        assert_eq!((resumed.factor(), resumed.steps()), (64.0, 3));
    }
}
