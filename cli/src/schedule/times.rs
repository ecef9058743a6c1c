//! Parsing of `--times`.

use std::str::FromStr;

use tinderbox_schedule::ComputeTimes;

/// `F,I,W` in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times(pub(crate) ComputeTimes);

impl FromStr for Times {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u64>, _> =
            text.split(',').map(|part| part.trim().parse()).collect();
        match numbers.as_deref() {
            Ok(&[forward, input_gradient, weight_gradient]) => Ok(Self(ComputeTimes {
                forward,
                input_gradient,
                weight_gradient,
            })),
            _ => Err("expected three whole numbers: ticks of F, I and W, such as 2,2,1".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers() {
        let Times(times) = " 3, 2,1".parse().unwrap();
        let found = (times.forward, times.input_gradient, times.weight_gradient);
        assert_eq!(found, (3, 2, 1));
        for wrong in ["", "1", "1,2", "1,2,3,4", "1,2,x", "1,2,-3"] {
            assert!(wrong.parse::<Times>().is_err(), "{wrong}");
        }
    }
}
