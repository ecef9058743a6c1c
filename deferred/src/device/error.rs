//! Why a device can't be used.

use tinderbox_fake::DeviceLabel;

/// Why a device can't be used. Nothing was done there.
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
    /// The machine has no driver for the device, or the driver finds none.
    #[error(
        "{device} can't be used: there is no NVIDIA driver, or it finds no GPU (`nvidia-smi` must list one)"
    )]
    NoDriver {
        /// The device.
        device: DeviceLabel,
    },
    /// The machine has fewer of its kind.
    #[error("{device} can't be used: this machine has {available} of its kind, counted from 0")]
    NoSuchDevice {
        /// The device.
        device: DeviceLabel,
        /// How many of its kind there are.
        available: usize,
    },
    /// The driver does not load what kernels are compiled to.
    #[error(
        "{device} can't be used: its driver is for CUDA {}.{}, and CUDA {}.{} or newer is needed: install a newer driver",
        .found.0, .found.1, .oldest.0, .oldest.1
    )]
    OldDriver {
        /// The device.
        device: DeviceLabel,
        /// The CUDA release of the driver, as major and minor number.
        found: (i32, i32),
        /// The oldest that works.
        oldest: (i32, i32),
    },
}

/// The devices that this build has.
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
    fn what_is_missing_is_named() {
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
