//! The loss scale, which keeps small 16-bit gradients from becoming zero.

/// A loss scale, divided out of the gradients before they are clipped and used.
///
/// A step whose gradients are not finite changes nothing, on any rank, and the scale is halved; after a
/// number of finite steps it is doubled. Scales are powers of two, so that they cost no precision. As
/// with clipping by the norm of all gradients, every rank waits for all others before its update. The
/// scale stays between 2^-24 and 2^24. A skipped step counts as a step: data, dropout and learning rate advance. Running
/// states do not advance, unlike in PyTorch.
///
/// Source: P. Micikevicius et al., "Mixed Precision Training", ICLR 2018; the initial scale and the
/// interval are close to the values of PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct LossScale {
    factor: f64,
    /// Finite steps until the scale grows; `None` if it is fixed.
    interval: Option<u64>,
    /// Finite steps since the scale changed.
    steps: u64,
}

/// The range of the scale.
const LEAST: f64 = 1.0 / 16_777_216.0;
const MOST: f64 = 16_777_216.0;

impl LossScale {
    /// Creates a scale that begins at 2^15, the largest power of two in f16, and is doubled after 2,000
    /// finite steps in a row.
    pub fn dynamic() -> Self {
        Self {
            factor: 32_768.0,
            interval: Some(2_000),
            steps: 0,
        }
    }

    /// Creates a fixed scale: the power of two nearest to `factor`; 1 if `factor` is not a positive
    /// number. A step whose gradients are not finite still changes nothing.
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

    /// Returns the scale, to be doubled after this many finite steps in a row (at least 1), and halved
    /// after a step that is not finite.
    pub fn growing_after(mut self, steps: u64) -> Self {
        self.interval = Some(steps.max(1));
        self
    }

    /// Returns the scale of the next step.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Returns the rule that decides the scales of later steps, without the current scale.
    pub(crate) fn rule(self) -> String {
        match self.interval {
            None => format!("{}, fixed", self.factor),
            Some(steps) => format!("doubled after {steps} finite steps"),
        }
    }

    /// Returns the number of finite steps in a row since the scale changed.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the scale with the factor and the count of an earlier run; a fixed one is unchanged.
    pub fn resumed(mut self, factor: f64, steps: u64) -> Self {
        if self.interval.is_some() {
            (self.factor, self.steps) = (Self::fixed(factor).factor, steps);
        }
        self
    }

    /// Updates the scale after a step.
    pub(crate) fn after_step(&mut self, finite: bool) {
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
