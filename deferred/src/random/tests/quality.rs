//! Moments and distributions of the values, with fixed seeds and stated thresholds.

use half::{bf16, f16};

use super::made;
use super::statistics::{
    KOLMOGOROV, KOLMOGOROV_LEAST, SIGMAS, check_counts, kolmogorov, kolmogorov_of_kinds, mean,
    upper_tail, variance,
};
use burn::tensor::Distribution;

use crate::random::{Domain, RandomElement, Seed, Stream};

const COUNT: usize = 400_000;

fn stream(owner: &str) -> Stream {
    Stream::new(Seed::new(2026), Domain::Init, owner, 0)
}

fn floats<T: RandomElement + Into<f64>>(owner: &str, distribution: Distribution) -> Vec<f64> {
    let values = made::<T>(&stream(owner), distribution, 0, COUNT);
    values.into_iter().map(Into::into).collect()
}

fn integers<T: RandomElement + TryInto<i128>>(name: &str, distribution: Distribution) -> Vec<i128> {
    let values = made::<T>(&stream(name), distribution, 0, COUNT);
    let values = values.into_iter().map(|x| x.try_into().ok());
    values.map(|x| x.expect("every integer fits")).collect()
}

fn check_moments(values: &[f64], expected_mean: f64, expected_variance: f64, kurtosis: f64) {
    let n = values.len() as f64;
    let mean_error = (mean(values) - expected_mean).abs() / (expected_variance / n).sqrt();
    // The variance of the sample variance is (kurtosis - 1) variance^2 / n.
    let variance_error = (variance(values) / expected_variance - 1.0).abs();
    let variance_error = variance_error / ((kurtosis - 1.0) / n).sqrt();
    for (what, error) in [("mean", mean_error), ("variance", variance_error)] {
        assert!(error < SIGMAS, "{what} is off by {error} standard errors");
    }
}

fn check_distance(name: &str, distance: f64) {
    assert!(distance < KOLMOGOROV, "{name}: {distance}");
    assert!(
        distance > KOLMOGOROV_LEAST,
        "{name}: {distance} is too even for random values"
    );
}

#[test]
fn uniform_floats_have_their_moments_and_distribution() {
    fn check<T: RandomElement + Into<f64>>(name: &str) {
        let values = floats::<T>(name, Distribution::Uniform(-2.0, 6.0));
        check_moments(&values, 2.0, 64.0 / 12.0, 1.8);
        check_distance(name, kolmogorov(values, |x| (x + 2.0) / 8.0));
    }
    for_types!(check: f32 f64);
}

#[test]
fn normal_floats_have_their_moments_and_distribution() {
    fn check<T: RandomElement + Into<f64>>(name: &str) {
        let values = floats::<T>(name, Distribution::Normal(1.0, 0.5));
        check_moments(&values, 1.0, 0.25, 3.0);
        let n = values.len() as f64;
        let moment = |power| {
            let powers = values.iter().map(|x| ((x - 1.0) / 0.5).powi(power));
            powers.sum::<f64>() / n
        };
        let skewness = moment(3).abs();
        assert!(skewness < SIGMAS * (15.0 / n).sqrt(), "{name}: skewness");
        let kurtosis = (moment(4) - 3.0).abs();
        assert!(kurtosis < SIGMAS * (96.0 / n).sqrt(), "{name}: kurtosis");
        let distance = kolmogorov(values, |x| 1.0 - upper_tail((x - 1.0) / 0.5));
        check_distance(name, distance);
    }
    for_types!(check: f32 f64);
}

/// The values are rounded to the nearest: a value represents all values up to the midpoint above it. The last
/// uniform value includes all above it, which changes the mean by less than 1e-4.
#[test]
fn sixteen_bit_floats_have_their_moments_and_distribution() {
    fn check<T: RandomElement + Into<f64>>(name: &str, next_up: impl Fn(f64) -> f64) {
        let middle = |x: f64| (x + next_up(x)) / 2.0;
        let normal = floats::<T>(name, Distribution::Normal(0.0, 1.0));
        check_moments(&normal, 0.0, 1.0, 3.0);
        let distance = kolmogorov_of_kinds(normal, |x| 1.0 - upper_tail(middle(x)));
        check_distance(name, distance);

        let uniform = floats::<T>(name, Distribution::Default);
        assert!((mean(&uniform) - 0.5).abs() < 1e-4 + SIGMAS * (1.0 / 12.0 / COUNT as f64).sqrt());
        assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)), "{name}");
        let highest = uniform.iter().copied().fold(0.0, f64::max);
        assert_eq!(next_up(highest), 1.0, "{name}: the last value comes up");
        let distance = kolmogorov_of_kinds(uniform, |x| if x == highest { 1.0 } else { middle(x) });
        check_distance(name, distance);
    }
    // Moves away from zero for negative values, whose neighbour towards zero is needed.
    let step = |x: f64, bits: u16| if x < 0.0 { bits - 1 } else { bits + 1 };
    let next_half = |x| f16::from_bits(step(x, f16::from_f64(x).to_bits())).to_f64();
    check::<f16>("f16", next_half);
    let next_brain = |x| bf16::from_bits(step(x, bf16::from_f64(x).to_bits())).to_f64();
    check::<bf16>("bf16", next_brain);
}

