//! Random values that depend on names and positions, never on order.
//!
//! Every element of a random tensor is a pure function of a [`Stream`] (seed, domain, owner, draw,
//! step, micro-batch), a [`Distribution`](burn::tensor::Distribution) and the element's index. So any region can be generated
//! alone, on any thread, device or process, and adding a layer changes no other parameter.
//!
//! The bits come from Philox 4x32-10, a counter-based generator. What turns bits into values uses
//! only integer operations and IEEE 754 add, subtract, multiply, fused multiply-add, divide and square
//! root in a fixed order, so scalar code, SIMD code and a CUDA kernel give identical bits. `random.md`
//! beside this file states the whole algorithm, exactly enough to be implemented again.
//!
//! The same bits need a target whose floats are IEEE 754 in registers too: every 64-bit target, and
//! 32-bit x86 with SSE2, but not the x87 unit.
//!
//! All cores of the current rayon pool make a tensor, each with its widest vector instructions, which
//! are found out at run time. `cargo bench --bench materialize` measures it. With the features `cuda` and `cpu`,
//! kernels make the same bits where they stay.
//!
//! This is not a cryptographic generator: whoever knows the seed knows every value.
//!
//! # Invariants
//! - [`fill()`] of a region equals the same region of a [`fill()`] of the whole, at any alignment.
//! - The bits are the same with every level of vector instructions, and without.
//! - The bits for given arguments never change within a version; `golden/random_v1.txt` holds them.
//! - A uniform value is never its upper bound, also not after rounding to `f32`, `bf16` or `f16`, unless
//!   both bounds are equal after rounding.
//! - No normal value is NaN. One is infinite only where the scaled value, rounded, leaves the type's range.

mod bernoulli;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;
mod distribution;
mod element;
mod error;
mod fill;
mod float;
mod generate;
mod integer;
mod lanes;
mod normal_f32;
mod normal_f64;
mod on_device;
mod philox;
mod runs;
mod stream;
mod uniform;

#[cfg(test)]
mod tests;

pub use element::RandomElement;
pub use error::RandomError;
pub use fill::fill;
pub use generate::{DTYPES, generate, generate_region};
pub(crate) use on_device::{RandomBackend, Wanted, tensor};
pub use on_device::{generate_on_device, words_only};
pub use stream::{Domain, Seed, Stream};
