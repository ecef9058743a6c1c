//! Independence of elements, operations and seeds, with fixed seeds and stated thresholds.

use burn::tensor::Distribution;

use super::made;
use super::statistics::{KOLMOGOROV, SIGMAS, correlation, kolmogorov};
use crate::random::{Domain, RandomElement, Seed, Stream};

const COUNT: usize = 400_000;
const NORMAL: Distribution = Distribution::Normal(0.0, 1.0);
const UNIFORM: Distribution = Distribution::Uniform(-1.0, 1.0);

fn base() -> Stream {
    Stream::new(Seed::new(2026), Domain::Init, "base", 0)
}

fn values<T: RandomElement + Into<f64>>(stream: &Stream, distribution: Distribution) -> Vec<f64> {
    let values = made::<T>(stream, distribution, 0, COUNT);
    values.into_iter().map(Into::into).collect()
}

/// Checks that both series have mean zero and no correlation, and neither have their squares: the two normal
/// values of a pair share their radius.
fn check(name: &str, a: &[f64], b: &[f64]) {
    let allowed = SIGMAS / (a.len().min(b.len()) as f64).sqrt();
    let linear = correlation(a, b);
    assert!(linear.abs() < allowed, "{name}: {linear}");
    let squares = |values: &[f64]| values.iter().map(|x| x * x).collect::<Vec<_>>();
    let square = correlation(&squares(a), &squares(b));
    assert!(square.abs() < allowed, "{name}, squares: {square}");
}

#[test]
fn elements_are_uncorrelated() {
    fn check_type<T: RandomElement + Into<f64>>(name: &str) {
        for distribution in [NORMAL, UNIFORM] {
            let all = values::<T>(&base(), distribution);
            // Neighbours within a block and a chunk, in the next chunk, and far away.
            for distance in [1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 128, 1024, 65_536] {
                let context = format!("{name} {distribution:?} distance {distance}");
                check(&context, &all[distance..], &all[..COUNT - distance]);
            }
        }
    }
    for_types!(check_type: f32 f64);
}

#[test]
fn operations_and_seeds_are_uncorrelated() {
    let named = |seed, domain, owner, draw| Stream::new(Seed::new(seed), domain, owner, draw);
    let other_bit = 2026 ^ (1 << 63);
    let others = [
        ("owner", named(2026, Domain::Init, "basf", 0)),
        ("draw", named(2026, Domain::Init, "base", 1)),
        ("domain", named(2026, Domain::Forward, "base", 0)),
        ("next seed", named(2027, Domain::Init, "base", 0)),
        ("seed of one bit", named(other_bit, Domain::Init, "base", 0)),
        ("step", base().at(1, 0)),
        ("micro-batch", base().at(0, 1)),
    ];
    for distribution in [NORMAL, UNIFORM] {
        let first = values::<f32>(&base(), distribution);
        for (name, other) in &others {
            check(name, &first, &values::<f32>(other, distribution));
        }
    }
}

/// One element of very many streams is as random as very many elements of one, although the streams differ in a single
/// number.
#[test]
fn consecutive_streams_are_a_random_series() {
    const STREAMS: u32 = 100_000;
    let named = |seed, owner: &str, draw| Stream::new(Seed::new(seed), Domain::Init, owner, draw);
    let check_series = |name: &str, stream: &dyn Fn(u32) -> Stream| {
        let series = (0..STREAMS).map(|i| f64::from(made::<f32>(&stream(i), UNIFORM, 5, 1)[0]));
        let series: Vec<f64> = series.collect();
        for distance in [1, 2, 256] {
            let context = format!("{name}, distance {distance}");
            let end = series.len() - distance;
            check(&context, &series[distance..], &series[..end]);
        }
        let distance = kolmogorov(series, |x| (x + 1.0) / 2.0);
        assert!(distance < KOLMOGOROV, "{name}: {distance}");
    };
    check_series("seeds", &|i| named(u64::from(i), "weight", 0));
    check_series("draws", &|i| named(7, "weight", u64::from(i)));
    check_series("owners", &|i| named(7, &format!("layers.{i}.weight"), 0));
    check_series("steps", &|i| named(7, "weight", 0).at(i, 0));
    check_series("micro-batches", &|i| named(7, "weight", 0).at(0, i));
}
