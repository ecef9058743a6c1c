//! The distributions, and the checks that are common to all element types.

use burn::tensor::Distribution;

use super::error::RandomError;

/// Checks that do not depend on the element type.
pub(super) fn check(distribution: Distribution) -> Result<(), RandomError> {
    match distribution {
        Distribution::Default => Ok(()),
        Distribution::Bernoulli(probability) => {
            if (0.0..=1.0).contains(&probability) {
                Ok(())
            } else {
                Err(RandomError::Probability { probability })
            }
        }
        Distribution::Uniform(low, high) => {
            finite("low", low)?;
            finite("high", high)?;
            if low > high {
                return Err(RandomError::ReversedBounds { low, high });
            }
            Ok(())
        }
        Distribution::Normal(mean, std) => {
            finite("mean", mean)?;
            finite("standard deviation", std)?;
            if std < 0.0 {
                return Err(RandomError::NegativeStd { std });
            }
            Ok(())
        }
    }
}

fn finite(parameter: &'static str, value: f64) -> Result<(), RandomError> {
    if value.is_finite() {
        Ok(())
    } else {
        Err(RandomError::NotFinite { parameter, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_parameters_pass() {
        for distribution in [
            Distribution::Default,
            Distribution::Bernoulli(0.0),
            Distribution::Bernoulli(1.0),
            Distribution::Uniform(2.0, 2.0),
            Distribution::Uniform(f64::MIN, f64::MAX),
            Distribution::Normal(-1.0, 0.0),
        ] {
            assert_eq!(check(distribution), Ok(()), "{distribution:?}");
        }
    }

    #[test]
    fn bad_parameters_are_named() {
        let check_message = |distribution, expected: &str| {
            let error = check(distribution).expect_err("the parameters are invalid");
            assert_eq!(error.to_string(), expected);
        };
        check_message(
            Distribution::Bernoulli(f64::NAN),
            "probability NaN of the bernoulli distribution is not within 0 to 1",
        );
        check_message(
            Distribution::Bernoulli(1.5),
            "probability 1.5 of the bernoulli distribution is not within 0 to 1",
        );
        check_message(
            Distribution::Bernoulli(-0.1),
            "probability -0.1 of the bernoulli distribution is not within 0 to 1",
        );
        check_message(
            Distribution::Uniform(f64::NAN, 1.0),
            "low of the random distribution is NaN, it must be finite",
        );
        check_message(
            Distribution::Uniform(0.0, f64::INFINITY),
            "high of the random distribution is inf, it must be finite",
        );
        check_message(
            Distribution::Uniform(1.0, 0.5),
            "low 1 of the uniform distribution is above high 0.5",
        );
        check_message(
            Distribution::Normal(f64::NEG_INFINITY, 1.0),
            "mean of the random distribution is -inf, it must be finite",
        );
        check_message(
            Distribution::Normal(0.0, f64::NAN),
            "standard deviation of the random distribution is NaN, it must be finite",
        );
        check_message(
            Distribution::Normal(0.0, -1.0),
            "standard deviation -1 of the normal distribution is negative",
        );
    }
}
