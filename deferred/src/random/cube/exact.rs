//! Arithmetic that compilers must not fuse.

use cubecl::prelude::*;

/// Returns `a * b`, rounded also if it is an operand of an addition.
///
/// For GPUs, CubeCL allows the compiler to fuse a multiplication with a subsequent addition, which
/// rounds once where the CPU's code rounds twice. An explicit fused multiply-add of negative
/// zero is the same product including the sign of a zero, and must not be fused: it is compiled to a
/// multiplication with an explicit rounding mode.
///
/// An explicit fused multiply-add stays one on every device that supports it: all GPUs that CUDA supports, and all
/// x86-64 CPUs since 2013.
#[cube]
pub(super) fn product<F: Float>(a: F, b: F) -> F {
    fma(a, b, F::new(-0.0))
}
