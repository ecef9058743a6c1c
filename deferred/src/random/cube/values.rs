//! The kinds of values that kernels generate, and their parameters.

use cubecl::prelude::*;

/// The values computed from the words. In parentheses: the [`Parameters`]. Floats of `f32` and integers of 32 bits are in
/// the lower half of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Values {
    /// Floats (in the computed type: low, width, limit).
    Uniform(Storage),
    /// Floats (in the computed type: mean, standard deviation).
    Normal(Storage),
    /// (threshold; nonzero: always; the bits of one).
    Bernoulli,
    /// Integers (the lowest; the distance to the highest).
    Range,
    /// Normal values truncated to integers (`f64`: mean, standard deviation; lowest and highest, for up to 32 bits).
    CutNormal {
        /// Whether the type is signed.
        signed: bool,
    },
}

/// The type of a float: `f64`, or one that is computed in `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Storage {
    F64,
    F32,
    Bf16,
    F16,
}

/// The parameters of the distribution, as bits.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Parameters {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
    pub(super) d: u64,
}
