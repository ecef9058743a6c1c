//! Every level of vector instructions of this machine compared with one block at a time.

use std::fmt::Debug;
use std::hint::black_box;

use burn::tensor::Distribution;
use fearless_simd::{Level, Simd, dispatch};
use half::{bf16, f16};

use crate::random::distribution::{FloatRange, IntegerRange, Threshold};
use crate::random::element::{Sample, Sampler};
use crate::random::fill::fill_at;
use crate::random::float::NarrowSampler;
use crate::random::philox::philox4x32_10;
use crate::random::tests::scalar;
use crate::random::{Domain, RandomElement, Seed, Stream, normal_f64};

type NarrowIntegers = Sampler<IntegerRange<u32>, u32, f64>;
type WideIntegers = Sampler<IntegerRange<u64>, u64, f64>;
type WideSampler = Sampler<FloatRange<f64>, u64, f64>;

/// Returns the levels that this machine supports, the widest first.
pub(in crate::random) fn levels() -> Vec<Level> {
    let widest = Level::new();
    #[cfg(target_arch = "x86_64")]
    {
        let narrower = [
            widest.as_avx512().map(Level::Avx512),
            widest.as_avx2().map(Level::Avx2),
            widest.as_sse4_2().map(Level::Sse4_2),
            widest.as_sse2().map(Level::Sse2),
        ];
        let levels: Vec<Level> = narrower.into_iter().flatten().collect();
        assert_eq!(format!("{:?}", levels[0]), format!("{widest:?}"));
        // A build for the instructions of one machine would run that level instead of each.
        for level in &levels {
            let used = dispatch!(*level, simd => simd.level());
            assert_eq!(format!("{used:?}"), format!("{level:?}"));
        }
        levels
    }
    #[cfg(not(target_arch = "x86_64"))]
    vec![widest]
}

/// Returns two standard normal values for each two words.
fn normals([a, b, c, d]: [u32; 4]) -> [f32; 4] {
    let (z0, z1) = scalar::standard_pair(a, b);
    let (z2, z3) = scalar::standard_pair(c, d);
    [z0, z1, z2, z3]
}

fn wide_normals(a: u64, b: u64) -> [f64; 2] {
    let (sine, cosine) = normal_f64::sine_cosine(b);
    let radius = normal_f64::radius(a);
    [radius * cosine, radius * sine]
}

