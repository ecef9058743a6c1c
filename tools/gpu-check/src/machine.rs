//! Description of the machine that the checks run on.

use std::time::{Duration, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use tinderbox::fake::DeviceLabel;

use crate::bench::Bench;

/// Returns names and values that describe the machine.
pub fn describe(bench: &Bench) -> Vec<(&'static str, String)> {
    let program = concat!("gpu-check ", env!("CARGO_PKG_VERSION"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut facts = vec![("program", program.to_owned())];
    facts.extend(bench.flags.commit.clone().map(|commit| ("commit", commit)));
    facts.push(("date (UTC)", date()));
    facts.push(("device", DeviceLabel::of(&bench.device).to_string()));
    facts.push(("CPU", format!("{} ({cores} threads)", cpu_model())));
    facts.extend(gpu::describe(bench));
    facts
}

/// Returns the used memory of the GPU in bytes, by all processes, as reported by its driver; `None` without
/// such a driver.
pub use gpu::used_bytes;

fn date() -> String {
    date_of(UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()))
}

/// Converts seconds since 1970 to a date.
fn date_of(seconds: u64) -> String {
    let time = format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
    time.split('T').next().unwrap_or_default().to_owned()
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(|| "unknown".into(), |(_, name)| name.trim().to_owned())
}

#[cfg(not(feature = "cuda"))]
mod gpu {
    use crate::bench::Bench;

    pub(super) fn describe(_: &Bench) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    pub fn used_bytes(_: &Bench) -> Option<u64> {
        None
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
    use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

    use crate::bench::{Bench, Runtime};

    /// Returns the card by its bus id, because the driver's own indices may differ.
    fn card<'a>(bench: &Bench, nvml: &'a Nvml) -> Option<Device<'a>> {
        if bench.flags.runtime != Runtime::Cuda {
            return None;
        }
        let identity = bench.device.identity();
        let address = identity.and_then(|identity| identity.physical?.pci_address);
        match address {
            Some(address) => nvml.device_by_pci_bus_id(address.to_string()).ok(),
            None => nvml.device_by_index(bench.flags.index as u32).ok(),
        }
    }

    /// Uses NVML or, if a container has no NVML, the driver.
    pub fn used_bytes(bench: &Bench) -> Option<u64> {
        if bench.flags.runtime != Runtime::Cuda {
            return None;
        }
        let by_nvml = || {
            let nvml = Nvml::init().ok()?;
            Some(card(bench, &nvml)?.memory_info().ok()?.used)
        };
        by_nvml().or_else(|| {
            let context = cudarc::driver::CudaContext::new(bench.flags.index).ok()?;
            let (free, total) = context.mem_get_info().ok()?;
            Some((total - free) as u64)
        })
    }

    pub(super) fn describe(bench: &Bench) -> Vec<(&'static str, String)> {
        let Ok(nvml) = Nvml::init() else {
            let instead = "not available: memory is as reported by the driver";
            return vec![("NVML", instead.into())];
        };
        let mut facts = Vec::new();
        let mut fact = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
        fact("driver", nvml.sys_driver_version().ok());
        let cuda = nvml.sys_cuda_driver_version().ok().map(|version| {
            let minor = cuda_driver_version_minor(version);
            format!("{}.{minor}", cuda_driver_version_major(version))
        });
        fact("CUDA of the driver", cuda);
        let Some(card) = card(bench, &nvml) else {
            return facts;
        };
        fact("GPU", card.name().ok());
        let capability = card.cuda_compute_capability().ok();
        let capability = capability.map(|found| format!("{}.{}", found.major, found.minor));
        fact("compute capability", capability);
        let memory = card.memory_info().ok().map(|memory| {
            let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
            let (total, free) = (gib(memory.total), gib(memory.free));
            format!("{total:.1} GiB, of which {free:.1} GiB are free")
        });
        fact("GPU memory", memory);
        let clock = |kind| {
            let (now, max) = (card.clock_info(kind).ok()?, card.max_clock_info(kind).ok()?);
            Some(format!("{now} of {max} MHz"))
        };
        let clocks = clock(Clock::SM).zip(clock(Clock::Memory));
        let clocks = clocks.map(|(sm, memory)| format!("SM {sm}, memory {memory}"));
        fact("clocks as found", clocks);
        let degrees = card.temperature(TemperatureSensor::Gpu).ok();
        let power = card.power_usage().ok().zip(degrees);
        let power = power.map(|(milliwatts, degrees)| {
            format!("{:.0} W, {degrees} °C", f64::from(milliwatts) / 1e3)
        });
        fact("power and temperature", power);
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        let known = [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_400, "2100-03-01"),
        ];
        for (seconds, date) in known {
            assert_eq!(date_of(seconds), date);
        }
    }
}
