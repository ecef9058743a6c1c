//! Statistics of the values, with fixed seeds: each bound is what a perfect generator would pass but
//! for about one seed in a million (five standard errors), unless stated otherwise.

use half::{bf16, f16};

use super::made;
use burn::tensor::Distribution;

use crate::random::{Domain, RandomElement, Seed, Stream};

const COUNT: usize = 400_000;
/// Five standard errors.
const SIGMAS: f64 = 5.0;
/// The Kolmogorov-Smirnov statistic times sqrt(n) passes this once in a million:
/// `2 exp(-2 x^2) = 1e-6`.
const KOLMOGOROV: f64 = 2.69;

fn stream(owner: &str) -> Stream {
    Stream::new(Seed::new(2026), Domain::Init, owner, 0)
}

fn floats<T: RandomElement + Into<f64>>(owner: &str, distribution: Distribution) -> Vec<f64> {
    let values = made::<T>(&stream(owner), distribution, 0, COUNT);
    values.into_iter().map(Into::into).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (mean_a, mean_b) = (mean(a), mean(b));
    let products = a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b));
    products.sum::<f64>() / a.len().min(b.len()) as f64 / (variance(a) * variance(b)).sqrt()
}

/// The upper tail of the standard normal distribution, relative error below 1e-12.
///
/// The integral of the density by the continued fraction of Laplace where it converges fast, by the
/// power series of the lower part else (Abramowitz and Stegun 26.2.14 and 26.2.11).
fn upper_tail(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    if x < 0.0 {
        return 1.0 - upper_tail(-x);
    }
    if x < 2.5 {
        let (mut term, mut sum) = (x, x);
        for k in 1..60 {
            term *= x * x / f64::from(2 * k + 1);
            sum += term;
        }
        return 0.5 - density * sum;
    }
    let fraction = (1..120).rev().fold(x, |rest, k| x + f64::from(k) / rest);
    density / fraction
}

#[test]
fn the_reference_distribution_has_the_values_of_the_tables() {
    let check = |x, expected: f64| {
        let error = (upper_tail(x) - expected).abs() / expected;
        assert!(error < 1e-9, "{x}: {error:e}");
    };
    check(0.0, 0.5);
    check(1.0, 0.158_655_253_931_457_05);
    check(-1.0, 0.841_344_746_068_542_9);
    check(2.0, 0.022_750_131_948_179_21);
    check(3.0, 1.349_898_031_630_094_6e-3);
    check(5.0, 2.866_515_718_791_939e-7);
}

/// The largest distance between the empirical and the exact distribution, times sqrt(n).
fn kolmogorov(mut values: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len() as f64;
    let mut worst = 0f64;
    for (i, &x) in values.iter().enumerate() {
        let exact = cdf(x);
        worst = worst.max(((i + 1) as f64 / n - exact).abs());
        worst = worst.max((i as f64 / n - exact).abs());
    }
    worst * n.sqrt()
}

fn check_moments(values: &[f64], expected_mean: f64, expected_variance: f64, kurtosis: f64) {
    let n = values.len() as f64;
    let mean_error = (mean(values) - expected_mean).abs() / (expected_variance / n).sqrt();
    assert!(
        mean_error < SIGMAS,
        "mean is off by {mean_error} standard errors"
    );
    // The variance of the sample variance is (kurtosis - 1) variance^2 / n.
    let variance_error = (variance(values) / expected_variance - 1.0).abs();
    let variance_error = variance_error / ((kurtosis - 1.0) / n).sqrt();
    assert!(
        variance_error < SIGMAS,
        "variance is off by {variance_error} standard errors"
    );
}

#[test]
fn uniform_floats_have_their_moments_and_distribution() {
    fn check<T: RandomElement + Into<f64>>(name: &str) {
        let values = floats::<T>(name, Distribution::Uniform(-2.0, 6.0));
        check_moments(&values, 2.0, 64.0 / 12.0, 1.8);
        let distance = kolmogorov(values, |x| (x + 2.0) / 8.0);
        assert!(distance < KOLMOGOROV, "{name}: {distance}");
        assert!(
            distance > 0.2,
            "{name}: {distance} is too even for random values"
        );
    }
    check::<f32>("f32");
    check::<f64>("f64");
}

