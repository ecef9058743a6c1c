//! The tails of the normal distribution, to beyond 5 sigma.

use burn::tensor::Distribution;

use super::statistics::{SIGMAS, upper_tail};
use super::{made, scalar};
use crate::random::{Domain, RandomElement, Seed, Stream, normal_f64};

/// Counts beyond 3, 4, 5 and 6 sigma, on each side, in `pieces` times 2^16 values.
fn beyond<T: RandomElement + Into<f64>>(pieces: u64) -> [[f64; 2]; 4] {
    const PIECE: usize = 1 << 16;
    let stream = Stream::new(Seed::new(2026), Domain::Init, "tails", 0);
    let mut beyond = [[0f64; 2]; 4];
    for piece in 0..pieces {
        let first = piece * PIECE as u64;
        for z in made::<T>(&stream, Distribution::Normal(0.0, 1.0), first, PIECE) {
            let z: f64 = z.into();
            if z.abs() > 3.0 {
                let side = usize::from(z > 0.0);
                for (k, sides) in beyond.iter_mut().enumerate() {
                    sides[side] += f64::from(u8::from(z.abs() > 3.0 + k as f64));
                }
            }
        }
    }
    let values = pieces as f64 * PIECE as f64;
    for (k, sides) in beyond.iter().enumerate() {
        let expected = values * upper_tail(3.0 + k as f64);
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
    beyond
}

/// In 2^25 values of `f32`, about 90 400, 2 126, 19.2 and 0.066 are expected beyond 3, 4, 5 and 6.
#[test]
fn samples_fill_the_tails_beyond_five_sigma() {
    let [_, _, [below, above], _] = beyond::<f32>(1 << 9);
    // Fewer than 4 or more than 45 occur once in 100 000 seeds.
    assert!((4.0..45.0).contains(&(below + above)), "{below} {above}");
    beyond::<f64>(1 << 6);
}

/// The probability that a normal value exceeds `bound`, summed over all radius words instead of
/// sampled: radii decrease with the words, and beyond 5 sigma there are 16 000 of them.
///
/// A radius r exceeds the bound along one axis for the fraction acos(bound / r) / pi of all angles.
fn check_tail(bound: f64, allowed: f64, radius: impl Fn(u64) -> f64, word_bits: i32) {
    let radii = (0..).map(radius).take_while(|radius| *radius > bound);
    let angles = radii.map(|radius| (bound / radius).acos() / std::f64::consts::PI);
    let tail = angles.sum::<f64>() / 2f64.powi(word_bits);
    let error = (tail / upper_tail(bound) - 1.0).abs();
    assert!(error < allowed, "{bound}: {error:e}");
}

/// There is no sampling error here, so the bounds are tight: the remaining error is the step of the 32-bit words,
/// which grows towards the largest value of 6.76, and is given for each bound.
#[test]
fn the_tail_of_all_f32_values_has_its_probability_beyond_five_sigma() {
    let radius = |word: u64| f64::from(scalar::radius(word as u32));
    let check = |bound, allowed| check_tail(bound, allowed, radius, 32);
    check(3.5, 1e-5);
    check(4.0, 1e-5);
    check(4.5, 1e-4);
    check(5.0, 1e-4);
    check(5.5, 1e-3);
    check(6.0, 1e-2);
    check(6.3, 3e-2);
}

#[test]
fn the_tail_of_f64_values_continues_after_the_tail_of_f32() {
    // 2^64 words are too many, so only the 3700 values beyond 8.5 sigma are counted.
    let check = |bound, allowed| check_tail(bound, allowed, normal_f64::radius, 64);
    check(8.0, 1e-4);
    check(8.5, 1e-3);
    check(9.0, 3e-2);
}
