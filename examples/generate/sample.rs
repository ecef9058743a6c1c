//! The choice of a token from its scores.

/// Chooses tokens; the same seed and scores give the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// 0 chooses the token with the highest score.
    temperature: f32,
    /// The probability that the most likely tokens reach together, to which the choice is limited.
    top_p: f32,
    seed: u64,
    drawn: u64,
}

impl Sampler {
    pub fn new(temperature: f32, top_p: f32, seed: u64) -> Self {
        Self {
            temperature,
            top_p,
            seed,
            drawn: 0,
        }
    }

    /// Returns the index of the next token. Of equal scores, the first is the highest.
    pub fn choose(&mut self, scores: &[f32]) -> usize {
        if self.temperature <= 0.0 {
            return highest(scores);
        }
        let mut left = self.uniform() as f32;
        let probabilities = probabilities(scores, self.temperature);
        let candidates = most_likely(&probabilities, self.top_p);
        let total: f32 = candidates.iter().map(|index| probabilities[*index]).sum();
        left *= total;
        let chosen = candidates.iter().find(|index| {
            left -= probabilities[**index];
            left < 0.0
        });
        // Rounding may leave a rest after the last.
        *chosen.unwrap_or(&candidates[candidates.len() - 1])
    }

    /// A number from 0 to below 1.
    fn uniform(&mut self) -> f64 {
        self.drawn += 1;
        let bits = scramble(self.seed ^ scramble(self.drawn));
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn highest(scores: &[f32]) -> usize {
    let mut best = 0;
    for (index, score) in scores.iter().enumerate() {
        if score.total_cmp(&scores[best]).is_gt() {
            best = index;
        }
    }
    best
}

/// Returns the softmax of scores that are divided by a temperature.
pub fn probabilities(scores: &[f32], temperature: f32) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = scores
        .iter()
        .map(|score| ((score - max) / temperature).exp());
    let weights: Vec<f32> = weights.collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Returns the fewest tokens whose probabilities reach `top_p` together, the most likely first; all, in their own order,
/// if it is 1.
pub fn most_likely(probabilities: &[f32], top_p: f32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    if top_p >= 1.0 {
        return order;
    }
    order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
    let mut sum = 0.0;
    let enough = order.iter().position(|index| {
        sum += probabilities[*index];
        sum >= top_p
    });
    order.truncate(enough.map_or(order.len(), |last| last + 1));
    order
}

/// A number that looks random, from another: the finalizer of SplitMix64.
fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
