//! The choice of a token from its scores.

use crate::error::GenerateError;

/// Chooses tokens from their scores: the token with the highest score, or one that is drawn from the probabilities.
///
/// The same seed and the same scores give the same tokens. The `n`-th draw is a number from 0 to below 1 that depends only on
/// seed and `n`. The drawn token is the first token at which the sum of the probabilities exceeds this number. The tokens are
/// in their own order, or, with [`top_k`](Self::top_k) or [`top_p`](Self::top_p), the most likely token is first.
///
/// ```
/// use tinderbox::Sampler;
///
/// let scores = [1.0, -0.5, 2.0, 0.3];
/// assert_eq!(Sampler::greedy().choose(&scores)?, 2);
/// let draws = |seed| {
///     let mut sampler = Sampler::new(seed).temperature(0.8).top_k(3).top_p(0.95);
///     (0..20).map(|_| sampler.choose(&scores)).collect::<Result<Vec<_>, _>>()
/// };
/// assert_eq!(draws(7)?, draws(7)?);
/// assert_ne!(draws(7)?, draws(8)?);
/// # Ok::<(), tinderbox::error::GenerateError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Sampler {
    temperature: f32,
    top_k: Option<usize>,
    top_p: f32,
    seed: u64,
    drawn: u64,
}

impl Sampler {
    /// Chooses the token with the highest score, and the first of equal scores.
    pub fn greedy() -> Self {
        Self::new(0).temperature(0.0)
    }