#[test]
fn normal_floats_have_their_moments_and_distribution() {
    fn check<T: RandomElement + Into<f64>>(name: &str) {
        let values = floats::<T>(name, Distribution::Normal(1.0, 0.5));
        check_moments(&values, 1.0, 0.25, 3.0);
        let n = values.len() as f64;
        let cubes: f64 = values.iter().map(|x| ((x - 1.0) / 0.5).powi(3)).sum();
        assert!(
            (cubes / n).abs() < SIGMAS * (15.0 / n).sqrt(),
            "{name}: skewness"
        );
        let fourth: f64 = values.iter().map(|x| ((x - 1.0) / 0.5).powi(4)).sum();
        assert!(
            (fourth / n - 3.0).abs() < SIGMAS * (96.0 / n).sqrt(),
            "{name}: kurtosis"
        );
        let distance = kolmogorov(values, |x| 1.0 - upper_tail((x - 1.0) / 0.5));
        assert!(distance < KOLMOGOROV, "{name}: {distance}");
        assert!(
            distance > 0.2,
            "{name}: {distance} is too even for random values"
        );
    }
    check::<f32>("f32");
    check::<f64>("f64");
}

/// The rounding of 16-bit floats is unbiased for normal values; for uniform values the last step
/// below the bound takes what would round to the bound, which moves the mean by less than 1e-4.
#[test]
fn sixteen_bit_floats_have_their_moments() {
    fn check<T: RandomElement + Into<f64>>(name: &str) {
        let normal = floats::<T>(name, Distribution::Normal(0.0, 1.0));
        check_moments(&normal, 0.0, 1.0, 3.0);
        let uniform = floats::<T>(name, Distribution::Default);
        assert!((mean(&uniform) - 0.5).abs() < 1e-4 + SIGMAS * (1.0 / 12.0 / COUNT as f64).sqrt());
        assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)), "{name}");
        let highest = uniform.iter().copied().fold(0.0, f64::max);
        assert!(highest > 0.99, "{name}: {highest}");
    }
    check::<f16>("f16");
    check::<bf16>("bf16");
}

#[test]
fn bernoulli_has_its_probability_in_every_type() {
    fn check<T: RandomElement + PartialEq + From<u8>>(name: &str) {
        for probability in [0.0, 0.001, 0.3, 0.9, 1.0] {
            let values = made::<T>(
                &stream(name),
                Distribution::Bernoulli(probability),
                0,
                COUNT,
            );
            let ones = values.iter().filter(|&x| *x == T::from(1)).count();
            let zeros = values.iter().filter(|&x| *x == T::from(0)).count();
            assert_eq!(ones + zeros, COUNT);
            let error = (ones as f64 / COUNT as f64 - probability).abs();
            let allowed = SIGMAS * (probability * (1.0 - probability) / COUNT as f64).sqrt();
            assert!(
                error <= allowed,
                "{name} {probability}: {error} of {allowed}"
            );
        }
    }
    check::<f64>("f64");
    check::<f32>("f32");
    check::<f16>("f16");
    check::<bf16>("bf16");
    check::<i64>("i64");
    check::<i32>("i32");
    check::<u16>("u16");
    check::<u8>("u8");
}

