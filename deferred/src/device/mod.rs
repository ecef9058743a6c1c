//! Devices by name, and checks that the machine has them.

mod backend;
#[cfg(feature = "cuda")]
mod driver;
mod error;

use burn::tensor::Device;
use burn_dispatch::DispatchDevice;
use tinderbox_fake::DeviceLabel;

pub(crate) use backend::DeviceBackend;
pub use error::DeviceError;

/// Opens the devices of a list: `flex`, `cpu` (CubeCL's CPU runtime), `cuda`, `cuda:1`, or several GPUs as `cuda:0,1`.
///
/// A device may occur several times. Each device is checked to exist.
///
/// # Errors
///
/// When a name is unknown, the build lacks the feature, the machine has no such device, or its driver is
/// missing or too old.
pub fn open_devices(list: &str) -> Result<Vec<Device>, DeviceError> {
    let unknown = || DeviceError::Unknown { name: list.into() };
    let (backend, indices) = list.split_once(':').unwrap_or((list, "0"));
    // All names are parsed before any device is opened, so that errors in the list do not depend on the machine.
    let indices = indices.split(',').map(str::parse);
    let indices: Vec<u16> = indices.collect::<Result<_, _>>().map_err(|_| unknown())?;
    let only_first = indices.iter().all(|index| *index == 0);
    let devices = indices.into_iter().map(|index| {
        let device = match backend {
            "flex" if only_first => Device::flex(),
            #[cfg(feature = "cpu")]
            "cpu" if only_first => Device::cpu(),
            #[cfg(not(feature = "cpu"))]
            "cpu" if only_first => return Err(not_built("cpu".to_owned(), "cpu")),
            #[cfg(feature = "cuda")]
            "cuda" => Device::cuda(u32::from(index)),
            #[cfg(not(feature = "cuda"))]
            "cuda" => return Err(not_built(format!("cuda:{index}"), "cuda")),
            _ => return Err(unknown()),
        };
        check_device(&device)?;
        Ok(device)
    });
    devices.collect()
}

#[cfg(not(all(feature = "cuda", feature = "cpu")))]
fn not_built(name: String, feature: &'static str) -> DeviceError {
    let device = name.parse();
    let device = device.expect("it is a backend with an index of 16 bits");
    DeviceError::NotBuilt { device, feature }
}

/// Checks that programs can run on a device, since Burn panics if the machine does not have it.
///
/// # Errors
///
/// When the device is a recording one, or the machine does not have it.
pub fn check_device(device: &Device) -> Result<(), DeviceError> {
    let device = device.clone().without_autodiff();
    let label = || DeviceLabel::of(&device);
    let device = match device.as_dispatch() {
        DispatchDevice::Flex(_) => return Ok(()),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(cube) => return check_cube(cube, label()),
        DispatchDevice::Capture(_) => format!("a recording device ({})", label()),
        _ => label().to_string(),
    };
    Err(DeviceError::NoPrograms { device })
}

#[cfg(feature = "cubecl")]
fn check_cube(cube: &burn_cubecl::CubeDevice, device: DeviceLabel) -> Result<(), DeviceError> {
    use burn_cubecl::CubeDevice;
    use cubecl::device::DeviceUnavailable;
    use parking_lot::Mutex;

    /// The devices that were found. Loading a driver opens its library, and devices do not disappear.
    static FOUND: Mutex<Vec<CubeDevice>> = Mutex::new(Vec::new());
    if FOUND.lock().contains(cube) {
        return Ok(());
    }
    let found = match cube {
        CubeDevice::Cuda(cuda) => CubeDevice::cuda(cuda.index),
        CubeDevice::Cpu(_) => CubeDevice::cpu(),
        // Without the features of this crate there are no other devices.
        _ => return Ok(()),
    };
    match found {
        Ok(_) => {}
        Err(DeviceUnavailable::NoSuchDevice { available, .. })
            if available > 0 || matches!(cube, CubeDevice::Cpu(_)) =>
        {
            return Err(DeviceError::NoSuchDevice { device, available });
        }
        Err(_) => return Err(DeviceError::NoDriver { device }),
    }
    #[cfg(feature = "cuda")]
    if let (CubeDevice::Cuda(_), Some(found)) = (cube, driver::too_old()) {
        let oldest = driver::OLDEST;
        return Err(DeviceError::OldDriver {
            device,
            found,
            oldest,
        });
    }
    FOUND.lock().push(cube.clone());
    Ok(())
}

/// Returns whether tensors on a device are in the memory of the host.
pub(crate) fn uses_host_memory(device: &Device) -> bool {
    match device.as_dispatch() {
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(burn_cubecl::CubeDevice::Cpu(_)) => true,
        _ => false,
    }
}

/// Returns the free bytes of a GPU, as reported by its driver; `None` if unknown.
pub(crate) fn free_bytes(device: &Device) -> Option<u64> {
    match device.as_dispatch() {
        #[cfg(feature = "cuda")]
        DispatchDevice::Cube(burn_cubecl::CubeDevice::Cuda(cuda)) => {
            // Only the thread that freed memory can reuse it; returned to the driver, it is available to all threads.
            device.sync().ok()?;
            device.memory_cleanup();
            driver::free_bytes(cuda.index)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(open_devices("flex").map(|found| found.len()), Ok(1));
        for name in [
            "",
            "gpu",
            "flex:1",
            "cuda:",
            "cuda:x",
            "cuda:0,",
            "cuda:0,x",
            "cpu:0,1",
            "cuda:-1",
            "cuda:65536",
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
    fn a_build_without_cuda_reports_it() {
        assert_eq!(
            open_devices("cuda:1").unwrap_err().to_string(),
            format!(
                "cuda:1 is not in this build, which has {}: build with the feature `cuda`",
                error::built()
            )
        );
    }
}
