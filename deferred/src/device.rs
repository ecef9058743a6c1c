//! Devices by name, and whether the machine has them.

use burn::tensor::Device;
use burn_dispatch::DispatchDevice;
use tinderbox_fake::DeviceLabel;

/// Why a device can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Programs don't run there.
    #[error("programs can't run on {device}: this build runs them on {}", built())]
    NoPrograms {
        /// The device.
        device: String,
    },
    /// No device has such a name.
    #[error(
        "there is no device `{name}`: devices are flex, cpu, cuda:0, and lists such as cuda:0,1"
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The build lacks a feature.
    #[error(
        "{device} is not in this build, which has {}: build with the feature `{feature}`",
        built()
    )]
    NotBuilt {
        /// The device.
        device: DeviceLabel,
        /// The feature that has it.
        feature: &'static str,
    },
    /// The machine has no such device, or its driver does not work.
    #[error("{device} can't be used: {reason}")]
    Unavailable {
        /// The device.
        device: DeviceLabel,
        /// What was found instead, and what to do.
        reason: String,
    },
}

/// The devices that this build has.
fn built() -> &'static str {
    match (cfg!(feature = "cuda"), cfg!(feature = "cpu")) {
        (true, true) => "flex, cuda and cpu",
        (true, false) => "flex and cuda",
        (false, true) => "flex and cpu",
        (false, false) => "flex",
    }
}

/// The devices of a list: `flex`, `cpu` (CubeCL's CPU runtime), `cuda`, `cuda:1`, or several GPUs as `cuda:0,1`.
///
/// A device may stand in the list several times. All of them are there: this asks the machine.
///
/// # Errors
///
/// When a name is none of these, the build lacks the feature, the machine has no such device, or its driver is
/// missing or too old.
pub fn open_devices(list: &str) -> Result<Vec<Device>, DeviceError> {
    let unknown = || DeviceError::Unknown { name: list.into() };
    let (backend, indices) = list.split_once(':').unwrap_or((list, "0"));
    // All names before any device: what is wrong with the list is no matter of the machine.
    let indices = indices.split(',').map(str::parse);
    let indices: Vec<usize> = indices.collect::<Result<_, _>>().map_err(|_| unknown())?;
    let only_first = indices.iter().all(|index| *index == 0);
    let devices = indices.into_iter().map(|index| {
        let device = match backend {
            "flex" if only_first => Device::flex(),
            "cpu" if only_first => cpu()?,
            "cuda" => cuda(index)?,
            _ => return Err(unknown()),
        };
        check_device(&device)?;
        Ok(device)
    });
    devices.collect()
}

#[cfg(feature = "cpu")]
fn cpu() -> Result<Device, DeviceError> {
    Ok(Device::cpu())
}

#[cfg(not(feature = "cpu"))]
fn cpu() -> Result<Device, DeviceError> {
    let device = label("cpu");
    Err(DeviceError::NotBuilt {
        device,
        feature: "cpu",
    })
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device, DeviceError> {
    Ok(Device::cuda(index))
}

#[cfg(not(feature = "cuda"))]
fn cuda(index: usize) -> Result<Device, DeviceError> {
    let device = label(&format!("cuda:{index}"));
    Err(DeviceError::NotBuilt {
        device,
        feature: "cuda",
    })
}

#[cfg(not(all(feature = "cuda", feature = "cpu")))]
fn label(name: &str) -> DeviceLabel {
    name.parse().unwrap_or_else(|_| DeviceLabel::flex())
}

/// Asks whether programs can run on a device, since Burn panics where the machine does not have it.
///
/// # Errors
///
/// When the device is a recording one, or the machine does not have it.
pub fn check_device(device: &Device) -> Result<(), DeviceError> {
    let device = device.clone().without_autodiff();
    let label = DeviceLabel::of(&device);
    match device.as_dispatch() {
        DispatchDevice::Flex(_) => Ok(()),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(cube) => match cube::reason_against(cube) {
            Some(reason) => Err(DeviceError::Unavailable {
                device: label,
                reason,
            }),
            None => Ok(()),
        },
        DispatchDevice::Capture(_) => Err(DeviceError::NoPrograms {
            device: format!("a recording device ({label})"),
        }),
        _ => Err(DeviceError::NoPrograms {
            device: label.to_string(),
        }),
    }
}

#[cfg(feature = "cubecl")]
mod cube {
    use burn_cubecl::CubeDevice;
    use cubecl::device::DeviceUnavailable;

    /// Why a device can't be used; `None` when it can.
    pub(super) fn reason_against(device: &CubeDevice) -> Option<String> {
        match device {
            CubeDevice::Cuda(cuda) => match missing(CubeDevice::cuda(cuda.index)) {
                Some(0) => Some(
                    "there is no NVIDIA driver, or it finds no GPU (`nvidia-smi` must list one)"
                        .into(),
                ),
                Some(count) => Some(format!(
                    "this machine has {count} CUDA device(s), counted from 0"
                )),
                None => super::driver::too_old(),
            },
            CubeDevice::Cpu(_) => missing(CubeDevice::cpu())
                .map(|_| "CubeCL's CPU runtime does not run on this machine".into()),
            // No feature of this crate has others.
            _ => None,
        }
    }

    /// How many devices there are instead of the one that was asked for.
    fn missing(found: Result<CubeDevice, DeviceUnavailable>) -> Option<usize> {
        match found {
            Ok(_) => None,
            Err(DeviceUnavailable::NoSuchDevice { available, .. }) => Some(available),
            Err(_) => Some(0),
        }
    }
}

#[cfg(all(feature = "cubecl", not(feature = "cuda")))]
mod driver {
    pub(super) fn too_old() -> Option<String> {
        None
    }
}

#[cfg(feature = "cuda")]
pub(crate) mod driver {
    use std::sync::OnceLock;

    use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

    /// The oldest CUDA release whose driver loads what the kernels are compiled to.
    const OLDEST: (i32, i32) = (12, 0);

    /// Says so where the driver is older than the kernels need. Where the driver does not tell its version, it is
    /// taken.
    pub(super) fn too_old() -> Option<String> {
        static FOUND: OnceLock<Option<(i32, i32)>> = OnceLock::new();
        let version = (*FOUND.get_or_init(|| {
            let version = Nvml::init().ok()?.sys_cuda_driver_version().ok()?;
            let minor = cuda_driver_version_minor(version);
            Some((cuda_driver_version_major(version), minor))
        }))?;
        let ((major, minor), (least, least_minor)) = (version, OLDEST);
        (version < OLDEST).then(|| {
            format!(
                "its driver is for CUDA {major}.{minor}, and CUDA {least}.{least_minor} or newer is needed: install a \
                 newer driver"
            )
        })
    }

    /// Free bytes of a GPU, as its driver says. Opens the device.
    pub(crate) fn free_bytes(index: usize) -> Option<u64> {
        let context = cudarc::driver::CudaContext::new(index).ok()?;
        let (free, _) = context.mem_get_info().ok()?;
        Some(free as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(open_devices("flex").map(|found| found.len()), Ok(1));
        for name in [
            "", "gpu", "flex:1", "cuda:", "cuda:x", "cuda:0,", "cuda:0,x", "cpu:0,1", "cuda:-1",
        ] {
            let error = open_devices(name).unwrap_err();
            assert!(
                matches!(error, DeviceError::Unknown { .. }),
                "{name}: {error}"
            );
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_without_cuda_says_so() {
        assert_eq!(
            open_devices("cuda:1").unwrap_err().to_string(),
            format!(
                "cuda:1 is not in this build, which has {}: build with the feature `cuda`",
                built()
            )
        );
    }
}
