//! Several vectors of the machine's own width, computed in lockstep.
//!
//! A long chain of dependent operations on one vector leaves most of a core idle: each waits about four
//! cycles for the previous one. Here every operation is done for all vectors of a group before the
//! next one begins, so a core always has several independent ones.

use std::ops::{Add, BitAnd, BitXor, Mul, Sub};

use fearless_simd::prelude::*;

/// Vectors of a group: enough to hide the latency of float operations, and few enough that a formula
/// needs at most 32 registers.
pub(super) const VECTORS: usize = 4;

/// Floats of single precision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floats<S: Simd> {
    pub(super) simd: S,
    pub(super) vectors: [S::f32s; VECTORS],
}

/// Words of 32 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words<S: Simd> {
    pub(super) simd: S,
    pub(super) vectors: [S::u32s; VECTORS],
}

/// An operator between two groups, and between a group and a constant.
macro_rules! operators {
    ($group:ident, $element:ty: $($trait:ident $method:ident $assign:tt),*) => {$(
        impl<S: Simd> $trait for $group<S> {
            type Output = Self;

            #[inline(always)]
            fn $method(mut self, other: Self) -> Self {
                for i in 0..VECTORS {
                    self.vectors[i] $assign other.vectors[i];
                }
                self
            }
        }

        impl<S: Simd> $trait<$element> for $group<S> {
            type Output = Self;

            #[inline(always)]
            fn $method(mut self, other: $element) -> Self {
                for vector in &mut self.vectors {
                    *vector $assign other;
                }
                self
            }
        }
    )*};
}

operators!(Floats, f32: Add add +=, Sub sub -=, Mul mul *=);
operators!(Words, u32: Add add +=, Sub sub -=, BitAnd bitand &=, BitXor bitxor ^=);

impl<S: Simd> Floats<S> {
    #[inline(always)]
    pub(super) fn new(simd: S, vectors: [S::f32s; VECTORS]) -> Self {
        Self { simd, vectors }
    }

    #[inline(always)]
    pub(super) fn splat(simd: S, value: f32) -> Self {
        Self::new(simd, [S::f32s::splat(simd, value); VECTORS])
    }

    /// Returns `self * factor + term`, rounded once: by one instruction if the machine has it, and with the
    /// same bits if not.
    /// Processors without the instruction (x86-64 before 2013) take about four times as long, by operations in f64.
    #[inline(always)]
    pub(super) fn mul_add(mut self, factor: Self, term: Self) -> Self {
        for i in 0..VECTORS {
            self.vectors[i] = self.vectors[i].mul_add_precise(factor.vectors[i], term.vectors[i]);
        }
        self
    }

    /// Returns `self * factor + term`, rounded once.
    #[inline(always)]
    pub(super) fn mul_add_constant(self, factor: Self, term: f32) -> Self {
        self.mul_add(factor, Self::splat(self.simd, term))
    }

    /// Returns `self * factor + term`, rounded once.
    #[inline(always)]
    pub(super) fn scale(self, factor: f32, term: f32) -> Self {
        self.mul_add_constant(Self::splat(self.simd, factor), term)
    }

    #[inline(always)]
    pub(super) fn sqrt(mut self) -> Self {
        for vector in &mut self.vectors {
            *vector = vector.sqrt();
        }
        self
    }

    #[inline(always)]
    pub(super) fn to_bits(self) -> Words<S> {
        let mut words = Words::splat(self.simd, 0);
        for i in 0..VECTORS {
            words.vectors[i] = self.vectors[i].bitcast();
        }
        words
    }

    /// Selects `then` where `self` is negative, `otherwise` elsewhere.
    #[inline(always)]
    pub(super) fn if_negative(self, then: Self, mut otherwise: Self) -> Self {
        for i in 0..VECTORS {
            let negative = self.vectors[i].simd_lt(0.0);
            otherwise.vectors[i] = negative.select(then.vectors[i], otherwise.vectors[i]);
        }
        otherwise
    }
}

impl<S: Simd> Words<S> {
    #[inline(always)]
    pub(super) fn new(simd: S, vectors: [S::u32s; VECTORS]) -> Self {
        Self { simd, vectors }
    }

    #[inline(always)]
    pub(super) fn splat(simd: S, word: u32) -> Self {
        Self::new(simd, [S::u32s::splat(simd, word); VECTORS])
    }

    /// Returns the floats of these bits.
    #[inline(always)]
    pub(super) fn as_floats(self) -> Floats<S> {
        let mut floats = Floats::splat(self.simd, 0.0);
        for i in 0..VECTORS {
            floats.vectors[i] = self.vectors[i].bitcast();
        }
        floats
    }

    /// Converts the words as signed numbers, each to the nearest float.
    #[inline(always)]
    pub(super) fn signed_to_floats(self) -> Floats<S> {
        let mut floats = Floats::splat(self.simd, 0.0);
        for i in 0..VECTORS {
            let signed: S::i32s = self.vectors[i].bitcast();
            floats.vectors[i] = signed.to_float();
        }
        floats
    }

    /// Shifts the words right as signed numbers, with sign extension.
    #[inline(always)]
    pub(super) fn signed_shift_right(mut self, by: u32) -> Self {
        for vector in &mut self.vectors {
            let signed: S::i32s = vector.bitcast();
            *vector = (signed >> by).bitcast();
        }
        self
    }

    /// Selects `then` where the word is zero, `otherwise` elsewhere.
    #[inline(always)]
    pub(super) fn if_zero(self, then: Floats<S>, mut otherwise: Floats<S>) -> Floats<S> {
        for i in 0..VECTORS {
            let zero = self.vectors[i].simd_eq(0);
            otherwise.vectors[i] = zero.select(then.vectors[i], otherwise.vectors[i]);
        }
        otherwise
    }
}

/// Writes four lanes interleaved: the first element of each, the second of each, and so on.
#[inline(always)]
pub(super) fn store_interleaved<S: Simd, V: SimdBase<S>, const N: usize>(
    lanes: [[V; N]; 4],
    out: &mut [V::Element],
) {
    for (i, out) in out.chunks_exact_mut(4 * V::LEN).enumerate() {
        let (even_low, even_high) = lanes[0][i].interleave(lanes[2][i]);
        let (odd_low, odd_high) = lanes[1][i].interleave(lanes[3][i]);
        let (first, second) = even_low.interleave(odd_low);
        let (third, fourth) = even_high.interleave(odd_high);
        let quarters = out.chunks_exact_mut(V::LEN);
        for (quarter, vector) in quarters.zip([first, second, third, fourth]) {
            vector.store_slice(quarter);
        }
    }
}
