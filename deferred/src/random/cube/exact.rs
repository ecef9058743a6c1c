//! Arithmetic that no compiler may change.

use cubecl::prelude::*;

/// `a * b`, rounded, whatever is done with it.
///
/// For GPUs, CubeCL allows the compiler to fuse a multiplication with an addition that follows, which
/// rounds once where the CPU's code rounds twice. A fused multiply-add of its own, which adds negative
/// zero, is the same product to the sign of a zero, and carries no such permission: it becomes the
/// multiplication whose rounding is written down.
///
/// A fused multiply-add that is written as one stays one on every device that has it, which all GPUs do
/// that CUDA knows, and all x86-64 CPUs since 2013.
#[cube]
pub(super) fn product<F: Float>(a: F, b: F) -> F {
    fma(a, b, F::new(-0.0))
}