#[test]
fn integers_are_even_over_their_range() {
    // Chi-square with 99 degrees of freedom: mean 99, standard deviation 14; the upper tail is
    // heavier than normal, six deviations are about one in a million.
    fn check<T: RandomElement + TryInto<i64>>(name: &str) {
        let values = made::<T>(&stream(name), Distribution::Uniform(7.0, 107.0), 0, COUNT);
        let mut counts = [0f64; 100];
        for value in values {
            let value = value.try_into().ok().expect("at most 106");
            counts[(value - 7) as usize] += 1.0;
        }
        let expected = COUNT as f64 / 100.0;
        let terms = counts.iter().map(|c| (c - expected).powi(2) / expected);
        let chi_square: f64 = terms.sum();
        assert!((40.0..185.0).contains(&chi_square), "{name}: {chi_square}");
    }
    check::<i64>("i64");
    check::<u64>("u64");
    check::<i32>("i32");
    check::<u32>("u32");
    check::<i16>("i16");
    check::<u16>("u16");
    check::<i8>("i8");
    check::<u8>("u8");
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
    assert!(
        words.iter().any(|&x| x > 127),
        "the test reaches the end of the range"
    );
    for (word, byte) in words.into_iter().zip(bytes) {
        assert_eq!(i32::from(byte), word.clamp(-128, 127));
    }
}

#[test]
fn neighbours_streams_and_seeds_are_uncorrelated() {
    let normal = Distribution::Normal(0.0, 1.0);
    let base = stream("base");
    let values = |stream: Stream| -> Vec<f64> {
        let values = made::<f32>(&stream, normal, 0, COUNT);
        values.into_iter().map(f64::from).collect()
    };
    let first = values(base);
    let allowed = SIGMAS / (COUNT as f64).sqrt();
    let check = |name: &str, a: &[f64], b: &[f64]| {
        let linear = correlation(a, b);
        assert!(linear.abs() < allowed, "{name}: {linear}");
        // The two values of a pair share their radius: their sizes must be independent too.
        let squares = |values: &[f64]| values.iter().map(|x| x * x).collect::<Vec<_>>();
        let square = correlation(&squares(a), &squares(b));
        assert!(square.abs() < allowed, "{name}, squares: {square}");
    };
    for distance in [1, 2, 3, 4, 5, 64, 1024] {
        check(&format!("distance {distance}"), &first[distance..], &first);
    }
    let others = [
        ("owner", stream("basf")),
        (
            "draw",
            Stream::new(Seed::new(2026), Domain::Init, "base", 1),
        ),
        (
            "domain",
            Stream::new(Seed::new(2026), Domain::Forward, "base", 0),
        ),
        (
            "seed",
            Stream::new(Seed::new(2027), Domain::Init, "base", 0),
        ),
        ("step", base.at(1, 0)),
        ("micro-batch", base.at(0, 1)),
    ];
    for (name, other) in others {
        check(name, &first, &values(other));
    }
    // The measure itself: a value is fully correlated with itself.
    assert!(correlation(&first, &first) > 0.999);
}

/// Counts beyond k sigma in 2^25 values: what is expected is about 90 400, 2 126, 19.2 and 0.066.
#[test]
fn the_tails_are_filled_beyond_five_sigma() {
    const PIECE: usize = 1 << 16;
    const PIECES: u64 = 1 << 9;
    let stream = stream("tails");
    let mut beyond = [[0f64; 2]; 4];
    for piece in 0..PIECES {
        let first = piece * PIECE as u64;
        for z in made::<f32>(&stream, Distribution::Normal(0.0, 1.0), first, PIECE) {
            if z.abs() > 3.0 {
                let side = usize::from(z > 0.0);
                for (k, sides) in beyond.iter_mut().enumerate() {
                    sides[side] += f64::from(u8::from(z.abs() > 3.0 + k as f32));
                }
            }
        }
    }
    for (k, sides) in beyond.iter().enumerate() {
        let expected = PIECES as f64 * PIECE as f64 * upper_tail(3.0 + k as f64);
        for count in sides {
            // A Poisson count; for small expectations the margin is widened by its skewness.
            let allowed = SIGMAS * expected.sqrt() + 4.0;
            assert!(
                (count - expected).abs() < allowed,
                "beyond {} sigma: {count} of {expected}",
                k + 3
            );
        }
    }
    let beyond_five = beyond[2][0] + beyond[2][1];
    assert!(beyond_five >= 2.0, "{beyond_five} values beyond 5 sigma");
}
