//! Elements of 64 bits: two words each, two to a block.

use cubecl::prelude::*;

use super::exact::product;
use super::normal_wide::standard_pair;
use super::philox::{Draw, Words, block};
use super::values::{Parameters, Values};
use crate::random::distribution::STEP_F64;

/// Returns the two elements of a block, as bits.
#[derive(CubeType, Clone, Copy)]
pub(super) struct WideWords {
    pub(super) first: u64,
    pub(super) second: u64,
}

/// Returns the two elements of a block, as bits.
#[cube]
pub(super) fn wide(
    index: u64,
    draw: &Draw,
    parameters: &Parameters,
    #[comptime] values: Values,
) -> WideWords {
    let words = joined(block(index, draw));
    match comptime!(values) {
        Values::Normal(_) | Values::CutNormal { .. } => {
            let pair = standard_pair(words.first, words.second);
            WideWords {
                first: scaled(pair.first, parameters, values),
                second: scaled(pair.second, parameters, values),
            }
        }
        _ => WideWords {
            first: element(words.first, parameters, values),
            second: element(words.second, parameters, values),
        },
    }
}

#[cube]
fn joined(words: Words) -> WideWords {
    WideWords {
        first: u64::cast_from(words.a) | (u64::cast_from(words.b) << 32u64),
        second: u64::cast_from(words.c) | (u64::cast_from(words.d) << 32u64),
    }
}

#[cube]
fn element(word: u64, p: &Parameters, #[comptime] values: Values) -> u64 {
    match comptime!(values) {
        Values::Uniform(_) => {
            let position = f64::cast_from(i64::reinterpret(word >> 11u64));
            let position = product::<f64>(position, STEP_F64.runtime());
            let value = product::<f64>(position, f64::reinterpret(p.b)) + f64::reinterpret(p.a);
            let limit = f64::reinterpret(p.c);
            u64::reinterpret(select(value < limit, value, limit))
        }
        Values::Bernoulli => {
            let accepted = word < p.a || p.b != 0u64;
            select(accepted, p.c, 0u64)
        }
        _ => {
            // The upper half of `word * p.b + word`, in 128 bits.
            let lower = word * p.b;
            let carry = select(lower > (word ^ 0xffff_ffff_ffff_ffffu64), 1u64, 0u64);
            p.a + word.mul_hi(p.b) + carry
        }
    }
}

#[cube]
fn scaled(standard: f64, p: &Parameters, #[comptime] values: Values) -> u64 {
    let value = product::<f64>(standard, f64::reinterpret(p.b)) + f64::reinterpret(p.a);
    match comptime!(values) {
        Values::CutNormal { signed } => cut(value, signed),
        _ => u64::reinterpret(value),
    }
}

/// Returns a float truncated to an integer, saturated to the type's range.
#[cube]
fn cut(value: f64, #[comptime] signed: bool) -> u64 {
    // One more than the highest value, which is not an `f64`.
    let end = if comptime!(signed) {
        f64::reinterpret(0x43e0_0000_0000_0000u64)
    } else {
        f64::reinterpret(0x43f0_0000_0000_0000u64)
    };
    let lowest = if comptime!(signed) {
        f64::reinterpret(0xc3e0_0000_0000_0000u64)
    } else {
        f64::reinterpret(0u64)
    };
    let is_beyond = value >= end;
    // The value is in range.
    let value = select(is_beyond || value < lowest, lowest, value);
    if comptime!(signed) {
        let inside = u64::reinterpret(i64::cast_from(value));
        select(is_beyond, 0x7fff_ffff_ffff_ffffu64, inside)
    } else {
        let inside = u64::cast_from(value);
        select(is_beyond, 0xffff_ffff_ffff_ffffu64, inside)
    }
}
