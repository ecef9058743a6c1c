//! Errors of opening a device.

use tinderbox_fake::DeviceLabel;

/// An error of opening a device. The device was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Programs can't run on the device.
    #[error("programs can't run on {device}: this build runs them on {}", built())]
    NoPrograms {
        /// The device.
        device: String,
    },
    /// No device has this name.
    #[error(
        "there is no device `{name}`: devices are flex, cpu, cuda:0, and lists such as cuda:0,1"
    )]
    Unknown {
        /// The requested name.
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
        /// The feature that enables it.
        feature: &'static str,
    },
    /// There is no driver for the device, or the driver finds none.
    #[error(
        "{device} can't be used: there is no NVIDIA driver, or it finds no GPU (`nvidia-smi` must list one)"
    )]
    NoDriver {
        /// The device.
        device: DeviceLabel,
    },
    /// The machine has fewer devices of its kind.
    #[error("{device} can't be used: this machine has {available} of its kind, counted from 0")]
    NoSuchDevice {
        /// The device.
        device: DeviceLabel,
        /// The number of devices of its kind.
        available: usize,
    },
    /// The driver does not load the compiled kernels.
    #[error(
        "{device} can't be used: its driver is for CUDA {}.{}, and CUDA {}.{} or newer is needed: install a newer driver",
        .found.0, .found.1, .oldest.0, .oldest.1
    )]
    OldDriver {
        /// The device.
        device: DeviceLabel,
        /// The CUDA release of the driver, as major and minor number.
        found: (i32, i32),
        /// The oldest release that is supported.
        oldest: (i32, i32),
    },
}

/// The devices that this build supports.
pub(super) fn built() -> &'static str {
    match (cfg!(feature = "cuda"), cfg!(feature = "cpu")) {
        (true, true) => "flex, cuda and cpu",
        (true, false) => "flex and cuda",
        (false, true) => "flex and cpu",
        (false, false) => "flex",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_devices_are_named() {
        let device: DeviceLabel = "cuda:1".parse().unwrap();
        let old = DeviceError::OldDriver {
            device: device.clone(),
            found: (11, 8),
            oldest: (12, 0),
        };
        assert_eq!(
            old.to_string(),
            "cuda:1 can't be used: its driver is for CUDA 11.8, and CUDA 12.0 or newer is needed: install a newer driver"
        );
        let few = DeviceError::NoSuchDevice {
            device,
            available: 1,
        };
        assert_eq!(
            few.to_string(),
            "cuda:1 can't be used: this machine has 1 of its kind, counted from 0"
        );
    }
}
