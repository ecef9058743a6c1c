//! Every element type and distribution compared with the committed bits of version 1.

use std::fmt::Write;

use burn::tensor::{Distribution, Element};
use fearless_simd::Level;
use half::{bf16, f16};
use tinderbox_fake::dtype_name;
use twox_hash::XxHash3_64;

use super::levels::levels;

use crate::random::fill::fill_at;
use crate::random::{Domain, RandomElement, Seed, Stream};

const COMMITTED: &str = include_str!("../golden/random_v1.txt");

/// The first elements of the lines: the start, an element inside a block, one far beyond 2^32 blocks.
const FIRST_ELEMENTS: [u64; 3] = [0, 6, (1 << 40) + 1];
const ELEMENTS_PER_LINE: usize = 6;
/// The last bits of a polynomial's smallest term only affect few elements, so this many are hashed.
const ELEMENTS_PER_DIGEST: usize = 1 << 14;

pub(in crate::random) fn stream() -> Stream {
    let seed = Seed::new(0x0123_4567_89ab_cdef);
    Stream::new(seed, Domain::Init, "model.layers.0.weight", 2).at(7, 3)
}

fn made_at<T: RandomElement>(level: Level, kind: Distribution, first: u64, count: usize) -> Vec<T> {
    let mut out = vec![T::default(); count];
    fill_at(level, &stream(), kind, first, &mut out).expect("the parameters are valid");
    out
}

/// Returns the bits of an element in hex, the most significant digit first.
fn hex<T: RandomElement>(value: T) -> String {
    let digits = 2 * size_of::<T>();
    let bytes = bytemuck::bytes_of(&value).iter();
    let append = |bits: u64, byte: &u8| bits << 8 | u64::from(*byte);
    let bits = match cfg!(target_endian = "little") {
        true => bytes.rfold(0, append),
        false => bytes.fold(0, append),
    };
    format!("{bits:0digits$x}")
}

fn lines<T: RandomElement + Element>(
    text: &mut String,
    level: Level,
    distributions: [(&str, Distribution); 4],
) {
    let element = dtype_name(T::dtype());
    for (name, distribution) in distributions {
        for first in FIRST_ELEMENTS {
            write!(text, "{element} {name} {first}:").expect("a string accepts all text");
            for value in made_at::<T>(level, distribution, first, ELEMENTS_PER_LINE) {
                write!(text, " {}", hex(value)).expect("a string accepts all text");
            }
            text.push('\n');
        }
        let values = made_at::<T>(level, distribution, 0, ELEMENTS_PER_DIGEST);
        let digits: String = values.into_iter().map(hex).collect();
        let digest = XxHash3_64::oneshot(digits.as_bytes());
        writeln!(text, "{element} {name} digest: {digest:016x}")
            .expect("a string accepts all text");
    }
}

/// Returns the expected content of `golden/random_v1.txt`.
fn current(level: Level) -> String {
    let key = stream().key();
    let mut text = String::from(
        "# Version 1 of the random values, see random.md. Every line: element type, distribution,\n\
         # first element, then the bits of six elements in hex, most significant digit first.\n\
         # A digest is the XXH3-64 of the hex digits of elements 0 to 16383, without spaces.\n\
         # Seed 0123456789abcdef, domain init, owner model.layers.0.weight, draw 2, step 7,\n\
         # micro-batch 3.\n",
    );
    writeln!(text, "key {:08x} {:08x}", key[0], key[1]).expect("a string accepts all text");

    let floats = [
        ("default", Distribution::Default),
        ("bernoulli(0.3)", Distribution::Bernoulli(0.3)),
        ("uniform(-1.5,2.7)", Distribution::Uniform(-1.5, 2.7)),
        ("normal(0.1,1.9)", Distribution::Normal(0.1, 1.9)),
    ];
    for_types!(lines(&mut text, level, floats): f64 f32 f16 bf16);

    let integers = [
        ("default", Distribution::Default),
        ("bernoulli(0.3)", Distribution::Bernoulli(0.3)),
        ("uniform(3,101)", Distribution::Uniform(3.0, 101.0)),
        ("normal(50,40)", Distribution::Normal(50.0, 40.0)),
    ];
    for_types!(lines(&mut text, level, integers): i64 i32 i16 i8 u64 u32 u16 u8);
    text
}

/// On failure the current content is printed, to be committed as a *new* version: values that
/// users may already have must not change.
#[test]
fn the_bits_of_version_1_at_every_level() {
    for level in levels() {
        check(&current(level));
    }
}

fn check(current: &str) {
    // Git may have converted the line ends.
    let committed = COMMITTED.replace("\r\n", "\n");
    if current != committed {
        print!("{current}");
        for (now, before) in current.lines().zip(committed.lines()) {
            assert_eq!(now, before, "the bits of version 1 have changed");
        }
        let count = committed.lines().count();
        panic!("golden/random_v1.txt has {count} lines");
    }
}
