//! Kernels that generate the same random values on the device: on a GPU, or on CubeCL's CPU runtime.
//!
//! The kernels are written once, in CubeCL's language, and compiled for the device when they are first
//! launched. They generate the bits of the CPU's code: integer operations are the same everywhere, and float
//! operations are written so that no compiler fuses or reorders them (see `exact`). Values are written as
//! the unsigned integers of their bits, so no device needs arithmetic of their type.
//!
//! | file | contents |
//! |---|---|
//! | `philox` | the words of a block |
//! | `exact` | products that are rounded before they are added |
//! | `normal`, `normal_wide` | standard normal values, `f32` and `f64` |
//! | `values` | the kinds of values, and their parameters |
//! | `narrow`, `wide` | the elements of a block, of up to 32 and of 64 bits |
//! | `task` | a distribution as the kernels' arguments |
//! | `launch` | the kernels, and the choice of the kernel for a region |
//! | `limit` | the generator without its writes, for measurements |

mod exact;
mod launch;
mod limit;
mod narrow;
mod normal;
mod normal_wide;
mod philox;
mod task;
mod values;
mod wide;

#[cfg(all(test, feature = "cpu"))]
mod tests;

pub use launch::generate_on;
pub use limit::blocks_on;
