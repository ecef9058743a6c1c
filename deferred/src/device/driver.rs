//! The driver of NVIDIA GPUs.

use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

/// The oldest CUDA release whose driver loads the compiled kernels.
pub(super) const OLDEST: (i32, i32) = (12, 0);

/// Returns the CUDA release of the driver, if it is older than the kernels need; `None` if the driver does not report
/// it.
pub(super) fn too_old() -> Option<(i32, i32)> {
    let version = Nvml::init().ok()?.sys_cuda_driver_version().ok()?;
    let minor = cuda_driver_version_minor(version);
    Some((cuda_driver_version_major(version), minor)).filter(|found| *found < OLDEST)
}

/// Returns the free bytes of a GPU, as reported by its driver. Opens the device.
pub(super) fn free_bytes(index: usize) -> Option<u64> {
    let context = cudarc::driver::CudaContext::new(index).ok()?;
    let (free, _) = context.mem_get_info().ok()?;
    Some(free as u64)
}
