//! The memory of this process at its highest.

use std::fs;

/// Begins to watch.
pub struct Peak {
    begun: u64,
}

impl Peak {
    /// From now on.
    pub fn begin() -> Self {
        // Forgets the peak so far.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        Self {
            begun: status("VmRSS:"),
        }
    }

    /// How many MiB more than at the beginning there were at some time.
    pub fn mib(&self) -> u64 {
        status("VmHWM:").saturating_sub(self.begun) >> 10
    }
}

/// A line of the process's status, in KiB.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