#[test]
fn bernoulli_has_its_probability_in_every_type() {
    fn check<T: RandomElement + PartialEq + From<u8>>(name: &str) {
        for p in [0.0, 0.001, 0.3, 0.9, 1.0] {
            let distribution = Distribution::Bernoulli(p);
            let values = made::<T>(&stream(name), distribution, 0, COUNT);
            let ones = values.iter().filter(|&x| *x == T::from(1)).count();
            let zeros = values.iter().filter(|&x| *x == T::from(0)).count();
            assert_eq!(ones + zeros, COUNT);
            let error = (ones as f64 / COUNT as f64 - p).abs();
            let allowed = SIGMAS * (p * (1.0 - p) / COUNT as f64).sqrt();
            assert!(error <= allowed, "{name} {p}: {error} of {allowed}");
        }
    }
    for_types!(check: f64 f32 f16 bf16 i64 i32 u16 u8);
}

#[test]
fn integers_are_even_over_a_range_and_over_their_type() {
    fn check<T: RandomElement + TryInto<i128>>(name: &str) {
        let mut counts = [0f64; 100];
        for value in integers::<T>(name, Distribution::Uniform(7.0, 107.0)) {
            counts[(value - 7) as usize] += 1.0;
        }
        check_counts(name, &counts, &[COUNT as f64 / 100.0; 100]);

        let all = integers::<T>(name, Distribution::Default);
        let bits = 8 * size_of::<T>();
        let is_signed = name.starts_with('i');
        let least = if is_signed { -(1i128 << (bits - 1)) } else { 0 };
        let values = (1i128 << bits) as f64;
        // One more for the probability of a value and all below it.
        let cdf = |x: f64| (x + 1.0) / values;
        let all = all.into_iter().map(|x| (x - least) as f64).collect();
        check_distance(name, kolmogorov_of_kinds(all, cdf));
    }
    for_types!(check: i64 u64 i32 u32 i16 u16 i8 u8);
}

/// Normal values are truncated towards zero: k means k to k + 1 above zero, and zero means -1 to 1.
#[test]
fn normal_integers_have_their_distribution() {
    fn check<T: RandomElement + TryInto<i128>>(name: &str, mean: f64) {
        const STD: f64 = 12.0;
        // Three deviations to each side; values beyond are counted with the ends.
        let (first, last) = (mean as i128 - 36, mean as i128 + 36);
        let below = |x: f64| 1.0 - upper_tail((x - mean) / STD);
        let upper_end = |k: i128| match k {
            _ if k == last => 1.0,
            0.. => below((k + 1) as f64),
            _ => below(k as f64),
        };
        let mut counts = vec![0f64; (last - first + 1) as usize];
        for value in integers::<T>(name, Distribution::Normal(mean, STD)) {
            counts[(value.clamp(first, last) - first) as usize] += 1.0;
        }
        let mut lower = 0.0;
        let mut expected = Vec::new();
        for k in first..=last {
            let upper = upper_end(k);
            expected.push((upper - lower) * COUNT as f64);
            lower = upper;
        }
        check_counts(name, &counts, &expected);
    }
    check::<i64>("i64", 5.0);
    check::<i32>("i32", -3.0);
    check::<i16>("i16", 0.0);
    check::<i8>("i8", 2.0);
    check::<u64>("u64", 100.0);
    check::<u32>("u32", 100.0);
    check::<u16>("u16", 100.0);
    check::<u8>("u8", 100.0);
}

#[test]
fn normal_integers_are_the_cut_values_and_saturate() {
    let stream = stream("cut");
    let normal = Distribution::Normal(40.0, 60.0);
    let exact = made::<f64>(&stream, normal, 0, 5_000);
    let wide = made::<i64>(&stream, normal, 0, 5_000);
    for (exact, wide) in exact.into_iter().zip(wide) {
        assert_eq!(wide, exact.trunc() as i64);
    }
    let words = made::<i32>(&stream, normal, 0, 5_000);
    let bytes = made::<i8>(&stream, normal, 0, 5_000);
    let reaches_end = words.iter().any(|&x| x > 127);
    assert!(reaches_end, "the test reaches the end of the range");
    for (word, byte) in words.into_iter().zip(bytes) {
        assert_eq!(i32::from(byte), word.clamp(-128, 127));
    }
}
