//! Elements of up to 32 bits: one word each, four to a block.

use cubecl::prelude::*;

use super::exact::product;
use super::normal::standard_pair;
use super::philox::{Draw, Words, block};
use super::values::{Parameters, Storage, Values};
use crate::random::distribution::STEP_F32;

/// Returns the four elements of a block, as bits.
#[cube]
pub(super) fn narrow(
    index: u64,
    draw: &Draw,
    parameters: &Parameters,
    #[comptime] values: Values,
) -> Words {
    let words = block(index, draw);
    match comptime!(values) {
        Values::Normal(_) | Values::CutNormal { .. } => {
            let low = standard_pair(words.a, words.b);
            let high = standard_pair(words.c, words.d);
            Words {
                a: scaled(low.first, parameters, values),
                b: scaled(low.second, parameters, values),
                c: scaled(high.first, parameters, values),
                d: scaled(high.second, parameters, values),
            }
        }
        _ => Words {
            a: element(words.a, parameters, values),
            b: element(words.b, parameters, values),
            c: element(words.c, parameters, values),
            d: element(words.d, parameters, values),
        },
    }
}

#[cube]
fn element(word: u32, p: &Parameters, #[comptime] values: Values) -> u32 {
    match comptime!(values) {
        Values::Uniform(storage) => {
            let position = i32::reinterpret(word >> 8u32);
            let position = product::<f32>(f32::cast_from(position), STEP_F32.runtime());
            let value = product::<f32>(position, float(p.b)) + float(p.a);
            let limit = float(p.c);
            stored(select(value < limit, value, limit), storage)
        }
        Values::Bernoulli => {
            let accepted = word < u32::cast_from(p.a) || p.b != 0u64;
            select(accepted, u32::cast_from(p.c), 0u32)
        }
        _ => {
            let word = u64::cast_from(word);
            let scaled = word * p.b + word;
            u32::cast_from(p.a) + u32::cast_from(scaled >> 32u64)
        }
    }
}

#[cube]
fn scaled(standard: f32, p: &Parameters, #[comptime] values: Values) -> u32 {
    match comptime!(values) {
        Values::Normal(storage) => stored(fma(standard, float(p.b), float(p.a)), storage),
        Values::CutNormal { signed } => {
            let wide = product::<f64>(f64::cast_from(standard), f64::reinterpret(p.b));
            let value = wide + f64::reinterpret(p.a);
            let (lowest, highest) = (f64::reinterpret(p.c), f64::reinterpret(p.d));
            let value = select(value < lowest, lowest, value);
            let value = select(value > highest, highest, value);
            if comptime!(signed) {
                u32::reinterpret(i32::cast_from(value))
            } else {
                u32::cast_from(value)
            }
        }
        _ => 0u32.runtime(),
    }
}

#[cube]
fn float(bits: u64) -> f32 {
    f32::reinterpret(u32::cast_from(bits))
}

/// Returns the bits of a float in its type, rounded to the nearest, ties to even: see `float` of the CPU's code.
#[cube]
fn stored(value: f32, #[comptime] storage: Storage) -> u32 {
    let bits = u32::reinterpret(value);
    match comptime!(storage) {
        Storage::F32 | Storage::F64 => bits,
        Storage::Bf16 => (bits + (0x7fffu32 + ((bits >> 16u32) & 1u32))) >> 16u32,
        Storage::F16 => {
            let sign = bits & 0x8000_0000u32;
            let magnitude = bits ^ sign;
            let last_kept = (magnitude >> 13u32) & 1u32;
            let rebiased = magnitude - 0x3800_0000u32;
            let normal = (rebiased + (0xfffu32 + last_kept)) >> 13u32;
            let shifted = f32::reinterpret(magnitude) + 0.5f32;
            let subnormal = u32::reinterpret(shifted) - 0x3f00_0000u32;
            let finite = select(magnitude < 0x3880_0000u32, subnormal, normal);
            let rounded = select(magnitude < 0x4780_0000u32, finite, 0x7c00u32);
            rounded | (sign >> 16u32)
        }
    }
}