/// Returns the two wide words of a block.
fn wide([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    let join = |low, high| u64::from(low) | u64::from(high) << 32;
    [join(a, b), join(c, d)]
}

fn narrow_floats(sampler: &NarrowSampler, words: [u32; 4]) -> [f32; 4] {
    match sampler {
        Sampler::Uniform(range) => words.map(|word| range.sample(word)),
        Sampler::Bernoulli(threshold) => words.map(|w| f32::from(u8::from(threshold.accepts(w)))),
        Sampler::Normal { mean, std } => normals(words).map(|z| z.mul_add(*std, *mean)),
    }
}

fn wide_floats(sampler: &WideSampler, words: [u32; 4]) -> [f64; 2] {
    let [a, b] = wide(words);
    match sampler {
        Sampler::Uniform(range) => [range.sample(a), range.sample(b)],
        Sampler::Bernoulli(threshold) => bits(threshold, [a, b]).map(f64::from),
        Sampler::Normal { mean, std } => wide_normals(a, b).map(|z| z * std + mean),
    }
}

fn bits(threshold: &Threshold<u64>, words: [u64; 2]) -> [u8; 2] {
    words.map(|word| u8::from(threshold.accepts(word)))
}

/// Returns integers as the `i64` of the same value, which `as` truncates to their type.
fn narrow_integers(sampler: &NarrowIntegers, words: [u32; 4], cut: fn(f64) -> i64) -> [i64; 4] {
    match sampler {
        Sampler::Uniform(range) => words.map(|word| i64::from(range.sample(word))),
        Sampler::Bernoulli(threshold) => words.map(|word| i64::from(threshold.accepts(word))),
        Sampler::Normal { mean, std } => normals(words).map(|z| cut(f64::from(z) * std + mean)),
    }
}

fn wide_integers(sampler: &WideIntegers, words: [u32; 4], cut: fn(f64) -> u64) -> [u64; 2] {
    let [a, b] = wide(words);
    match sampler {
        Sampler::Uniform(range) => [range.sample(a), range.sample(b)],
        Sampler::Bernoulli(threshold) => bits(threshold, [a, b]).map(u64::from),
        Sampler::Normal { mean, std } => wide_normals(a, b).map(|z| cut(z * std + mean)),
    }
}

/// Compares bits: `0.0` and `-0.0` differ.
fn check<T, const N: usize>(
    distributions: [Distribution; 4],
    block_of: impl Fn(&T::Sampler, [u32; 4]) -> [T; N],
) where
    T: RandomElement + bytemuck::NoUninit + Debug,
{
    const ELEMENTS: usize = 5_000;
    let stream = Stream::new(Seed::new(8), Domain::Init, "levels", 3).at(1, 2);
    assert_eq!(N as u64, <T as Sample>::PER_BLOCK);
    for distribution in distributions {
        let sampler = T::sampler(distribution).expect("the parameters are valid");
        for first in [0, 3, (1 << 36) - 2001] {
            let blocks = first / N as u64..;
            let values = blocks.flat_map(|block| {
                // Hidden from the compiler, so that it does not vectorize over blocks.
                let words = philox4x32_10(black_box(stream.counter(block)), stream.key());
                block_of(&sampler, black_box(words))
            });
            let skipped = (first % N as u64) as usize;
            let expected: Vec<T> = values.skip(skipped).take(ELEMENTS).collect();
            for level in levels() {
                let mut found = vec![T::default(); ELEMENTS];
                fill_at(level, &stream, distribution, first, &mut found)
                    .expect("the parameters are valid");
                let bytes = bytemuck::cast_slice::<T, u8>;
                let differs = bytes(&found)
                    .chunks_exact(size_of::<T>())
                    .zip(bytes(&expected).chunks_exact(size_of::<T>()))
                    .position(|(found, expected)| found != expected);
                if let Some(i) = differs {
                    let (found, expected) = (found[i], expected[i]);
                    panic!("{level:?}, {distribution:?}, {first} + {i}: {found:?} {expected:?}");
                }
            }
        }
    }
}

const FLOATS: [Distribution; 4] = [
    Distribution::Default,
    Distribution::Bernoulli(0.3),
    Distribution::Uniform(-1.5, 2.7),
    Distribution::Normal(0.1, 1.9),
];
const INTEGERS: [Distribution; 4] = [
    Distribution::Default,
    Distribution::Bernoulli(0.3),
    Distribution::Uniform(3.0, 101.0),
    Distribution::Normal(50.0, 70.0),
];

#[test]
fn floats_have_the_same_bits_at_every_level() {
    check::<f64, 2>(FLOATS, wide_floats);
    check::<f32, 4>(FLOATS, narrow_floats);
    let half = |s: &NarrowSampler, words| narrow_floats(s, words).map(f16::from_f32);
    check::<f16, 4>(FLOATS, half);
    let brain = |s: &NarrowSampler, words| narrow_floats(s, words).map(bf16::from_f32);
    check::<bf16, 4>(FLOATS, brain);
    // Values beyond both ends of f16, and subnormal ones.
    for std in [4e4, 1e-7] {
        check::<f16, 4>([Distribution::Normal(0.0, std); 4], half);
    }
}

#[test]
fn integers_have_the_same_bits_at_every_level() {
    macro_rules! narrow {
        ($($type:ty),*) => {$(
            check::<$type, 4>(INTEGERS, |sampler, words| {
                narrow_integers(sampler, words, |x| i64::from(x as $type)).map(|x| x as $type)
            });
        )*};
    }
    narrow!(i32, i16, i8, u32, u16, u8);
    check::<u64, 2>(INTEGERS, |s, words| wide_integers(s, words, |x| x as u64));
    check::<i64, 2>(INTEGERS, |sampler, words| {
        wide_integers(sampler, words, |x| x as i64 as u64).map(|x| x as i64)
    });
}
