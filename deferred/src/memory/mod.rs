//! Checks of the device and its memory, before anything is allocated.

mod group;

use burn::tensor::Device;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use tinderbox_fake::{DeviceLabel, is_host};

use crate::device::{free_bytes, uses_host_memory};
use crate::{MaterializeError, MemoryCheck, Request, Source, check_device};

/// Rejects requests to a device that does not exist, and requests whose values, with the working memory of the source,
/// do not fit into memory.
///
/// `before` are bytes that are allocated first, and freed before the values are computed.
///
/// The check does not include the temporary memory of operations, plain tensor fields, values that `Rng::Backend` draws and
/// discards, and memory that other processes allocate after the query.
pub(crate) fn check(
    requests: &[Request],
    source: &dyn Source,
    before: u64,
    check: MemoryCheck,
) -> Result<(), MaterializeError> {
    let Some(first) = requests.first() else {
        return Ok(());
    };
    check_device(&first.device)?;
    let values: u64 = requests.iter().map(Request::bytes).sum();
    let needed_bytes = before.max(values.saturating_add(source.working_bytes(requests)));
    match too_few_bytes(check, &first.device, needed_bytes) {
        None => Ok(()),
        Some(available_bytes) => Err(MaterializeError::Memory {
            device: DeviceLabel::of(&first.device).to_string(),
            parameters: requests.len(),
            needed_bytes,
            available_bytes,
        }),
    }
}

/// Returns the bytes that are available on a device, if a check is made and they are fewer than needed.
pub fn too_few_bytes(check: MemoryCheck, device: &Device, needed_bytes: u64) -> Option<u64> {
    let available_bytes = match check {
        MemoryCheck::Off => None,
        MemoryCheck::Bytes(bytes) => Some(bytes),
        MemoryCheck::Available => available_for(device, needed_bytes),
    };
    available_bytes.filter(|available| needed_bytes > *available)
}

/// Returns [`available_bytes`]. If they are fewer than needed, first frees the memory of the host that the process keeps
/// for reuse.
pub fn available_for(device: &Device, needed_bytes: u64) -> Option<u64> {
    let available = available_bytes(device)?;
    let enough = needed_bytes <= available || !is_host(device);
    match enough || !tinderbox_memory::release_freed_memory() {
        true => Some(available),
        false => available_bytes(device),
    }
}

/// Returns the bytes that this process can still allocate for tensors on a device; `None` if unknown.
pub fn available_bytes(device: &Device) -> Option<u64> {
    match uses_host_memory(device) {
        true => Some(host_bytes()),
        false => free_bytes(device),
    }
}

/// Returns the bytes that this process can still get from the machine.
fn host_bytes() -> u64 {
    let memory = MemoryRefreshKind::everything();
    let system = System::new_with_specifics(RefreshKind::nothing().with_memory(memory));
    let of_machine = system.available_memory() + system.free_swap();
    let limits = [group::available_bytes(), address_space_left()];
    limits.into_iter().flatten().fold(of_machine, u64::min)
}

/// Returns the bytes of memory that this process has now, including its program and mapped files; `None` if unknown. Only
/// Linux reports them, in a file.
pub fn process_bytes() -> Option<u64> {
    Some(first_number("/proc/self/status", "VmRSS:")? << 10)
}

/// Returns the maximum of [`process_bytes`] since the start of the process.
pub fn peak_process_bytes() -> Option<u64> {
    Some(first_number("/proc/self/status", "VmHWM:")? << 10)
}

/// Returns the remainder of the process' limit on its address space, if it has one. Only Linux reports it, in
/// files.
fn address_space_left() -> Option<u64> {
    let limit = first_number("/proc/self/limits", "Max address space")?;
    Some(limit.saturating_sub(first_number("/proc/self/status", "VmSize:")? << 10))
}

/// Returns the first number of a field of a file.
fn first_number(file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}
