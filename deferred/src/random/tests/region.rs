//! Any region generated alone equals the same region of the whole.

use half::{bf16, f16};
use proptest::prelude::*;

use super::made;
use burn::tensor::Distribution;

use crate::random::{Domain, RandomElement, RandomError, Seed, Stream, fill};

const WHOLE: usize = 400;

const DISTRIBUTIONS: [Distribution; 4] = [
    Distribution::Default,
    Distribution::Bernoulli(0.4),
    Distribution::Uniform(1.0, 100.0),
    Distribution::Normal(30.0, 9.0),
];

/// Fills `first .. first + count` of a tensor at `base` within guards, and compares with the whole.
fn check<T: RandomElement + PartialEq + std::fmt::Debug>(base: u64, first: usize, count: usize) {
    let stream = Stream::new(Seed::new(5), Domain::Forward, "region", 1).at(2, 3);
    for distribution in DISTRIBUTIONS {
        let whole = made::<T>(&stream, distribution, base, WHOLE);
        let mut part = vec![T::default(); count + 2];
        let end = part.len() - 1;
        let (first_element, out) = (base + first as u64, &mut part[1..end]);
        fill(&stream, distribution, first_element, out).expect("the parameters are valid");
        let context = format!("{distribution:?}, {base} + {first}, {count} elements");
        assert_eq!(part[1..end], whole[first..first + count], "{context}");
        assert_eq!([part[0], part[end]], [T::default(); 2], "{context}");
    }
}

fn check_all_types(base: u64, first: usize, count: usize) {
    for_types!(check(base, first, count): f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_region_equals_its_part_of_the_whole(
        base in prop_oneof![Just(0u64), 0..1000u64, Just((1 << 34) - 150), any::<u64>().prop_map(|b| b >> 1)],
        first in 0..WHOLE,
        count in 0..WHOLE,
    ) {
        check_all_types(base, first, count.min(WHOLE - first));
    }
}

#[test]
fn every_alignment_of_a_short_region_is_right() {
    for first in 0..70 {
        for count in [0, 1, 2, 3, 63, 64, 65, 130] {
            for_types!(check(0, first, count): f32 f64);
        }
    }
}

#[test]
fn the_last_element_can_be_generated_but_not_the_one_after() {
    let stream = Stream::new(Seed::new(5), Domain::Init, "end", 0);
    let default = Distribution::Default;
    let last_two = made::<u32>(&stream, default, u64::MAX - 1, 2);
    assert_eq!(last_two[1..], made::<u32>(&stream, default, u64::MAX, 1));
    // The counter wraps within the last chunk, and must not affect the result.
    assert_ne!(last_two, made::<u32>(&stream, default, 2, 2));

    let mut out = [7u32; 3];
    let error = fill(&stream, default, u64::MAX - 1, &mut out).expect_err("one too many");
    let expected = RandomError::RegionTooLong {
        first_element: u64::MAX - 1,
        elements: 3,
    };
    assert_eq!(error, expected);
    let text = "3 elements from element 18446744073709551614 on end after element 2^64 - 1";
    assert_eq!(error.to_string(), text);
    assert_eq!(out, [7; 3]);
    assert_eq!(fill::<u32>(&stream, default, u64::MAX, &mut []), Ok(()));
}

#[test]
fn sixteen_bit_floats_are_the_rounded_f32_values() {
    let stream = Stream::new(Seed::new(5), Domain::Init, "round", 0);
    let normal = Distribution::Normal(0.3, 2.0);
    let wide = made::<f32>(&stream, normal, 0, 10_000);
    let halves = made::<f16>(&stream, normal, 0, 10_000);
    let brains = made::<bf16>(&stream, normal, 0, 10_000);
    for ((wide, half), brain) in wide.into_iter().zip(halves).zip(brains) {
        assert_eq!(half, f16::from_f32(wide));
        assert_eq!(brain, bf16::from_f32(wide));
    }
}

#[test]
fn integers_share_their_words_across_widths() {
    let stream = Stream::new(Seed::new(5), Domain::Init, "ints", 0);
    let words = made::<u32>(&stream, Distribution::Default, 0, 100);
    let bytes = made::<u8>(&stream, Distribution::Default, 0, 100);
    let signed = made::<i32>(&stream, Distribution::Default, 0, 100);
    let wide = made::<u64>(&stream, Distribution::Default, 0, 50);
    for i in 0..100 {
        assert_eq!(u32::from(bytes[i]), words[i] >> 24);
        assert_eq!(signed[i], (words[i] ^ (1 << 31)) as i32);
        assert_eq!((wide[i / 2] >> (32 * (i % 2))) as u32, words[i]);
    }
}