    /// Draws tokens from the softmax of their scores.
    pub fn new(seed: u64) -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            seed,
            drawn: 0,
        }
    }

    /// Sets the number by which scores are divided before the softmax, at least 0. 0 chooses the highest score. Default: 1.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.temperature = temperature;
        self
    }

    /// Draws only from this number of tokens with the highest scores, at least 1. Default: from all.
    pub fn top_k(mut self, count: usize) -> Self {
        self.top_k = Some(count);
        self
    }

    /// Draws from the fewest tokens that have this probability together, above 0 and at most 1. With [`top_k`](Self::top_k),
    /// this is a fraction of the probability of the remaining tokens. Default: 1, from all.
    pub fn top_p(mut self, probability: f32) -> Self {
        self.top_p = probability;
        self
    }

    /// Refuses settings that are out of their range.
    pub(super) fn check(&self) -> Result<(), GenerateError> {
        let Self {
            temperature, top_p, ..
        } = *self;
        let wrong = |name, value: String, expected| {
            Err(GenerateError::Setting {
                name,
                value,
                expected,
            })
        };
        if !(temperature >= 0.0 && temperature.is_finite()) {
            let expected = "a finite number of at least 0";
            return wrong("temperature", temperature.to_string(), expected);
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return wrong("top_p", top_p.to_string(), "a number above 0 and at most 1");
        }
        match self.top_k {
            Some(0) => wrong("top_k", "0".to_owned(), "at least 1"),
            _ => Ok(()),
        }
    }

    /// Returns the index of the next token.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is out of its range, a score is NaN, or no score is above minus infinity.
    pub fn choose(&mut self, scores: &[f32]) -> Result<usize, GenerateError> {
        self.check()?;
        if let Some(token) = scores.iter().position(|score| score.is_nan()) {
            return Err(GenerateError::NotANumber { token });
        }
        let highest = Some(highest(scores)).filter(|score| *score > f32::NEG_INFINITY);
        let best = scores.iter().position(|score| Some(*score) == highest);
        let best = best.ok_or(GenerateError::NoToken)?;
        if self.temperature == 0.0 {
            return Ok(best);
        }
        let mut left = self.uniform() as f32;
        let probabilities = probabilities(scores, self.temperature);
        let candidates = self.candidates(&probabilities);
        let total: f32 = candidates.iter().map(|index| probabilities[*index]).sum();
        left *= total;
        let chosen = candidates.iter().find(|index| {
            left -= probabilities[**index];
            left < 0.0
        });
        // Rounding may leave a rest after the last token; a token that is ruled out has the probability 0.
        let mut likely = candidates
            .iter()
            .rev()
            .filter(|index| probabilities[**index] > 0.0);
        Ok(*chosen.or_else(|| likely.next()).unwrap_or(&best))
    }

    /// Returns the tokens from which one is drawn.
    fn candidates(&self, probabilities: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..probabilities.len()).collect();
        let count = self.top_k.unwrap_or(order.len()).min(order.len());
        if count == order.len() && self.top_p >= 1.0 {
            return order;
        }
        order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
        let mut reached = self.top_p;
        if count < order.len() {
            order.truncate(count);
            reached *= order.iter().map(|index| probabilities[*index]).sum::<f32>();
        }
        if self.top_p < 1.0 {
            let mut sum = 0.0;
            let enough = order.iter().position(|index| {
                sum += probabilities[*index];
                sum >= reached
            });
            order.truncate(enough.map_or(order.len(), |last| last + 1));
        }
        order
    }

    /// Draws a number from 0 to below 1.
    fn uniform(&mut self) -> f64 {
        self.drawn += 1;
        let bits = scramble(self.seed ^ scramble(self.drawn));
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns the highest score.
fn highest(scores: &[f32]) -> f32 {
    scores.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Returns the softmax of scores that are divided by a temperature.
fn probabilities(scores: &[f32], temperature: f32) -> Vec<f32> {
    let max = highest(scores);
    let weights = scores
        .iter()
        .map(|score| ((score - max) / temperature).exp());
    let weights: Vec<f32> = weights.collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Mixes 64 bits (the finalizer of SplitMix64): equal inputs have equal, pseudorandom outputs.
fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f32; 6] = [1.0, -0.5, 2.0, 0.3, 1.9, -3.0];

    /// The definition of a softmax, in f64.
    fn defined(temperature: f64) -> Vec<f64> {
        let weights = SCORES.map(|score| (f64::from(score) / temperature).exp());
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// The smallest set of tokens with a fraction of at least `p` of the probability of `among`, and the most likely of several
    /// such sets, found among all sets.
    fn smallest(probabilities: &[f64], among: &[usize], p: f64) -> Vec<usize> {
        let all: f64 = among.iter().map(|token| probabilities[*token]).sum();
        let of = |set: u32| among.iter().copied().filter(move |t| set & (1 << t) != 0);
        let sum = |set: u32| of(set).map(|token| probabilities[token]).sum::<f64>();
        let sets = (1..1_u32 << SCORES.len()).filter(|set| {
            let is_among = of(*set).count() == set.count_ones() as usize;
            is_among && sum(*set) >= p * all
        });
        let best = sets.min_by(|a, b| {
            let sizes = a.count_ones().cmp(&b.count_ones());
            sizes.then(sum(*b).total_cmp(&sum(*a)))
        });
        best.map_or_else(|| among.to_vec(), |set| of(set).collect())
    }

    /// The tokens with the highest scores, in their own order.
    fn best(count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..SCORES.len()).collect();
        order.sort_by(|a, b| SCORES[*b].total_cmp(&SCORES[*a]));
        order.truncate(count);
        order.sort_unstable();
        order
    }

    #[test]
    fn the_fewest_tokens_that_reach_a_probability_are_kept() {
        for temperature in [0.3, 1.0, 2.5] {
            let expected = defined(temperature);
            let found = probabilities(&SCORES, temperature as f32);
            for (found, expected) in found.iter().zip(&expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-6);
            }
            for count in 1..=SCORES.len() {
                for percent in (1..=100).step_by(3) {
                    let p = f64::from(percent) / 100.0;
                    let sampler = Sampler::new(0).top_k(count).top_p(p as f32);
                    let mut kept = sampler.candidates(&found);
                    kept.sort_unstable();
                    assert_eq!(
                        kept,
                        smallest(&expected, &best(count), p),
                        "{p} of {count} at temperature {temperature}"
                    );
                }
            }
        }
    }

    #[test]
    fn tokens_are_drawn_with_their_probabilities() {
        const DRAWS: usize = 40_000;
        for (temperature, top_k, top_p) in [
            (1.0, 6, 1.0),
            (0.6, 6, 0.9),
            (2.0, 6, 0.7),
            (1.0, 6, 0.01),
            (1.0, 3, 1.0),
            (2.0, 4, 0.8),
            (0.7, 1, 1.0),
        ] {
            let whole = defined(f64::from(temperature));
            let kept = smallest(&whole, &best(top_k), f64::from(top_p));
            let total: f64 = kept.iter().map(|token| whole[*token]).sum();
            let sampler = Sampler::new(3).temperature(temperature);
            let mut sampler = sampler.top_k(top_k).top_p(top_p);
            let mut counts = [0; SCORES.len()];
            for _ in 0..DRAWS {
                counts[sampler.choose(&SCORES).unwrap()] += 1;
            }
            for (token, count) in counts.into_iter().enumerate() {
                let p = match kept.contains(&token) {
                    true => whole[token] / total,
                    false => 0.0,
                };
                let deviation = (p * (1.0 - p) * DRAWS as f64).sqrt();
                let apart = (f64::from(count) - p * DRAWS as f64).abs();
                assert!(
                    apart <= 4.5 * deviation,
                    "token {token} of {temperature}, {top_k}, {top_p}: {count}"
                );
            }
        }
    }

    /// A temperature of 0 draws nothing: filters and seed change nothing.
    #[test]
    fn a_temperature_of_0_chooses_the_first_of_the_highest_scores() {
        for mut sampler in [
            Sampler::greedy(),
            Sampler::new(9).temperature(0.0).top_k(2).top_p(0.3),
        ] {
            assert_eq!(sampler.choose(&SCORES).unwrap(), 2);
            assert_eq!(sampler.choose(&[1.0, 3.0, 3.0]).unwrap(), 1);
            assert_eq!(sampler.choose(&[f32::NEG_INFINITY, -7.0]).unwrap(), 1);
            assert_eq!(sampler.drawn, 0);
        }
    }

    #[test]
    fn draws_depend_on_the_seed_and_their_number_alone() {
        let draws = |seed, scores: [f32; 6]| {
            let mut sampler = Sampler::new(seed).temperature(1.5);
            let drawn = (0..64).map(|_| sampler.choose(&scores).unwrap());
            drawn.collect::<Vec<_>>()
        };
        assert_eq!(draws(7, SCORES), draws(7, SCORES));
        assert_ne!(draws(7, SCORES), draws(8, SCORES));
        // The softmax of shifted scores is the same: these are exact in f32.
        assert_eq!(draws(7, [0.5; 6]), draws(7, [4.5; 6]));
        // A clone continues with the same draws.
        let mut sampler = Sampler::new(1);
        sampler.choose(&SCORES).unwrap();
        let mut again = sampler.clone();
        for _ in 0..20 {
            let found = again.choose(&SCORES).unwrap();
            assert_eq!(found, sampler.choose(&SCORES).unwrap());
        }
    }

    #[test]
    fn wrong_settings_and_scores_are_refused() {
        let refused = |mut sampler: Sampler, scores: &[f32]| {
            let error = sampler.choose(scores).unwrap_err();
            error.to_string()
        };
        let drawing = Sampler::new(0);
        for (sampler, scores, expected) in [
            (
                drawing.clone().temperature(-1.0),
                &SCORES[..],
                "`temperature` of the sampler is -1: expected a finite number of at least 0",
            ),
            (
                drawing.clone().top_p(1.5),
                &SCORES,
                "`top_p` of the sampler is 1.5: expected a number above 0 and at most 1",
            ),
            (
                drawing.clone().top_k(0),
                &SCORES,
                "`top_k` of the sampler is 0: expected at least 1",
            ),
            (
                drawing.clone(),
                &[0.0, f32::NAN],
                "the score of token 1 is NaN: the model or its inputs have a value that is not finite",
            ),
            (
                drawing,
                &[f32::NEG_INFINITY],
                "no token has a score above minus infinity, so none can be chosen",
            ),
            (
                Sampler::greedy(),
                &[],
                "no token has a score above minus infinity, so none can be chosen",
            ),
        ] {
            assert_eq!(refused(sampler, scores), expected);
        }
    }
}
