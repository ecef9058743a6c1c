//! The kernels on CubeCL's CPU runtime against the CPU's own code, and what they are compiled to for GPUs.

mod bits;
pub(super) mod ptx;
