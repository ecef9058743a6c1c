//! Statistics that the tests of quality share.

/// Five standard errors: a perfect generator fails for about one seed in a million.
pub(super) const SIGMAS: f64 = 5.0;
/// The Kolmogorov-Smirnov statistic times sqrt(n) exceeds this once in a million:
/// `2 exp(-2 x^2) = 1e-6`.
pub(super) const KOLMOGOROV: f64 = 2.69;
/// The statistic is below this about as rarely: such values are too even to be random.
pub(super) const KOLMOGOROV_LEAST: f64 = 0.2;

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub(super) fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64
}

pub(super) fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (mean_a, mean_b) = (mean(a), mean(b));
    let products = a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b));
    products.sum::<f64>() / a.len().min(b.len()) as f64 / (variance(a) * variance(b)).sqrt()
}

/// The upper tail of the standard normal distribution, relative error below 1e-12.
///
/// The integral of the density by the continued fraction of Laplace where it converges fast, else by the
/// power series of the lower part (Abramowitz and Stegun 26.2.14 and 26.2.11).
pub(super) fn upper_tail(x: f64) -> f64 {
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

/// The largest distance between the empirical and the exact distribution, times sqrt(n).
pub(super) fn kolmogorov(mut values: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
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

/// Returns the statistic of discrete values, compared after each value: `cdf` is the probability of that value and all
/// values below it.
pub(super) fn kolmogorov_of_kinds(mut values: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len() as f64;
    let mut seen = 0;
    let mut worst = 0f64;
    for kind in values.chunk_by(|a, b| a == b) {
        seen += kind.len();
        worst = worst.max((seen as f64 / n - cdf(kind[0])).abs());
    }
    worst * n.sqrt()
}

/// Asserts that chi-square is likely: counts against the expected ones, each at least about ten.
///
/// Its mean is the number of degrees of freedom, its variance twice that. The upper tail is heavier
/// than normal, so the bound is six deviations, about one in a million.
pub(super) fn check_counts(name: &str, counts: &[f64], expected: &[f64]) {
    assert_eq!(counts.len(), expected.len());
    let terms = counts.iter().zip(expected);
    let chi_square: f64 = terms.map(|(c, e)| (c - e).powi(2) / e).sum();
    let degrees = (counts.len() - 1) as f64;
    let allowed = 6.0 * (2.0 * degrees).sqrt();
    assert!(
        (chi_square - degrees).abs() < allowed,
        "{name}: chi-square {chi_square} for {degrees} degrees of freedom"
    );
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

#[test]
fn the_measures_detect_faults() {
    let ramp: Vec<f64> = (0..10_000).map(|i| f64::from(i) / 10_000.0).collect();
    assert!(correlation(&ramp, &ramp) > 0.999);
    let uniform = |x: f64| x.clamp(0.0, 1.0);
    assert!(kolmogorov(ramp.clone(), uniform) < KOLMOGOROV_LEAST);
    let shifted: Vec<f64> = ramp.iter().map(|x| x + 0.05).collect();
    assert!(kolmogorov(shifted.clone(), uniform) > KOLMOGOROV);
    assert!(kolmogorov_of_kinds(shifted, uniform) > KOLMOGOROV);
    let uneven = std::panic::catch_unwind(|| check_counts("", &[180.0, 20.0], &[100.0, 100.0]));
    assert!(uneven.is_err());
}
