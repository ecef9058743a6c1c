//! Checks of the device and its memory, before anything is allocated.

mod group;

use burn::tensor::Device;
use burn_dispatch::DispatchDevice;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use tinderbox_fake::{DeviceLabel, is_host};

use crate::{MaterializeError, MaterializeOptions, MemoryCheck, Request, Source, check_device};

/// Rejects requests to a device that does not exist, and those whose values, with the working memory of the source,
/// do not fit.
///
/// `before` are bytes that are allocated first, and freed before the values are computed.
pub(crate) fn check(
    requests: &[Request],
    source: &dyn Source,
    before: u64,
    options: &MaterializeOptions<'_>,
) -> Result<(), MaterializeError> {
    let Some(first) = requests.first() else {
        return Ok(());
    };
    check_device(&first.device)?;
    let values: u64 = requests.iter().map(Request::bytes).sum();
    let needed_bytes = before.max(values.saturating_add(source.working_bytes(requests)));
    let available_bytes = match options.memory {
        MemoryCheck::Off => return Ok(()),
        MemoryCheck::Bytes(bytes) => bytes,
        MemoryCheck::Available => match available_for(&first.device, needed_bytes) {
            Some(bytes) => bytes,
            None => return Ok(()),
        },
    };
    if needed_bytes > available_bytes {
        return Err(MaterializeError::Memory {
            device: DeviceLabel::of(&first.device).to_string(),
            parameters: requests.len(),
            needed_bytes,
            available_bytes,
        });
    }
    Ok(())
}

/// Returns [`available_bytes`]. If they are fewer than needed on the host, frees the memory that the process keeps for
/// reuse first.
pub fn available_for(device: &Device, needed_bytes: u64) -> Option<u64> {
    let available = available_bytes(device)?;
    let enough = needed_bytes <= available || !is_host(device);
    match enough || !tinderbox_pages::release_freed_memory() {
        true => Some(available),
        false => available_bytes(device),
    }
}

/// Returns the bytes that this process can still allocate for tensors on a device; `None` if unknown.
pub fn available_bytes(device: &Device) -> Option<u64> {
    match device.as_dispatch() {
        DispatchDevice::Flex(_) => host_bytes(),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(burn_cubecl::CubeDevice::Cpu(_)) => host_bytes(),
        #[cfg(feature = "cuda")]
        DispatchDevice::Cube(burn_cubecl::CubeDevice::Cuda(cuda)) => {
            // Memory that is kept for reuse only serves the thread that used it; freed, it is available to all.
            device.sync().ok()?;
            device.memory_cleanup();
            crate::device::driver::free_bytes(cuda.index)
        }
        _ => None,
    }
}

/// Returns the bytes that this process can still get from the machine.
fn host_bytes() -> Option<u64> {
    let memory = MemoryRefreshKind::everything();
    let system = System::new_with_specifics(RefreshKind::nothing().with_memory(memory));
    let mut available = system.available_memory() + system.free_swap();
    if let Some(left) = group::available_bytes() {
        available = available.min(left);
    }
    Some(available.min(address_space_left().unwrap_or(u64::MAX)))
}

/// Returns the bytes of memory that this process has now, the bytes of its program and of mapped files among them; `None` if
/// unknown. Only Linux reports them, in a file.
pub fn process_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kib_of(&status, "VmRSS:")
}

/// Returns the maximum of [`process_bytes`] since the process has begun.
pub fn peak_process_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kib_of(&status, "VmHWM:")
}

/// Returns the bytes on a line of the process' status.
fn kib_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Returns the remainder of the process' limit on its address space, if it has one. Only Linux reports it, in
/// files.
fn address_space_left() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let limit = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = limit.split_whitespace().next()?.parse().ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(limit.saturating_sub(kib_of(&status, "VmSize:")?))
}
