//! Peak memory of this process.

use std::fs;

/// A measurement of the peak.
pub struct Peak {
    begun: u64,
}

impl Peak {
    /// Starts a measurement.
    pub fn begin() -> Self {
        // Resets the peak.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        Self {
            begun: status("VmRSS:"),
        }
    }

    /// Returns the peak in MiB above the value at the start.
    pub fn mib(&self) -> u64 {
        status("VmHWM:").saturating_sub(self.begun) >> 10
    }
}

/// Returns a line of the process's status, in KiB.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
