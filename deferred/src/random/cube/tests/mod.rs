//! The kernels on CubeCL's CPU runtime compared with the CPU's own code, and their compiled code for GPUs.

mod bits;
pub(super) mod ptx;
